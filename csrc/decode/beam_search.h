/* Beams, and how they grow. */
#ifndef TRANSDUCE_BEAMS_H
#define TRANSDUCE_BEAMS_H

#include <stdint.h>

/* A hypothesis that goes on no more. */
typedef struct {
    double score, log_probability;
    int64_t num_steps; /* by which its tokens were found, its end not counted */
    int64_t last;      /* its number in the last of these */
    int64_t is_finished;
} End;

/* The hypotheses of one sentence: of each step those that went on, one after another.
 */
typedef struct {
    int64_t max_length;
    double last_divisor; /* of a score, if it gets as long */
    int64_t prefix_length;
    const int64_t *prefix; /* what all of them begin with */
    int64_t num_steps, num_ends;
    int64_t num_finished;      /* also those that are not kept */
    double *totals;            /* log-probabilities of all tokens so far */
    int64_t *parents, *tokens; /* which of the step before each goes on from, and how */
    End *ends;                 /* the best of them, best first */
} Beam;

/* Sentences whose beams grow together; there is room for the steps to come. */
typedef struct {
    int64_t sentences, size; /* hypotheses of each, from its first step on */
    int64_t eos, min_length, num_best;
    int64_t end_candidates;   /* of a step's candidates those that may end, the best */
    int64_t enough_ends;      /* finished ones after which search ends in any case */
    int64_t cut_ones_compete; /* those cut short by the limit, with finished ones */
    double coverage_penalty;
    const double *divisors; /* of the scores of hypotheses of each length */
    Beam **live;
    double *totals;    /* of the hypotheses that go on */
    int64_t *rows;     /* their numbers before, through all sentences */
    int64_t *tokens;   /* what each reads next */
    int64_t *forced;   /* the only token that may come next in each sentence, or -1 */
    double *coverages; /* of the hypotheses that candidates continue, or NULL */
} Beams;

/* Grow each by the best of its candidates, so many a sentence, which go on from groups
   of such a size; those that are not done go on, in their order. */
static void transduce_grow(Beams *beams, const double *totals, const int64_t *parents,
                           const int64_t *tokens, int64_t count, int64_t group);

/* The same greedily, by two candidates of each. Of a path the log-probabilities are
   those of its tokens, not their sums, as what comes next does not depend on these. */
static void transduce_grow_greedily(Beams *paths, const double *gains,
                                    const int64_t *parents, const int64_t *tokens,
                                    int64_t count, int64_t group);

#endif
