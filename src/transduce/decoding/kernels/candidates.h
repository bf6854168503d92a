/* The likeliest ways to go on. */
#ifndef TRANSDUCE_CANDIDATES_H
#define TRANSDUCE_CANDIDATES_H

#include <stdint.h>

#include "exported.h"

/* What is asked for, and where it is to be put. */
typedef struct {
    const float *logits;
    int64_t sentences, group, vocab;
    const double *totals; /* log-probabilities of the hypotheses so far */
    const uint8_t *mask;  /* of the logits: which tokens may not come, or none */
    const int64_t *never; /* tokens that may not come at all */
    int64_t num_never;
    const int64_t *forced; /* the only token of each sentence, or -1 */
    double diversity;      /* how far the k-th of a hypothesis is put back, times k */
    int64_t count;         /* wanted of each sentence */
    double *found_totals;
    int64_t *found_parents, *found_tokens;
} CandidateSearch;

/* The `count` likeliest ways to go on of each sentence, the best first: what their
   totals then are, which hypothesis they go on from, and by which token. Where there
   are fewer, minus infinity; after a hypothesis whose row has NaN, NaN. 1 if memory is
   lacking, 2 if what is forced is no token, otherwise 0. */
EXPORTED int transduce_candidates(const CandidateSearch *asked);

#endif
