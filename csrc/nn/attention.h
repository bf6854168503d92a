/* Multi-head attention (section 3.2; equation 1) of training, forward and backward.
 *
 * A BLAS needs the heads of a sentence as separate matrices: copies of queries, keys,
 * values and their gradients, which take longer than the products. These functions read
 * and write all of them in place. */
#ifndef TRANSDUCE_NN_ATTENTION_H
#define TRANSDUCE_NN_ATTENTION_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* Floats of workspace that each thread needs; depends on queries, keys, d_k and d_v. */
TD_INTERNAL int64_t attention_workspace(const td_attention *attention);

/* The td_ functions without checks of their arguments. */
TD_INTERNAL void attention_forward(td_attention attention, int num_threads);
TD_INTERNAL void attention_backward(td_attention attention, int num_threads);

TD_INTERNAL int64_t td_attention_workspace(const td_attention *attention);
TD_INTERNAL td_status td_attention_forward(const td_attention *attention,
                                           int num_threads);
TD_INTERNAL td_status td_attention_backward(const td_attention *attention,
                                            int num_threads);

#endif
