/* Beam search and greedy search.
 *
 * Each step takes the best 2 beam_size candidates of a sentence. Candidates that end
 * are ranked by their scores; the best beam_size others become the live hypotheses.
 *
 * As a hypothesis grows, its log-probability never rises and its length penalty never
 * falls, and the coverage term is at most zero. So no live hypothesis can reach a score
 * above (best live log-probability) / (length penalty of the length limit). The search
 * for a sentence stops when its `num_best` best hypotheses reach this bound, when
 * `finished_limit` have finished, or at the length limit.
 */
#include "decode/beam_search.h"

#include <math.h>

/* ---- Scores ------------------------------------------------------------------ */

double length_divisor(const td_search_config *config, int64_t length)
{
    const double base =
        config->is_power_penalty ? (double)length : (5.0 + (double)length) / 6.0;
    return pow(base, config->length_penalty);
}

/* Coverage term of the scores of hypotheses that extend a live one. */
static double coverage_term(const td_search *search, const double *coverage,
                            int64_t hypothesis)
{
    return coverage ? search->config.coverage_penalty * coverage[hypothesis] : 0.0;
}

/* Insert a hypothesis into the ranked ones if it is among the best. Of equal scores,
 * the earlier one ranks higher. */
static void rank_hypothesis(const td_search *search, Sentence *sentence,
                            const RankedHypothesis *new)
{
    int64_t place = sentence->num_ranked;
    if (place == search->config.beam_size) {
        if (!(new->score > sentence->ranked[place - 1].score))
            return;
        place--;
    } else {
        sentence->num_ranked++;
    }
    for (; place > 0 && sentence->ranked[place - 1].score < new->score; place--)
        sentence->ranked[place] = sentence->ranked[place - 1];
    sentence->ranked[place] = *new;
}

static void end_hypothesis(const td_search *search, Sentence *sentence, double log_prob,
                           double coverage, int64_t entry, int64_t is_finished)
{
    const int64_t length = sentence->num_steps + is_finished;
    const double score = log_prob / length_divisor(&search->config, length) + coverage;
    rank_hypothesis(
        search, sentence,
        &(RankedHypothesis){score, log_prob, sentence->num_steps, entry, is_finished});
}

/* ---- Growth ------------------------------------------------------------------ */

/* Candidates of one sentence, best first. */
typedef struct {
    const double *log_probs;
    const int64_t *parents, *tokens;
} SentenceCandidates;

/* Extend hypotheses by the best candidates, and rank those that end. Returns the number
 * of new live ones that are among the first `end_candidates` candidates. */
static int64_t grow_beam(const td_search *search, Sentence *sentence,
                         SentenceCandidates found, const double *coverage)
{
    const td_search_config *config = &search->config;
    BeamEntry *entries = entries_of_step(config, sentence, sentence->num_steps);
    int64_t kept = 0, num_end_candidates = 0;
    for (int64_t i = 0; i < search->num_candidates; i++) {
        if (found.tokens[i] == config->eos && found.log_probs[i] > -INFINITY) {
            if (sentence->num_steps >= config->min_length &&
                i < config->end_candidates) {
                sentence->num_finished++;
                end_hypothesis(search, sentence, found.log_probs[i],
                               coverage_term(search, coverage, found.parents[i]),
                               found.parents[i], 1);
            }
        } else if (kept < config->beam_size) {
            entries[kept++] = (BeamEntry){found.log_probs[i], (int32_t)found.parents[i],
                                          (int32_t)found.tokens[i]};
            num_end_candidates += i < config->end_candidates;
        }
    }
    for (; kept < config->beam_size; kept++)
        entries[kept] = (BeamEntry){-INFINITY, 0, 0};
    sentence->num_steps++;
    return num_end_candidates;
}

/* Log-probability of the best live hypothesis; minus infinity if no token may follow
 * the hypotheses of the step before. */
static double best_live(const td_search_config *config, const Sentence *sentence)
{
    const BeamEntry *entries =
        entries_of_step(config, sentence, sentence->num_steps - 1);
    double best = entries[0].log_prob;
    for (int64_t k = 1; k < config->beam_size; k++)
        if (entries[k].log_prob > best)
            best = entries[k].log_prob;
    return best;
}

static int is_beam_done(const td_search *search, const Sentence *sentence)
{
    const td_search_config *config = &search->config;
    const double best = best_live(config, sentence);
    if (best == -INFINITY || sentence->num_steps >= sentence->max_length)
        return 1;
    if (sentence->num_ranked < config->num_best)
        return 0;
    if (sentence->num_finished >= config->finished_limit)
        return 1;
    return sentence->ranked[config->num_best - 1].score >=
           best / sentence->last_divisor;
}

/* Number of live hypotheses to rank as truncated ones at the end of a search: all if
 * none has finished; with ranks_truncated, at the length limit, those that were among
 * the end candidates, which come first. */
