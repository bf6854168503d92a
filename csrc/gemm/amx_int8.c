/* Products of bytes by AMX: sixteen rows times sixteen outputs, 64 inputs at once. */
#include "gemm/amx_int8.h"

#include "gemm/amx.h"
#include "gemm/tiles.h"
#include "simd/prefetch.h"
#include "transduce.h"

#define MIN_AMX_ROWS 8 /* below, filling the tiles costs what they gain */

TD_INTERNAL int suits_amx(const Linear *linear, int64_t rows)
{
    return linear->scales && rows >= MIN_AMX_ROWS &&
           linear->inputs % AMX_ROW_BYTES == 0 && td_has_amx_int8();
}

TD_INTERNAL int64_t amx_row_bytes(int64_t inputs)
{
    /* One line more, because a power of two would leave most of a cache unused. With at
     * least MIN_AMX_ROWS rows, whole tiles fit in quantized_row_bytes() for each row.
     */
    return inputs + AMX_ROW_BYTES;
}

#if LANES == 16 && defined(__has_include)
/* As GCC and clang name it. */
#if __has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_AMX_INTRINSICS
#endif
#endif

#ifdef HAS_AMX_INTRINSICS

#define USES_AMX __attribute__((target("amx-tile,amx-int8")))

/* Sums of two tiles of rows times two halves of a block of outputs. */
typedef struct {
    int32_t numbers[2 * AMX_ROWS][BLOCK_OUTPUTS];
} __attribute__((aligned(64))) Sums;

/* Have the compiler write all memory, as it does not know what tiles are loaded from.
 */
static inline void write_all_memory(void) { __asm__ volatile("" ::: "memory"); }

/* Up to two tiles of rows times a block of outputs, and where their sums are stored. */
typedef struct {
    int64_t row, count, output;
    Sums *sums;
} Region;

/* Weights that are prefetched, `bytes` at a time. */
typedef struct {
    const uint8_t *next, *end;
    int64_t bytes;
} Prefetching;

static inline void prefetch_more(Prefetching *ahead)
{
    const uint8_t *until = ahead->end - ahead->next < ahead->bytes
                               ? ahead->end
                               : ahead->next + ahead->bytes;
    prefetch(ahead->next, until - ahead->next);
    ahead->next = until;
}

/* Write the results of rows `first` to `first + rows` of a region. */
static inline __attribute__((always_inline)) void
write_region(const Product *product, const Region *region, int64_t first, int64_t rows)
{
    const int64_t left = region->count - first, count = left < rows ? left : rows;
    if (count <= 0)
        return;
    const vec *sums = (const vec *)(region->sums->numbers + first);
    write_results(product, 1, sums, region->row + first, count, region->output);
}

/* Give outputs behind the last a bias of minus infinity, so none is among the best. */
static inline OutputVectors without_padding(OutputVectors outputs, int64_t left)
{
    outputs.bias = vec_select(vec_first(left), outputs.bias, vec_set1(-INFINITY));
    return outputs;
}

/* Divide all by ln 2, so that 2 to the power of a result is its exponential. */
static inline OutputVectors over_log2(OutputVectors outputs)
{
    const vec per_log2 = vec_set1(PER_LOG2);
    return (OutputVectors){outputs.bias * per_log2, outputs.scales * per_log2,
                           outputs.sums * per_log2};
}

/* Add the exponentials of two registers of logits / ln 2; whether one of the logits may
 * be among the best. */
static inline int add_fused(FusedSoftmax *row, vec first, vec second)
{
    const vec offsets = vec_set1(row->offset);
    row->sums += vec_exp2(first - offsets) + vec_exp2(second - offsets);
    return vec_gt_bits(vec_max(first, second), vec_set1(row->threshold)) != 0;
}

/* Search the results of rows `first` to `first + rows` of a region. */
static inline __attribute__((always_inline)) void
search_region(const Product *product, const LogitSink *sink, const Region *region,
              int64_t first, int64_t rows)
{
    const int64_t end = first + rows < region->count ? first + rows : region->count;
    const int64_t output = region->output, left = product->linear->outputs - output;
    const OutputVectors low =
        without_padding(load_outputs(product->linear, 1, output), left);
    const OutputVectors high =
        without_padding(load_outputs(product->linear, 1, output + LANES), left - LANES);
    const OutputVectors low_over_log2 = over_log2(low),
                        high_over_log2 = over_log2(high);
    const QuantizedRows x = *product->x;
    for (int64_t i = first; i < end; i++) {
        const int64_t row = region->row + i;
        const vec *sums = (const vec *)(region->sums->numbers + i);
        if (add_fused(sink->rows + row, dequantize(&x, 1, sums[0], row, &low_over_log2),
                      dequantize(&x, 1, sums[1], row, &high_over_log2)))
            insert_fused(sink->query, sink->workspace, sink->rows, row,
                         dequantize(&x, 1, sums[0], row, &low),
                         dequantize(&x, 1, sums[1], row, &high),
                         output + sink->first_token);
    }
}

/* Write results, or search them if there is a sink, which is a literal NULL elsewhere.
 */
