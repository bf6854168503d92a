/* Packing of weights in the layout of gemm/tiles.h. */
#include "gemm/pack.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "gemm/quantize.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define MIN_BLOCKS 4 /* of outputs, in a part of parallel_for */

/* Limits of the sum of the absolute weights of one sign whose products with bytes are
 * added in one integer. In 16 bits, bytes up to 255 allow a sum of 128, and rounding
 * the weights again may add 2. INT32_MAX / 256 suffices in 32 bits, for bytes up to 255
 * as for bytes from -128 to 127; rounding again may double a sum, so round_for_sums()
 * aims at half of it. */
#define MAX_INT16_SUM 126
#define MAX_INT32_SUM (INT32_MAX / 256)

typedef struct {
    const Weights *parts;
    int num_parts;
    int64_t outputs, inputs;
    LinearBuffers to;
    int8_t *rows;      /* [workers, row_bytes] rounded weights of an output */
    int64_t row_bytes; /* whole groups of inputs */
} Packing;

/* Return the part that has an output, and the number of the output in it. */
static const Weights *part_of(const Packing *p, int64_t output, int64_t *number)
{
    const Weights *part = p->parts;
    while (output >= part->outputs)
        output -= part++->outputs;
    *number = output;
    return part;
}

static void pack_fp32_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packing *p = shared;
    for (int64_t block = first; block < end; block++) {
        const int64_t output = block * BLOCK_OUTPUTS;
        const int64_t count = min_i64(p->outputs - output, BLOCK_OUTPUTS);
        const float *from[BLOCK_OUTPUTS];
        float factors[BLOCK_OUTPUTS];
        for (int64_t column = 0; column < count; column++) {
            int64_t number;
            const Weights *part = part_of(p, output + column, &number);
            from[column] = part->weight + number * p->inputs;
            factors[column] = part->factor;
        }
        float *to = (float *)(p->to.packed + block * block_bytes(p->inputs, 0));
        for (int64_t i = 0; i < p->inputs; i++, to += BLOCK_OUTPUTS) {
            for (int64_t column = 0; column < count; column++)
                to[column] = from[column][i] * factors[column];
            for (int64_t column = count; column < BLOCK_OUTPUTS; column++)
                to[column] = 0.0f;
        }
    }
}

/* Largest sum of absolute values of one sign whose products vec_dot_int8() adds in 16
 * bits: of each eight inputs, numbers 0, 1, 4 and 5, and numbers 2, 3, 6 and 7. */
static int64_t max_int16_sum(const int8_t *row, int64_t inputs)
{
    int64_t max = 0;
    for (int64_t first = 0; first < inputs; first += 2 * DOT_INPUTS)
        for (int64_t pair = first; pair < first + DOT_INPUTS; pair += 2) {
            int64_t above = 0, below = 0;
            for (int64_t i = 0; i < 4; i++) {
                const int64_t input = pair + i % 2 + i / 2 * DOT_INPUTS;
                const int64_t value = input < inputs ? row[input] : 0;
                above += max_i64(value, 0);
                below -= min_i64(value, 0);
            }
            max = max_i64(max, max_i64(above, below));
        }
    return max;
}

/* value * by / over, rounded to the nearest integer; half-way cases are rounded away
 * from zero. */
static int8_t rounded_fraction(int64_t value, int64_t by, int64_t over)
{
    const int64_t size = (2 * by * (value < 0 ? -value : value) + over) / (2 * over);
    return (int8_t)(value < 0 ? -size : size);
}

/* Larger of the sums of the positive and of the negative values. */
static int64_t max_int32_sum(const int8_t *row, int64_t inputs)
{
    int64_t above = 0, below = 0;
    for (int64_t i = 0; i < inputs; i++) {
        above += max_i64(row[i], 0);
        below -= min_i64(row[i], 0);
    }
    return max_i64(above, below);
}

/* Multiply values by max / sum and round them, so that `sum`, a sum of some of them,
 * becomes about `max`. Returns the factor by which the scale grows. */
static float round_again(int8_t *row, int64_t inputs, int64_t sum, int64_t max)
{
    int8_t rounded[UINT8_MAX + 1];
    for (int value = INT8_MIN; value <= INT8_MAX; value++)
        rounded[(uint8_t)value] = rounded_fraction(value, max, sum);
    for (int64_t i = 0; i < inputs; i++)
        row[i] = rounded[(uint8_t)row[i]];
    return (float)sum / (float)max;
}

/* Make values smaller, if need be, so that sums of their products fit in the integers
 * in which they are added. Returns the factor by which the scale grows. */
static float round_for_sums(int8_t *row, int64_t inputs)
{
    float factor = 1.0f;
    if (SUMS_IN_16_BITS) {
        const int64_t sum = max_int16_sum(row, inputs);
        if (sum > MAX_INT16_SUM)
            factor = round_again(row, inputs, sum, MAX_INT16_SUM);
    }
    if (inputs > MAX_INT32_SUM / -INT8_MIN) { /* with fewer, all sums fit */
        const int64_t sum = max_int32_sum(row, inputs);
        if (sum > MAX_INT32_SUM)
            factor *= round_again(row, inputs, sum, MAX_INT32_SUM / 2);
    }
    return factor;
}

