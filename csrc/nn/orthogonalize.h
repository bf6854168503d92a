/* Approximately nearest orthogonal matrices by Newton-Schulz iterations (Jordan et al.,
 * 2024).
 *
 * A matrix stays in the cache of one core, and only half of each symmetric product is
 * computed; a library's batched products can do neither. */
#ifndef TRANSDUCE_NN_ORTHOGONALIZE_H
#define TRANSDUCE_NN_ORTHOGONALIZE_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

TD_INTERNAL int64_t td_orthogonalize_workspace(const td_orthogonalization *task);
TD_INTERNAL td_status td_orthogonalize(const td_orthogonalization *task,
                                       int num_threads);

#endif
