/* Multi-head attention (section 3.2) of training, forward and backward.
 *
 * Matrix products of libraries need the heads of a sentence as separate matrices, and
 * so copies of queries, keys, values and their gradients, which take longer than the
 * products. Here they are read and written in place. */
#ifndef TRANSDUCE_NN_ATTENTION_H
#define TRANSDUCE_NN_ATTENTION_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* Floats of workspace that each thread needs; depends on queries, keys, d_k and d_v. */
TD_INTERNAL int64_t attention_workspace(const td_attention *attention);

/* The same as the td_ functions, for arguments that were checked. */
TD_INTERNAL void attention_forward(td_attention attention, int num_threads);
TD_INTERNAL void attention_backward(td_attention attention, int num_threads);

TD_INTERNAL int64_t td_attention_workspace(const td_attention *attention);
TD_INTERNAL td_status td_attention_forward(const td_attention *attention,
                                           int num_threads);
TD_INTERNAL td_status td_attention_backward(const td_attention *attention,
                                            int num_threads);

#endif
