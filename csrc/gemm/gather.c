/* Gathering of outputs from packed weights, in the layout of gemm/tiles.h. */
#include "gemm/gather.h"

#include <string.h>

#include "alloc.h"
#include "gemm/tiles.h"

/* A unit: bytes of consecutive weights of an output. The output's next unit in half a
 * step is UNIT_STRIDE bytes further. */
#define UNIT 4
#define UNIT_STRIDE (LANES * UNIT)

/* Bytes from the beginning of an output's block to its first weights. */
static int64_t unit_offset(int64_t output, int is_int8)
{
    return output % BLOCK_OUTPUTS / LANES * (step_bytes(is_int8) / 2) +
           output % LANES * UNIT;
}

static void gather_block(const Linear *from, const int32_t *outputs, int64_t count,
                         char *to)
{
    const int is_int8 = from->scales != NULL;
    const int64_t bytes = block_bytes(from->inputs, is_int8);
    const int64_t step = step_bytes(is_int8), half = step / 2;
    if (count < BLOCK_OUTPUTS)
        memset(to, 0, (size_t)bytes);
    for (int64_t i = 0; i < count; i++) {
        const char *read = (const char *)from->packed +
                           outputs[i] / BLOCK_OUTPUTS * bytes +
                           unit_offset(outputs[i], is_int8);
        char *write = to + unit_offset(i, is_int8);
        for (int64_t at = 0; at < bytes; at += step)
            for (int64_t unit = 0; unit < half; unit += UNIT_STRIDE)
                memcpy(write + at + unit, read + at + unit, UNIT);
    }
}

static void gather_vector(const float *from, const int32_t *outputs, int64_t count,
                          float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from[outputs[i]];
}

TD_INTERNAL td_status gather_outputs(const Linear *from, const int32_t *outputs,
                                     int64_t count, Linear *into)
{
    const int is_int8 = from->scales != NULL;
    const int64_t blocks = num_blocks(count), padded = blocks * BLOCK_OUTPUTS;
    const size_t bytes = (size_t)(blocks * block_bytes(from->inputs, is_int8));
    const size_t vectors = (size_t)(padded * (is_int8 ? 3 : 1)) * sizeof(float);
    char *packed = allocate_lines((double)bytes + (double)vectors);
    if (!packed)
        return TD_OUT_OF_MEMORY;
    float *vector = (float *)(packed + bytes);
    memset(vector, 0, vectors);
    *into = (Linear){.outputs = count, .inputs = from->inputs, .packed = packed};
    if (is_int8) {
        gather_vector(from->scales, outputs, count, vector);
        into->scales = vector;
        gather_vector(from->sums, outputs, count, vector + padded);
        into->sums = vector + padded;
        vector += 2 * padded;
    }
    gather_vector(from->bias, outputs, count, vector);
    into->bias = vector;
    for (int64_t first = 0; first < count; first += BLOCK_OUTPUTS)
        gather_block(from, outputs + first, min_i64(count - first, BLOCK_OUTPUTS),
                     packed +
                         first / BLOCK_OUTPUTS * block_bytes(from->inputs, is_int8));
    return TD_OK;
}
