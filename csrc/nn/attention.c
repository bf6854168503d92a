/* Multi-head attention of training. */
#include "nn/attention.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include "checks.h"
#include "gemm/pack_bf16.h"
#include "gemm/small_fp32.h"
#include "nn/dropout.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define MIN_HEADS 4 /* of a part of parallel_for */

static int64_t max_width(const td_attention *a) { return max_i64(a->d_k, a->d_v); }

TD_INTERNAL int64_t attention_workspace(const td_attention *a)
{
    const int64_t length = max_i64(a->keys, a->queries);
    return round_up_to_lanes(a->keys) * (max_width(a) + a->queries) +
           length * max_width(a);
}

/* One thread's workspace for a head. */
typedef struct {
    float *transposed; /* [max_width, keys in whole vectors]: keys or values */
    float *scores; /* [queries, keys in whole vectors]: the gradient of the scores, or
                      the weights after dropout */
    float *unrounded; /* [max(queries, keys), max_width]: results before rounding */
} HeadWorkspace;

static HeadWorkspace head_workspace(const td_attention *a, int worker)
{
    float *own = a->workspace + worker * attention_workspace(a);
    const int64_t width = round_up_to_lanes(a->keys);
    return (HeadWorkspace){own, own + max_width(a) * width,
                           own + width * (max_width(a) + a->queries)};
}

/* Matrices of one head of a sentence, or their gradients. */
typedef struct {
    Matrix query;   /* [queries, d_k] */
    Matrix key;     /* [keys, d_k] */
    Matrix value;   /* [keys, d_v] */
    Matrix output;  /* [queries, d_v] */
    Matrix weights; /* [queries, keys in whole vectors] */
} Head;

/* Matrix that begins at an element of an array; without data if the array is NULL. Its
 * pointer is not const, as some matrices are results. */
static Matrix matrix_at(const float *array, int64_t element, int64_t stride)
{
    return (Matrix){array ? (float *)array + element : NULL, stride};
}

/* Views of head `item` of the [sentences, heads]. Arrays may be NULL. */
static Head head_of(const td_attention *a, int64_t item, const float *query,
                    const float *key_value, const float *output)
{
    const int64_t sentence = item / a->heads, head = item % a->heads;
    const int64_t width = round_up_to_lanes(a->keys);
    const int64_t key_width = a->heads * a->d_k, value_width = a->heads * a->d_v;
    const int64_t stride = key_width + value_width;
    const int64_t first_query = sentence * a->queries, first_key = sentence * a->keys;
    return (Head){
        .query = matrix_at(query, first_query * key_width + head * a->d_k, key_width),
        .key = matrix_at(key_value, first_key * stride + head * a->d_k, stride),
        .value = matrix_at(key_value, first_key * stride + key_width + head * a->d_v,
                           stride),
        .output =
            matrix_at(output, first_query * value_width + head * a->d_v, value_width),
        .weights = matrix_at(a->weights, item * a->queries * width, width),
    };
}

/* Turn the scores of a query into weights that sum to one. If the mask allows no key,
 * all weights are equal. */
static void masked_softmax(float *scores, const uint8_t *mask, int64_t keys,
                           float scale)
{
    const int64_t width = round_up_to_lanes(keys);
    for (int64_t key = 0; key < keys; key++)
        scores[key] = mask[key] ? scores[key] * scale : -FLT_MAX;
    for (int64_t key = keys; key < width; key++)
        scores[key] = -INFINITY;
    vec maxima = vec_set1(-INFINITY);
    for (int64_t key = 0; key < width; key += LANES)
        maxima = vec_max(maxima, vec_load(scores + key));
    const vec max = vec_set1(vec_reduce_max(maxima));
    vec sums = vec_set1(0.0f);
    for (int64_t key = 0; key < width; key += LANES) {
        const vec power = vec_exp(vec_load(scores + key) - max);
        vec_store(scores + key, power);
        sums += power;
    }
    const vec inverse = vec_set1(1.0f / vec_reduce_add(sums));
    for (int64_t key = 0; key < width; key += LANES)
        vec_store(scores + key, vec_load(scores + key) * inverse);
}

/* Turn the gradient of a query's weights p = softmax(scale s) into the gradient of its
 * scores s, which are dot products of the query and the keys:
 *
 *   grad_s = scale p (grad_p - sum(grad_p p)) */
static void softmax_backward(float *gradient, const float *weights, int64_t width,
                             float scale)
{
    vec sums = vec_set1(0.0f);
    for (int64_t key = 0; key < width; key += LANES)
        sums = vec_fma(vec_load(gradient + key), vec_load(weights + key), sums);
    const vec sum = vec_set1(vec_reduce_add(sums)), scales = vec_set1(scale);
    for (int64_t key = 0; key < width; key += LANES) {
        const vec difference = vec_load(gradient + key) - sum;
        vec_store(gradient + key, vec_load(weights + key) * difference * scales);
    }
}

