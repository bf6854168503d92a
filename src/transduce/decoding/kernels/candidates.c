/* The likeliest next tokens, without a matrix of log-probabilities. */
#include <math.h>

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

static __m512 lanes_of(const float *row, int64_t first, int64_t vocab)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    if (first >= vocab)
        return none;
    return _mm512_mask_loadu_ps(none, lanes_left(vocab - first), row + first);
}

/* Put in those of sixteen that are larger than the last. */
static void insert_lanes(Best *best, const float *row, int64_t first, __m512 values,
                         const Excluded *excluded)
{
    __m512 last = _mm512_set1_ps(best->values[best->count - 1]);
    __mmask16 better = _mm512_cmp_ps_mask(values, last, _CMP_GT_OQ);
    for (; better; better &= (__mmask16)(better - 1)) {
        int64_t token = first + __builtin_ctz(better);
        if (row[token] > best->values[best->count - 1] && !is_excluded(excluded, token))
            insert(best, row[token], token);
    }
}

/* Put in what is larger than the last; the largest of all, excluded or not. */
static float find_best(const float *row, int64_t vocab, const Excluded *excluded,
                       Best *best)
{
    __m512 highest = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < vocab; i += 4 * LANES) {
        __m512 values[4];
        for (int k = 0; k < 4; k++)
            values[k] = lanes_of(row, i + k * LANES, vocab);
        __m512 largest = _mm512_max_ps(_mm512_max_ps(values[0], values[1]),
                                       _mm512_max_ps(values[2], values[3]));
        /* Of few blocks any is among the best: most are passed over. */
        __m512 last = _mm512_set1_ps(best->values[best->count - 1]);
        if (_mm512_cmp_ps_mask(largest, last, _CMP_GT_OQ))
            for (int k = 0; k < 4; k++)
                insert_lanes(best, row, i + k * LANES, values[k], excluded);
        highest = _mm512_max_ps(largest, highest);
    }
    return _mm512_reduce_max_ps(highest);
}

static float log_sum_exp(const float *row, int64_t vocab, float highest)
{
    if (highest == -INFINITY)
        return NAN; /* as 0 / 0: there is no distribution */
    __m512 sum = _mm512_setzero_ps(), offset = _mm512_set1_ps(highest);
    for (int64_t i = 0; i < vocab; i += LANES) {
        __mmask16 there = lanes_left(vocab - i);
        __m512 value = _mm512_maskz_loadu_ps(there, row + i);
        __m512 each = lanes_exp(_mm512_sub_ps(value, offset));
        sum = _mm512_mask_add_ps(sum, there, sum, each);
    }
    return highest + logf(_mm512_reduce_add_ps(sum));
}

/* The log-probabilities and the tokens of the `count` largest of each row, best first,
   and the logarithm of each row's sum of exponentials. Where a row has fewer that are
   not excluded, minus infinity; where one has NaN, NaN. */
EXPORTED void transduce_best(const float *logits, int64_t rows, int64_t vocab,
                             const uint8_t *excluded, const int64_t *never,
                             int64_t num_never, int64_t count, float *values,
                             int64_t *tokens, float *log_sums)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *of_row = logits + row * vocab;
        Best best = {count, values + row * count, tokens + row * count};
        for (int64_t i = 0; i < count; i++) {
            best.values[i] = -INFINITY;
            best.tokens[i] = 0;
        }
        Excluded out = {excluded ? excluded + row * vocab : 0, never, num_never};
        float highest = find_best(of_row, vocab, &out, &best);
        float log_sum = log_sum_exp(of_row, vocab, highest);
        for (int64_t i = 0; i < count; i++)
            best.values[i] -= log_sum;
        log_sums[row] = log_sum;
    }
}
