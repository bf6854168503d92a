/* The likeliest next tokens, without a matrix of log-probabilities. */
#include "decode/top_k.h"
#include "isa/name.h"

#include <math.h>
#include <stdlib.h>

#include "simd/vec.h"

#define ROUNDED 1e-3f /* of a logit: more than its sums lose, unless they are huge */

static void clear(Best *best)
{
    best->values[-1] = INFINITY; /* which nothing stands before */
    for (int64_t i = 0; i < round_up_to_lanes(best->count); i++) {
        best->values[i] = -INFINITY;
        best->tokens[i].id = 0;
    }
}

static float last_of(const Best *best) { return best->values[best->count - 1]; }

/* Before those that are less, of which the last goes. Whole registers are moved, as the
   processor would guess in vain which place it is. */
static void insert(Best *best, float value, int64_t token)
{
    const Token id = {.id = (int32_t)token};
    const vec new_value = vec_set1(value), new_token = vec_set1(id.lane);
    for (int64_t i = round_up_to_lanes(best->count) - LANES; i >= 0; i -= LANES) {
        float *values = best->values + i, *tokens = &best->tokens[i].lane;
        const vec here = vec_load(values), before = vec_load(values - 1);
        const vec_mask comes = vec_gt_zero(new_value - here);
        const vec_mask moves = vec_gt_zero(new_value - before);
        const vec next = vec_select(moves, vec_load(tokens - 1), new_token);
        vec_store_first(tokens, LANES, vec_select(comes, next, vec_load(tokens)));
        vec_store_first(values, LANES,
                        vec_select(comes, vec_select(moves, before, new_value), here));
    }
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

/* Some of a row's values, one after another, and the token that the first is of. */
typedef struct {
    const float *values;
    int64_t count, first;
} Columns;

/* As many as there are lanes, behind the last minus infinity. */
static inline vec values_from(const Columns *columns, int64_t i)
{
    const float *from = columns->values + i;
    if (columns->count - i >= LANES)
        return vec_load(from);
    const vec_mask there = vec_first(columns->count - i);
    return vec_select(there, vec_load_masked(there, from), vec_set1(-INFINITY));
}

#define AT_ONCE (4 * LANES) /* of which only the largest are looked at first */

/* The largest in each lane of so many values; NaN is passed over. */
static inline vec largest_of_some(const float *values)
{
    const vec none = vec_set1(-INFINITY);
    const vec one = vec_max(vec_load(values), none);
    const vec two = vec_max(vec_load(values + LANES), none);
    return vec_max(vec_max(vec_load(values + 2 * LANES), one),
                   vec_max(vec_load(values + 3 * LANES), two));
}

/* The same of all. */
static vec largest_of(const Columns *columns)
{
    vec largest = vec_set1(-INFINITY);
    int64_t i = 0;
    for (; i + AT_ONCE <= columns->count; i += AT_ONCE)
        largest = vec_max(largest_of_some(columns->values + i), largest);
    for (; i < columns->count; i += LANES)
        largest = vec_max(values_from(columns, i), largest);
    return largest;
}

/* The `place`-th largest lane, from one on. */
static float lane_in_order(vec x, int64_t place)
{
    float numbers[LANES];
    vec_store_first(numbers, LANES, x);
    for (int64_t i = 0; i < place; i++)
        for (int64_t k = LANES - 1; k > i; k--)
            if (numbers[k] > numbers[k - 1]) {
                const float number = numbers[k];
                numbers[k] = numbers[k - 1];
                numbers[k - 1] = number;
            }
    return numbers[place - 1];
}

/* What the best that may come are not below: as many lanes as are wanted and never
   come, together, have one that is not. Minus infinity, where that is not known, as
   where more are wanted than there are lanes. */
static float least_of_best(const Best *best, vec largest, const Excluded *excluded)
{
    const int64_t enough = best->count + excluded->num_never;
    const uint32_t better = vec_gt_bits(largest, vec_set1(last_of(best)));
    if (excluded->mask || __builtin_popcount(better) < enough)
        return -INFINITY;
    return lane_in_order(largest, enough);
}

/* Put in what is larger than the last and not below the least, of equals the first. */
static void insert_lanes(Best *best, const Columns *columns, int64_t first, float least,
                         const Excluded *excluded)
{
    const vec values = values_from(columns, first);
    const uint32_t below = vec_gt_bits(vec_set1(least), values);
    uint32_t better = vec_gt_bits(values, vec_set1(last_of(best))) & ~below;
    for (; better; better &= better - 1) {
        const int64_t at = first + __builtin_ctz(better), token = columns->first + at;
        const float value = columns->values[at];
        if (value > last_of(best) && !is_excluded(excluded, token))
            insert(best, value, token);
    }
}

/* Put in the best that may come. */
static void insert_best(Best *best, const Columns *columns, vec largest,
                        const Excluded *excluded)
{
    if (!vec_gt_bits(largest, vec_set1(last_of(best))))
        return;
    const float least = least_of_best(best, largest, excluded);
    int64_t i = 0;
    for (; i + AT_ONCE <= columns->count; i += AT_ONCE) {
        const vec some = largest_of_some(columns->values + i);
        const uint32_t below = vec_gt_bits(vec_set1(least), some);
        if (vec_gt_bits(some, vec_set1(last_of(best))) & ~below)
            for (int64_t k = i; k < i + AT_ONCE; k += LANES)
                insert_lanes(best, columns, k, least, excluded);
    }
    for (; i < columns->count; i += LANES)
        insert_lanes(best, columns, i, least, excluded);
}

static float sum_of_exponentials(const Columns *columns, float offset)
{
    const vec offsets = vec_set1(offset), per_log2 = vec_set1(PER_LOG2);
    vec sum = vec_set1(0.0f);
    int64_t i = 0;
    for (; i + LANES <= columns->count; i += LANES)
        sum += vec_exp2((vec_load(columns->values + i) - offsets) * per_log2);
    if (i < columns->count)
        sum += vec_exp2((values_from(columns, i) - offsets) * per_log2);
    return vec_reduce_add(sum);
}

/* Let some of a row's logits be seen. */
static void see(Seen *seen, const Columns *columns, const Excluded *excluded,
                int64_t forced)
{
    const vec largest = largest_of(columns);
    const float highest = vec_reduce_max(largest);
    insert_best(&seen->best, columns, largest, excluded);
    if (highest > seen->highest) {
        /* The exponential of minus infinity is zero, as is the sum then, or NaN. */
        seen->sum *= expf(seen->highest - highest);
        seen->highest = highest;
    }
    const float offset = seen->highest > -INFINITY ? seen->highest : 0.0f;
    seen->sum += sum_of_exponentials(columns, offset);
    if (forced >= columns->first && forced < columns->first + columns->count)
        seen->forced = columns->values[forced - columns->first];
}

/* The largest of a row that may come, as log-probabilities, the best first. Where there
   are fewer, minus infinity; where the row has NaN, NaN. */
static void make_log_probabilities(Seen *seen, const Excluded *excluded, int64_t forced)
{
    Best *best = &seen->best;
    /* If none is above minus infinity, as 0 / 0: there is no distribution. */
    const float log_sum =
        seen->highest > -INFINITY ? seen->highest + logf(seen->sum) : NAN;
    for (int64_t i = 0; i < best->count; i++)
        best->values[i] -= log_sum;
    if (forced < 0)
        return;
    for (int64_t i = 0; i < best->count; i++) {
        best->values[i] = -INFINITY - log_sum; /* NaN, if that is NaN */
        best->tokens[i].id = (int32_t)forced;
    }
    if (!is_excluded(excluded, forced))
        best->values[0] = seen->forced - log_sum;
}

/* Whether one stands before another: NaN is behind all. */
static int is_before(double one, double other)
{
    return one > other || (isnan(other) && !isnan(one));
}

/* Merge what was found for the hypotheses of a sentence, of equals the first. */
static void merge(const CandidateSearch *asked, int64_t sentence, const Seen *seen,
                  int64_t *taken)
{
    const int64_t group = asked->group, count = asked->count;
    for (int64_t h = 0; h < group; h++)
        taken[h] = 0;
    for (int64_t place = 0; place < count; place++) {
        int64_t parent = -1;
        double highest = 0.0, its_total = -INFINITY;
        for (int64_t h = 0; h < group; h++) {
            const Best *best = &seen[h].best;
            if (taken[h] == best->count)
                continue;
            double total =
                (double)best->values[taken[h]] + asked->totals[sentence * group + h];
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
        asked->found_tokens[at] =
            parent < 0 ? 0 : seen[parent].best.tokens[taken[parent]].id;
        if (parent >= 0)
            taken[parent]++;
    }
}

static Excluded excluded_from(const CandidateSearch *asked, int64_t row)
{
    return (Excluded){asked->mask ? asked->mask + row * asked->vocab : NULL,
                      asked->never, asked->num_never};
}

static int64_t forced_in(const CandidateSearch *asked, int64_t row)
{
    return asked->forced ? asked->forced[row / asked->group] : -1;
}

TD_INTERNAL int begin_candidates(const CandidateSearch *asked, Seeing *seeing)
{
    const int64_t rows = asked->sentences * asked->group;
    const int64_t count = asked->count < asked->vocab ? asked->count : asked->vocab;
    for (int64_t i = 0; asked->forced && i < asked->sentences; i++)
        if (asked->forced[i] < -1 || asked->forced[i] >= asked->vocab)
            return 2;
    /* Before the places of a row stands a register, for what is before the first. */
    const int64_t places = LANES + round_up_to_lanes(count);
    const size_t of_row =
        sizeof(Seen) + (size_t)places * (sizeof(Token) + sizeof(float));
    seeing->of_rows =
        malloc((size_t)rows * of_row + (size_t)asked->group * sizeof(int64_t));
    if (!seeing->of_rows)
        return 1;
    seeing->taken = (int64_t *)(seeing->of_rows + rows);
    Token *tokens = (Token *)(seeing->taken + asked->group) + LANES;
    float *values = (float *)(tokens + rows * places);
    for (int64_t row = 0; row < rows; row++)
        seeing->of_rows[row].best =
            (Best){count, values + row * places, tokens + row * places};
    begin_again(asked, seeing);
    return 0;
}

TD_INTERNAL void begin_again(const CandidateSearch *asked, Seeing *seeing)
{
    for (int64_t row = 0; row < asked->sentences * asked->group; row++) {
        Seen *seen = seeing->of_rows + row;
        *seen = (Seen){seen->best, -INFINITY, 0.0f, 0.0f};
        clear(&seen->best);
    }
}

TD_INTERNAL void see_logits(const CandidateSearch *asked, Seeing *seeing,
                            const float *logits, int64_t stride, int64_t first,
                            int64_t count)
{
    for (int64_t row = 0; row < asked->sentences * asked->group; row++) {
        const Excluded excluded = excluded_from(asked, row);
        for (int64_t i = 0; i < count; i += SEEN_AT_ONCE) {
            const int64_t left = count - i;
            const Columns columns = {logits + row * stride + i,
                                     left < SEEN_AT_ONCE ? left : SEEN_AT_ONCE,
                                     first + i};
            see(seeing->of_rows + row, &columns, &excluded, forced_in(asked, row));
        }
    }
}

/* A logit that is not above it, times 1 / ln 2, is not among the best: it is a bit less
   than the last of these, as the products of both were rounded. */
static float least_worth(const Best *best)
{
    const float last = last_of(best) * PER_LOG2;
    return last - ROUNDED * (1 + fabsf(last));
}

TD_INTERNAL void begin_glimpses(const CandidateSearch *asked, const Seeing *seeing,
                                Glimpse *glimpses)
{
    for (int64_t row = 0; row < asked->sentences * asked->group; row++) {
        const Seen *seen = seeing->of_rows + row;
        glimpses[row] = (Glimpse){vec_set1(0.0f), seen->highest * PER_LOG2,
                                  least_worth(&seen->best)};
    }
}

TD_INTERNAL void insert_glimpsed(const CandidateSearch *asked, Seeing *seeing,
                                 Glimpse *glimpses, int64_t row, vec one, vec other,
                                 int64_t token)
{
    float values[2 * LANES];
    vec_store_first(values, LANES, one);
    vec_store_first(values + LANES, LANES, other);
    Best *best = &seeing->of_rows[row].best;
    const Columns columns = {values, 2 * LANES, token};
    const Excluded excluded = excluded_from(asked, row);
    insert_lanes(best, &columns, 0, -INFINITY, &excluded);
    insert_lanes(best, &columns, LANES, -INFINITY, &excluded);
    glimpses[row].least = least_worth(best);
}

TD_INTERNAL int end_glimpses(const CandidateSearch *asked, Seeing *seeing,
                             const Glimpse *glimpses)
{
    const int64_t rows = asked->sentences * asked->group;
    int are_numbers = 1;
    for (int64_t row = 0; row < rows; row++) {
        Seen *seen = seeing->of_rows + row;
        seen->sum += vec_reduce_add(glimpses[row].sums);
        are_numbers &= isfinite(seen->sum) && seen->highest > -INFINITY;
    }
    return are_numbers;
}

TD_INTERNAL void end_candidates(const CandidateSearch *asked, Seeing *seeing)
{
    for (int64_t row = 0; row < asked->sentences * asked->group; row++) {
        const Excluded excluded = excluded_from(asked, row);
        make_log_probabilities(seeing->of_rows + row, &excluded, forced_in(asked, row));
    }
    for (int64_t i = 0; i < asked->sentences; i++)
        merge(asked, i, seeing->of_rows + i * asked->group, seeing->taken);
    drop_candidates(seeing);
}

TD_INTERNAL void drop_candidates(Seeing *seeing) { free(seeing->of_rows); }

static int transduce_candidates(const CandidateSearch *asked, const float *logits)
{
    Seeing seeing;
    const int failure = begin_candidates(asked, &seeing);
    if (failure)
        return failure;
    see_logits(asked, &seeing, logits, asked->vocab, 0, asked->vocab);
    end_candidates(asked, &seeing);
    return 0;
}
