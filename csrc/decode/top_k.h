/* The best next tokens of many hypotheses, found in one pass over their logits.
 *
 * Each row keeps its largest logits (TopK) and the sum of all exponentials
 * (OnlineSoftmax), from which the log-probabilities of the largest follow at the end.
 * No matrix of probabilities is stored.
 */
#ifndef TRANSDUCE_DECODE_TOP_K_H
#define TRANSDUCE_DECODE_TOP_K_H

#include <stdint.h>

#include "isa/name.h"
#include "simd/vec.h"
#include "transduce.h"

/* Number of logits of a row whose exponentials are summed together. All blocks of a row
 * but the last have this size, so that the sum does not depend on the parts in which
 * the logits are added. */
#define SOFTMAX_BLOCK 1024

/* Id of a token, whose bits can be in the lane of a vector. */
typedef union {
    int32_t id;
    float lane;
} Token;

/* The largest logits so far, best first; of equal ones, the first comes first. Both
 * arrays are padded to whole vectors, and a vector of padding precedes them. */
typedef struct {
    int64_t count;
    float *values;
    Token *tokens;
} TopK;

/* Sum of exp(logit - max) over the logits so far (Milakov and Gimelshein, 2018). */
typedef struct {
    float max, sum;
} OnlineSoftmax;

/* State of one hypothesis besides its TopK. */
typedef struct {
    OnlineSoftmax softmax;
    float forced_logit; /* of the forced token, if there is one */
} CandidateRow;

/* Buffers for finding candidates. Zero before its first use; free_candidates() frees
 * it. */
typedef struct {
    void *block;     /* in which all buffers are */
    size_t capacity; /* bytes of the block */
    int64_t count;   /* logits that each row keeps */
    int64_t stride;  /* of values and tokens, from row to row */
    CandidateRow *rows;
    int64_t *num_taken; /* [group]: candidates that merge() has taken of each */
    Token *tokens;
    float *values;
    float *repeated_logits; /* of the tokens in td_restrictions.repeated_tokens */
} CandidateWorkspace;

/* Implementation of td_decode_api.find_candidates. */
TD_INTERNAL td_status find_candidates(const td_candidates *query, const float *logits);

/* The same for logits that are computed part by part: begin, add parts of the columns
 * from left to right, finish. All parts but the last have a multiple of SOFTMAX_BLOCK
 * columns. */
TD_INTERNAL td_status begin_candidates(const td_candidates *query,
                                       CandidateWorkspace *workspace);
/* Begin anew with the same query. */
TD_INTERNAL void reset_candidates(const td_candidates *query,
                                  CandidateWorkspace *workspace);
/* Add logits [rows, count], whose rows begin `stride` floats apart, of the tokens from
 * `first` on. */
TD_INTERNAL void add_logits(const td_candidates *query, CandidateWorkspace *workspace,
                            const float *logits, int64_t stride, int64_t first,
                            int64_t count);
/* Add all logits [count] of one row, of `tokens` [count] in ascending order; NULL: of
 * the tokens from 0 on. */
TD_INTERNAL void add_row_logits(const td_candidates *query,
                                CandidateWorkspace *workspace, int64_t row,
                                const float *logits, const int32_t *tokens,
                                int64_t count);
TD_INTERNAL void finish_candidates(const td_candidates *query,
                                   CandidateWorkspace *workspace);
TD_INTERNAL void free_candidates(CandidateWorkspace *workspace);

/* State of a row whose logits a product searches in registers, after the first logits
 * of the row were added as above. Only logits that may be among the best are stored.
 * Logits are to base 2 here: multiplied by log2(e). */
typedef struct {
    vec sums;        /* of 2^(logit - offset), lane by lane */
    float offset;    /* maximum of the first logits */
    float threshold; /* only logits above it can be among the best */
} __attribute__((aligned(64))) FusedSoftmax;

TD_INTERNAL void begin_fused(const td_candidates *query,
                             const CandidateWorkspace *workspace, FusedSoftmax *fused);
/* Insert the best of two vectors of a row's logits, of the tokens from `token` on.
 * Unused in builds without AMX. */
TD_INTERNAL __attribute__((unused)) void
insert_fused(const td_candidates *query, CandidateWorkspace *workspace,
             FusedSoftmax *fused, int64_t row, vec first, vec second, int64_t token);
/* Add the sums of exponentials to the sums of the rows. Returns 0 if a sum is not
 * finite: a logit was so far above the first ones that its exponential overflowed. */
TD_INTERNAL int finish_fused(const td_candidates *query, CandidateWorkspace *workspace,
                             const FusedSoftmax *fused);

#endif
