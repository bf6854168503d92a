/* Packing of weights in the layout of gemm/tiles.h. */
#include "gemm/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define MIN_BLOCKS 4 /* of outputs, in a part of parallel_for */

#define MAX_INT8 127.0f /* largest rounded weight */
/* Largest sum of rounded weights whose products are added in 16 bits. 255 * 128 fits;
 * rounding may add 2 to a sum. */
#define MAX_INT16_SUM 126.0
#define MIN_MAX_WEIGHT 1e-8 /* keeps scales above zero */

typedef struct {
    const float *weight; /* [outputs, inputs] */
    int64_t outputs, inputs;
    char *packed;
    float *scales, *sums; /* of each output, in int8 */
} Packing;

static void pack_fp32_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packing *p = shared;
    for (int64_t block = first; block < end; block++) {
        const int64_t output = block * BLOCK_OUTPUTS;
        const int64_t count = min_i64(p->outputs - output, BLOCK_OUTPUTS);
        const float *from = p->weight + output * p->inputs;
        float *to = (float *)(p->packed + block * block_bytes(p->inputs, 0));
        for (int64_t i = 0; i < p->inputs; i++, to += BLOCK_OUTPUTS) {
            for (int64_t column = 0; column < count; column++)
                to[column] = from[column * p->inputs + i];
            for (int64_t column = count; column < BLOCK_OUTPUTS; column++)
                to[column] = 0.0f;
        }
    }
}

/* Bytes from the beginning of an output's block to the weight of an input. */
static int64_t int8_offset(int64_t output, int64_t input)
{
    const int64_t half = output % BLOCK_OUTPUTS / LANES, lane = output % LANES;
    const int64_t in_group = input % INT8_GROUP;
    return input / INT8_GROUP * step_bytes(1) + half * (step_bytes(1) / 2) +
           in_group / DOT_INPUTS * (LANES * DOT_INPUTS) + lane * DOT_INPUTS +
           in_group % DOT_INPUTS;
}

static float max_weight(const float *row, int64_t inputs)
{
    float max = (float)MIN_MAX_WEIGHT;
    for (int64_t i = 0; i < inputs; i++)
        max = fmaxf(max, fabsf(row[i]));
    return max;
}

/* Largest sum of weights of one sign whose products are added in 16 bits: those of the
 * first two, or the last two, inputs of a group of four and of the next group. */
static double max_int16_sum(const float *row, int64_t inputs)
{
    double max = MIN_MAX_WEIGHT;
    for (int64_t first = 0; first < inputs; first += first % DOT_INPUTS ? 6 : 2) {
        double above = 0, below = 0;
        for (int64_t i = 0; i < 4; i++) {
            const int64_t input = first + i % 2 + i / 2 * DOT_INPUTS;
            const double weight = input < inputs ? row[input] : 0;
            above += fmax(weight, 0);
            below -= fmin(weight, 0);
        }
        max = fmax(max, fmax(above, below));
    }
    return max;
}

/* Scale of an output's rounded weights. */
static float int8_scale(const float *row, int64_t inputs)
{
    return SUMS_IN_16_BITS ? (float)(max_int16_sum(row, inputs) / MAX_INT16_SUM)
                           : max_weight(row, inputs) / MAX_INT8;
}

static void pack_int8_outputs(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packing *p = shared;
    for (int64_t output = first; output < end; output++) {
        const float *row = p->weight + output * p->inputs;
        char *to = p->packed + output / BLOCK_OUTPUTS * block_bytes(p->inputs, 1);
        const float scale = int8_scale(row, p->inputs);
        int64_t sum = 0, is_nan = 0;
        for (int64_t i = 0; i < p->inputs; i++) {
            const float steps = row[i] / scale;
            const int is_number = isfinite(steps) != 0;
            const long number = is_number ? lrintf(steps) : 0;
            is_nan |= !is_number;
            to[int8_offset(output, i)] = (char)number;
            sum += number;
        }
        p->scales[output] = is_nan ? NAN : scale;
        p->sums[output] = (float)sum * p->scales[output];
    }
}

TD_INTERNAL td_status pack_linear(const float *weight, const float *bias,
                                  int64_t outputs, int64_t inputs,
                                  td_precision precision, int num_threads, Linear *into)
{
    const int is_int8 = precision == TD_INT8;
    const size_t bytes = (size_t)(num_blocks(outputs) * block_bytes(inputs, is_int8));
    const int64_t padded = num_blocks(outputs) * BLOCK_OUTPUTS;
    /* Weights in whole cache lines, then scales and sums in int8, then the bias. */
    const size_t vectors = (size_t)(padded * (is_int8 ? 3 : 1)) * sizeof(float);
    char *packed = allocate_lines((double)bytes + (double)vectors);
    if (!packed)
        return TD_OUT_OF_MEMORY;
    float *vector = (float *)(packed + bytes);
    memset(vector, 0, vectors);
    Packing packing = {weight, outputs, inputs, packed, vector, vector + padded};
    *into = (Linear){.outputs = outputs, .inputs = inputs, .packed = packed};
    if (is_int8) {
        memset(packed, 0, bytes);
        into->scales = packing.scales;
        into->sums = packing.sums;
        vector += 2 * padded;
        parallel_for(pack_int8_outputs, &packing, outputs, MIN_BLOCKS * BLOCK_OUTPUTS,
                     num_threads);
    } else {
        parallel_for(pack_fp32_blocks, &packing, num_blocks(outputs), MIN_BLOCKS,
                     num_threads);
    }
    if (bias)
        memcpy(vector, bias, (size_t)outputs * sizeof *bias);
    into->bias = vector;
    return TD_OK;
}

TD_INTERNAL void free_linear(Linear *linear)
{
    free((void *)linear->packed);
    *linear = (Linear){0};
}
