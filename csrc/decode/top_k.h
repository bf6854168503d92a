/* The likeliest ways to go on. */
#ifndef TRANSDUCE_CANDIDATES_H
#define TRANSDUCE_CANDIDATES_H

#include "isa/name.h"
#include <stdint.h>

#include "simd/vec.h"

/* Logits of a row whose exponentials are summed up at once: as many however they come,
   so that the sum is the same, but for its last digits where they are glimpsed. */
#define SEEN_AT_ONCE 1024

/* What is asked for, and where it is to be put. */
typedef struct {
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

/* Of logits, a row for each hypothesis after one,
   the `count` likeliest ways to go on of each sentence, the best first: what their
   totals then are, which hypothesis they go on from, and by which token. Where there
   are fewer, minus infinity; after a hypothesis whose row has NaN, NaN. 1 if memory is
   lacking, 2 if what is forced is no token, otherwise 0. */
static int transduce_candidates(const CandidateSearch *asked, const float *logits);

/* A token in a lane. */
typedef union {
    int32_t id;
    float lane;
} Token;

/* The largest values so far, the best first: in whole registers, and there is room
   before the first. */
typedef struct {
    int64_t count;
    float *values;
    Token *tokens;
} Best;

/* What has been seen of a hypothesis's logits. */
typedef struct {
    Best best;
    float highest, sum; /* of exponentials, the highest being one */
    float forced;       /* the logit of the only token that may come */
} Seen;

typedef struct {
    Seen *of_rows;
    int64_t *taken; /* of a sentence's hypotheses */
} Seeing;

/* The same where logits come some tokens after others: a number of them that can be
   divided by SEEN_AT_ONCE, but for the last. What has begun without failure must end,
   or be dropped. */
TD_INTERNAL int begin_candidates(const CandidateSearch *asked, Seeing *seeing);
/* As if nothing had been seen. */
TD_INTERNAL void begin_again(const CandidateSearch *asked, Seeing *seeing);
/* Rows of so many logits, from that of a token on, so far apart. */
TD_INTERNAL void see_logits(const CandidateSearch *asked, Seeing *seeing,
                            const float *logits, int64_t stride, int64_t first,
                            int64_t count);
TD_INTERNAL void end_candidates(const CandidateSearch *asked, Seeing *seeing);
TD_INTERNAL void drop_candidates(Seeing *seeing);

/* What is seen of a row's other logits as they are summed up, when the first have been
   seen: nothing is written down but what may be among the best. */
typedef struct {
    vec sums;     /* of exponentials, the offset's being one */
    float offset; /* times 1 / ln 2, as is what comes next */
    float least;  /* what is not above it is not among the best */
} __attribute__((aligned(64))) Glimpse;

/* Of all rows. */
TD_INTERNAL void begin_glimpses(const CandidateSearch *asked, const Seeing *seeing,
                                Glimpse *glimpses);
/* Put in those of two registers of logits, from that of a token on, that are among the
   best. */
TD_INTERNAL void insert_glimpsed(const CandidateSearch *asked, Seeing *seeing,
                                 Glimpse *glimpses, int64_t row, vec one, vec other,
                                 int64_t token);
/* Whether all is seen that way: not where a logit is so far above the first ones that
   its exponential is infinite, or is no number, or these are all minus infinity. */
TD_INTERNAL int end_glimpses(const CandidateSearch *asked, Seeing *seeing,
                             const Glimpse *glimpses);

#endif
