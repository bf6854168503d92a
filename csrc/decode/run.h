/* Steps of a search: by logits that the caller has, or together with a decoder. */
#ifndef TRANSDUCE_DECODE_RUN_H
#define TRANSDUCE_DECODE_RUN_H

#include "decode/beam_search.h"
#include "decode/decoder.h"
#include "isa/name.h"

/* What td_decode_api.search_advance does. */
TD_INTERNAL td_status search_advance(td_search *search, const float *logits,
                                     int64_t vocab, const uint8_t *mask,
                                     const double *coverage);

/* Take steps of a decoder and a search whose sentences and groups are the same, until
 * `few` sentences or fewer are live or `max_steps` are taken; `num_steps` says how
 * many. Hypotheses read `tokens` first. A step that fails changes nothing, and is no
 * failure of the call unless it is the first. */
TD_INTERNAL td_status run_search(td_search *search, td_decoder *decoder,
                                 const int64_t *tokens, int64_t max_steps, int64_t few,
                                 int num_threads, int64_t *num_steps);

#endif
