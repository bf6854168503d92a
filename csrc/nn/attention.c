/* td_attention (section 3.2.1) as training needs it: forwards and backwards, over few
   keys.

   PyTorch's products want the heads of a sentence apart, and so copy queries, keys,
   values and all their gradients, which takes longer than the products. Here they are
   read and written where the projections have them. */
#include <float.h>

#include "gemm/small_fp32.h"
#include "nn/dropout.h"
#include "parallel.h"
#include "gemm/pack_bf16.h"

#define LEAST_HEADS 4 /* fewer are not worth a thread */

/* What one head of a sentence reads, or writes. */
typedef struct {
    Rows query, key, value, output, weights;
} Head;

static int64_t widest(const td_attention *a) { return a->d_k > a->d_v ? a->d_k : a->d_v; }

/* Workspace: keys or values, side by side in whole lanes; the gradient of the scores,
   or the weights after dropout; and numbers that are not rounded yet. */
static int64_t attention_workspace(const td_attention *a)
{
    const int64_t longest = a->keys > a->queries ? a->keys : a->queries;
    return round_up_to_lanes(a->keys) * (widest(a) + a->queries) + longest * widest(a);
}

/* Of queries, keys and values, or of their gradients; no kernel writes what it is only
   to read. */
static Head head_of(const td_attention *a, int64_t item, const float *query,
                    const float *key_value, const float *output)
{
    const int64_t sentence = item / a->heads, head = item % a->heads;
    const int64_t width = round_up_to_lanes(a->keys);
    const int64_t of_query = a->heads * a->d_k, of_output = a->heads * a->d_v;
    const int64_t both = of_query + of_output;
    float *memory = (float *)key_value + sentence * a->keys * both;
    return (Head){
        {(float *)query + sentence * a->queries * of_query + head * a->d_k, of_query},
        {memory + head * a->d_k, both},
        {memory + of_query + head * a->d_v, both},
        {(float *)output + sentence * a->queries * of_output + head * a->d_v,
         of_output},
        {a->weights + item * a->queries * width, width},
    };
}

static Factor as_factor(Rows rows) { return (Factor){rows.at, rows.by_row, 1}; }

static Factor transposed(Rows rows) { return (Factor){rows.at, 1, rows.by_row}; }

/* Scores to weights that sum to one. A query that may attend to no key attends to all
   alike. */
static void softmax(float *scores, const uint8_t *mask, int64_t keys, float scale)
{
    const int64_t width = round_up_to_lanes(keys);
    for (int64_t key = 0; key < keys; key++)
        scores[key] = mask[key] ? scores[key] * scale : -FLT_MAX;
    for (int64_t key = keys; key < width; key++)
        scores[key] = -INFINITY;
    vec highest = vec_set1(-INFINITY);
    for (int64_t key = 0; key < width; key += LANES)
        highest = vec_max(highest, vec_load(scores + key));
    const vec most = vec_set1(vec_reduce_max(highest));
    vec sums = vec_set1(0.0f);
    for (int64_t key = 0; key < width; key += LANES) {
        const vec power = vec_exp(vec_load(scores + key) - most);
        vec_store_first(scores + key, LANES, power);
        sums += power;
    }
    const vec share = vec_set1(1.0f / vec_reduce_add(sums));
    for (int64_t key = 0; key < width; key += LANES)
        vec_store_first(scores + key, LANES, vec_load(scores + key) * share);
}

/* The gradient of the weights of a query to that of its scores, before their scale. */
static void through_softmax(float *gradient, const float *weights, int64_t width,
                            float scale)
{
    vec sums = vec_set1(0.0f);
    for (int64_t key = 0; key < width; key += LANES)
        sums = vec_fma(vec_load(gradient + key), vec_load(weights + key), sums);
    const vec mean = vec_set1(vec_reduce_add(sums)), scales = vec_set1(scale);
    for (int64_t key = 0; key < width; key += LANES) {
        const vec apart = vec_load(gradient + key) - mean;
        vec_store_first(gradient + key, LANES,
                        vec_load(weights + key) * apart * scales);
    }
}

/* Apply the dropout of a head's weights to rows of keys: to the weights, or to the
   gradients of the dropped weights. */
static void drop_weights(const td_attention *a, int64_t item, Rows from, Rows to)
{
    const int64_t first = (a->first_sentence * a->heads + item) * a->queries;
    for (int64_t query = 0; query < a->queries; query++)
        drop_row(&a->dropout, first + query, a->keys, from.at + query * from.by_row,
                 to.at + query * to.by_row);
}

