/* Products of bytes by AMX: an instruction multiplies sixteen rows by sixteen outputs
 * over 64 inputs. */
#include "gemm/amx_int8.h"

#include "gemm/amx.h"
#include "gemm/tiles.h"
#include "simd/prefetch.h"
#include "transduce.h"

#define MIN_AMX_ROWS 8 /* with fewer, loading the tiles costs as much as it saves */

TD_INTERNAL int64_t amx_row_bytes(int64_t inputs)
{
    /* One cache line more than needed: rows a power of two apart would fall into a few
     * sets of the cache. Whole tiles of MIN_AMX_ROWS rows or more fit in the buffer,
     * which has packed_activation_bytes() for each row. */
    return inputs + AMX_ROW_BYTES;
}

#if LANES == 16 && defined(__has_include)
/* The headers of GCC and of Clang. */
#if __has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_AMX_INTRINSICS
#endif
#endif

#ifdef HAS_AMX_INTRINSICS

TD_INTERNAL int suits_amx(const Linear *linear, int64_t rows)
{
    return linear->scales && rows >= MIN_AMX_ROWS &&
           linear->inputs % AMX_ROW_BYTES == 0 && td_has_amx_int8();
}

#define USES_AMX __attribute__((target("amx-tile,amx-int8")))

/* Sums of two tiles of rows times two halves of a block of outputs. */
typedef struct {
    int32_t numbers[2 * AMX_ROWS][BLOCK_OUTPUTS];
} __attribute__((aligned(64))) Int32Sums;

/* Up to two tiles of rows by a block of outputs, and where their sums are stored. */
typedef struct {
    int64_t row, count, output; /* first row, number of rows, first output */
    Int32Sums *sums;
} Int8Region;

/* Weights still to be prefetched, and the bytes to prefetch with each tile. */
typedef struct {
    const uint8_t *next, *end;
    int64_t bytes;
} WeightPrefetch;

static inline void prefetch_weights(WeightPrefetch *ahead)
{
    const int64_t bytes = min_i64(ahead->bytes, ahead->end - ahead->next);
    prefetch(ahead->next, bytes);
    ahead->next += bytes;
}

/* Write the results of `rows` rows of a region, from its row `first` on. */
static inline __attribute__((always_inline)) void write_region(const Product *product,
                                                               const Int8Region *region,
                                                               int64_t first,
                                                               int64_t rows)
{
    const int64_t count = min_i64(region->count - first, rows);
    if (count <= 0)
        return;
    const vec *sums = (const vec *)(region->sums->numbers + first);
    write_results(product, 1, sums, region->row + first, count, region->output);
}

/* Give outputs past the last a bias of minus infinity, so that none is found. */
static inline OutputVectors mask_padding(OutputVectors outputs, int64_t left)
{
    outputs.bias = vec_select(vec_mask_first(left), outputs.bias, vec_set1(-INFINITY));
    return outputs;
}

/* Multiply by log2(e), so that results are logits to base 2: 2^(x log2(e)) = e^x. */
static inline OutputVectors to_base_2(OutputVectors outputs)
{
    const vec log2_e = vec_set1(LOG2_E);
    return (OutputVectors){outputs.bias * log2_e, outputs.scales * log2_e,
                           outputs.weight_sums * log2_e};
}

/* Add the exponentials of two registers of logits to base 2 to a row's sums. Returns
 * whether one of the logits is above the row's threshold. */
static inline int add_fused(FusedSoftmax *row, vec first, vec second)
{
    const vec offsets = vec_set1(row->offset);
    row->sums += vec_exp2(first - offsets) + vec_exp2(second - offsets);
    return vec_gt_bits(vec_max(first, second), vec_set1(row->threshold)) != 0;
}

/* Search the results of `rows` rows of a region, from its row `first` on. */
static inline __attribute__((always_inline)) void
search_region(const Product *product, const LogitSink *sink, const Int8Region *region,
              int64_t first, int64_t rows)
{
    const int64_t end = min_i64(first + rows, region->count);
    const int64_t output = region->output, left = product->linear->outputs - output;
    const OutputVectors low =
        mask_padding(load_outputs(product->linear, 1, output), left);
    const OutputVectors high =
        mask_padding(load_outputs(product->linear, 1, output + LANES), left - LANES);
    const OutputVectors low_base_2 = to_base_2(low);
    const OutputVectors high_base_2 = to_base_2(high);
    const PackedActivations x = *product->x;
    for (int64_t i = first; i < end; i++) {
        const int64_t row = region->row + i;
        const vec *sums = (const vec *)(region->sums->numbers + i);
        if (add_fused(sink->rows + row, dequantize(&x, 1, sums[0], row, &low_base_2),
                      dequantize(&x, 1, sums[1], row, &high_base_2)))
            insert_fused(sink->query, sink->workspace, sink->rows, row,
                         dequantize(&x, 1, sums[0], row, &low),
                         dequantize(&x, 1, sums[1], row, &high),
                         output + sink->first_token);
    }
}

