/* Matrix products, tile by tile. */
#include "linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "threads.h"
#include "tiles.h"

#define LINE 64                   /* bytes of the processor's cache */
#define LEAST_SHARED (128 * 1024) /* weights, below which one thread is faster */

typedef struct {
    const Linear *linear;
    const Rows *x;
    float *y;
    int is_rectified;
} Product;

/* What the sums of a row's products are, in the lanes from an output on. */
static inline Lanes numbers_of(const Product *product, const int is_int8, Lanes sums,
                               int64_t row, int64_t output)
{
    const Linear *linear = product->linear;
    const Lanes bias = lanes_at(linear->bias + output);
    if (!is_int8)
        return sums + bias;
    const Lanes weights = lanes_at(linear->sums + output);
    const Lanes rest = lanes_fma(lanes_of(product->x->lowest[row]), weights, bias);
    const Lanes scale =
        lanes_at(linear->scales + output) * lanes_of(product->x->scales[row]);
    return lanes_fma(lanes_of_sums(sums), scale, rest);
}

/* Put out the sums of a tile's rows, every second of them: those of half of its
   outputs, from one on. */
static inline __attribute__((always_inline)) void finish(const Product *product,
                                                         const int is_int8,
                                                         const Lanes *sums, int64_t row,
                                                         int64_t count, int64_t output)
{
    const int64_t outputs = product->linear->outputs;
    const Lanes least = lanes_of(product->is_rectified ? 0.0f : -INFINITY);
    float *to = product->y + row * outputs + output;
    for (int64_t i = 0; i < count; i++, to += outputs) {
        Lanes numbers = numbers_of(product, is_int8, sums[2 * i], row + i, output);
        /* In this order, NaN stays NaN. */
        lanes_store(to, outputs - output, lanes_max(least, numbers));
    }
}

/* Weights of as many outputs as there are lanes. */
static inline Lanes load_weights(const int is_int8, const uint8_t *from)
{
    return is_int8 ? load_int8_weights((const int8_t *)from)
                   : lanes_at((const float *)from);
}

/* To each sum, the products of its output's weights with a row's group of numbers. */
static inline Lanes add_products(const int is_int8, Lanes sums, const uint8_t *group,
                                 Lanes weights)
{
    if (is_int8) {
        int32_t numbers;
        memcpy(&numbers, group, sizeof numbers);
        return add_int8_products(sums, numbers, weights);
    }
    float number;
    memcpy(&number, group, sizeof number);
    return lanes_fma(lanes_of(number), weights, sums);
}

/* Sums in variables of their own: those in arrays would not stay in registers. */
#define EACH_ROW(DO)                                                                   \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) Lanes left##i = zero, right##i = zero;
#define SUM_UP(i)                                                                      \
    if (i < count) {                                                                   \
        left##i = add_products(is_int8, left##i, numbers + i * GROUP_BYTES, first);    \
        right##i = add_products(is_int8, right##i, numbers + i * GROUP_BYTES, second); \
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
    const int64_t step = step_bytes(is_int8), ahead = groups * step;
    const uint8_t *weights = (const uint8_t *)product->linear->packed + block * ahead;
    const uint8_t *numbers = product->x->numbers + row * product->x->stride;
    const Lanes zero = lanes_of(0.0f);
    EACH_ROW(START)
#pragma GCC unroll UNROLLED
    for (int64_t i = 0; i < groups; i++) {
        const Lanes first = load_weights(is_int8, weights);
        const Lanes second = load_weights(is_int8, weights + step / 2);
        /* What the next block has here. */
        if (count > 1 && i * step % LINE == 0)
            for (int64_t at = 0; at < step; at += LINE)
                _mm_prefetch((const char *)weights + ahead + at, _MM_HINT_T1);
        EACH_ROW(SUM_UP)
        weights += step;
        numbers += count * GROUP_BYTES;
    }
    Lanes sums[2 * ROWS];
    EACH_ROW(KEEP)
    const int64_t output = block * COLUMNS;
    finish(product, is_int8, sums, row, count, output);
    if (product->linear->outputs > output + LANES)
        finish(product, is_int8, sums + 1, row, count, output + LANES);
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
    for (int64_t block = first; block < end; block++)
        if (product->linear->scales)
            multiply_int8_block(product, block);
        else
            multiply_block(product, block);
}

void multiply(const Linear *linear, const Rows *x, float *y, int is_rectified,
              int num_threads)
{
    Product product = {linear, x, y, is_rectified};
    const int is_large = linear->outputs * linear->inputs >= LEAST_SHARED;
    share_out(multiply_blocks, &product, num_blocks(linear->outputs), 1,
              is_large ? num_threads : 1);
}

/* y = x W^T + b in one call; 1 if memory is lacking, otherwise 0. */
EXPORTED int transduce_linear(const Linear *linear, const float *x, int64_t rows,
                              float *y, int num_threads)
{
    int64_t stride = row_bytes(linear->inputs);
    uint8_t *room = malloc((size_t)(rows * (stride + 2 * (int64_t)sizeof(float))));
    if (!room)
        return 1;
    float *scales = (float *)(room + rows * stride);
    Rows arranged = {rows, stride, room, scales, scales + rows};
    arrange_rows(linear, x, rows, &arranged, num_threads);
    multiply(linear, &arranged, y, 0, num_threads);
    free(room);
    return 0;
}