/* The weights that the values are multiplied by. */
static Rows weights_left(const td_attention *a, int64_t item, Rows weights, float *room)
{
    if (a->dropout.rate.num_dropped == 0)
        return weights;
    const Rows left = {room, weights.by_row};
    drop_weights(a, item, weights, left);
    return left;
}

/* What a product of some rows, side by side with those of other heads, becomes. */
typedef struct {
    Rows fp32;
    td_panels bf16; /* or nowhere */
    int64_t first_row, first_column;
} HeadRows;

static void multiply_into(HeadRows to, Factor one, Rows other, int64_t rows,
                          int64_t inner, int64_t columns, float *room)
{
    if (!to.bf16.data) {
        multiply(one, other, rows, inner, columns, to.fp32);
        return;
    }
    multiply(one, other, rows, inner, columns, (Rows){room, columns});
    for (int64_t row = 0; row < rows; row++)
        narrow_into(to.bf16, to.first_row + row, to.first_column, columns,
                    room + row * columns);
}

static void attend(void *shared, int64_t first, int64_t end, int worker)
{
    const td_attention *a = shared;
    float *room = a->workspace + worker * attention_workspace(a);
    for (int64_t item = first; item < end; item++) {
        const Head head = head_of(a, item, a->query, a->key_value, a->output);
        const int64_t width = head.weights.by_row;
        const Rows keys = side_by_side(head.key, a->keys, a->d_k, room);
        multiply(as_factor(head.query), keys, a->queries, a->d_k, width, head.weights);
        const uint8_t *mask = a->mask.data + item / a->heads * a->mask.sentence_stride;
        for (int64_t query = 0; query < a->queries; query++)
            softmax(head.weights.at + query * width, mask + query * a->mask.query_stride,
                    a->keys, a->scale);
        const int64_t sentence = item / a->heads, number = item % a->heads;
        const HeadRows output = {head.output, a->bf16_output, sentence * a->queries,
                                 number * a->d_v};
        const Rows weights =
            weights_left(a, item, head.weights, room + widest(a) * width);
        multiply_into(output, as_factor(weights), head.value, a->queries, a->keys,
                      a->d_v, room + width * (widest(a) + a->queries));
    }
}

static void form_gradients(void *shared, int64_t first, int64_t end, int worker)
{
    const td_attention *a = shared;
    float *room = a->workspace + worker * attention_workspace(a);
    for (int64_t item = first; item < end; item++) {
        const Head head = head_of(a, item, a->query, a->key_value, a->grad_output);
        const Head to = head_of(a, item, a->grad_query, a->grad_key_value, a->grad_output);
        const int64_t width = head.weights.by_row;
        const Rows values = side_by_side(head.value, a->keys, a->d_v, room);
        const Rows of_scores = {room + widest(a) * width, width};
        multiply(as_factor(head.output), values, a->queries, a->d_v, width, of_scores);
        if (a->dropout.rate.num_dropped > 0)
            drop_weights(a, item, of_scores, of_scores);
        for (int64_t query = 0; query < a->queries; query++)
            through_softmax(of_scores.at + query * width,
                            head.weights.at + query * width, width, a->scale);
        const int64_t sentence = item / a->heads, number = item % a->heads;
        float *rest = room + width * (widest(a) + a->queries);
        const int64_t key_row = sentence * a->keys;
        multiply_into((HeadRows){to.query, a->bf16_grad_query, sentence * a->queries,
                                 number * a->d_k},
                      as_factor(of_scores), head.key, a->queries, a->keys, a->d_k,
                      rest);
        multiply_into(
            (HeadRows){to.key, a->bf16_grad_key_value, key_row, number * a->d_k},
            transposed(of_scores), head.query, a->keys, a->queries, a->d_k, rest);
        /* Overwrite the gradients of the scores, which are no longer needed. */
        const Rows weights = weights_left(a, item, head.weights, of_scores.at);
        multiply_into((HeadRows){to.value, a->bf16_grad_key_value, key_row,
                                 a->heads * a->d_k + number * a->d_v},
                      transposed(weights), head.output, a->keys, a->queries, a->d_v,
                      rest);
    }
}

static td_status attention_forward(const td_attention *a, int num_threads)
{
    parallel_for(attend, (void *)a, a->sentences * a->heads, LEAST_HEADS, num_threads);
    return TD_OK;
}

static td_status attention_backward(const td_attention *a, int num_threads)
{
    parallel_for(form_gradients, (void *)a, a->sentences * a->heads, LEAST_HEADS,
                 num_threads);
    return TD_OK;
}
