/* Attention of one row at a time: its scores, their softmax, and the weighted sum of
 * the values, stage by stage for all heads. */
#include "decode/attention.h"

#include <math.h>

#include "simd/vec.h"

/* Keys that are multiplied side by side: independent sums hide the latency of one. */
#define KEYS_AT_ONCE 8

_Static_assert(LANES == KEYS_AT_ONCE || LANES == 2 * KEYS_AT_ONCE,
               "scores fill vectors");

/* Sums are separate variables: the compiler would not keep an array in registers. */
#define EACH_KEY(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define START_KEY(k)                                                                   \
    const float *key##k = key + slots[k] * stride;                                     \
    vec sum##k = vec_set1(0.0f);
#define MULTIPLY_KEY(k) sum##k = vec_fma(part, vec_load(key##k + i), sum##k);
#define MULTIPLY_LAST(k)                                                               \
    sum##k = vec_fma(part, vec_load_masked(mask, key##k + i), sum##k);
#define HALF_OF_KEY(k) vec_add_halves(sum##k),

/* Products of a query and the keys of KEYS_AT_ONCE slots. */
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
        const vec_mask mask = vec_mask_first(width - i);
        const vec part = vec_load_masked(mask, query + i);
        EACH_KEY(MULTIPLY_LAST)
    }
    const vec8 halves[KEYS_AT_ONCE] = {EACH_KEY(HALF_OF_KEY)};
    return sum_each_of_8(halves);
}

/* Scores of a query for the keys of `count` slots, padded to whole vectors. The list of
 * slots is padded too, so that KEYS_AT_ONCE slots can always be read. */
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
        /* One store: two halves could not be forwarded to the load of a vector. */
        vec_store(scores + i, vec_from_halves(first, last));
    }
}

static float additive_score(const float *query, const float *key, const float *weight,
                            int64_t width)
{
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec_mask mask = vec_mask_first(width - i);
        const vec hidden =
            vec_load_masked(mask, query + i) + vec_load_masked(mask, key + i);
        sum = vec_fma(vec_load_masked(mask, weight + i), vec_tanh(hidden), sum);
    }
    return vec_reduce_add(sum);
}

/* Additive scores of a query for the keys of `count` slots, padded to whole vectors. */
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

/* Largest score that is not NaN. */
static float max_score(const float *scores, int64_t count)
{
    const vec none = vec_set1(-INFINITY);
    vec max = none;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec each = vec_load(scores + i);
        max = vec_max(vec_select(vec_mask_first(count - i), each, none), max);
    }
    return vec_reduce_max(max);
}

TD_INTERNAL void softmax(float *scores, int64_t count)
{
    const vec zero = vec_set1(0.0f), offset = vec_set1(max_score(scores, count));
    vec sum = zero;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec each = vec_exp(vec_load(scores + i) - offset);
        vec_store(scores + i, each);
        sum += vec_select(vec_mask_first(count - i), each, zero);
    }
    const vec factor = vec_set1(1 / vec_reduce_add(sum));
    for (int64_t i = 0; i < count; i += LANES)
        vec_store(scores + i, vec_load(scores + i) * factor);
}

/* Values of `count` slots and their weights. */
typedef struct {
    const float *values, *weights;
    const int32_t *slots;
    int64_t stride, count;
} WeightedValues;

/* Average `registers` vectors of columns from `column` on; 1, 2 or 4, a literal at each
 * call. */
static inline __attribute__((always_inline)) void
average_registers(const WeightedValues *v, int64_t column, float *out,
                  const int registers)
{
    vec first = vec_set1(0.0f), second = first, third = first, fourth = first;
    for (int64_t i = 0; i < v->count; i++) {
        const float *from = v->values + v->slots[i] * v->stride + column;
        const vec weight = vec_set1(v->weights[i]);
        first = vec_fma(weight, vec_load(from), first);
        if (registers > 1)
            second = vec_fma(weight, vec_load(from + LANES), second);
        if (registers > 2) {
            third = vec_fma(weight, vec_load(from + 2 * LANES), third);
            fourth = vec_fma(weight, vec_load(from + 3 * LANES), fourth);
        }
    }
    vec_store(out + column, first);
    if (registers > 1)
        vec_store(out + column + LANES, second);
    if (registers > 2) {
        vec_store(out + column + 2 * LANES, third);
        vec_store(out + column + 3 * LANES, fourth);
    }
}

/* Average the last columns, fewer than LANES. */
static void average_last(const WeightedValues *v, int64_t column, float *out,
                         int64_t left)
{
    const vec_mask mask = vec_mask_first(left);
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < v->count; i++) {
        const float *from = v->values + v->slots[i] * v->stride + column;
        sum = vec_fma(vec_set1(v->weights[i]), vec_load_masked(mask, from), sum);
    }
    vec_store_first(out + column, left, sum);
}

static void average(const WeightedValues *v, int64_t width, float *out)
{
    int64_t column = 0;
    for (; column + 4 * LANES <= width; column += 4 * LANES)
        average_registers(v, column, out, 4);
    for (; column + 2 * LANES <= width; column += 2 * LANES)
        average_registers(v, column, out, 2);
    for (; column + LANES <= width; column += LANES)
        average_registers(v, column, out, 1);
    if (column < width)
        average_last(v, column, out, width - column);
}

/* Repeat the first slot after the last, so that KEYS_AT_ONCE slots can be read. */
static void pad_slots(int32_t *slots, int64_t count)
{
    for (int64_t i = count; i < count + KEYS_AT_ONCE - 1; i++)
        slots[i] = slots[0];
}

TD_INTERNAL void attend(Workspace *work, int64_t row, int64_t entry,
                        const KvCache *keys, const KvCache *values,
                        const float *additive, int64_t count)
{
    const Stack *stack = work->stack;
    const int64_t stride = work->max_keys, heads = stack->num_heads;
    const float *query = row_of(&work->wide, row);
    const float *key = keys->data + entry * keys->entry_stride;
    const float *value = values->data + entry * values->entry_stride;
    float *out = row_of(&work->heads, row);
    pad_slots(work->slots, count);
    /* Each stage runs for all heads before the next stage begins, so that no head waits
     * for its own result of the stage before. */
    for (int64_t head = 0; head < heads; head++) {
        const int64_t first = head * stack->d_k;
        if (additive)
            score_additively(work, query + first, key + head * keys->head_stride,
                             keys->row_stride, additive + first, count,
                             work->scores + head * stride);
        else
            multiply_keys(work, query + first, key + head * keys->head_stride,
                          keys->row_stride, count, work->scores + head * stride);
    }
    for (int64_t head = 0; head < heads; head++)
        softmax(work->scores + head * stride, count);
    for (int64_t head = 0; head < heads; head++) {
        const WeightedValues weighted = {value + head * values->head_stride,
                                         work->scores + head * stride, work->slots,
                                         values->row_stride, count};
        average(&weighted, stack->d_v, out + head * stack->d_v);
    }
}
