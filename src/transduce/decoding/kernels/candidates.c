/* The likeliest next tokens, without a matrix of log-probabilities. */
#include "candidates.h"

#include <math.h>
#include <stdlib.h>

#include "lanes.h"

#define BLOCK (8 * LANES) /* tokens of which only the largest is looked at first */

/* The largest of a row so far, the best first. */
typedef struct {
    int64_t count;
    float *values;
    int64_t *tokens;
} Best;

static void clear(Best *best)
{
    for (int64_t i = 0; i < best->count; i++) {
        best->values[i] = -INFINITY;
        best->tokens[i] = 0;
    }
}

static float last_of(const Best *best) { return best->values[best->count - 1]; }

/* In the place of the last, which is less. */
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

/* A row, and the largest value of each of its blocks. */
typedef struct {
    const float *values;
    int64_t vocab;
    float *largest;
} Row;

/* Its largest values; the largest of all. */
static float find_largest(Row *row)
{
    Lanes highest = lanes_of(-INFINITY);
    for (int64_t first = 0; first < row->vocab; first += BLOCK) {
        Lanes largest = lanes_of(-INFINITY);
        /* In this order, NaN is passed over. */
        if (row->vocab - first >= BLOCK)
            for (int64_t i = first; i < first + BLOCK; i += LANES)
                largest = lanes_max(lanes_at(row->values + i), largest);
        else
            for (int64_t i = first; i < row->vocab; i += LANES)
                largest = lanes_max(values_from(row->values, i, row->vocab), largest);
        row->largest[first / BLOCK] = highest_lane(largest);
        highest = lanes_max(largest, highest);
    }
    return highest_lane(highest);
}

/* The least of the so many largest blocks; minus infinity if there are fewer blocks. */
static float least_of_best(const Row *row, Best *blocks)
{
    clear(blocks);
    for (int64_t i = 0; i * BLOCK < row->vocab; i++)
        if (row->largest[i] > last_of(blocks))
            insert(blocks, row->largest[i], i);
    return last_of(blocks);
}

/* Put in what is not below the least, and larger than the last. */
static void insert_lanes(Best *best, const Row *row, int64_t first, float least,
                         const Excluded *excluded)
{
    const Lanes values = values_from(row->values, first, row->vocab);
    uint32_t below = lanes_above(lanes_of(least), values);
    uint32_t better = lanes_above(values, lanes_of(last_of(best))) & ~below;
    for (; better; better &= better - 1) {
        const int64_t token = first + __builtin_ctz(better);
        const float value = row->values[token];
        if (value > last_of(best) && !is_excluded(excluded, token))
            insert(best, value, token);
    }
}

/* Put in the best that may come, of equals the first. As many blocks as are wanted and
   never come, together, have a value that is not below `least`: so the best that may
   come are not below it either. */
static void find_best(const Row *row, const Excluded *excluded, Best *blocks,
                      Best *best)
{
    const float least = excluded->mask ? -INFINITY : least_of_best(row, blocks);
    clear(best);
    for (int64_t first = 0; first < row->vocab; first += BLOCK) {
        const float largest = row->largest[first / BLOCK];
        if (largest < least || !(largest > last_of(best)))
            continue;
        const int64_t end =
            row->vocab - first < BLOCK ? row->vocab : first + (int64_t)BLOCK;
        for (int64_t i = first; i < end; i += LANES)
            insert_lanes(best, row, i, least, excluded);
    }
}

static float log_sum_exp(const float *row, int64_t vocab, float highest)
{
    if (highest == -INFINITY)
        return NAN; /* as 0 / 0: there is no distribution */
    const Lanes offset = lanes_of(highest);
    Lanes sum = lanes_of(0.0f);
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES)
        sum += lanes_exp(lanes_at(row + i) - offset);
    if (i < vocab)
        sum += lanes_exp(values_from(row, i, vocab) - offset);
    return highest + logf(sum_of_lanes(sum));
}

/* The largest of a row that may come, as log-probabilities, the best first. Where there
   are fewer, minus infinity; where the row has NaN, NaN. */
static void find_likeliest(Row *row, const Excluded *excluded, int64_t forced,
                           Best *blocks, Best *best)
{
    const float highest = find_largest(row);
    const float log_sum = log_sum_exp(row->values, row->vocab, highest);
    find_best(row, excluded, blocks, best);
    for (int64_t i = 0; i < best->count; i++)
        best->values[i] -= log_sum;
    if (forced < 0)
        return;
    for (int64_t i = 0; i < best->count; i++) {
        best->values[i] = -INFINITY - log_sum; /* NaN, if that is NaN */
        best->tokens[i] = forced;
    }
    if (!is_excluded(excluded, forced))
        best->values[0] = row->values[forced] - log_sum;
}

/* Whether one stands before another: NaN is behind all. */
static int is_before(double one, double other)
{
    return one > other || (isnan(other) && !isnan(one));
}

/* What is found for a sentence, and what that takes. */
typedef struct {
    Best *of_group; /* for each hypothesis */
    int64_t *taken; /* of these */
    Best blocks;
    float *largest; /* of each block of a row */
} Found;

static Best take_room(int64_t count, int64_t **numbers, float **values)
{
    const Best best = {count, *values, *numbers};
    *numbers += count;
    *values += count;
    return best;
}

/* Room for it; 1 if there is none. */
static int begin_search(const CandidateSearch *asked, Found *found)
{
    const int64_t group = asked->group, vocab = asked->vocab;
    const int64_t count = asked->count < vocab ? asked->count : vocab;
    const int64_t blocks = count + asked->num_never, all = group * count + blocks;
    const int64_t floats = all + (vocab + BLOCK - 1) / BLOCK;
    found->of_group =
        malloc((size_t)group * sizeof(Best) + (size_t)(all + group) * sizeof(int64_t) +
               (size_t)floats * sizeof(float));
    if (!found->of_group)
        return 1;
    found->taken = (int64_t *)(found->of_group + group);
    int64_t *numbers = found->taken + group;
    float *values = (float *)(numbers + all);
    for (int64_t h = 0; h < group; h++)
        found->of_group[h] = take_room(count, &numbers, &values);
    found->blocks = take_room(blocks, &numbers, &values);
    found->largest = values;
    return 0;
}

/* Merge what was found for the hypotheses of a sentence, of equals the first. */
static void merge(const CandidateSearch *asked, int64_t sentence, const Found *found)
{
    const Best *best = found->of_group;
    int64_t group = asked->group, count = asked->count, *taken = found->taken;
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

static void find_of_sentence(const CandidateSearch *asked, int64_t sentence,
                             Found *found)
{
    int64_t forced = asked->forced ? asked->forced[sentence] : -1;
    for (int64_t h = 0; h < asked->group; h++) {
        int64_t first = (sentence * asked->group + h) * asked->vocab;
        Excluded out = {asked->mask ? asked->mask + first : 0, asked->never,
                        asked->num_never};
        Row row = {asked->logits + first, asked->vocab, found->largest};
        find_likeliest(&row, &out, forced, &found->blocks, found->of_group + h);
    }
    merge(asked, sentence, found);
}

EXPORTED int transduce_candidates(const CandidateSearch *asked)
{
    for (int64_t i = 0; asked->forced && i < asked->sentences; i++)
        if (asked->forced[i] < -1 || asked->forced[i] >= asked->vocab)
            return 2;
    Found found;
    if (begin_search(asked, &found))
        return 1;
    for (int64_t i = 0; i < asked->sentences; i++)
        find_of_sentence(asked, i, &found);
    free(found.of_group);
    return 0;
}
