/* Attention of a single row. */
#include "decode/attention.h"

#include <math.h>

#include "simd/vec.h"

#define KEYS_AT_ONCE                                                                   \
    8 /* multiplied side by side, because one by one they would wait                   \
       */

_Static_assert(LANES == KEYS_AT_ONCE || LANES == 2 * KEYS_AT_ONCE,
               "scores fill vectors");

/* Sums are separate variables, as arrays of them would not stay in registers. */
#define EACH_KEY(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define START_KEY(k)                                                                   \
    const float *key##k = key + slots[k] * stride;                                     \
    vec sum##k = vec_set1(0.0f);
#define MULTIPLY_KEY(k) sum##k = vec_fma(part, vec_load(key##k + i), sum##k);
#define MULTIPLY_LAST(k)                                                               \
    sum##k = vec_fma(part, vec_load_masked(there, key##k + i), sum##k);
#define HALF_OF_KEY(k) vec_add_halves(sum##k),

/* Products of a query and KEYS_AT_ONCE keys, those of the slots. */
static inline vec8 products_with_keys(const float *query, const float *key,
                                      const int32_t *slots, int64_t stride,
                                      int64_t width)
{
    EACH_KEY(START_KEY)
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        const vec part = vec_load(query + i);
        EACH_KEY(MULTIPLY_KEY)
    }
    if (i < width) {
        const vec_mask there = vec_first(width - i);
        const vec part = vec_load_masked(there, query + i);
        EACH_KEY(MULTIPLY_LAST)
    }
    const vec8 halves[KEYS_AT_ONCE] = {EACH_KEY(HALF_OF_KEY)};
    return sum_each_of_8(halves);
}

/* Products of a query and the keys of `count` slots. The list of slots is padded, so
 * that KEYS_AT_ONCE of them can always be read. */
static void multiply_keys(const Workspace *work, const float *query, const float *key,
                          int64_t stride, int64_t count, float *scores)
{
    const int64_t width = work->stack->d_k;
    const int32_t *slots = work->slots;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec8 first = products_with_keys(query, key, slots + i, stride, width);
        const vec8 last = LANES > KEYS_AT_ONCE && i + KEYS_AT_ONCE < count
                              ? products_with_keys(query, key, slots + i + KEYS_AT_ONCE,
                                                   stride, width)
                              : first;
        /* One store: narrower ones would not be forwarded to a load of all lanes. */
        vec_store_first(scores + i, LANES, vec_from_halves(first, last));
    }
}

static float additive_score(const float *query, const float *key, const float *weight,
                            int64_t width)
{
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec_mask there = vec_first(width - i);
        const vec hidden =
            vec_load_masked(there, query + i) + vec_load_masked(there, key + i);
        sum = vec_fma(vec_load_masked(there, weight + i), vec_tanh(hidden), sum);
    }
    return vec_reduce_add(sum);
}

/* Additive scores of a query and the keys of `count` slots, padded to whole vectors. */
static void score_additively(const Workspace *work, const float *query,
                             const float *key, int64_t stride, const float *weight,
                             int64_t count, float *scores)
{
    for (int64_t i = 0; i < count; i++)
        scores[i] = additive_score(query, key + work->slots[i] * stride, weight,
                                   work->stack->d_k);
    for (int64_t i = count; i < round_up_to_lanes(count); i++)
        scores[i] = 0.0f;
}

/* Largest score; NaN is passed over. */
static float max_score(const float *scores, int64_t count)
{
    const vec none = vec_set1(-INFINITY);
    vec highest = none;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec each = vec_load(scores + i);
        highest = vec_max(vec_select(vec_first(count - i), each, none), highest);
    }
    return vec_reduce_max(highest);
}

TD_INTERNAL void softmax(float *scores, int64_t count)
{
    const vec zero = vec_set1(0.0f), offset = vec_set1(max_score(scores, count));
    vec sum = zero;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec each = vec_exp(vec_load(scores + i) - offset);
        vec_store_first(scores + i, LANES, each);
        sum += vec_select(vec_first(count - i), each, zero);
    }
    const vec factor = vec_set1(1 / vec_reduce_add(sum));
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_first(scores + i, LANES, vec_load(scores + i) * factor);
}

