/* A step of the decoder (section 3.1; Figure 1, right). */
#ifndef TRANSDUCE_DECODE_STEP_H
#define TRANSDUCE_DECODE_STEP_H

#include "decode/decoder.h"
#include "decode/stack.h"
#include "isa/name.h"

/* Read one more token of each hypothesis; there must be a hypothesis. Afterwards `work`
 * has the packed rows for multiply_for_logits(), and end_workspace() must be called. A
 * failure has no effect on later steps. */
TD_INTERNAL td_status read_tokens(Workspace *work, td_decoder *decoder,
                                  const int64_t *ids, int num_threads);

/* Compute logits [rows, count] of the tokens from `first` on, which begins a block of
 * outputs. */
TD_INTERNAL void multiply_for_logits(const Workspace *work, const td_model *model,
                                     int64_t first, int64_t count,
                                     const Matrix *logits);

#endif
