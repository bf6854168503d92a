/* Packing of linear maps. */
#ifndef TRANSDUCE_GEMM_PACK_H
#define TRANSDUCE_GEMM_PACK_H

#include "gemm/linear.h"
#include "transduce.h"

/* Weights [outputs, inputs] of a linear map, in arrays of the caller: either floats, or
 * values of 8 bits, which stand for value * scale. */
typedef struct {
    int64_t outputs;
    const float *weight;  /* NULL: the weights are the values */
    const int8_t *values; /* for int8 only */
    const float *scales;  /* [outputs] of the values */
    const float *bias;    /* [outputs]; NULL: zeros */
    float factor;         /* of weights and bias */
} Weights;

/* Arrays of a new map, which callers fill. */
typedef struct {
    char *packed;
    float *scales, *weight_sums; /* NULL in fp32 */
    float *bias;
} LinearBuffers;

/* Allocate a map in one block, which free_linear() frees. Its vectors are zeros. */
TD_INTERNAL td_status allocate_linear(int64_t outputs, int64_t inputs, int is_int8,
                                      Linear *into, LinearBuffers *buffers);

/* Pack a map whose outputs are those of all `parts`, one after another, into a copy
 * that free_linear() frees. In int8, each output's weights are rounded with their own
 * scale, by quantize_output(), before they are multiplied by the factor. */
TD_INTERNAL td_status pack_linear(const Weights *parts, int num_parts, int64_t inputs,
                                  td_precision precision, int num_threads,
                                  Linear *into);

/* Free what pack_linear() has allocated; a map of zero bytes has nothing. */
TD_INTERNAL void free_linear(Linear *linear);

#endif
