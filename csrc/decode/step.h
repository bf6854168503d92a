/* A decoder's step, all layers in one call (Figure 1, right). */
#ifndef TRANSDUCE_DECODE_STEP_H
#define TRANSDUCE_DECODE_STEP_H

#include "decode/decoder.h"
#include "decode/stack.h"
#include "isa/name.h"

/* Read one more token of each hypothesis, of which there is one at least. Afterwards
 * `work` has the packed rows that logits are products of, and must be ended. A failure
 * changes nothing that a later step could tell. */
TD_INTERNAL td_status read_tokens(Workspace *work, td_decoder *decoder,
                                  const int64_t *ids, int num_threads);

/* Logits of `count` tokens from `first` on, which begins a block of outputs. */
TD_INTERNAL void multiply_for_logits(const Workspace *work, const td_model *model,
                                     int64_t first, int64_t count,
                                     const Matrix *logits);

#endif
