/* Attention of a row by itself. */
#include "decode/attention.h"
#include "isa/name.h"

#include <math.h>

#include "simd/vec.h"

#define KEYS 8 /* multiplied side by side, as each alone would wait */

_Static_assert(LANES == KEYS || LANES == 2 * KEYS, "scores are put down by lanes");

/* Sums in variables of their own: those in an array would not stay in registers. */
#define EACH_KEY(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define START_KEY(k)                                                                   \
    const float *key##k = key + slots[k] * stride;                                     \
    vec sum##k = vec_set1(0.0f);
#define MULTIPLY_KEY(k) sum##k = vec_fma(part, vec_load(key##k + i), sum##k);
#define MULTIPLY_LAST(k)                                                               \
    sum##k = vec_fma(part, vec_load_masked(there, key##k + i), sum##k);
#define HALF_OF_KEY(k) vec_add_halves(sum##k),

/* The products of a query with so many keys: those of its slots. */
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
    const vec8 halves[KEYS] = {EACH_KEY(HALF_OF_KEY)};
    return sum_each_of_8(halves);
}

/* The products of a query with the keys that it sees. Behind these slots stand some
   more, so that there are always as many as are multiplied at once. */
static void multiply_keys(const Work *work, const float *query, const float *key,
                          int64_t stride, int64_t count, float *scores)
{
    const int64_t width = work->stack->d_k;
    const int32_t *slots = work->slots;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec8 first = products_with_keys(query, key, slots + i, stride, width);
        const vec8 last =
            LANES > KEYS && i + KEYS < count
                ? products_with_keys(query, key, slots + i + KEYS, stride, width)
                : first;
        /* By one store: narrower ones would not be forwarded to a load of all lanes. */
        vec_store_first(scores + i, LANES, vec_from_halves(first, last));
    }
}

/* NaN is passed over. */
static float highest_of(const float *scores, int64_t count)
{
    const vec none = vec_set1(-INFINITY);
    vec highest = none;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec each = vec_load(scores + i);
        highest = vec_max(vec_select(vec_first(count - i), each, none), highest);
    }
    return vec_reduce_max(highest);
}

TD_INTERNAL void normalise_scores(float *scores, int64_t count)
{
    const vec zero = vec_set1(0.0f), offset = vec_set1(highest_of(scores, count));
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

/* What is averaged: the values of so many slots, by their scores. */
typedef struct {
    const float *values, *scores;
    const int32_t *slots;
    int64_t stride, count;
} Average;

/* In as many columns as so many registers have lanes. The number, 1, 2 or 4, is a
   literal where it is called. */
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

/* In the last columns, fewer than a register has lanes. */
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

/* So that the last ones can be read together. */
static void fill_up(int32_t *slots, int64_t count)
{
    for (int64_t i = count; i < count + KEYS - 1; i++)
        slots[i] = slots[0];
}

/* What is to be done for each head is done for all before what comes next, which would
   wait for it. */
TD_INTERNAL void attend(Work *work, int64_t row, int64_t sentence, const Store *key,
                        const Store *value, int64_t count)
{
    const Stack *stack = work->stack;
    const int64_t most = work->most_slots, heads = stack->num_heads;
    const float *query = row_of(&work->wide, row);
    const float *keys = key->numbers + sentence * key->per_sentence;
    const float *values = value->numbers + sentence * value->per_sentence;
    float *out = row_of(&work->heads, row);
    fill_up(work->slots, count);
    for (int64_t head = 0; head < heads; head++)
        multiply_keys(work, query + head * stack->d_k, keys + head * key->per_head,
                      key->per_row, count, work->scores + head * most);
    for (int64_t head = 0; head < heads; head++)
        normalise_scores(work->scores + head * most, count);
    for (int64_t head = 0; head < heads; head++) {
        const Average of = {values + head * value->per_head, work->scores + head * most,
                            work->slots, value->per_row, count};
        average(&of, stack->d_v, out + head * stack->d_v);
    }
}
