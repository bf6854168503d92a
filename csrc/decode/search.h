/* Handles of searches: sentences with their hypotheses, and what a step works with. */
#ifndef TRANSDUCE_DECODE_SEARCH_H
#define TRANSDUCE_DECODE_SEARCH_H

#include <stdint.h>

#include "transduce.h"

#define NO_TOKEN (-1)

/* A live hypothesis after one step, by the token that the step appended. */
typedef struct {
    double log_prob; /* of all its tokens; in greedy search, of this token alone */
    int32_t parent;  /* number of the hypothesis of the step before that it extends */
    int32_t token;
} BeamEntry;

/* A hypothesis that ended, or that the end of search cut short. */
typedef struct {
    double score, log_prob;
    int64_t num_steps; /* that appended its tokens, the end token not counted */
    int64_t entry;     /* number of its last entry among those of the last step */
    int64_t is_finished;
} RankedHypothesis;

/* The hypotheses of one sentence. */
typedef struct {
    int64_t number; /* by which callers name it */
    int64_t max_length;
    double last_divisor; /* of the score of a hypothesis that gets as long */
    int64_t prefix_length;
    int64_t *prefix;
    int64_t num_steps, capacity;
    BeamEntry *entries;   /* [capacity, beam_size], the first num_steps rows in use */
    int64_t num_finished; /* counts also those that are not among the best */
    int64_t num_ranked;
    RankedHypothesis *ranked; /* [beam_size], best first */
} Sentence;

/* Live hypotheses after a step, counted from zero, in order of their rank then. */
static inline BeamEntry *entries_of_step(const td_search_config *config,
                                         const Sentence *sentence, int64_t step)
{
    return sentence->entries + step * config->beam_size;
}

struct td_search {
    td_search_config config; /* with a copy of the excluded tokens */
    int64_t num_candidates;  /* of a sentence that each step weighs */
    int64_t group;           /* hypotheses of a live sentence: 1, then the beam size */
    int64_t has_prefixes;    /* whether any sentence ever had one */
    int64_t next_number;

    int64_t num_sentences, sentence_capacity;
    Sentence **sentences; /* all, by their numbers in ascending order */

    int64_t num_live, live_capacity;
    Sentence **live;
    double *log_probs;      /* [num_live, group], of the hypotheses so far */
    int64_t *rows;          /* [num_live, group], what each of them extends, numbered
                               through all sentences of the step before */
    int64_t *tokens;        /* [num_live, group], what each of them reads next */
    int64_t *forced_tokens; /* [num_live], the only next token, or NO_TOKEN */
    double *coverage;       /* [num_live, group], if there is a coverage penalty */

    /* Candidates of the step, [num_live, num_candidates], best first. */
    double *found_log_probs;
    int64_t *found_parents, *found_tokens;

    int64_t trace_capacity;
    int64_t *trace_tokens; /* of the hypothesis that was asked for last */
    double *trace_gains;
};

/* Reserve memory for one more step of every live sentence. Changes nothing else. */
td_status reserve_step(td_search *search);

/* Whether a step needs the coverage of the hypotheses that it extends. */
static inline int needs_coverage(const td_search *search)
{
    return search->config.coverage_penalty > 0 && !search->config.is_greedy;
}

/* Implementations of td_decode_api, described in transduce.h. */
td_status search_new(const td_search_config *config, int64_t num_sentences,
                     const int64_t *max_lengths, const int64_t *prefix_lengths,
                     const int64_t *prefix_tokens, td_search **search);
void search_free(td_search *search);
int64_t search_num_live(const td_search *search);
td_status search_live(const td_search *search, int64_t *numbers, int64_t *rows,
                      int64_t *tokens);
td_status search_next(const td_search *search, double *log_probs,
                      int64_t *forced_tokens);
td_status search_grow(td_search *search, int64_t num_candidates,
                      const double *log_probs, const int64_t *parents,
                      const int64_t *tokens, const double *coverage);
td_status search_join(td_search *search, td_search *other);
int64_t search_num_hypotheses(const td_search *search, int64_t number);
td_status search_hypothesis(td_search *search, int64_t number, int64_t rank,
                            td_hypothesis *hypothesis);
td_status search_forget(td_search *search, int64_t number);

#endif
