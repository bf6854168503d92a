/* Attention of several rows to one source: they share each read of keys and values. */
#include "decode/attention.h"

#include "simd/prefetch.h"
#include "simd/vec.h"

/* One head of the rows; strides are in floats. */
typedef struct {
    const float *query, *keys, *values, *additive;
    float *scores, *out;
    int64_t query_stride, value_stride, score_stride, out_stride;
    int64_t d_k, d_v, length;
    float *attention; /* to which the weights are added, times `share`; or NULL */
    int64_t attention_stride;
    float share;
    int64_t keys_ahead, values_ahead; /* how far ahead to prefetch, in floats */
} CrossHead;

/* Sums are separate variables: the compiler would not keep an array in registers. */
#define EACH_CROSS_ROW(DO) DO(0) DO(1) DO(2) DO(3)
_Static_assert(CROSS_ROWS == 4, "EACH_CROSS_ROW has a row for each");

#define START_SCORES(r) vec even##r = zero, odd##r = zero;
#define ADD_EVEN(r)                                                                    \
    if (r < rows)                                                                      \
        even##r = vec_fma(vec_set1(query[r * h->query_stride]), even, even##r);
#define ADD_ODD(r)                                                                     \
    if (r < rows)                                                                      \
        odd##r = vec_fma(vec_set1(query[r * h->query_stride + 1]), odd, odd##r);
#define KEEP_SCORES(r)                                                                 \
    if (r < rows)                                                                      \
        vec_store(h->scores + r * h->score_stride + first, even##r + odd##r);

/* Scores of `rows` queries for LANES keys from `first` on. `rows` is a literal at each
 * call. */
static inline __attribute__((always_inline)) void
score_positions(const CrossHead *h, int64_t first, const int rows)
{
    const vec zero = vec_set1(0.0f);
    const float *query = h->query, *key = h->keys + first * h->d_k;
    EACH_CROSS_ROW(START_SCORES)
    int64_t i = 0;
    for (; i + 2 <= h->d_k; i += 2, query += 2, key += 2 * LANES) {
        const vec even = vec_load(key), odd = vec_load(key + LANES);
        prefetch(key + h->keys_ahead, 2 * LANES * (int64_t)sizeof(float));
        EACH_CROSS_ROW(ADD_EVEN)
        EACH_CROSS_ROW(ADD_ODD)
    }
    if (i < h->d_k) {
        const vec even = vec_load(key);
        EACH_CROSS_ROW(ADD_EVEN)
    }
    EACH_CROSS_ROW(KEEP_SCORES)
}

/* Additive scores of one query for LANES keys from `first` on. */
static void score_positions_additively(const CrossHead *h, int64_t first, int64_t row)
{
    const float *query = h->query + row * h->query_stride;
    const float *key = h->keys + first * h->d_k;
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < h->d_k; i++, key += LANES)
        sum = vec_fma(vec_set1(h->additive[i]),
                      vec_tanh(vec_load(key) + vec_set1(query[i])), sum);
    vec_store(h->scores + row * h->score_stride + first, sum);
}

#define START_AVERAGE(r) vec left##r = zero, right##r = zero;
#define ADD_TO_AVERAGE(r)                                                              \
    if (r < rows) {                                                                    \
        const vec score = vec_set1(scores[r * h->score_stride]);                       \
        left##r = vec_fma(score, left, left##r);                                       \
        if (is_whole)                                                                  \
            right##r = vec_fma(score, right, right##r);                                \
    }
#define KEEP_AVERAGE(r)                                                                \
    if (r < rows) {                                                                    \
        float *out = h->out + r * h->out_stride + column;                              \
        vec_store_first(out, is_whole ? LANES : count, left##r);                       \
        if (is_whole)                                                                  \
            vec_store(out + LANES, right##r);                                          \
    }

/* Average columns of the values from `column` on: two vectors if `is_whole`, otherwise
 * `count` columns in one vector. `rows` and `is_whole` are literals at each call. */
static inline __attribute__((always_inline)) void
average_columns(const CrossHead *h, int64_t column, int64_t count, const int rows,
                const int is_whole)
{
    const vec zero = vec_set1(0.0f);
    const vec_mask mask = vec_mask_first(count);
    const float *scores = h->scores, *value = h->values + column;
    EACH_CROSS_ROW(START_AVERAGE)
    for (int64_t i = 0; i < h->length; i++, scores++, value += h->value_stride) {
        const vec left = is_whole ? vec_load(value) : vec_load_masked(mask, value);
        const vec right = is_whole ? vec_load(value + LANES) : zero;
        prefetch(value + h->values_ahead, count * (int64_t)sizeof(float));
        EACH_CROSS_ROW(ADD_TO_AVERAGE)
    }
    EACH_CROSS_ROW(KEEP_AVERAGE)
}

static void add_attention(const CrossHead *h, int64_t row)
{
    const float *scores = h->scores + row * h->score_stride;
    float *attention = h->attention + row * h->attention_stride;
    for (int64_t i = 0; i < h->length; i++)
        attention[i] += scores[i] * h->share;
}

static inline __attribute__((always_inline)) void attend_with_head(const CrossHead *h,
                                                                   const int rows)
{
    for (int64_t first = 0; first < h->length; first += LANES) {
        if (!h->additive)
            score_positions(h, first, rows);
        for (int row = 0; h->additive && row < rows; row++)
            score_positions_additively(h, first, row);
    }
    for (int row = 0; row < rows; row++)
        softmax(h->scores + row * h->score_stride, h->length);
    for (int row = 0; h->attention && row < rows; row++)
        add_attention(h, row);
    int64_t column = 0;
    for (; column + 2 * LANES <= h->d_v; column += 2 * LANES)
        average_columns(h, column, 2 * LANES, rows, 1);
    for (; column < h->d_v; column += LANES)
        average_columns(h, column, h->d_v - column, rows, 0);
}

static void attend_with_rows(const CrossHead *h, int64_t rows)
{
    switch (rows) {
    case 1:
        attend_with_head(h, 1);
        break;
    case 2:
        attend_with_head(h, 2);
        break;
    case 3:
        attend_with_head(h, 3);
        break;
    default:
        attend_with_head(h, CROSS_ROWS);
    }
}

TD_INTERNAL void cross_attend(Workspace *work, int64_t first, int64_t rows,
                              const Source *source)
{
    const Stack *stack = work->stack;
    const KvCache *keys = source->keys, *values = source->values;
    const float *key = keys->data + source->entry * keys->entry_stride;
    const float *value = values->data + source->entry * values->entry_stride;
    const int64_t ahead = source->next_entry - source->entry;
    for (int64_t head = 0; head < stack->num_heads; head++) {
        const int64_t first_key = head * stack->d_k, first_value = head * stack->d_v;
        const CrossHead view = {
            .query = row_of(&work->wide, first) + first_key,
            .keys = key + head * keys->head_stride,
            .values = value + head * values->head_stride,
            .additive = source->additive ? source->additive + first_key : NULL,
            .scores = work->scores,
            .out = row_of(&work->heads, first) + first_value,
            .query_stride = work->wide.stride,
            .value_stride = values->row_stride,
            .score_stride = work->max_keys,
            .out_stride = work->heads.stride,
            .d_k = stack->d_k,
            .d_v = stack->d_v,
            .length = source->length,
            .attention = source->attention,
            .attention_stride = source->attention_stride,
            .share = 1.0f / (float)stack->num_heads,
            .keys_ahead = ahead * keys->entry_stride,
            .values_ahead = ahead * values->entry_stride,
        };
        attend_with_rows(&view, rows);
    }
}
