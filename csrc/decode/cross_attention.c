/* Attention of several rows to one source, whose keys and values are read once. */
#include "decode/attention.h"

#include "simd/prefetch.h"
#include "simd/vec.h"

/* One head of the rows; strides are in floats. */
typedef struct {
    const float *query, *keys, *values, *additive;
    float *scores, *out;
    int64_t query_stride, value_stride, score_stride, out_stride;
    int64_t d_k, d_v, length;
    float *attention; /* sum to which `share` of the scores is added, or NULL */
    int64_t attention_stride;
    float share;
    int64_t keys_ahead, values_ahead; /* floats up to those to prefetch */
} Head;

/* Sums are separate variables, as arrays of them would not stay in registers. */
#define EACH_OF_ROWS(DO) DO(0) DO(1) DO(2) DO(3)
#define START_SCORES(r) vec even##r = zero, odd##r = zero;
#define ADD_EVEN(r)                                                                    \
    if (r < rows)                                                                      \
        even##r = vec_fma(vec_set1(query[r * of->query_stride]), even, even##r);
#define ADD_ODD(r)                                                                     \
    if (r < rows)                                                                      \
        odd##r = vec_fma(vec_set1(query[r * of->query_stride + 1]), odd, odd##r);
#define KEEP_SCORES(r)                                                                 \
    if (r < rows)                                                                      \
        vec_store_first(of->scores + r * of->score_stride + first, LANES,              \
                        even##r + odd##r);

/* Products of the queries and LANES keys from `first` on. `rows` is a literal at each
 * call. */
static inline __attribute__((always_inline)) void
score_positions(const Head *of, int64_t first, const int rows)
{
    const vec zero = vec_set1(0.0f);
    const float *query = of->query, *key = of->keys + first * of->d_k;
    EACH_OF_ROWS(START_SCORES)
    int64_t i = 0;
    for (; i + 2 <= of->d_k; i += 2, query += 2, key += 2 * LANES) {
        const vec even = vec_load(key), odd = vec_load(key + LANES);
        prefetch(key + of->keys_ahead, 2 * LANES * (int64_t)sizeof(float));
        EACH_OF_ROWS(ADD_EVEN)
        EACH_OF_ROWS(ADD_ODD)
    }
    if (i < of->d_k) {
        const vec even = vec_load(key);
        EACH_OF_ROWS(ADD_EVEN)
    }
    EACH_OF_ROWS(KEEP_SCORES)
}

/* Additive scores of a row and LANES keys from `first` on. */
static void score_positions_additively(const Head *of, int64_t first, int64_t row)
{
    const float *query = of->query + row * of->query_stride;
    const float *key = of->keys + first * of->d_k;
    vec sum = vec_set1(0.0f);
    for (int64_t i = 0; i < of->d_k; i++, key += LANES)
        sum = vec_fma(vec_set1(of->additive[i]),
                      vec_tanh(vec_load(key) + vec_set1(query[i])), sum);
    vec_store_first(of->scores + row * of->score_stride + first, LANES, sum);
}

#define START_AVERAGE(r) vec left##r = zero, right##r = zero;
#define ADD_TO_AVERAGE(r)                                                              \
    if (r < rows) {                                                                    \
        const vec score = vec_set1(scores[r * of->score_stride]);                      \
        left##r = vec_fma(score, left, left##r);                                       \
        if (is_whole)                                                                  \
            right##r = vec_fma(score, right, right##r);                                \
    }
#define KEEP_AVERAGE(r)                                                                \
    if (r < rows) {                                                                    \
        float *out = of->out + r * of->out_stride + column;                            \
        vec_store_first(out, is_whole ? LANES : count, left##r);                       \
        if (is_whole)                                                                  \
            vec_store_first(out + LANES, LANES, right##r);                             \
    }

/* Averages of columns of the values from `column` on: of two vectors if `is_whole`,
 * otherwise of `count` columns in one. `rows` and `is_whole` are literals at each call.
 */
static inline __attribute__((always_inline)) void
average_columns(const Head *of, int64_t column, int64_t count, const int rows,
                const int is_whole)
{
    const vec zero = vec_set1(0.0f);
    const vec_mask there = vec_first(count);
    const float *scores = of->scores, *value = of->values + column;
    EACH_OF_ROWS(START_AVERAGE)
    for (int64_t i = 0; i < of->length; i++, scores++, value += of->value_stride) {
        const vec left = is_whole ? vec_load(value) : vec_load_masked(there, value);
        const vec right = is_whole ? vec_load(value + LANES) : zero;
        prefetch(value + of->values_ahead, count * (int64_t)sizeof(float));
        EACH_OF_ROWS(ADD_TO_AVERAGE)
    }
    EACH_OF_ROWS(KEEP_AVERAGE)
}

static void add_attention(const Head *of, int64_t row)
{
    const float *scores = of->scores + row * of->score_stride;
    float *attention = of->attention + row * of->attention_stride;
    for (int64_t i = 0; i < of->length; i++)
        attention[i] += scores[i] * of->share;
}

static inline __attribute__((always_inline)) void attend_with_head(const Head *of,
                                                                   const int rows)
{
    for (int64_t first = 0; first < of->length; first += LANES) {
        if (!of->additive)
            score_positions(of, first, rows);
        for (int row = 0; of->additive && row < rows; row++)
            score_positions_additively(of, first, row);
    }
    for (int row = 0; row < rows; row++)
        softmax(of->scores + row * of->score_stride, of->length);
    for (int row = 0; of->attention && row < rows; row++)
        add_attention(of, row);
    int64_t column = 0;
    for (; column + 2 * LANES <= of->d_v; column += 2 * LANES)
        average_columns(of, column, 2 * LANES, rows, 1);
    for (; column < of->d_v; column += LANES)
        average_columns(of, column, of->d_v - column, rows, 0);
}

static void attend_with_rows(const Head *of, int64_t rows)
{
    switch (rows) {
    case 1:
        attend_with_head(of, 1);
        break;
    case 2:
        attend_with_head(of, 2);
        break;
    case 3:
        attend_with_head(of, 3);
        break;
    default:
        attend_with_head(of, CROSS_ROWS);
    }
}

TD_INTERNAL void cross_attend(Workspace *work, int64_t first, int64_t rows,
                              const Source *source)
{
    const Stack *stack = work->stack;
    const KvCache *keys = source->keys, *values = source->values;
    const float *key = keys->numbers + source->entry * keys->per_sentence;
    const float *value = values->numbers + source->entry * values->per_sentence;
    const int64_t ahead = source->next_entry - source->entry;
    for (int64_t head = 0; head < stack->num_heads; head++) {
        const int64_t first_key = head * stack->d_k, first_value = head * stack->d_v;
        const Head of = {
            .query = row_of(&work->wide, first) + first_key,
            .keys = key + head * keys->per_head,
            .values = value + head * values->per_head,
            .additive = source->additive ? source->additive + first_key : NULL,
            .scores = work->scores,
            .out = row_of(&work->heads, first) + first_value,
            .query_stride = work->wide.stride,
            .value_stride = values->per_row,
            .score_stride = work->max_keys,
            .out_stride = work->heads.stride,
            .d_k = stack->d_k,
            .d_v = stack->d_v,
            .length = source->length,
            .attention = source->attention,
            .attention_stride = source->attention_stride,
            .share = 1.0f / (float)stack->num_heads,
            .keys_ahead = ahead * keys->per_sentence,
            .values_ahead = ahead * values->per_sentence,
        };
        attend_with_rows(&of, rows);
    }
}
