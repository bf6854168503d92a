/* Gathering of outputs from packed weights, in the layout of gemm/tiles.h. */
#include "gemm/gather.h"

#include <string.h>

#include "alloc.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define MIN_GATHERED_BLOCKS 4 /* in a part of parallel_for */
#define UNIT 4                /* bytes of consecutive weights of an output */
#define UNIT_STRIDE                                                                    \
    (LANES * UNIT) /* to the next weights of the output in a half step */

typedef struct {
    const Linear *from;
    const int32_t *outputs;
    int64_t count;
    char *packed;
} Gathering;

/* Bytes from the beginning of an output's block to its first weights. */
static int64_t unit_offset(int64_t output, int is_int8)
{
    return output % BLOCK_OUTPUTS / LANES * (step_bytes(is_int8) / 2) +
           output % LANES * UNIT;
}

static void gather_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Gathering *g = shared;
    const int is_int8 = g->from->scales != NULL;
    const int64_t bytes = block_bytes(g->from->inputs, is_int8);
    const int64_t step = step_bytes(is_int8), half = step / 2;
    for (int64_t block = first; block < end; block++) {
        char *into = g->packed + block * bytes;
        const int64_t left = min_i64(g->count - block * BLOCK_OUTPUTS, BLOCK_OUTPUTS);
        if (left < BLOCK_OUTPUTS)
            memset(into, 0, (size_t)bytes);
        for (int64_t i = 0; i < left; i++) {
            const int64_t output = g->outputs[block * BLOCK_OUTPUTS + i];
            const char *from = (const char *)g->from->packed +
                               output / BLOCK_OUTPUTS * bytes +
                               unit_offset(output, is_int8);
            char *to = into + unit_offset(i, is_int8);
            for (int64_t at = 0; at < bytes; at += step)
                for (int64_t unit = 0; unit < half; unit += UNIT_STRIDE)
                    memcpy(to + at + unit, from + at + unit, UNIT);
        }
    }
}

static void gather_vector(const float *from, const int32_t *outputs, int64_t count,
                          float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from[outputs[i]];
}

TD_INTERNAL td_status gather_outputs(const Linear *from, const int32_t *outputs,
                                     int64_t count, int num_threads, Linear *into)
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
    Gathering gathering = {from, outputs, count, packed};
    parallel_for(gather_blocks, &gathering, blocks, MIN_GATHERED_BLOCKS, num_threads);
    return TD_OK;
}
