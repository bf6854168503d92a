/* Gathering of outputs from packed weights, in the layout of gemm/tiles.h. */
#include "gemm/gather.h"

#include <string.h>

#include "gemm/pack.h"
#include "gemm/tiles.h"

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
                           output_offset(outputs[i], is_int8);
        char *write = to + output_offset(i, is_int8);
        for (int64_t at = 0; at < bytes; at += step)
            for (int64_t unit = 0; unit < half; unit += UNIT_STRIDE)
                memcpy(write + at + unit, read + at + unit, UNIT_BYTES);
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
    LinearBuffers to;
    if (allocate_linear(count, from->inputs, is_int8, into, &to))
        return TD_OUT_OF_MEMORY;
    if (is_int8) {
        gather_vector(from->scales, outputs, count, to.scales);
        gather_vector(from->weight_sums, outputs, count, to.weight_sums);
    }
    gather_vector(from->bias, outputs, count, to.bias);
    for (int64_t first = 0; first < count; first += BLOCK_OUTPUTS)
        gather_block(from, outputs + first, min_i64(count - first, BLOCK_OUTPUTS),
                     to.packed +
                         first / BLOCK_OUTPUTS * block_bytes(from->inputs, is_int8));
    return TD_OK;
}
