/* Matrix products, tile by tile. */
#include "gemm/linear.h"
#include "isa/name.h"

#include <stdlib.h>
#include <string.h>

#include "gemm/amx_int8.h"
#include "gemm/product.h"
#include "gemm/tiles.h"
#include "parallel.h"
#include "simd/prefetch.h"

#define LEAST_SHARED (128 * 1024) /* weights, below which one thread is faster */

/* To each sum, the products of its output's weights with a row's group of numbers. */
static inline vec add_products(const int is_int8, vec sums, const uint8_t *group,
                               const uint8_t *weights)
{
    if (is_int8)
        return vec_dot_int8(sums, group, weights);
    float number;
    memcpy(&number, group, sizeof number);
    return vec_fma(vec_set1(number), vec_load((const float *)weights), sums);
}

/* Sums in variables of their own: those in arrays would not stay in registers. */
#define EACH_ROW(DO)                                                                   \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) vec left##i = zero, right##i = zero;
#define SUM_UP(i)                                                                      \
    if (i < count) {                                                                   \
        left##i = add_products(is_int8, left##i, numbers + i * group, weights);        \
        right##i =                                                                     \
            add_products(is_int8, right##i, numbers + i * group, weights + step / 2);  \
    }
#define KEEP(i)                                                                        \
    if (i < count) {                                                                   \
        sums[2 * i] = left##i;                                                         \
        sums[2 * i + 1] = right##i;                                                    \
    }

/* `count` rows from one on times the outputs of a block. The kind of numbers and the
   count are literals where it is called. */
static inline __attribute__((always_inline)) void tile(const Product *product,
                                                       const int is_int8, int64_t row,
                                                       const int count, int64_t block)
{
    const int64_t groups = num_groups(product->linear->inputs, is_int8);
    const int64_t step = step_bytes(is_int8), bytes = groups * step;
    const int64_t group = group_bytes(is_int8);
    const uint8_t *weights = (const uint8_t *)product->linear->packed + block * bytes;
    /* Behind the last there may be no memory, which is asked for slowly. */
    const int is_last = block + 1 == num_blocks(product->linear->outputs);
    const int64_t ahead = is_last ? 0 : bytes;
    const uint8_t *numbers = product->x->numbers + row * product->x->stride;
    const vec zero = vec_set1(0.0f);
    EACH_ROW(START)
#pragma GCC unroll UNROLLED
    for (int64_t i = 0; i < groups; i++) {
        /* What the next block has here. */
        if (count > 1 && i * step % LINE == 0)
            prefetch(weights + ahead, step);
        EACH_ROW(SUM_UP)
        weights += step;
        numbers += count * group;
    }
    vec sums[2 * ROWS];
    EACH_ROW(KEEP)
    finish(product, is_int8, sums, row, count, block * COLUMNS);
}

static inline __attribute__((always_inline)) void
rows_of_tile(const Product *product, const int is_int8, int64_t row, int64_t block)
{
#define CASE(number)                                                                   \
    case number:                                                                       \
        tile(product, is_int8, row, number, block);                                    \
        break
    switch (tile_rows(row, product->x->rows)) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
#if ROWS > 6
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
#endif
    default:
        tile(product, is_int8, row, ROWS, block);
    }
#undef CASE
}

/* One for each kind of numbers, which is a literal in all that it is made of. */
static void multiply_block(const Product *product, int64_t block)
{
    for (int64_t row = 0; row < product->x->rows; row += ROWS)
        rows_of_tile(product, 0, row, block);
}

static void multiply_int8_block(const Product *product, int64_t block)
{
    for (int64_t row = 0; row < product->x->rows; row += ROWS)
        rows_of_tile(product, 1, row, block);
}

static void multiply_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    const Product *product = shared;
    (void)worker;
    if (product->x->are_for_unit) {
        multiply_in_unit(product, first, end);
        return;
    }
    for (int64_t block = first; block < end; block++)
        if (product->linear->scales)
            multiply_int8_block(product, block);
        else
            multiply_block(product, block);
}

TD_INTERNAL Linear some_outputs(const Linear *linear, int64_t first, int64_t count)
{
    const int is_int8 = linear->scales != NULL;
    const int64_t bytes = num_groups(linear->inputs, is_int8) * step_bytes(is_int8);
    Linear some = *linear;
    some.outputs = count;
    some.packed = (const uint8_t *)linear->packed + first / COLUMNS * bytes;
    some.bias += first;
    if (is_int8) {
        some.scales += first;
        some.sums += first;
    }
    return some;
}

TD_INTERNAL int64_t spread(int64_t width)
{
    const int64_t line = LINE / (int64_t)sizeof(float);
    return ((width + line - 1) / line | 1) * line;
}

TD_INTERNAL void multiply(const Linear *linear, const Rows *x, const Matrix *y,
                          int is_rectified, int num_threads)
{
    Product product = {linear, x, y, is_rectified};
    const int is_large = linear->outputs * linear->inputs >= LEAST_SHARED;
    parallel_for(multiply_blocks, &product, num_blocks(linear->outputs), 1,
                 is_large ? num_threads : 1);
}

/* y = x W^T + b in one call; 1 if memory is lacking, otherwise 0. */
static int transduce_linear(const Linear *linear, float *x, int64_t rows, float *y,
                            int num_threads)
{
    const int64_t stride = row_bytes(linear->inputs);
    const int64_t bytes = rows * (stride + 2 * (int64_t)sizeof(float));
    uint8_t *room = aligned_alloc(LINE, (size_t)(bytes / LINE * LINE + LINE));
    if (!room)
        return 1;
    float *scales = (float *)(room + rows * stride);
    Rows arranged = {.numbers = room, .scales = scales, .lowest = scales + rows};
    const Matrix from = {x, linear->inputs}, into = {y, linear->outputs};
    arrange_rows(linear, &from, rows, &arranged, num_threads);
    multiply(linear, &arranged, &into, 0, num_threads);
    free(room);
    return 0;
}