static inline __attribute__((always_inline)) void
finish_region(const Product *product, const LogitSink *sink, const Region *region,
              int64_t first, int64_t rows)
{
    if (sink)
        search_region(product, sink, region, first, rows);
    else
        write_region(product, region, first, rows);
}

static inline __attribute__((always_inline)) USES_AMX void store_sums(Sums *sums,
                                                                      const int are_two)
{
    int32_t *first = sums->numbers[0], *second = sums->numbers[AMX_ROWS];
    const int64_t stride = sizeof sums->numbers[0];
    _tile_stored(0, first, stride);
    _tile_stored(1, first + LANES, stride);
    if (are_two) {
        _tile_stored(2, second, stride);
        _tile_stored(3, second + LANES, stride);
    }
}

/* Sum up a region while the one before it is finished, some rows of it with each 64
 * inputs, so that AMX does not wait. Tiles 0 to 3 have the sums, 4 and 5 the rows, 6
 * and 7 the weights. `are_two` tells whether there are two tiles of rows; callers pass
 * literals. */
static inline __attribute__((always_inline)) USES_AMX void
sum_up_tiles(const Product *product, const LogitSink *sink, const Region *region,
             const int are_two, const Region *before, Prefetching *ahead)
{
    const int64_t stride = product->x->stride, step = step_bytes(1);
    const int64_t inputs = product->linear->inputs;
    const int64_t at_once = (2 * AMX_ROWS * AMX_ROW_BYTES + inputs - 1) / inputs;
    const uint8_t *numbers = product->x->numbers + region->row * stride;
    const uint8_t *weights =
        (const uint8_t *)product->linear->packed +
        region->output / BLOCK_OUTPUTS * num_groups(inputs, 1) * step;
    _tile_zero(0);
    _tile_zero(1);
    if (are_two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0, done = 0; i < inputs; i += AMX_ROW_BYTES, done += at_once) {
        _tile_loadd(6, weights, step);
        _tile_loadd(7, weights + step / 2, step);
        _tile_loadd(4, numbers + i, stride);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (are_two) {
            _tile_loadd(5, numbers + AMX_ROWS * stride + i, stride);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
        prefetch_more(ahead);
        finish_region(product, sink, before, done, at_once);
        weights += AMX_ROW_BYTES / INT8_GROUP * step;
    }
    store_sums(region->sums, are_two);
}

/* Multiply all rows by a block while the next one is prefetched, if there is one. The
 * last region is left to be finished, as that before the first was. */
static inline __attribute__((always_inline)) USES_AMX void
multiply_amx_block(const Product *product, const LogitSink *sink, int64_t block,
                   int is_last, Region *before, Sums sums[2])
{
    const int64_t rows = product->x->rows, most = 2 * AMX_ROWS;
    const int64_t bytes = num_groups(product->linear->inputs, 1) * step_bytes(1);
    const int64_t regions = (rows + most - 1) / most;
    const uint8_t *next =
        (const uint8_t *)product->linear->packed + (block + 1) * bytes;
    /* As much with each region, so that memory is never idle. */
    const int64_t share = AMX_ROW_BYTES * BLOCK_OUTPUTS / regions;
    Prefetching ahead = {next, is_last ? next : next + bytes,
                         (share + LINE - 1) / LINE * LINE};
    for (int64_t row = 0; row < rows; row += most) {
        const int64_t left = rows - row;
        Region region = {row, left < most ? left : most, block * BLOCK_OUTPUTS,
                         before->sums == sums ? sums + 1 : sums};
        if (region.count > AMX_ROWS)
            sum_up_tiles(product, sink, &region, 1, before, &ahead);
        else
            sum_up_tiles(product, sink, &region, 0, before, &ahead);
        *before = region;
    }
}

static inline __attribute__((always_inline)) USES_AMX void
multiply_amx_blocks(const Product *product, const LogitSink *sink, int64_t first,
                    int64_t end)
{
    Sums sums[2];
    Region before = {.count = 0, .sums = sums + 1};
    write_all_memory();
    _tile_loadconfig(&amx_full_tiles);
    for (int64_t block = first; block < end; block++)
        multiply_amx_block(product, sink, block, block + 1 == end, &before, sums);
    finish_region(product, sink, &before, 0, before.count);
    _tile_release();
}

TD_INTERNAL USES_AMX void amx_multiply(const Product *product, int64_t first,
                                       int64_t end)
{
    multiply_amx_blocks(product, NULL, first, end);
}

TD_INTERNAL USES_AMX void amx_search(const Product *product, const LogitSink *sink)
{
    const LogitSink copy = *sink; /* which the compiler knows not to be NULL */
    multiply_amx_blocks(product, &copy, 0, num_blocks(product->linear->outputs));
}

#else

TD_INTERNAL void amx_multiply(const Product *product, int64_t first, int64_t end)
{
    (void)product, (void)first, (void)end;
}

TD_INTERNAL void amx_search(const Product *product, const LogitSink *sink)
{
    (void)product, (void)sink;
}

#endif