static int64_t count_truncated(const td_search_config *config, const Sentence *sentence,
                               int64_t num_end_candidates)
{
    if (!sentence->num_ranked)
        return config->beam_size;
    const int is_at_limit = sentence->num_steps >= sentence->max_length;
    return config->ranks_truncated && is_at_limit ? num_end_candidates : 0;
}

/* Rank truncated hypotheses at the end of a sentence's search. If no token may follow
 * the hypotheses of the step before, those hypotheses are ranked. */
static void rank_truncated(const td_search *search, Sentence *sentence,
                           int64_t num_end_candidates, const double *coverage)
{
    const td_search_config *config = &search->config;
    const int is_dead_end =
        sentence->num_steps > 1 && best_live(config, sentence) == -INFINITY;
    if (is_dead_end)
        sentence->num_steps--;
    const BeamEntry *entries =
        entries_of_step(config, sentence, sentence->num_steps - 1);
    const int64_t count = count_truncated(config, sentence, num_end_candidates);
    for (int64_t k = 0; k < count; k++) {
        /* `coverage` belongs to the hypotheses before this step. */
        const int64_t covered = is_dead_end ? k : entries[k].parent;
        if (entries[k].log_prob > -INFINITY)
            end_hypothesis(search, sentence, entries[k].log_prob,
                           coverage_term(search, coverage, covered), k, 0);
    }
}

/* Grow a sentence by one step. Returns whether it is done. */
static int step_beam(const td_search *search, Sentence *sentence,
                     SentenceCandidates found, const double *coverage)
{
    const int64_t num_end_candidates = grow_beam(search, sentence, found, coverage);
    if (!is_beam_done(search, sentence))
        return 0;
    rank_truncated(search, sentence, num_end_candidates, coverage);
    return 1;
}

/* Rank the one hypothesis of greedy search. If it is finished, its last entry is the
 * end token. */
static void end_greedy(const td_search *search, Sentence *sentence, int64_t is_finished)
{
    double log_prob = 0.0;
    for (int64_t step = 0; step < sentence->num_steps; step++)
        log_prob += sentence->entries[step].log_prob;
    const double divisor = length_divisor(&search->config, sentence->num_steps);
    sentence->ranked[0] =
        (RankedHypothesis){log_prob / divisor, log_prob,
                           sentence->num_steps - is_finished, 0, is_finished};
    sentence->num_ranked = 1;
}

/* Append the best candidate, or the second if the best would end a hypothesis below the
 * minimum length. A hypothesis that no token may follow is truncated. Returns whether
 * the sentence is done. */
static int step_greedy(const td_search *search, Sentence *sentence,
                       SentenceCandidates found)
{
    const td_search_config *config = &search->config;
    const int is_early = sentence->num_steps < config->min_length;
    const int chosen = is_early && found.tokens[0] == config->eos;
    const int is_end = found.tokens[chosen] == config->eos;
    if (sentence->num_steps && found.log_probs[chosen] == -INFINITY) {
        end_greedy(search, sentence, 0);
        return 1;
    }
    sentence->entries[sentence->num_steps++] =
        (BeamEntry){found.log_probs[chosen], 0, (int32_t)found.tokens[chosen]};
    if (!is_end && sentence->num_steps < sentence->max_length)
        return 0;
    end_greedy(search, sentence, is_end);
    return 1;
}

int64_t forced_token(const Sentence *sentence)
{
    return sentence->num_steps < sentence->prefix_length
               ? sentence->prefix[sentence->num_steps]
               : NO_TOKEN;
}

/* Store the state of a live sentence as number `place`. Its rows in the step began with
 * `first_row`. */
static void keep_live(td_search *search, Sentence *sentence, int64_t place,
                      int64_t first_row)
{
    const int64_t size = search->config.beam_size;
    const BeamEntry *entries =
        entries_of_step(&search->config, sentence, sentence->num_steps - 1);
    search->live[place] = sentence;
    search->forced_tokens[place] = forced_token(sentence);
    for (int64_t k = 0, i = place * size; k < size; k++, i++) {
        /* Greedy search chooses by the newest token alone. */
        search->log_probs[i] = search->config.is_greedy ? 0.0 : entries[k].log_prob;
        search->rows[i] = first_row + entries[k].parent;
        search->tokens[i] = entries[k].token;
    }
}

void grow_live(td_search *search)
{
    const int64_t group = search->group;
    int64_t kept = 0;
    for (int64_t i = 0; i < search->num_live; i++) {
        Sentence *sentence = search->live[i];
        const int64_t first = i * search->num_candidates;
        const SentenceCandidates found = {search->found_log_probs + first,
                                          search->found_parents + first,
                                          search->found_tokens + first};
        const double *coverage =
            needs_coverage(search) ? search->coverage + i * group : NULL;
        const int is_done = search->config.is_greedy
                                ? step_greedy(search, sentence, found)
                                : step_beam(search, sentence, found, coverage);
        if (!is_done)
            keep_live(search, sentence, kept++, i * group);
    }
    search->num_live = kept;
    search->group = search->config.beam_size;
}
