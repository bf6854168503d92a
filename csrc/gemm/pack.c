/* Weights in the order in which products read them. */
#include <math.h>
#include <string.h>

#include "gemm/tiles.h"
#include "parallel.h"

#define LEAST_BLOCKS 4 /* of outputs: fewer are not worth a thread */

/* What belongs to each output is padded to whole blocks. */
static int64_t transduce_padded(int64_t outputs)
{
    return num_blocks(outputs) * COLUMNS;
}

static int64_t transduce_packed_bytes(int64_t outputs, int64_t inputs, int is_int8)
{
    return num_blocks(outputs) * num_groups(inputs, is_int8) * step_bytes(is_int8);
}

/* Where a block's weights begin. */
static char *first_weight(void *packed, int64_t output, int64_t inputs, int is_int8)
{
    return (char *)packed +
           output / COLUMNS * num_groups(inputs, is_int8) * step_bytes(is_int8);
}

/* Weights to be packed, and where to. */
typedef struct {
    const float *weight; /* [outputs, inputs] */
    int64_t outputs, inputs;
    void *packed;
    float *scales, *sums; /* of each output, if they become 8 bits */
} Packing;

static void pack_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packing *p = shared;
    for (int64_t block = first; block < end; block++) {
        const int64_t output = block * COLUMNS, left = p->outputs - output;
        const int64_t count = left < COLUMNS ? left : COLUMNS;
        const float *from = p->weight + output * p->inputs;
        float *to = (float *)first_weight(p->packed, output, p->inputs, 0);
        for (int64_t i = 0; i < p->inputs; i++, to += COLUMNS) {
            for (int64_t column = 0; column < count; column++)
                to[column] = from[column * p->inputs + i];
            for (int64_t column = count; column < COLUMNS; column++)
                to[column] = 0.0f;
        }
    }
}

/* As they are. */
static void transduce_pack(const float *weight, int64_t outputs, int64_t inputs,
                           float *packed, int num_threads)
{
    Packing p = {weight, outputs, inputs, packed, NULL, NULL};
    parallel_for(pack_blocks, &p, num_blocks(outputs), LEAST_BLOCKS, num_threads);
}

/* Where the weight of an input stands, from the first of an output's block on: half of
   the block's outputs after the other, and of each as many inputs as are added to its
   sum at once. */
static int64_t place_of_int8(int64_t output, int64_t input)
{
    const int64_t half = output % COLUMNS / LANES, lane = output % LANES;
    const int64_t of_group = input % INT8_GROUP;
    return input / INT8_GROUP * step_bytes(1) + half * (step_bytes(1) / 2) +
           of_group / NUMBERS_ADDED * (LANES * NUMBERS_ADDED) + lane * NUMBERS_ADDED +
           of_group % NUMBERS_ADDED;
}

static float largest_weight(const float *row, int64_t inputs)
{
    float most = 1e-8f;
    for (int64_t i = 0; i < inputs; i++)
        most = fmaxf(most, fabsf(row[i]));
    return most;
}

/* The largest sum of weights of one sign whose products are added up in 16 bits: of the
   first two, or the last two, of one four and the next. */
static double largest_sum(const float *row, int64_t inputs)
{
    double most = 1e-8;
    for (int64_t first = 0; first < inputs; first += first % 4 ? 6 : 2) {
        double above = 0, below = 0;
        for (int64_t i = 0; i < 4; i++) {
            const int64_t input = first + i % 2 + i / 2 * NUMBERS_ADDED;
            const double weight = input < inputs ? row[input] : 0;
            above += fmax(weight, 0);
            below -= fmin(weight, 0);
        }
        most = fmax(most, fmax(above, below));
    }
    return most;
}

/* What one stands for. Times 255, a sum of up to 128 is in 16 bits; two of it are for
   rounding. */
static float scale_of(const float *row, int64_t inputs)
{
    return SUMS_IN_16_BITS ? (float)(largest_sum(row, inputs) / 126.0)
                           : largest_weight(row, inputs) / 127.0f;
}

static void pack_outputs(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packing *p = shared;
    for (int64_t output = first; output < end; output++) {
        const float *row = p->weight + output * p->inputs;
        char *to = first_weight(p->packed, output, p->inputs, 1);
        const float scale = scale_of(row, p->inputs);
        int64_t sum = 0, is_nan = 0;
        for (int64_t i = 0; i < p->inputs; i++) {
            const float steps = row[i] / scale;
            const int is_number = isfinite(steps) != 0;
            long number = is_number ? lrintf(steps) : 0;
            is_nan |= !is_number;
            to[place_of_int8(output, i)] = (char)number;
            sum += number;
        }
        p->scales[output] = is_nan ? NAN : scale;
        p->sums[output] = (float)sum * p->scales[output];
    }
}

/* Rounded to 8 bits; `packed`, `scales` and `sums` are zero, and padded. */
static void transduce_pack_int8(const float *weight, int64_t outputs, int64_t inputs,
                                int8_t *packed, float *scales, float *sums,
                                int num_threads)
{
    Packing p = {weight, outputs, inputs, packed, scales, sums};
    parallel_for(pack_outputs, &p, outputs, LEAST_BLOCKS * COLUMNS, num_threads);
}
