/* Updates of matrices by Muon (Jordan et al., 2024).
 *
 * Unlike batched products of a BLAS, a matrix stays in the cache of one core during the
 * whole update, and only half of each symmetric product is computed. */
#ifndef TRANSDUCE_NN_MUON_H
#define TRANSDUCE_NN_MUON_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

TD_INTERNAL int64_t td_muon_workspace(const td_muon *muon);
TD_INTERNAL td_status td_muon_run(const td_muon *muon, int num_threads);

#endif
