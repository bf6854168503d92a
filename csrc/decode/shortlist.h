/* Shortlists of a decoder: for each sentence, the tokens that may come next.
 *
 * The logits of all tokens in the list of any sentence are computed by one product,
 * whose weights are gathered when sentences come. Each sentence then reads the logits
 * of its own tokens, so that its results do not depend on the other sentences. */
#ifndef TRANSDUCE_DECODE_SHORTLIST_H
#define TRANSDUCE_DECODE_SHORTLIST_H

#include <stdint.h>

#include "gemm/linear.h"
#include "isa/name.h"
#include "transduce.h"

/* Tokens of a sentence. */
typedef struct {
    int64_t count;   /* 0: all tokens */
    int32_t *tokens; /* rising */
    int32_t *places; /* of the tokens among the outputs of the product */
} TokenList;

typedef struct {
    int64_t sentences;
    TokenList **lists; /* [sentences] */
    TokenList **spare; /* [sentences], for reordering */
    int64_t gathered;  /* sentences for which `output` was made; 0: it must be made */
    int has_all;       /* whether `output` is not used: all logits are computed */
    Linear output;
} Shortlists;

/* Make lists of counts[i] tokens, which follow one another in `tokens`. */
TD_INTERNAL td_status new_shortlists(const int64_t *counts, const int32_t *tokens,
                                     int64_t sentences, int64_t vocab,
                                     Shortlists **shortlists);
TD_INTERNAL void free_shortlists(Shortlists *shortlists);

/* Make copies of the lists of two groups of sentences, one after the other. NULL stands
 * for sentences that may choose among all tokens. */
TD_INTERNAL td_status join_shortlists(const Shortlists *one, int64_t num_one,
                                      const Shortlists *other, int64_t num_other,
                                      Shortlists **joined);

/* Keep the lists of the sentences of these hypotheses, as
 * td_decode_api.decoder_reorder; the old groups have `old_group` hypotheses. */
TD_INTERNAL void keep_shortlists(Shortlists *shortlists, const int64_t *rows,
                                 int64_t sentences, int64_t group, int64_t old_group);

/* Gather the weights of the product, if sentences have come or many have left. */
TD_INTERNAL td_status prepare_shortlists(Shortlists *shortlists, const Linear *output,
                                         int num_threads);

/* The product that prepare_shortlists() has made, of the map `output` to all logits. */
static inline const Linear *shortlist_product(const Shortlists *shortlists,
                                              const Linear *output)
{
    return shortlists->has_all ? output : &shortlists->output;
}

/* Copy the logits of a list from a row of the product. */
static inline void pick_logits(const TokenList *list, const float *from, float *to)
{
    for (int64_t i = 0; i < list->count; i++)
        to[i] = from[list->places[i]];
}

#endif
