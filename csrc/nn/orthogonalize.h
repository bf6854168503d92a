/* Approximate orthogonalization of matrices by Newton-Schulz iterations (Jordan et al.,
 * 2024).
 *
 * Unlike batched products of a BLAS, a matrix stays in the cache of one core, and only
 * half of each symmetric product is computed. */
#ifndef TRANSDUCE_NN_ORTHOGONALIZE_H
#define TRANSDUCE_NN_ORTHOGONALIZE_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

TD_INTERNAL int64_t td_orthogonalize_workspace(const td_orthogonalization *task);
TD_INTERNAL td_status td_orthogonalize(const td_orthogonalization *task,
                                       int num_threads);

#endif
