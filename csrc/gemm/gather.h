/* Packed linear maps to some of the outputs of another. */
#ifndef TRANSDUCE_GEMM_GATHER_H
#define TRANSDUCE_GEMM_GATHER_H

#include "gemm/linear.h"
#include "transduce.h"

/* Pack a map to the outputs `outputs` [count] of a packed map, in this order, into a
 * copy that free_linear() frees. Results equal those of the whole map, bit for bit. */
TD_INTERNAL td_status gather_outputs(const Linear *from, const int32_t *outputs,
                                     int64_t count, Linear *into);

#endif
