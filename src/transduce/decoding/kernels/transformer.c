/* What encoder and decoder have in common. */
#include "transformer.h"

#include <math.h>
#include <stdlib.h>

#include "lanes.h"

static int64_t largest(int64_t one, int64_t other) { return one > other ? one : other; }

int begin_work(Work *work, const Stack *stack, int64_t rows, int64_t slots,
               int num_threads)
{
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t heads = stack->num_heads * stack->d_v;
    const int64_t wide = largest(2 * queries + heads, stack->d_ff);
    const int64_t inputs = largest(largest(stack->d_model, stack->d_ff), heads);
    const int64_t floats = rows * (2 * stack->d_model + wide + heads + 2);
    const int64_t bytes = rows * quantized_stride(inputs);
    slots += LANES;
    float *room = malloc((size_t)(floats + 2 * slots) * sizeof(float) + (size_t)bytes);
    if (!room)
        return 1;
    work->stack = stack;
    work->num_threads = num_threads;
    work->rows = rows;
    work->room = room;
    work->x = room;
    work->read = work->x + rows * stack->d_model;
    work->wide = work->read + rows * stack->d_model;
    work->heads = work->wide + rows * wide;
    work->quantized.scales = work->heads + rows * heads;
    work->quantized.lowest = work->quantized.scales + rows;
    work->scores = work->quantized.lowest + rows;
    work->slots = (int32_t *)(work->scores + slots);
    work->quantized.numbers = (uint8_t *)(work->slots + slots);
    return 0;
}

void end_work(Work *work) { free(work->room); }

void apply_linear(Work *work, const Linear *linear, const float *x, float *y,
                  int is_rectified)
{
    quantize(x, work->rows, linear->inputs, &work->quantized);
    multiply(linear, &work->quantized, y, is_rectified, work->num_threads);
}

static void normalise(const Work *work, const Norm *norm, float *y)
{
    const int64_t width = work->stack->d_model;
    for (int64_t row = 0; row < work->rows; row++) {
        const float *of_row = work->x + row * width;
        float *to = y + row * width;
        float mean = 0, variance = 0;
        for (int64_t i = 0; i < width; i++)
            mean += of_row[i];
        mean /= (float)width;
        for (int64_t i = 0; i < width; i++)
            variance += (of_row[i] - mean) * (of_row[i] - mean);
        variance /= (float)width;
        float factor = 1 / sqrtf(variance + work->stack->norm_epsilon);
        for (int64_t i = 0; i < width; i++)
            to[i] = (of_row[i] - mean) * factor * norm->weight[i] + norm->bias[i];
    }
}

const float *sublayer_input(Work *work, const Norm *norm)
{
    if (!work->stack->is_pre_norm)
        return work->x;
    normalise(work, norm, work->read);
    return work->read;
}

void add_and_norm(Work *work, const Norm *norm)
{
    for (int64_t i = 0; i < work->rows * work->stack->d_model; i++)
        work->x[i] += work->read[i];
    if (!work->stack->is_pre_norm)
        normalise(work, norm, work->x);
}

static inline __m512 sum_up(__m512 sum, __mmask16 there, __m512 part,
                            const float *numbers)
{
    return _mm512_fmadd_ps(part, _mm512_maskz_loadu_ps(there, numbers), sum);
}

static inline __m128 quarter(__m512 sum)
{
    __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* The products of a query with four keys: side by side, as each alone would wait. */
static __m128 four_products(const float *query, const float *key, const int32_t *slots,
                            int64_t stride, int64_t width)
{
    const float *one = key + slots[0] * stride, *two = key + slots[1] * stride;
    const float *three = key + slots[2] * stride, *four = key + slots[3] * stride;
    __m512 first = _mm512_setzero_ps(), second = first, third = first, fourth = first;
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 there = lanes_left(width - i);
        const __m512 part = _mm512_maskz_loadu_ps(there, query + i);
        first = sum_up(first, there, part, one + i);
        second = sum_up(second, there, part, two + i);
        third = sum_up(third, there, part, three + i);
        fourth = sum_up(fourth, there, part, four + i);
    }
    return _mm_hadd_ps(_mm_hadd_ps(quarter(first), quarter(second)),
                       _mm_hadd_ps(quarter(third), quarter(fourth)));
}

/* The products of a query with the keys that it sees. Behind these slots stand some
   more, so that there are always four. */
static void multiply_keys(Work *work, const float *query, const float *key,
                          int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count; i += 4)
        _mm_storeu_ps(work->scores + i, four_products(query, key, work->slots + i,
                                                      stride, work->stack->d_k));
}

