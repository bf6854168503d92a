/* Packing of linear maps. */
#ifndef TRANSDUCE_GEMM_PACK_H
#define TRANSDUCE_GEMM_PACK_H

#include "gemm/linear.h"
#include "transduce.h"

/* Pack weight [outputs, inputs] and bias [outputs] (NULL: zeros) into memory of the
 * map's own, which free_linear() returns. In int8 each output's weights are rounded
 * with a scale of their own. */
TD_INTERNAL td_status pack_linear(const float *weight, const float *bias,
                                  int64_t outputs, int64_t inputs,
                                  td_precision precision, int num_threads,
                                  Linear *into);

/* Free the memory of a map, which may be all zero. */
TD_INTERNAL void free_linear(Linear *linear);

#endif
