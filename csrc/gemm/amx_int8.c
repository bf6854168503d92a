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

/* As the compiler does not know what the unit reads. */
static inline void write_all(void) { __asm__ volatile("" ::: "memory"); }

/* Two tiles of rows at most times a block of outputs, and where their sums stand. */
typedef struct {
    int64_t row, count, output;
    Sums *sums;
} Region;

/* Weights that are fetched ahead, so many bytes with each 64 inputs. */
typedef struct {
    const uint8_t *next, *end;
    int64_t bytes;
} Fetching;

static inline void fetch(Fetching *ahead)
{
    const uint8_t *until = ahead->end - ahead->next < ahead->bytes
                               ? ahead->end
                               : ahead->next + ahead->bytes;
    prefetch(ahead->next, until - ahead->next);
    ahead->next = until;
}

/* Put out what has been summed up in so many of a region's rows, from one on. */
static inline __attribute__((always_inline)) void
put_out(const Product *product, const Region *region, int64_t first, int64_t rows)
{
    const int64_t left = region->count - first, count = left < rows ? left : rows;
    if (count <= 0)
        return;
    const vec *sums = (const vec *)(region->sums->numbers + first);
    write_results(product, 1, sums, region->row + first, count, region->output);
}

/* Minus infinity is what stands behind the last output. */
static inline OutputVectors none_behind(OutputVectors of, int64_t left)
{
    of.bias = vec_select(vec_first(left), of.bias, vec_set1(-INFINITY));
    return of;
}

/* So that 2 to the power of a number is its exponential. */
static inline OutputVectors as_powers(OutputVectors of)
{
    const vec per_log2 = vec_set1(PER_LOG2);
    return (OutputVectors){of.bias * per_log2, of.scales * per_log2,
                           of.sums * per_log2};
}

/* Sum up the exponentials of two registers; whether one may be among the best. */
static inline int glimpse(Glimpse *of, vec one, vec other)
{
    const vec offsets = vec_set1(of->offset);
    of->sums += vec_exp2(one - offsets) + vec_exp2(other - offsets);
    return vec_gt_bits(vec_max(one, other), vec_set1(of->threshold)) != 0;
}

/* Let them be seen. */
static inline __attribute__((always_inline)) void see_sums(const Product *product,
                                                           const Watch *watch,
                                                           const Region *region,
                                                           int64_t first, int64_t rows)
{
    const int64_t last = first + rows < region->count ? first + rows : region->count;
    const int64_t output = region->output, left = product->linear->outputs - output;
    const OutputVectors of_one =
        none_behind(load_outputs(product->linear, 1, output), left);
    const OutputVectors of_two =
        none_behind(load_outputs(product->linear, 1, output + LANES), left - LANES);
    const OutputVectors power_one = as_powers(of_one), power_two = as_powers(of_two);
    const QuantizedRows x = *product->x;
    for (int64_t i = first; i < last; i++) {
        const int64_t row = region->row + i;
        const vec *sums = (const vec *)(region->sums->numbers + i);
        if (glimpse(watch->glimpses + row, dequantize(&x, 1, sums[0], row, &power_one),
                    dequantize(&x, 1, sums[1], row, &power_two)))
            insert_fused(watch->asked, watch->seeing, watch->glimpses, row,
                         dequantize(&x, 1, sums[0], row, &of_one),
                         dequantize(&x, 1, sums[1], row, &of_two),
                         output + watch->first);
    }
}

/* What becomes of the sums; whether they are watched is a literal where it is called.
 */
static inline __attribute__((always_inline)) void
take_out(const Product *product, const Watch *watch, const Region *region,
         int64_t first, int64_t rows, const int are_watched)
{
    if (are_watched)
        see_sums(product, watch, region, first, rows);
    else
        put_out(product, region, first, rows);
}

static inline __attribute__((always_inline)) USES_AMX void keep_sums(Sums *sums,
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

/* Sum up a region while the one before it is put out, some rows of it with each 64
   inputs, so that the unit need not wait. Tiles 0 to 3 have the sums, 4 and 5 the rows,
   6 and 7 the weights. Whether there are two tiles of rows is a literal where it is
   called. */
static inline __attribute__((always_inline)) USES_AMX void
sum_up_tiles(const Product *product, const Watch *watch, const Region *region,
             const int are_two, const Region *before, Fetching *ahead,
             const int are_watched)
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
        fetch(ahead);
        take_out(product, watch, before, done, at_once, are_watched);
        weights += AMX_ROW_BYTES / INT8_GROUP * step;
    }
    keep_sums(region->sums, are_two);
}

/* All rows times a block, while the one after it is fetched, if there is one. The sums
   of the last region are still to be put out, as those before the first were. */
static inline __attribute__((always_inline)) USES_AMX void
multiply_amx_block(const Product *product, const Watch *watch, int64_t block,
                   int is_last, Region *before, Sums sums[2], const int are_watched)
{
    const int64_t rows = product->x->rows, most = 2 * AMX_ROWS;
    const int64_t bytes = num_groups(product->linear->inputs, 1) * step_bytes(1);
    const int64_t regions = (rows + most - 1) / most;
    const uint8_t *next =
        (const uint8_t *)product->linear->packed + (block + 1) * bytes;
    /* As much with each region, so that memory is always busy. */
    const int64_t share = AMX_ROW_BYTES * BLOCK_OUTPUTS / regions;
    Fetching ahead = {next, is_last ? next : next + bytes,
                      (share + LINE - 1) / LINE * LINE};
    for (int64_t row = 0; row < rows; row += most) {
        const int64_t left = rows - row;
        Region region = {row, left < most ? left : most, block * BLOCK_OUTPUTS,
                         before->sums == sums ? sums + 1 : sums};
        if (region.count > AMX_ROWS)
            sum_up_tiles(product, watch, &region, 1, before, &ahead, are_watched);
        else
            sum_up_tiles(product, watch, &region, 0, before, &ahead, are_watched);
        *before = region;
    }
}

static inline __attribute__((always_inline)) USES_AMX void
multiply_amx_blocks(const Product *product, const Watch *watch, int64_t first,
                    int64_t end, const int are_watched)
{
    Sums sums[2];
    Region before = {.count = 0};
    write_all();
    _tile_loadconfig(&amx_full_tiles);
    for (int64_t block = first; block < end; block++)
        multiply_amx_block(product, watch, block, block + 1 == end, &before, sums,
                           are_watched);
    take_out(product, watch, &before, 0, before.count, are_watched);
    _tile_release();
}

TD_INTERNAL USES_AMX void amx_multiply(const Product *product, int64_t first,
                                       int64_t end)
{
    multiply_amx_blocks(product, NULL, first, end, 0);
}

TD_INTERNAL USES_AMX void amx_watch(const Product *product, const Watch *watch,
                                    int64_t first, int64_t end)
{
    multiply_amx_blocks(product, watch, first, end, 1);
}

#else

TD_INTERNAL void amx_multiply(const Product *product, int64_t first, int64_t end)
{
    (void)product, (void)first, (void)end;
}

TD_INTERNAL void amx_watch(const Product *product, const Watch *watch, int64_t first,
                           int64_t end)
{
    (void)product, (void)watch, (void)first, (void)end;
}

#endif
