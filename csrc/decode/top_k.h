/* The likeliest next tokens of many hypotheses, without a matrix of probabilities.
 *
 * Logits pass once. Each row keeps its largest ones (TopK) and the sum of all
 * exponentials (OnlineSoftmax), from which log-probabilities follow at the end.
 */
#ifndef TRANSDUCE_DECODE_TOP_K_H
#define TRANSDUCE_DECODE_TOP_K_H

#include <stdint.h>

#include "isa/name.h"
#include "simd/vec.h"
#include "transduce.h"

/* Logits of a row whose exponentials are summed together. Those of a row that comes in
 * several pieces are so too, hence the sum does not depend on the pieces. */
#define SOFTMAX_BLOCK 1024

/* A token in a lane. */
typedef union {
    int32_t id;
    float lane;
} Token;

/* The largest logits so far, best first; of equals, the first stays first. Both arrays
 * are padded to whole registers, and a register of space precedes them. */
typedef struct {
    int64_t count;
    float *values;
    Token *tokens;
} TopK;

/* Sum of exp(logit - max) over the logits so far (Milakov and Gimelshein, 2018). */
typedef struct {
    float max, sum;
} OnlineSoftmax;

/* What is known of the logits of one hypothesis besides the largest. */
typedef struct {
    OnlineSoftmax softmax;
    float forced_logit; /* of the only token that may come, if there is such */
} CandidateRow;

/* Memory for finding candidates, one block that `num_taken` points to. All zero before
 * its first use; freed by its owner. */
typedef struct {
    size_t capacity; /* bytes */
    int64_t count;   /* logits that each row keeps */
    int64_t stride;  /* of values and tokens, from row to row */
    CandidateRow *rows;
    int64_t *num_taken; /* of each hypothesis of a sentence, as they are merged */
    Token *tokens;
    float *values;
} CandidateWorkspace;

/* Find the candidates of all rows of logits, [sentences, group, vocab]. */
TD_INTERNAL td_status find_candidates(const td_candidates *query, const float *logits);

/* The same where logits come piece by piece: begin, then add columns from left to
 * right, then finish. All pieces but the last have a multiple of SOFTMAX_BLOCK columns.
 */
TD_INTERNAL td_status begin_candidates(const td_candidates *query,
                                       CandidateWorkspace *workspace);
TD_INTERNAL void reset_candidates(const td_candidates *query,
                                  CandidateWorkspace *workspace);
/* Add `count` logits of each row, which stand `stride` apart, from those of token
 * `first` on. */
TD_INTERNAL void add_logits(const td_candidates *query, CandidateWorkspace *workspace,
                            const float *logits, int64_t stride, int64_t first,
                            int64_t count);
TD_INTERNAL void finish_candidates(const td_candidates *query,
                                   CandidateWorkspace *workspace);
TD_INTERNAL void free_candidates(CandidateWorkspace *workspace);

/* Softmax and threshold of a row for a product that passes on its logits from
 * registers, once the first logits of the row have been added: only what may be among
 * the best is ever written down. */
typedef struct {
    vec sums;        /* of 2^(logit / ln 2 - offset), lane by lane */
    float offset;    /* the row's maximum so far / ln 2 */
    float threshold; /* what is not above it, / ln 2, is not among the best */
} __attribute__((aligned(64))) FusedSoftmax;

TD_INTERNAL void begin_fused(const td_candidates *query,
                             const CandidateWorkspace *workspace, FusedSoftmax *fused);
/* Add the best of two registers of a row's logits, from that of `token` on. Unused
 * where there is no AMX. */
TD_INTERNAL __attribute__((unused)) void
insert_fused(const td_candidates *query, CandidateWorkspace *workspace,
             FusedSoftmax *fused, int64_t row, vec first, vec second, int64_t token);
/* Add the sums to those of the rows. Zero if one is no finite number, as where a logit
 * is so far above the first ones that its exponential overflows. */
TD_INTERNAL int finish_fused(const td_candidates *query, CandidateWorkspace *workspace,
                             const FusedSoftmax *fused);

#endif
