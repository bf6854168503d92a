/* The handle of a search: sentences with their hypotheses, and buffers of a step. */
#ifndef TRANSDUCE_DECODE_SEARCH_H
#define TRANSDUCE_DECODE_SEARCH_H

#include <stdint.h>

#include "transduce.h"

#define NO_TOKEN (-1)

/* A live hypothesis after one step. */
typedef struct {
    double log_prob; /* of all tokens; in greedy search, of `token` alone */
    int32_t parent;  /* number, in the step before, of the hypothesis it extends */
    int32_t token;   /* that the step appended */
} BeamEntry;

/* A finished or a truncated hypothesis. */
typedef struct {
    double score, log_prob;
    int64_t num_steps; /* steps that appended its tokens, without the end token */
    int64_t entry;     /* number of its last token's entry in the last of these steps */
    int64_t is_finished;
} RankedHypothesis;

/* The hypotheses of one sentence. */
typedef struct {
    int64_t number; /* in the interface */
    int64_t max_length;
    double last_divisor; /* length penalty at max_length */
    int64_t prefix_length;
    int64_t *prefix;
    int64_t num_steps, capacity;
    BeamEntry *entries; /* [capacity, beam_size]; the first num_steps rows are in use */
    int64_t num_finished; /* hypotheses that ended, whether ranked or not */
    int64_t num_ranked;
    RankedHypothesis *ranked; /* [beam_size], best first */
} Sentence;

/* Live hypotheses after step number `step`, best first; the first step is 0. */
static inline BeamEntry *entries_of_step(const td_search_config *config,
                                         const Sentence *sentence, int64_t step)
{
    return sentence->entries + step * config->beam_size;
}

struct td_search {
    td_search_config config; /* with copies of its arrays */
    int64_t num_candidates;  /* of a sentence in each step: 2 beam_size */
    int64_t group;           /* hypotheses of a live sentence: 1, then the beam size */
    int64_t next_number;

    int64_t num_sentences, sentence_capacity;
    Sentence **sentences; /* all, by their numbers in ascending order */

    int64_t num_live, live_capacity;
    Sentence **live;
    double *log_probs;      /* [num_live, group] of the hypotheses so far */
    int64_t *rows;          /* [num_live, group]: rows of the step before that they
                               extend */
    int64_t *tokens;        /* [num_live, group]: their newest tokens */
    int64_t *forced_tokens; /* [num_live]: the only next token, or NO_TOKEN */
    double *coverage;       /* [num_live, group], if there is a coverage penalty */

    /* Candidates of the step [num_live, num_candidates], best first. */
    double *found_log_probs;
    int64_t *found_parents, *found_tokens;

    td_restrictions restrictions; /* of the next tokens, in arrays of `restricted` */
    int64_t restricted_capacity;
    int64_t *restricted;

    int64_t trace_capacity;
    int64_t *trace_tokens; /* of the hypothesis that search_hypothesis returned last */
    double *trace_log_probs;
};

/* Allocate the memory that grow_live() needs for one more step. */
td_status reserve_step(td_search *search);

/* Whether scores depend on the coverage of the hypotheses that a step extends. */
static inline int needs_coverage(const td_search *search)
{
    return search->config.coverage_penalty > 0 && !search->config.is_greedy;
}

/* Implementations of td_decode_api, which transduce.h documents. */
td_status search_new(const td_search_config *config, int64_t num_sentences,
                     const int64_t *max_lengths, const int64_t *prefix_lengths,
                     const int64_t *prefix_tokens, td_search **search);
void search_free(td_search *search);
int64_t search_num_live(const td_search *search);
td_status search_live(const td_search *search, int64_t *numbers, int64_t *rows,
                      int64_t *tokens);
td_status search_query(const td_search *search, double *log_probs,
                       int64_t *forced_tokens);
td_status search_grow_by_candidates(td_search *search, int64_t num_candidates,
                                    const double *log_probs, const int64_t *parents,
                                    const int64_t *tokens, const double *coverage);
td_status search_join(td_search *search, td_search *other);
int64_t search_num_hypotheses(const td_search *search, int64_t number);
td_status search_hypothesis(td_search *search, int64_t number, int64_t rank,
                            td_hypothesis *hypothesis);
td_status search_forget(td_search *search, int64_t number);

#endif
