/* The likeliest next tokens, without a matrix of log-probabilities. */
#include <math.h>
#include <stdlib.h>

#include "exported.h"
#include "lanes.h"

/* The largest of a row so far, the best first. */
typedef struct {
    int64_t count;
    float *values;
    int64_t *tokens;
} Best;

static void insert(Best *best, float value, int64_t token)
{
    int64_t place = best->count - 1;
    for (; place > 0 && best->values[place - 1] < value; place--) {
        best->values[place] = best->values[place - 1];
        best->tokens[place] = best->tokens[place - 1];
    }
    best->values[place] = value;
    best->tokens[place] = token;
}

/* Tokens that may not come: those of a mask, and these. */
typedef struct {
    const uint8_t *mask; /* of a row, or none */
    const int64_t *never;
    int64_t num_never;
} Excluded;

static int is_excluded(const Excluded *excluded, int64_t token)
{
    if (excluded->mask && excluded->mask[token])
        return 1;
    for (int64_t i = 0; i < excluded->num_never; i++)
        if (excluded->never[i] == token)
            return 1;
    return 0;
}

/* As many values as there are lanes, behind the last minus infinity. */
static Lanes values_from(const float *row, int64_t first, int64_t vocab)
{
    if (vocab - first >= LANES)
        return lanes_at(row + first);
    const Mask there = first_lanes(vocab - first);
    return lanes_where(there, lanes_load(there, row + first), lanes_of(-INFINITY));
}

/* Put in those that are larger than the last. */
static void insert_lanes(Best *best, const float *row, int64_t first, Lanes values,
                         const Excluded *excluded)
{
    uint32_t better = lanes_above(values, lanes_of(best->values[best->count - 1]));
    for (; better; better &= better - 1) {
        int64_t token = first + __builtin_ctz(better);
        if (row[token] > best->values[best->count - 1] && !is_excluded(excluded, token))
            insert(best, row[token], token);
    }
}

/* Put in what is larger than the last; the largest of all, excluded or not. */
static float find_best(const float *row, int64_t vocab, const Excluded *excluded,
                       Best *best)
{
    Lanes highest = lanes_of(-INFINITY);
    for (int64_t i = 0; i < vocab; i += 4 * LANES) {
        Lanes values[4];
        for (int k = 0; k < 4; k++)
            values[k] = values_from(row, i + k * LANES, vocab);
        Lanes largest =
            lanes_max(lanes_max(values[0], values[1]), lanes_max(values[2], values[3]));
        /* Of few blocks any is among the best: most are passed over. */
        if (lanes_above(largest, lanes_of(best->values[best->count - 1])))
            for (int k = 0; k < 4; k++)
                insert_lanes(best, row, i + k * LANES, values[k], excluded);
        highest = lanes_max(largest, highest);
    }
    return highest_lane(highest);
}

static float log_sum_exp(const float *row, int64_t vocab, float highest)
{
    if (highest == -INFINITY)
        return NAN; /* as 0 / 0: there is no distribution */
    const Lanes offset = lanes_of(highest);
    Lanes sum = lanes_of(0.0f);
    for (int64_t i = 0; i < vocab; i += LANES)
        sum += lanes_exp(values_from(row, i, vocab) - offset);
    return highest + logf(sum_of_lanes(sum));
}

/* The largest of a row that may come, as log-probabilities, the best first. Where there
   are fewer, minus infinity; where the row has NaN, NaN. */
static void find_likeliest(const float *row, int64_t vocab, const Excluded *excluded,
                           int64_t forced, Best *best)
{
    for (int64_t i = 0; i < best->count; i++) {
        best->values[i] = -INFINITY;
        best->tokens[i] = 0;
    }
    float highest = find_best(row, vocab, excluded, best);
    float log_sum = log_sum_exp(row, vocab, highest);
    for (int64_t i = 0; i < best->count; i++)
        best->values[i] -= log_sum;
    if (forced < 0)
        return;
    for (int64_t i = 0; i < best->count; i++) {
        best->values[i] = -INFINITY - log_sum; /* NaN, if that is NaN */
        best->tokens[i] = forced;
    }
    if (!is_excluded(excluded, forced))
        best->values[0] = row[forced] - log_sum;
}

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

/* Whether one stands before another: NaN is behind all. */
static int is_before(double one, double other)
{
    return one > other || (isnan(other) && !isnan(one));
}

/* Merge what was found for the hypotheses of a sentence, of equals the first. */
static void merge(const CandidateSearch *asked, int64_t sentence, const Best *best,
                  int64_t *taken)
{
    int64_t group = asked->group, count = asked->count;
    for (int64_t h = 0; h < group; h++)
        taken[h] = 0;
    for (int64_t place = 0; place < count; place++) {
        int64_t parent = -1;
        double highest = 0.0, its_total = -INFINITY;
        for (int64_t h = 0; h < group; h++) {
            if (taken[h] == best[h].count)
                continue;
            double total =
                (double)best[h].values[taken[h]] + asked->totals[sentence * group + h];
            double rank = total - asked->diversity * (double)taken[h];
            if (parent < 0 || is_before(rank, highest)) {
                parent = h;
                highest = rank;
                its_total = total;
            }
        }
        int64_t at = sentence * count + place;
        asked->found_totals[at] = its_total;
        asked->found_parents[at] = parent < 0 ? 0 : parent;
        asked->found_tokens[at] = parent < 0 ? 0 : best[parent].tokens[taken[parent]];
        if (parent >= 0)
            taken[parent]++;
    }
}

static void find_of_sentence(const CandidateSearch *asked, int64_t sentence, Best *best,
                             int64_t *taken)
{
    int64_t forced = asked->forced ? asked->forced[sentence] : -1;
    for (int64_t h = 0; h < asked->group; h++) {
        int64_t first = (sentence * asked->group + h) * asked->vocab;
        Excluded out = {asked->mask ? asked->mask + first : 0, asked->never,
                        asked->num_never};
        find_likeliest(asked->logits + first, asked->vocab, &out, forced, &best[h]);
    }
    merge(asked, sentence, best, taken);
}

/* The `count` likeliest ways to go on of each sentence, the best first: what their
   totals then are, which hypothesis they go on from, and by which token. Where there
   are fewer, minus infinity; after a hypothesis whose row has NaN, NaN. 1 if memory is
   lacking, 2 if what is forced is no token, otherwise 0. */
EXPORTED int transduce_candidates(const CandidateSearch *asked)
{
    for (int64_t i = 0; asked->forced && i < asked->sentences; i++)
        if (asked->forced[i] < -1 || asked->forced[i] >= asked->vocab)
            return 2;
    int64_t each = asked->count < asked->vocab ? asked->count : asked->vocab;
    size_t group = (size_t)asked->group, all = group * (size_t)each;
    Best *best = malloc(group * sizeof *best);
    int64_t *numbers = malloc((all + group) * sizeof *numbers);
    float *values = malloc(all * sizeof *values);
    int is_done = best && numbers && values;
    for (int64_t h = 0; is_done && h < asked->group; h++)
        best[h] = (Best){each, values + h * each, numbers + h * each};
    for (int64_t i = 0; is_done && i < asked->sentences; i++)
        find_of_sentence(asked, i, best, numbers + all);
    free(values);
    free(numbers);
    free(best);
    return !is_done;
}
