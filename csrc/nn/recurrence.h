/* Recurrence of an SSRU (Kim et al., 2019) in training. Its gates and candidates, which
 * are products of all positions with its two matrices, are given. */
#ifndef TRANSDUCE_NN_RECURRENCE_H
#define TRANSDUCE_NN_RECURRENCE_H

#include "isa/name.h"
#include "transduce.h"

/* The td_ functions without checks of their arguments. */
TD_INTERNAL void recurrence_forward(td_recurrence recurrence, int num_threads);
TD_INTERNAL void recurrence_backward(td_recurrence recurrence, int num_threads);

TD_INTERNAL td_status td_recurrence_forward(const td_recurrence *recurrence,
                                            int num_threads);
TD_INTERNAL td_status td_recurrence_backward(const td_recurrence *recurrence,
                                             int num_threads);

#endif
