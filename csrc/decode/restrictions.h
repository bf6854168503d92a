/* Tokens that must not follow a hypothesis, or become less likely, because of the
 * tokens that it has. */
#ifndef TRANSDUCE_DECODE_RESTRICTIONS_H
#define TRANSDUCE_DECODE_RESTRICTIONS_H

#include "decode/search.h"

/* Whether a search changes the log-probability of tokens that occur again. */
static inline int has_repetition_penalty(const td_search *search)
{
    return search->config.repetition_penalty > 0 &&
           search->config.repetition_penalty != 1;
}

static inline int has_restrictions(const td_search *search)
{
    return search->config.no_repeat_ngram || search->config.num_bad_words ||
           has_repetition_penalty(search);
}

/* Write the restrictions of all live hypotheses to `search->restrictions`.
 * TD_OUT_OF_MEMORY. */
td_status find_restrictions(td_search *search);

/* Implementation of td_decode_api, which transduce.h documents. */
td_status search_restrictions(td_search *search, td_restrictions *restrictions);

#endif
