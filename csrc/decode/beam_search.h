/* Steps of beam search and greedy search (section 6.1), given candidates.
 *
 * Compiled once, not for each instruction set, and with strict floating point: scores
 * equal the formulas in SearchConfig, bit for bit.
 */
#ifndef TRANSDUCE_DECODE_BEAM_SEARCH_H
#define TRANSDUCE_DECODE_BEAM_SEARCH_H

#include <stdint.h>

#include "decode/search.h"

/* Length penalty: ((5 + length) / 6)^alpha (Wu et al., 2016), or length^alpha. */
double length_divisor(const td_search_config *config, int64_t length);

/* The only token that may come next, or NO_TOKEN. */
int64_t forced_token(const Sentence *sentence);

/* Grow each live sentence by its candidates in `found_*`. Sentences that are done are
 * removed from `live`; the others keep their order. reserve_step() must have been
 * called. */
void grow_live(td_search *search);

#endif