/* Search results if there is a sink, or write them. Where there is none, callers pass a
 * literal NULL. */
static inline __attribute__((always_inline)) void
finish_region(const Product *product, const LogitSink *sink, const Int8Region *region,
              int64_t first, int64_t rows)
{
    if (sink)
        search_region(product, sink, region, first, rows);
    else
        write_region(product, region, first, rows);
}

static inline __attribute__((always_inline)) USES_AMX void
store_int32_sums(Int32Sums *sums, const int are_two)
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

/* Compute the sums of a region. Meanwhile finish the results of the region before it, a
 * few rows with each tile, so that vector instructions and AMX work side by side.
 *
 *                   tile 6: outputs 0-15 | tile 7: outputs 16-31
 *   tile 4: rows 0-15        sums: tile 0 | tile 1
 *   tile 5: rows 16-31       sums: tile 2 | tile 3
 *
 * `are_two`, whether there are two tiles of rows, is a literal at each call. */
static inline __attribute__((always_inline)) USES_AMX void
sum_region(const Product *product, const LogitSink *sink, const Int8Region *region,
           const int are_two, const Int8Region *pending, WeightPrefetch *ahead)
{
    const int64_t stride = product->x->stride, step = step_bytes(1);
    const int64_t inputs = product->linear->inputs;
    /* Rows to finish with each tile, so that all are finished with the last. */
    const int64_t share = ceil_div(2 * AMX_ROWS * AMX_ROW_BYTES, inputs);
    const uint8_t *numbers = product->x->data + region->row * stride;
    const uint8_t *weights =
        (const uint8_t *)product->linear->packed +
        region->output / BLOCK_OUTPUTS * num_groups(inputs, 1) * step;
    _tile_zero(0);
    _tile_zero(1);
    if (are_two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0, done = 0; i < inputs; i += AMX_ROW_BYTES, done += share) {
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
        prefetch_weights(ahead);
        finish_region(product, sink, pending, done, share);
        weights += AMX_ROW_BYTES / INT8_GROUP * step;
    }
    store_int32_sums(region->sums, are_two);
}

/* Multiply all rows by a block, and prefetch the next one unless this is the last.
 * `pending` is the region whose results are still to be finished: on return, the last
 * region of this block. */
static inline __attribute__((always_inline)) USES_AMX void
amx_multiply_block(const Product *product, const LogitSink *sink, int64_t block,
                   int is_last, Int8Region *pending, Int32Sums sums[2])
{
    const int64_t rows = product->x->rows, region_rows = 2 * AMX_ROWS;
    const int64_t bytes = num_groups(product->linear->inputs, 1) * step_bytes(1);
    const int64_t regions = ceil_div(rows, region_rows);
    const uint8_t *next =
        (const uint8_t *)product->linear->packed + (block + 1) * bytes;
    /* The same share with each region, so that RAM is always busy. */
    const int64_t share = AMX_ROW_BYTES * BLOCK_OUTPUTS / regions;
    WeightPrefetch ahead = {next, is_last ? next : next + bytes,
                            round_up(share, CACHE_LINE)};
    for (int64_t row = 0; row < rows; row += region_rows) {
        Int8Region region = {row, min_i64(rows - row, region_rows),
                             block * BLOCK_OUTPUTS,
                             pending->sums == sums ? sums + 1 : sums};
        if (region.count > AMX_ROWS)
            sum_region(product, sink, &region, 1, pending, &ahead);
        else
            sum_region(product, sink, &region, 0, pending, &ahead);
        *pending = region;
    }
}

static inline __attribute__((always_inline)) USES_AMX void
amx_multiply_blocks(const Product *product, const LogitSink *sink, int64_t first,
                    int64_t end)
{
    Int32Sums sums[2];
    Int8Region pending = {.count = 0, .sums = sums + 1};
    complete_writes();
    _tile_loadconfig(&amx_full_tiles);
    for (int64_t block = first; block < end; block++)
        amx_multiply_block(product, sink, block, block + 1 == end, &pending, sums);
    finish_region(product, sink, &pending, 0, pending.count);
    _tile_release();
}

TD_INTERNAL USES_AMX void amx_multiply(const Product *product, int64_t first,
                                       int64_t end)
{
    amx_multiply_blocks(product, NULL, first, end);
}

TD_INTERNAL USES_AMX void amx_search(const Product *product, const LogitSink *sink)
{
    const LogitSink copy = *sink; /* lets the compiler drop the tests for NULL */
    amx_multiply_blocks(product, &copy, 0, num_blocks(product->linear->outputs));
}

#else

TD_INTERNAL int suits_amx(const Linear *linear, int64_t rows)
{
    (void)linear, (void)rows;
    return 0;
}

TD_INTERNAL void amx_multiply(const Product *product, int64_t first, int64_t end)
{
    (void)product, (void)first, (void)end;
}

TD_INTERNAL void amx_search(const Product *product, const LogitSink *sink)
{
    (void)product, (void)sink;
}

#endif
