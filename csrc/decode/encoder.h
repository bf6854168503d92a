/* The encoder (section 3.1; Figure 1, left). */
#ifndef TRANSDUCE_DECODE_ENCODER_H
#define TRANSDUCE_DECODE_ENCODER_H

#include "decode/model.h"
#include "isa/name.h"
#include "transduce.h"

/* Check the lengths of sources, and set `*tokens` to their sum, `*longest` to the
 * largest. */
TD_INTERNAL td_status check_lengths(const int64_t *lengths, int64_t sentences,
                                    int64_t *tokens, int64_t *longest);

/* Implementation of td_decode_api.encode. */
TD_INTERNAL td_status encode(const td_model *model, const int64_t *ids,
                             const int64_t *lengths, int64_t sentences, float *states,
                             int num_threads);

#endif
