/* Packing of linear maps. */
#ifndef TRANSDUCE_GEMM_PACK_H
#define TRANSDUCE_GEMM_PACK_H

#include "gemm/linear.h"
#include "transduce.h"

/* Pack weight [outputs, inputs] and bias [outputs] (NULL: zeros) into a copy that
 * free_linear() frees. In int8, each output's weights are rounded with their own scale.
 */
TD_INTERNAL td_status pack_linear(const float *weight, const float *bias,
                                  int64_t outputs, int64_t inputs,
                                  td_precision precision, int num_threads,
                                  Linear *into);

/* Free what pack_linear() has allocated; a map of zero bytes has nothing. */
TD_INTERNAL void free_linear(Linear *linear);

#endif
