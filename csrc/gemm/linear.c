/* Matrix products, tile by tile, and the handles of linear maps. */
#include "gemm/linear.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "checks.h"
#include "gemm/amx_int8.h"
#include "gemm/pack.h"
#include "gemm/product.h"
#include "gemm/tiles.h"
#include "parallel.h"
#include "simd/prefetch.h"
#include "transduce.h"

#define MIN_SHARED_WEIGHTS (128 * 1024) /* with fewer, one thread is faster */

/* Add the products of a row's group and its outputs' weights to their sums. */
static inline vec add_products(const int is_int8, vec sums, const uint8_t *group,
                               const uint8_t *weights)
{
    if (is_int8)
        return vec_dot_int8(sums, group, weights);
    float number;
    memcpy(&number, group, sizeof number);
    return vec_fma(vec_set1(number), vec_load((const float *)weights), sums);
}

_Static_assert(LINEAR_TILE_ROWS <= 12, "EACH_ROW has enough rows");

/* Each row has the sums of the first and of the last LANES outputs of a block. */
#define START_SUMS(i) vec left##i = zero, right##i = zero;
#define ADD_PRODUCTS(i)                                                                \
    if (i < count) {                                                                   \
        left##i = add_products(is_int8, left##i, numbers + i * group, weights);        \
        right##i =                                                                     \
            add_products(is_int8, right##i, numbers + i * group, weights + step / 2);  \
    }
/* The constant condition tells compilers that no write is past the end of `sums`. */
#define STORE_SUMS(i)                                                                  \
    if (i < LINEAR_TILE_ROWS && i < count) {                                           \
        sums[2 * i] = left##i;                                                         \
        sums[2 * i + 1] = right##i;                                                    \
    }

/* Multiply `count` rows of a tile, from its row number `first` on, by a block of
 * outputs. The tile has `rows` rows and begins with row `row` of x. All but `row` and
 * `block` are literals at each call. */
static inline __attribute__((always_inline)) void
multiply_rows(const Product *product, const int is_int8, int64_t row, const int rows,
              const int first, const int count, int64_t block)
{
    const int64_t groups = num_groups(product->linear->inputs, is_int8);
    const int64_t step = step_bytes(is_int8), bytes = groups * step;
    const int64_t group = group_bytes(is_int8);
    const uint8_t *weights = (const uint8_t *)product->linear->packed + block * bytes;
    /* Prefetching unmapped addresses past the last block would be slow. */
    const int is_last = block + 1 == num_blocks(product->linear->outputs);
    const int64_t ahead = is_last ? 0 : bytes;
    const uint8_t *numbers =
        product->x->data + row * product->x->stride + first * group;
    const vec zero = vec_set1(0.0f);
    EACH_ROW(START_SUMS)
#pragma GCC unroll UNROLLED
    for (int64_t i = 0; i < groups; i++) {
        /* Prefetch the same step of the next block. */
        if (rows > 1 && first == 0 && i * step % CACHE_LINE == 0)
            prefetch(weights + ahead, step);
        EACH_ROW(ADD_PRODUCTS)
        weights += step;
        numbers += rows * group;
    }
    vec sums[2 * LINEAR_TILE_ROWS];
    EACH_ROW(STORE_SUMS)
    write_results(product, is_int8, sums, row + first, count, block * BLOCK_OUTPUTS);
}

/* Multiply a tile of `rows` rows by a block of outputs. `is_int8` and `rows` are
 * literals at each call. */
static inline __attribute__((always_inline)) void
multiply_tile(const Product *product, const int is_int8, int64_t row, const int rows,
              int64_t block)
{
    /* Sums in 16 bits take registers too: with more rows, the compiler would keep the
     * sums in memory. */
    const int at_once = is_int8 && SUMS_IN_16_BITS && rows > 3 ? 3 : rows;
    multiply_rows(product, is_int8, row, rows, 0, at_once, block);
    if (rows > at_once)
        multiply_rows(product, is_int8, row, rows, at_once, rows - at_once, block);
}

static inline __attribute__((always_inline)) void
multiply_any_tile(const Product *product, const int is_int8, int64_t row, int64_t block)
{
#define CASE(number)                                                                   \
    case number:                                                                       \
        multiply_tile(product, is_int8, row, number, block);                           \
        break
    switch (tile_rows(row, product->x->rows)) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
#if LANES == 16
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
#endif
    default:
        multiply_tile(product, is_int8, row, LINEAR_TILE_ROWS, block);
    }
#undef CASE
}

