/* The encoder. */
#ifndef TRANSDUCE_DECODE_ENCODER_H
#define TRANSDUCE_DECODE_ENCODER_H

#include "decode/model.h"
#include "isa/name.h"
#include "transduce.h"

/* Check the lengths of sources, and find their sum and the longest. */
TD_INTERNAL td_status check_lengths(const int64_t *lengths, int64_t sentences,
                                    int64_t *tokens, int64_t *longest);

/* As td_decode_api.encode says. */
TD_INTERNAL td_status encode(const td_model *model, const int64_t *ids,
                             const int64_t *lengths, int64_t sentences, float *states,
                             int num_threads);

#endif