/* Put the rounded weights of an output into its block. */
static void place_int8_row(const int8_t *row, int64_t inputs, int64_t output, char *to)
{
    to += output_offset(output, 1);
    for (int64_t i = 0; i < inputs; i += INT8_GROUP, to += step_bytes(1))
        for (int64_t k = 0; k < INT8_GROUP; k += DOT_INPUTS)
            memcpy(to + k / DOT_INPUTS * UNIT_STRIDE, row + i + k, DOT_INPUTS);
}

static void pack_int8_output(const Packing *p, int64_t output, int8_t *row, char *to)
{
    int64_t number, sum = 0;
    const Weights *part = part_of(p, output, &number);
    float scale;
    if (part->weight) {
        scale = quantize_output(part->weight + number * p->inputs, p->inputs, row);
    } else {
        memcpy(row, part->values + number * p->inputs, (size_t)p->inputs);
        scale = part->scales[number];
    }
    scale *= round_for_sums(row, p->inputs);
    for (int64_t i = 0; i < p->inputs; i++)
        sum += row[i];
    place_int8_row(row, p->inputs, output, to);
    p->to.scales[output] = scale * part->factor;
    p->to.weight_sums[output] = (float)sum * p->to.scales[output];
}

static void pack_int8_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    const Packing *p = shared;
    int8_t *row = p->rows + worker * p->row_bytes;
    const int64_t bytes = block_bytes(p->inputs, 1);
    memset(row, 0, (size_t)p->row_bytes);
    for (int64_t block = first; block < end; block++) {
        char *to = p->to.packed + block * bytes;
        const int64_t begin = block * BLOCK_OUTPUTS;
        const int64_t left = min_i64(p->outputs - begin, BLOCK_OUTPUTS);
        if (left < BLOCK_OUTPUTS)
            memset(to, 0, (size_t)bytes);
        for (int64_t output = begin; output < begin + left; output++)
            pack_int8_output(p, output, row, to);
    }
}

static td_status pack_int8(Packing *packing, int num_threads)
{
    packing->row_bytes = round_up(packing->inputs, CACHE_LINE);
    packing->rows = allocate_lines((double)num_threads * (double)packing->row_bytes);
    if (!packing->rows)
        return TD_OUT_OF_MEMORY;
    parallel_for(pack_int8_blocks, packing, num_blocks(packing->outputs), MIN_BLOCKS,
                 num_threads);
    free(packing->rows);
    return TD_OK;
}

/* Write the biases of all parts one after another. */
static void copy_biases(const Packing *p)
{
    float *to = p->to.bias;
    for (const Weights *part = p->parts; part < p->parts + p->num_parts; part++)
        for (int64_t i = 0; i < part->outputs; i++)
            *to++ = part->bias ? part->bias[i] * part->factor : 0.0f;
}

TD_INTERNAL td_status allocate_linear(int64_t outputs, int64_t inputs, int is_int8,
                                      Linear *into, LinearBuffers *buffers)
{
    const size_t bytes = (size_t)(num_blocks(outputs) * block_bytes(inputs, is_int8));
    const int64_t padded = num_blocks(outputs) * BLOCK_OUTPUTS;
    /* Weights in whole cache lines, then scales and sums in int8, then the bias. */
    const size_t vectors = (size_t)(padded * (is_int8 ? 3 : 1)) * sizeof(float);
    char *packed = allocate_lines((double)bytes + (double)vectors);
    if (!packed)
        return TD_OUT_OF_MEMORY;
    float *vector = (float *)(packed + bytes);
    memset(vector, 0, vectors);
    *buffers = (LinearBuffers){.packed = packed, .bias = vector};
    if (is_int8)
        *buffers =
            (LinearBuffers){packed, vector, vector + padded, vector + 2 * padded};
    *into = (Linear){.outputs = outputs,
                     .inputs = inputs,
                     .packed = packed,
                     .scales = buffers->scales,
                     .weight_sums = buffers->weight_sums,
                     .bias = buffers->bias};
    return TD_OK;
}

TD_INTERNAL td_status pack_linear(const Weights *parts, int num_parts, int64_t inputs,
                                  td_precision precision, int num_threads, Linear *into)
{
    const int is_int8 = precision == TD_INT8;
    int64_t outputs = 0;
    for (int i = 0; i < num_parts; i++)
        outputs += parts[i].outputs;
    Packing packing = {
        .parts = parts, .num_parts = num_parts, .outputs = outputs, .inputs = inputs};
    td_status status = allocate_linear(outputs, inputs, is_int8, into, &packing.to);
    if (status != TD_OK)
        return status;
    if (is_int8)
        status = pack_int8(&packing, num_threads);
    else
        parallel_for(pack_fp32_blocks, &packing, num_blocks(outputs), MIN_BLOCKS,
                     num_threads);
    if (status != TD_OK) {
        free_linear(into);
        return status;
    }
    copy_biases(&packing);
    return TD_OK;
}

TD_INTERNAL void free_linear(Linear *linear)
{
    free((void *)linear->packed);
    *linear = (Linear){0};
}
