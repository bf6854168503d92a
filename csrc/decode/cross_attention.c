/* Attention of rows that see the same: what they read is read once for several. */
#include "decode/attention.h"
#include "isa/name.h"

#include "simd/prefetch.h"
#include "simd/vec.h"

/* A head of so many rows. */
typedef struct {
    const float *query, *keys, *values;
    float *scores, *out;
    int64_t between_queries, between_values;
    int64_t between_scores, between_outs; /* of one row and the next */
    int64_t d_k, d_v, length;
    float *attention; /* sum to which `share` of the scores is added, or NULL */
    int64_t between_attentions;
    float share;
    int64_t keys_ahead, values_ahead; /* numbers to those that are read later */
} Head;

/* Sums in variables of their own: those in an array would not stay in registers. */
#define EACH_OF_ROWS(DO) DO(0) DO(1) DO(2) DO(3)
#define START_SCORES(r) vec even##r = zero, odd##r = zero;
#define ADD_EVEN(r)                                                                    \
    if (r < rows)                                                                      \
        even##r = vec_fma(vec_set1(query[r * of->between_queries]), even, even##r);
#define ADD_ODD(r)                                                                     \
    if (r < rows)                                                                      \
        odd##r = vec_fma(vec_set1(query[r * of->between_queries + 1]), odd, odd##r);
#define KEEP_SCORES(r)                                                                 \
    if (r < rows)                                                                      \
        vec_store_first(of->scores + r * of->between_scores + first, LANES,            \
                        even##r + odd##r);

/* The products of the queries with as many keys as there are lanes, from one on. The
   number of rows is a literal where it is called. */
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

#define START_AVERAGE(r) vec left##r = zero, right##r = zero;
#define ADD_TO_AVERAGE(r)                                                              \
    if (r < rows) {                                                                    \
        const vec score = vec_set1(scores[r * of->between_scores]);                    \
        left##r = vec_fma(score, left, left##r);                                       \
        if (is_whole)                                                                  \
            right##r = vec_fma(score, right, right##r);                                \
    }
#define KEEP_AVERAGE(r)                                                                \
    if (r < rows) {                                                                    \
        float *out = of->out + r * of->between_outs + column;                          \
        vec_store_first(out, is_whole ? LANES : count, left##r);                       \
        if (is_whole)                                                                  \
            vec_store_first(out + LANES, LANES, right##r);                             \
    }

/* The averages of the values' columns, from one on: of two registers, if it is whole,
   or of so many in one. Both that and the number of rows are literals where it is
   called.
 */
static inline __attribute__((always_inline)) void
average_columns(const Head *of, int64_t column, int64_t count, const int rows,
                const int is_whole)
{
    const vec zero = vec_set1(0.0f);
    const vec_mask there = vec_first(count);
    const float *scores = of->scores, *value = of->values + column;
    EACH_OF_ROWS(START_AVERAGE)
    for (int64_t i = 0; i < of->length; i++, scores++, value += of->between_values) {
        const vec left = is_whole ? vec_load(value) : vec_load_masked(there, value);
        const vec right = is_whole ? vec_load(value + LANES) : zero;
        prefetch(value + of->values_ahead, count * (int64_t)sizeof(float));
        EACH_OF_ROWS(ADD_TO_AVERAGE)
    }
    EACH_OF_ROWS(KEEP_AVERAGE)
}

static void add_attention(const Head *of, int64_t row)
{
    const float *scores = of->scores + row * of->between_scores;
    float *attention = of->attention + row * of->between_attentions;
    for (int64_t i = 0; i < of->length; i++)
        attention[i] += scores[i] * of->share;
}

static inline __attribute__((always_inline)) void attend_with_head(const Head *of,
                                                                   const int rows)
{
    for (int64_t first = 0; first < of->length; first += LANES)
        score_positions(of, first, rows);
    for (int row = 0; row < rows; row++)
        normalise_scores(of->scores + row * of->between_scores, of->length);
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
        attend_with_head(of, TOGETHER);
    }
}

TD_INTERNAL void attend_together(Work *work, int64_t first, int64_t rows,
                                 const Memory *memory)
{
    const Stack *stack = work->stack;
    const Store *key = memory->key, *value = memory->value;
    const float *keys = key->numbers + memory->sentence * key->per_sentence;
    const float *values = value->numbers + memory->sentence * value->per_sentence;
    const int64_t ahead = memory->next - memory->sentence;
    for (int64_t head = 0; head < stack->num_heads; head++) {
        const Head of = {
            .query = row_of(&work->wide, first) + head * stack->d_k,
            .keys = keys + head * key->per_head,
            .values = values + head * value->per_head,
            .scores = work->scores,
            .out = row_of(&work->heads, first) + head * stack->d_v,
            .between_queries = work->wide.stride,
            .between_values = value->per_row,
            .between_scores = work->most_slots,
            .between_outs = work->heads.stride,
            .d_k = stack->d_k,
            .d_v = stack->d_v,
            .length = memory->length,
            .attention = memory->attention,
            .between_attentions = memory->between_attentions,
            .share = 1.0f / (float)stack->num_heads,
            .keys_ahead = ahead * key->per_sentence,
            .values_ahead = ahead * value->per_sentence,
        };
        attend_with_rows(&of, rows);
    }
}
