/* Shortlists of a decoder: for each sentence, the tokens that may come next.
 *
 * Each sentence has a packed map of its own, the rows of the output matrix that belong
 * to its tokens, so its results do not depend on other sentences. One map to all tokens
 * of a batch would compute many more logits, as lists have few tokens in common. */
#ifndef TRANSDUCE_DECODE_SHORTLIST_H
#define TRANSDUCE_DECODE_SHORTLIST_H

#include <stdatomic.h>
#include <stdint.h>

#include "decode/model.h"
#include "decode/stack.h"
#include "gemm/linear.h"
#include "isa/name.h"
#include "transduce.h"

/* Tokens of a sentence. The decoders that were joined share it. */
typedef struct {
    atomic_int users; /* shortlists that hold it; the last one frees it */
    int64_t count;    /* 0: all tokens */
    int32_t *tokens;  /* in ascending order */
    Linear output;    /* map to the logits of the tokens, unless it has all */
} TokenList;

typedef struct {
    int64_t sentences;
    TokenList **lists; /* [sentences] */
    TokenList **spare; /* [sentences], for reordering */
} Shortlists;

/* Make lists of counts[i] tokens, which follow one another in `tokens`. */
TD_INTERNAL td_status new_shortlists(const td_model *model, const int64_t *counts,
                                     const int32_t *tokens, int64_t sentences,
                                     Shortlists **shortlists);
TD_INTERNAL void free_shortlists(Shortlists *shortlists);

/* Join the lists of two groups of sentences, one after the other. NULL stands for
 * sentences that may choose among all tokens. */
TD_INTERNAL td_status join_shortlists(const Shortlists *one, int64_t num_one,
                                      const Shortlists *other, int64_t num_other,
                                      Shortlists **joined);

/* Keep the lists of the sentences of these hypotheses, as
 * td_decode_api.decoder_reorder; the old groups have `old_group` hypotheses. */
TD_INTERNAL void keep_shortlists(Shortlists *shortlists, const int64_t *rows,
                                 int64_t sentences, int64_t group, int64_t old_group);

/* Number of logits of a hypothesis in the longest list. */
TD_INTERNAL int64_t max_listed(const Shortlists *shortlists, const td_model *model);

/* Compute the logits [group, count] of a sentence's list, or of all tokens if the list
 * is empty, from its `group` rows of `x`, which begin at `first_row`. Several threads
 * may compute different sentences at the same time. */
TD_INTERNAL void multiply_listed(const Workspace *work, const td_model *model,
                                 const TokenList *list, const Matrix *x,
                                 int64_t first_row, int64_t group,
                                 const Matrix *logits);

#endif