/* Apply the dropout of a head's weights to a matrix [queries, keys]: to the weights, or
 * to the gradient of the weights after dropout. */
static void drop_weights(const td_attention *a, int64_t item, Matrix from, Matrix to)
{
    const int64_t first = (a->first_sentence * a->heads + item) * a->queries;
    for (int64_t query = 0; query < a->queries; query++)
        drop_row(&a->dropout, first + query, a->keys, from.data + query * from.stride,
                 to.data + query * to.stride);
}

/* Weights after dropout, written to `buffer` if the rate is not zero. */
static Matrix dropped_weights(const td_attention *a, int64_t item, Matrix weights,
                              float *buffer)
{
    if (a->dropout.rate.num_dropped == 0)
        return weights;
    const Matrix dropped = {buffer, weights.stride};
    drop_weights(a, item, weights, dropped);
    return dropped;
}

/* Where a head's result is written: fp32 rows, or panels in bf16. */
typedef struct {
    Matrix fp32;
    td_panels bf16; /* instead of fp32, if data is not NULL */
    int64_t first_row, first_column;
} HeadResult;

static void multiply_into(HeadResult to, StridedMatrix a, Matrix b, int64_t rows,
                          int64_t inner, int64_t columns, float *unrounded)
{
    if (!to.bf16.data) {
        multiply_small(a, b, rows, inner, columns, to.fp32);
        return;
    }
    multiply_small(a, b, rows, inner, columns, (Matrix){unrounded, columns});
    for (int64_t row = 0; row < rows; row++)
        round_into_panels(to.bf16, to.first_row + row, to.first_column, columns,
                          unrounded + row * columns);
}

/* State which arrays are not NULL: all that have a row. */
static void assert_inputs(const td_attention *a)
{
    assert(a->key_value);
    assert(a->queries == 0 || (a->query && a->weights));
}

/* S = Q K^T, P = softmax(scale S) and O = Dropout(P) V for some heads (equation 1). */
static void forward_heads(void *shared, int64_t first, int64_t end, int worker)
{
    const td_attention *a = shared;
    assert_inputs(a);
    const HeadWorkspace work = head_workspace(a, worker);
    for (int64_t item = first; item < end; item++) {
        const Head head = head_of(a, item, a->query, a->key_value, a->output);
        const int64_t sentence = item / a->heads, number = item % a->heads;
        const int64_t width = head.weights.stride;
        const Matrix keys = transpose(head.key, a->keys, a->d_k, work.transposed);
        multiply_small(as_strided(head.query), keys, a->queries, a->d_k, width,
                       head.weights);
        const uint8_t *mask = a->mask.data + sentence * a->mask.sentence_stride;
        for (int64_t query = 0; query < a->queries; query++)
            masked_softmax(head.weights.data + query * width,
                           mask + query * a->mask.query_stride, a->keys, a->scale);
        const Matrix weights = dropped_weights(a, item, head.weights, work.scores);
        const HeadResult output = {head.output, a->bf16_output, sentence * a->queries,
                                   number * a->d_v};
        multiply_into(output, as_strided(weights), head.value, a->queries, a->keys,
                      a->d_v, work.unrounded);
    }
}

/* Gradients of some heads, with the dropout masks of the forward pass:
 *
 *   grad_P = Dropout(grad_O V^T),  grad_S = softmax_backward(grad_P, P)
 *   grad_Q = grad_S K,  grad_K = grad_S^T Q,  grad_V = Dropout(P)^T grad_O */