/* Average of the values of `count` slots, weighted by their scores. */
typedef struct {
    const float *values, *scores;
    const int32_t *slots;
    int64_t stride, count;
} Average;

/* The columns of `registers` vectors from `column` on; 1, 2 or 4, a literal at each
 * call. */
static inline __attribute__((always_inline)) void
average_registers(const Average *of, int64_t column, float *out, const int registers)
{
    vec first = vec_set1(0.0f), second = first, third = first, fourth = first;
    for (int64_t i = 0; i < of->count; i++) {
        const float *from = of->values + of->slots[i] * of->stride + column;
        const vec score = vec_set1(of->scores[i]);
        first = vec_fma(score, vec_load(from), first);
        if (registers > 1)
            second = vec_fma(score, vec_load(from + LANES), second);
        if (registers > 2) {
            third = vec_fma(score, vec_load(from + 2 * LANES), third);
            fourth = vec_fma(score, vec_load(from + 3 * LANES), fourth);
        }
    }
    vec_store_first(out + column, LANES, first);
    if (registers > 1)
        vec_store_first(out + column + LANES, LANES, second);
    if (registers > 2) {
        vec_store_first(out + column + 2 * LANES, LANES, third);
        vec_store_first(out + column + 3 * LANES, LANES, fourth);
    }
}

/* The last columns, fewer than LANES. */
static void average_last(const Average *of, int64_t column, float *out, int64_t left)
{
    const vec_mask there = vec_first(left);
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < of->count; i++) {
        const float *from = of->values + of->slots[i] * of->stride + column;
        sum = vec_fma(vec_set1(of->scores[i]), vec_load_masked(there, from), sum);
    }
    vec_store_first(out + column, left, sum);
}

static void average(const Average *of, int64_t width, float *out)
{
    int64_t column = 0;
    for (; column + 4 * LANES <= width; column += 4 * LANES)
        average_registers(of, column, out, 4);
    for (; column + 2 * LANES <= width; column += 2 * LANES)
        average_registers(of, column, out, 2);
    for (; column + LANES <= width; column += LANES)
        average_registers(of, column, out, 1);
    if (column < width)
        average_last(of, column, out, width - column);
}

/* Repeat the first slot behind the last, so that KEYS_AT_ONCE can always be read. */
static void pad_slots(int32_t *slots, int64_t count)
{
    for (int64_t i = count; i < count + KEYS_AT_ONCE - 1; i++)
        slots[i] = slots[0];
}

/* Each stage is done for all heads before the next one, which would wait for it. */
TD_INTERNAL void attend(Workspace *work, int64_t row, int64_t entry,
                        const KvCache *keys, const KvCache *values,
                        const float *additive, int64_t count)
{
    const Stack *stack = work->stack;
    const int64_t stride = work->max_keys, heads = stack->num_heads;
    const float *query = row_of(&work->wide, row);
    const float *key = keys->numbers + entry * keys->per_sentence;
    const float *value = values->numbers + entry * values->per_sentence;
    float *out = row_of(&work->heads, row);
    pad_slots(work->slots, count);
    for (int64_t head = 0; head < heads; head++) {
        const int64_t first = head * stack->d_k;
        if (additive)
            score_additively(work, query + first, key + head * keys->per_head,
                             keys->per_row, additive + first, count,
                             work->scores + head * stride);
        else
            multiply_keys(work, query + first, key + head * keys->per_head,
                          keys->per_row, count, work->scores + head * stride);
    }
    for (int64_t head = 0; head < heads; head++)
        softmax(work->scores + head * stride, count);
    for (int64_t head = 0; head < heads; head++) {
        const Average of = {value + head * values->per_head,
                            work->scores + head * stride, work->slots, values->per_row,
                            count};
        average(&of, stack->d_v, out + head * stack->d_v);
    }
}
