/* Steps of a search: given logits, or together with a decoder. */
#ifndef TRANSDUCE_DECODE_RUN_H
#define TRANSDUCE_DECODE_RUN_H

#include "decode/beam_search.h"
#include "decode/decoder.h"
#include "isa/name.h"

/* Implementations of td_decode_api, which transduce.h documents. */
TD_INTERNAL td_status search_grow_by_logits(td_search *search, const float *logits,
                                            int64_t vocab, const uint8_t *mask,
                                            const double *coverage);
TD_INTERNAL td_status search_run(td_search *search, td_decoder *decoder,
                                 const int64_t *tokens, int64_t max_steps,
                                 int64_t max_live, int num_threads, int64_t *num_steps);

#endif