static void backward_heads(void *shared, int64_t first, int64_t end, int worker)
{
    const td_attention *a = shared;
    assert_inputs(a);
    const HeadWorkspace work = head_workspace(a, worker);
    for (int64_t item = first; item < end; item++) {
        const Head head = head_of(a, item, a->query, a->key_value, a->output);
        const Head grad =
            head_of(a, item, a->grad_query, a->grad_key_value, a->grad_output);
        const int64_t sentence = item / a->heads, number = item % a->heads;
        const int64_t width = head.weights.stride;
        const Matrix values = transpose(head.value, a->keys, a->d_v, work.transposed);
        const Matrix grad_scores = {work.scores, width};
        multiply_small(as_strided(grad.output), values, a->queries, a->d_v, width,
                       grad_scores);
        if (a->dropout.rate.num_dropped > 0)
            drop_weights(a, item, grad_scores, grad_scores);
        for (int64_t query = 0; query < a->queries; query++)
            softmax_backward(grad_scores.data + query * width,
                             head.weights.data + query * width, width, a->scale);
        const HeadResult grad_query = {grad.query, a->bf16_grad_query,
                                       sentence * a->queries, number * a->d_k};
        multiply_into(grad_query, as_strided(grad_scores), head.key, a->queries,
                      a->keys, a->d_k, work.unrounded);
        const HeadResult grad_key = {grad.key, a->bf16_grad_key_value,
                                     sentence * a->keys, number * a->d_k};
        multiply_into(grad_key, transposed(grad_scores), head.query, a->keys,
                      a->queries, a->d_k, work.unrounded);
        /* Written over the gradient of the scores, which is no longer needed. */
        const Matrix weights = dropped_weights(a, item, head.weights, work.scores);
        const HeadResult grad_value = {grad.value, a->bf16_grad_key_value,
                                       sentence * a->keys,
                                       a->heads * a->d_k + number * a->d_v};
        multiply_into(grad_value, transposed(weights), grad.output, a->keys, a->queries,
                      a->d_v, work.unrounded);
    }
}

TD_INTERNAL void attention_forward(td_attention a, int num_threads)
{
    parallel_for(forward_heads, &a, a.sentences * a.heads, MIN_HEADS, num_threads);
}

TD_INTERNAL void attention_backward(td_attention a, int num_threads)
{
    parallel_for(backward_heads, &a, a.sentences * a.heads, MIN_HEADS, num_threads);
}

static int are_attention_sizes(const td_attention *a)
{
    if (!a || !is_size(a->sentences, 0) || !is_size(a->heads, 1) ||
        !is_size(a->queries, 0) || !is_size(a->keys, 1) ||
        !is_multiple(a->d_k, ROW_MULTIPLE) || !is_multiple(a->d_v, ROW_MULTIPLE) ||
        !is_between(a->first_sentence, 0, MAX_ELEMENTS))
        return 0;
    const int64_t length = max_i64(a->queries, a->keys);
    const int64_t width = max_i64(a->d_k, a->d_v);
    return is_tensor(length, max_i64(length, width), 1) &&
           is_tensor(a->sentences, a->heads, 1) &&
           is_tensor(a->sentences * a->heads, length, max_i64(a->keys, 2 * width)) &&
           is_tensor(a->first_sentence + a->sentences, a->heads, length);
}

static int is_result_missing(const float *fp32, td_panels bf16, int64_t count)
{
    return is_missing(fp32, count) && is_missing(bf16.data, count);
}

static td_status check_attention(const td_attention *a, int num_threads)
{
    if (!are_attention_sizes(a) || !is_thread_count(num_threads) ||
        !is_dropout_rate(a->dropout.rate))
        return TD_BAD_ARGUMENT;
    const int64_t queries = a->sentences * a->queries;
    const int64_t keys = a->sentences * a->keys;
    const int64_t key_width = a->heads * a->d_k, value_width = a->heads * a->d_v;
    if (!are_panels(a->bf16_output, queries, value_width) ||
        !are_panels(a->bf16_grad_query, queries, key_width) ||
        !are_panels(a->bf16_grad_key_value, keys, key_width + value_width))
        return TD_BAD_ARGUMENT;
    if (is_missing(a->query, queries) || is_missing(a->key_value, a->sentences) ||
        is_missing(a->weights, queries) || is_missing(a->workspace, a->sentences))
        return TD_BAD_ARGUMENT;
    return TD_OK;
}

TD_INTERNAL int64_t td_attention_workspace(const td_attention *attention)
{
    return are_attention_sizes(attention) ? attention_workspace(attention) : -1;
}

TD_INTERNAL td_status td_attention_forward(const td_attention *a, int num_threads)
{
    const td_status status = check_attention(a, num_threads);
    if (status != TD_OK)
        return status;
    const int64_t queries = a->sentences * a->queries;
    if (is_missing(a->mask.data, queries) ||
        is_result_missing(a->output, a->bf16_output, queries))
        return TD_BAD_ARGUMENT;
    attention_forward(*a, num_threads);
    return TD_OK;
}

TD_INTERNAL td_status td_attention_backward(const td_attention *a, int num_threads)
{
    const td_status status = check_attention(a, num_threads);
    if (status != TD_OK)
        return status;
    const int64_t queries = a->sentences * a->queries;
    if (is_missing(a->grad_output, queries) ||
        is_result_missing(a->grad_query, a->bf16_grad_query, queries) ||
        is_result_missing(a->grad_key_value, a->bf16_grad_key_value, a->sentences))
        return TD_BAD_ARGUMENT;
    attention_backward(*a, num_threads);
    return TD_OK;
}