/* One function for each precision, so that it is a literal in multiply_tile. */
static void multiply_fp32_block(const Product *product, int64_t block)
{
    for (int64_t row = 0; row < product->x->rows; row += LINEAR_TILE_ROWS)
        multiply_any_tile(product, 0, row, block);
}

static void multiply_int8_block(const Product *product, int64_t block)
{
    for (int64_t row = 0; row < product->x->rows; row += LINEAR_TILE_ROWS)
        multiply_any_tile(product, 1, row, block);
}

static void multiply_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    const Product *product = shared;
    (void)worker;
    if (product->x->for_amx) {
        amx_multiply(product, first, end);
        return;
    }
    for (int64_t block = first; block < end; block++)
        if (product->linear->scales)
            multiply_int8_block(product, block);
        else
            multiply_fp32_block(product, block);
}

TD_INTERNAL Linear slice_outputs(const Linear *linear, int64_t first, int64_t count)
{
    const int is_int8 = linear->scales != NULL;
    Linear slice = *linear;
    slice.outputs = count;
    slice.packed = (const uint8_t *)linear->packed +
                   first / BLOCK_OUTPUTS * block_bytes(linear->inputs, is_int8);
    slice.bias += first;
    if (is_int8) {
        slice.scales += first;
        slice.weight_sums += first;
    }
    return slice;
}

TD_INTERNAL int64_t padded_stride(int64_t width)
{
    return (ceil_div(width, CACHE_LINE_FLOATS) | 1) * CACHE_LINE_FLOATS;
}

TD_INTERNAL void multiply(const Linear *linear, const PackedActivations *x,
                          const Matrix *y, int relu, int num_threads)
{
    Product product = {linear, x, y, relu};
    const int is_large = linear->outputs * linear->inputs >= MIN_SHARED_WEIGHTS;
    parallel_for(multiply_blocks, &product, num_blocks(linear->outputs), 1,
                 is_large ? num_threads : 1);
}

struct td_linear {
    Linear map;
};

static td_status linear_new(const float *weight, const float *bias, int64_t outputs,
                            int64_t inputs, td_precision precision, int num_threads,
                            td_linear **linear)
{
    if (!linear)
        return TD_BAD_ARGUMENT;
    *linear = NULL;
    if (!weight || !is_between(outputs, 1, MAX_WIDTH) ||
        !is_between(inputs, 1, MAX_WIDTH) || !is_precision(precision) ||
        !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    td_linear *made = calloc(1, sizeof *made);
    if (!made)
        return TD_OUT_OF_MEMORY;
    const Weights weights = {
        .outputs = outputs, .weight = weight, .bias = bias, .factor = 1.0f};
    const td_status status =
        pack_linear(&weights, 1, inputs, precision, num_threads, &made->map);
    if (status != TD_OK) {
        free(made);
        return status;
    }
    *linear = made;
    return TD_OK;
}

static td_status linear_apply(const td_linear *linear, const float *x, int64_t rows,
                              float *y, int num_threads)
{
    if (!linear || !is_between(rows, 0, MAX_ROWS) || is_missing(x, rows) ||
        is_missing(y, rows) || !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    const Linear *map = &linear->map;
    const int64_t stride = packed_activation_bytes(map->inputs);
    const int64_t bytes = rows * (stride + 2 * (int64_t)sizeof(float));
    uint8_t *workspace = allocate_lines((double)bytes);
    if (!workspace)
        return TD_OUT_OF_MEMORY;
    float *scales = (float *)(workspace + rows * stride);
    PackedActivations packed = {
        .data = workspace, .scales = scales, .min = scales + rows};
    const Matrix from = {(float *)x, map->inputs}, into = {y, map->outputs};
    pack_activations(map, &from, rows, &packed, num_threads);
    multiply(map, &packed, &into, 0, num_threads);
    free(workspace);
    return TD_OK;
}

static td_status linear_scales(const td_linear *linear, float *scales)
{
    if (!linear || !scales || !linear->map.scales)
        return TD_BAD_ARGUMENT;
    memcpy(scales, linear->map.scales, (size_t)linear->map.outputs * sizeof *scales);
    return TD_OK;
}

static void linear_free(td_linear *linear)
{
    if (linear)
        free_linear(&linear->map);
    free(linear);
}
