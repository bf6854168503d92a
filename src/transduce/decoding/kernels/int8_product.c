/* Matrix products of 8-bit numbers: packing, rounding, multiplying. */
#include "int8_product.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "lanes.h"

#define COLUMNS (2 * LANES)         /* outputs of a tile: two registers */
#define ROWS (LANES == 16 ? 12 : 6) /* of a tile: twice as many registers of sums */
#define GROUP_BYTES 4 /* of a row's numbers, whose products one instruction sums up */
#define GROUP (GROUP_BYTES / NUMBER_BYTES)
#define LINE 64           /* bytes of the processor's cache */
#define TASK (64 / LANES) /* tiles' widths of outputs that a thread takes at a time */
#define LEAST_SHARED (128 * 1024) /* weights, below which one thread is faster */

static int64_t groups(int64_t inputs) { return (inputs + GROUP - 1) / GROUP; }

int64_t quantized_stride(int64_t inputs)
{
    return (inputs + LANES - 1) / LANES * LANES * NUMBER_BYTES;
}

/* Of PyTorch's own OpenMP, whose threads are there anyway; NULL if it is another's. */
static void (*run_in_threads)(void (*)(void *), void *, unsigned, unsigned);

EXPORTED void transduce_use_threads(void *gomp_parallel)
{
    *(void **)&run_in_threads = gomp_parallel;
}

/* What belongs to each output is padded to whole tiles. */
EXPORTED int64_t transduce_padded(int64_t outputs)
{
    return (outputs + COLUMNS - 1) / COLUMNS * COLUMNS;
}

EXPORTED int64_t transduce_packed_bytes(int64_t outputs, int64_t inputs)
{
    return transduce_padded(outputs) * groups(inputs) * GROUP;
}

/* Round weights to 8 bits; `packed`, `scales` and `sums` are zero, and padded. */
EXPORTED void transduce_pack(const float *weight, int64_t outputs, int64_t inputs,
                             int8_t *packed, float *scales, float *sums)
{
    for (int64_t output = 0; output < outputs; output++) {
        const float *row = weight + output * inputs;
        float largest = 1e-8f;
        for (int64_t i = 0; i < inputs; i++)
            largest = fmaxf(largest, fabsf(row[i]));
        float scale = largest / 127.0f;
        int64_t sum = 0, is_nan = 0;
        int8_t *block = packed + output / COLUMNS * groups(inputs) * COLUMNS * GROUP;
        for (int64_t i = 0; i < inputs; i++) {
            is_nan |= isnan(row[i]) != 0;
            long number = isnan(row[i]) ? 0 : lrintf(row[i] / scale);
            block[(i / GROUP * COLUMNS + output % COLUMNS) * GROUP + i % GROUP] =
                (int8_t)number;
            sum += number;
        }
        scales[output] = is_nan ? NAN : scale;
        sums[output] = (float)sum * scales[output];
    }
}

/* The lowest number of a row, NaN if there is one in it, and the 255th part of its
   range. */
static void measure_row(const float *x, int64_t inputs, float *lowest, float *scale)
{
    Lanes low = lanes_of(INFINITY), high = lanes_of(-INFINITY);
    uint32_t nan = 0;
    for (int64_t i = 0; i < inputs; i += LANES) {
        const Mask there = first_lanes(inputs - i);
        const Lanes value = lanes_load(there, x + i);
        low = lanes_where(there, lanes_min(low, value), low);
        high = lanes_where(there, lanes_max(high, value), high);
        nan |= lanes_nan(value);
    }
    float least = lowest_lane(low), most = highest_lane(high);
    *scale = most > least ? (most - least) / 255.0f : 1.0f;
    *lowest = nan ? NAN : least;
}

static inline void store_group(uint8_t *numbers, __m128i bytes)
{
    int32_t four = _mm_cvtsi128_si32(bytes);
    memcpy(numbers, &four, GROUP_BYTES);
}

/* Round a row of a tile of `count`: a group of each row after one. */
static void round_row(const float *x, int64_t inputs, float lowest, float scale,
                      int64_t count, uint8_t *numbers)
{
    const Lanes offset = lanes_of(lowest), per_step = lanes_of(1.0f / scale);
    const int64_t apart = GROUP_BYTES * count;
    for (int64_t i = 0; i < inputs; i += LANES, numbers += 4 * apart) {
        /* What is behind the last is multiplied by weights of zero. */
        const Lanes value = lanes_load(first_lanes(inputs - i), x + i);
        const __m128i bytes = lanes_to_numbers((value - offset) * per_step);
        store_group(numbers, bytes);
        store_group(numbers + apart, _mm_bsrli_si128(bytes, 4));
        store_group(numbers + 2 * apart, _mm_bsrli_si128(bytes, 8));
        store_group(numbers + 3 * apart, _mm_bsrli_si128(bytes, 12));
    }
}

/* Rows of the tile that a row belongs to. */
static int64_t tile_rows(int64_t row, int64_t rows)
{
    int64_t first = row / ROWS * ROWS;
    return rows - first < ROWS ? rows - first : ROWS;
}

void quantize(const float *x, int64_t rows, int64_t inputs, Quantized *into)
{
    into->rows = rows;
    into->stride = quantized_stride(inputs);
    for (int64_t row = 0; row < rows; row++) {
        const float *of_row = x + row * inputs;
        uint8_t *tile = into->numbers + row / ROWS * ROWS * into->stride;
        measure_row(of_row, inputs, into->lowest + row, into->scales + row);
        round_row(of_row, inputs, into->lowest[row], into->scales[row],
                  tile_rows(row, rows), tile + row % ROWS * GROUP_BYTES);
    }
}