/* Softmax in place, but for the division; the sum to divide by. */
static float exponentials(float *scores, int64_t count)
{
    float highest = -INFINITY;
    for (int64_t i = 0; i < count; i++)
        highest = scores[i] > highest ? scores[i] : highest;
    __m512 sum = _mm512_setzero_ps(), offset = _mm512_set1_ps(highest);
    for (int64_t i = 0; i < count; i += LANES) {
        __mmask16 there = lanes_left(count - i);
        __m512 each = _mm512_maskz_loadu_ps(there, scores + i);
        each = lanes_exp(_mm512_sub_ps(each, offset));
        _mm512_mask_storeu_ps(scores + i, there, each);
        sum = _mm512_mask_add_ps(sum, there, sum, each);
    }
    return _mm512_reduce_add_ps(sum);
}

/* Those of the values that it sees in 64 columns from one on, each times its score. */
static void average_columns(const Work *work, const float *value, int64_t stride,
                            int64_t count, int64_t column, __m512 factor, float *out)
{
    const int64_t left = work->stack->d_v - column;
    const __mmask16 in_first = lanes_left(left);
    const __mmask16 in_second = left > LANES ? lanes_left(left - LANES) : 0;
    const __mmask16 in_third = left > 2 * LANES ? lanes_left(left - 2 * LANES) : 0;
    const __mmask16 in_fourth = left > 3 * LANES ? lanes_left(left - 3 * LANES) : 0;
    __m512 first = _mm512_setzero_ps(), second = first, third = first, fourth = first;
    for (int64_t i = 0; i < count; i++) {
        const float *from = value + work->slots[i] * stride + column;
        const __m512 score = _mm512_set1_ps(work->scores[i]);
        first = sum_up(first, in_first, score, from);
        second = sum_up(second, in_second, score, from + LANES);
        third = sum_up(third, in_third, score, from + 2 * LANES);
        fourth = sum_up(fourth, in_fourth, score, from + 3 * LANES);
    }
    out += column;
    _mm512_mask_storeu_ps(out, in_first, _mm512_mul_ps(first, factor));
    _mm512_mask_storeu_ps(out + LANES, in_second, _mm512_mul_ps(second, factor));
    _mm512_mask_storeu_ps(out + 2 * LANES, in_third, _mm512_mul_ps(third, factor));
    _mm512_mask_storeu_ps(out + 3 * LANES, in_fourth, _mm512_mul_ps(fourth, factor));
}

/* One head of a row; the scale is in the query already. */
static void attend_head(Work *work, const float *query, const float *key,
                        int64_t key_stride, const float *value, int64_t value_stride,
                        int64_t count, float *out)
{
    multiply_keys(work, query, key, key_stride, count);
    const float sum = exponentials(work->scores, count);
    const __m512 factor = _mm512_set1_ps(1 / sum);
    for (int64_t column = 0; column < work->stack->d_v; column += 4 * LANES)
        average_columns(work, value, value_stride, count, column, factor, out);
}

/* So that four slots can be read from each. */
static void fill_up(int32_t *slots, int64_t count)
{
    for (int64_t i = count; i < count + 3; i++)
        slots[i] = slots[0];
}

void attend(Work *work, int64_t row, int64_t stride, int64_t sentence, const Store *key,
            const Store *value, int64_t count)
{
    const Stack *stack = work->stack;
    const float *query = work->wide + row * stride;
    const float *keys = key->numbers + sentence * key->per_sentence;
    const float *values = value->numbers + sentence * value->per_sentence;
    float *out = work->heads + row * stack->num_heads * stack->d_v;
    fill_up(work->slots, count);
    for (int64_t head = 0; head < stack->num_heads; head++)
        attend_head(work, query + head * stack->d_k, keys + head * key->per_head,
                    key->per_slot, values + head * value->per_head, value->per_slot,
                    count, out + head * stack->d_v);
}

void feed_forward(Work *work, const Layer *layer)
{
    const Stack *stack = work->stack;
    apply_linear(work, &layer->inner, sublayer_input(work, &layer->after_feed_forward),
                 work->wide, !stack->is_silu);
    if (stack->is_silu)
        for (int64_t i = 0; i < work->rows * stack->d_ff; i++)
            work->wide[i] /= 1 + expf(-work->wide[i]);
    apply_linear(work, &layer->outer, work->wide, work->read, 0);
    add_and_norm(work, &layer->after_feed_forward);
}
