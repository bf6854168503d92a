/* LayerNorm(x + Dropout(addend)) of training (sections 3.1 and 5.4; Ba et al., 2016),
 * forward and backward, each in one pass over the rows. */
#ifndef TRANSDUCE_NN_LAYER_NORM_H
#define TRANSDUCE_NN_LAYER_NORM_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* Floats of workspace of the backward pass; depends on rows and width. */
TD_INTERNAL int64_t layer_norm_workspace(const td_layer_norm *norm);

/* The td_ functions without checks of their arguments. */
TD_INTERNAL void layer_norm_forward(td_layer_norm norm, int num_threads);
TD_INTERNAL void layer_norm_backward(td_layer_norm norm, int num_threads);

TD_INTERNAL int64_t td_layer_norm_workspace(const td_layer_norm *norm);
TD_INTERNAL td_status td_layer_norm_forward(const td_layer_norm *norm, int num_threads);
TD_INTERNAL td_status td_layer_norm_backward(const td_layer_norm *norm,
                                             int num_threads);

#endif