/* The sums of a tile's rows, every second of them, as numbers in half of its columns,
   from one on. */
static void finish(const Sums *sums, const Linear *linear, const Quantized *x,
                   int64_t row, int64_t count, int64_t column, float *y,
                   int is_rectified)
{
    const Lanes scales = lanes_at(linear->scales + column);
    const Lanes weights = lanes_at(linear->sums + column);
    const Lanes bias = lanes_at(linear->bias + column);
    const Lanes least = lanes_of(is_rectified ? 0.0f : -INFINITY);
    float *out = y + row * linear->outputs + column;
    for (int64_t i = 0; i < count; i++, out += linear->outputs) {
        Lanes scale = scales * lanes_of(x->scales[row + i]);
        Lanes rest = lanes_fma(lanes_of(x->lowest[row + i]), weights, bias);
        Lanes number = lanes_fma(lanes_of_sums(sums[2 * i]), scale, rest);
        /* In this order, NaN stays NaN. */
        lanes_store(out, linear->outputs - column, lanes_max(least, number));
    }
}

/* Sums in variables of their own: those in arrays would not stay in registers. */
#define EACH_ROW(DO)                                                                   \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) Sums left##i = no_sums(), right##i = no_sums();
#define SUM_UP(i)                                                                      \
    if (i < count) {                                                                   \
        int32_t group;                                                                 \
        memcpy(&group, numbers + i * GROUP_BYTES, GROUP_BYTES);                        \
        left##i = sum_products(left##i, group, first);                                 \
        right##i = sum_products(right##i, group, second);                              \
    }
#define KEEP(i)                                                                        \
    if (i < count) {                                                                   \
        sums[2 * i] = left##i;                                                         \
        sums[2 * i + 1] = right##i;                                                    \
    }

/* `count` rows from one on times the outputs of a block; the count is a literal where
   it is called. */
static inline __attribute__((always_inline)) void tile(const Linear *linear,
                                                       const Quantized *x, int64_t row,
                                                       const int count, int64_t block,
                                                       float *y, int is_rectified)
{
    const int64_t num_groups = groups(linear->inputs);
    const int8_t *weight = linear->packed + block * num_groups * COLUMNS * GROUP;
    const uint8_t *numbers = x->numbers + row * x->stride;
    const int64_t ahead = num_groups * COLUMNS * GROUP;
    EACH_ROW(START)
#pragma GCC unroll UNROLLED
    for (int64_t i = 0; i < num_groups; i++) {
        const Weights first = load_weights(weight);
        const Weights second = load_weights(weight + LANES * GROUP);
        /* What the next block has here. */
        if (count > 1 && i * COLUMNS * GROUP % LINE == 0)
            for (int64_t at = 0; at < COLUMNS * GROUP; at += LINE)
                _mm_prefetch(weight + ahead + at, _MM_HINT_T1);
        EACH_ROW(SUM_UP)
        weight += COLUMNS * GROUP;
        numbers += count * GROUP_BYTES;
    }
    Sums sums[2 * ROWS];
    EACH_ROW(KEEP)
    const int64_t column = block * COLUMNS;
    finish(sums, linear, x, row, count, column, y, is_rectified);
    if (linear->outputs > column + LANES)
        finish(sums + 1, linear, x, row, count, column + LANES, y, is_rectified);
}

static void rows_of_tile(const Linear *linear, const Quantized *x, int64_t row,
                         int64_t count, int64_t block, float *y, int is_rectified)
{
#define CASE(number)                                                                   \
    case number:                                                                       \
        tile(linear, x, row, number, block, y, is_rectified);                          \
        break
    switch (count) {
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
        tile(linear, x, row, ROWS, block, y, is_rectified);
    }
#undef CASE
}

typedef struct {
    const Linear *linear;
    const Quantized *x;
    float *y;
    int is_rectified;
    _Atomic int64_t next; /* block of outputs that nobody has taken */
} Product;

static void multiply_share(void *shared)
{
    Product *product = shared;
    const int64_t blocks = (product->linear->outputs + COLUMNS - 1) / COLUMNS;
    for (;;) {
        int64_t first = atomic_fetch_add(&product->next, TASK);
        if (first >= blocks)
            return;
        int64_t end = first + TASK < blocks ? first + TASK : blocks;
        for (int64_t block = first; block < end; block++)
            for (int64_t row = 0; row < product->x->rows; row += ROWS)
                rows_of_tile(product->linear, product->x, row,
                             tile_rows(row, product->x->rows), block, product->y,
                             product->is_rectified);
    }
}

void multiply(const Linear *linear, const Quantized *x, float *y, int is_rectified,
              int num_threads)
{
    Product product = {linear, x, y, is_rectified, 0};
    int is_large = linear->outputs * linear->inputs >= LEAST_SHARED;
    if (num_threads > 1 && is_large && run_in_threads)
        run_in_threads(multiply_share, &product, (unsigned)num_threads, 0);
    else
        multiply_share(&product);
}

/* y = x W^T + b in one call; 1 if memory is lacking, otherwise 0. */
EXPORTED int transduce_linear(const Linear *linear, const float *x, int64_t rows,
                              float *y, int num_threads)
{
    int64_t stride = quantized_stride(linear->inputs);
    uint8_t *room = malloc((size_t)(rows * (stride + 2 * (int64_t)sizeof(float))));
    if (!room)
        return 1;
    float *scales = (float *)(room + rows * stride);
    Quantized quantized = {rows, stride, room, scales, scales + rows};
    quantize(x, rows, linear->inputs, &quantized);
    multiply(linear, &quantized, y, 0, num_threads);
    free(room);
    return 0;
}
