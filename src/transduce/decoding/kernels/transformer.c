/* What encoder and decoder have in common. */
#include "transformer.h"

#include <math.h>
#include <stdlib.h>

#include "lanes.h"
#include "threads.h"

int begin_work(Work *work, const Stack *stack, int64_t rows, int64_t slots,
               int num_threads)
{
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t heads = stack->num_heads * stack->d_v;
    const int64_t wide = largest(2 * queries + heads, stack->d_ff);
    const int64_t inputs = largest(largest(stack->d_model, stack->d_ff), heads);
    const int64_t floats = rows * (2 * stack->d_model + wide + heads + 2);
    const int64_t bytes = rows * row_bytes(inputs);
    slots = (slots + LANES) * num_threads;
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
    work->arranged.scales = work->heads + rows * heads;
    work->arranged.lowest = work->arranged.scales + rows;
    work->most_slots = slots / num_threads;
    work->scores = work->arranged.lowest + rows;
    work->slots = (int32_t *)(work->scores + slots);
    work->arranged.numbers = (uint8_t *)(work->slots + slots);
    return 0;
}

void end_work(Work *work) { free(work->room); }

Work of_worker(const Work *work, int worker)
{
    Work own = *work;
    own.scores += worker * work->most_slots;
    own.slots += worker * work->most_slots;
    return own;
}

void apply_linear(Work *work, const Linear *linear, const float *x, float *y,
                  int is_rectified)
{
    arrange_rows(linear, x, work->rows, &work->arranged, work->num_threads);
    multiply(linear, &work->arranged, y, is_rectified, work->num_threads);
}

typedef struct {
    const Work *work;
    const Norm *norm;
    const float *added; /* before, or none */
    float *y;           /* normalised, or none */
} Sum;

static void normalise_row(const float *x, int64_t width, float epsilon,
                          const Norm *norm, float *y)
{
    float mean = 0, variance = 0;
    for (int64_t i = 0; i < width; i++)
        mean += x[i];
    mean /= (float)width;
    for (int64_t i = 0; i < width; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    variance /= (float)width;
    float factor = 1 / sqrtf(variance + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) * factor * norm->weight[i] + norm->bias[i];
}

static void sum_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const Sum *sum = shared;
    const Stack *stack = sum->work->stack;
    const int64_t width = stack->d_model;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        float *x = sum->work->x + row * width;
        if (sum->added)
            for (int64_t i = 0; i < width; i++)
                x[i] += sum->added[row * width + i];
        if (sum->y)
            normalise_row(x, width, stack->norm_epsilon, sum->norm,
                          sum->y + row * width);
    }
}

const float *sublayer_input(Work *work, const Norm *norm)
{
    if (!work->stack->is_pre_norm)
        return work->x;
    Sum sum = {work, norm, NULL, work->read};
    share_out(sum_rows, &sum, work->rows, LEAST_ROWS, work->num_threads);
    return work->read;
}

void add_and_norm(Work *work, const Norm *norm)
{
    Sum sum = {work, norm, work->read, work->stack->is_pre_norm ? NULL : work->x};
    share_out(sum_rows, &sum, work->rows, LEAST_ROWS, work->num_threads);
}

/* To four sums, the products of a query's lanes with those of four keys. */
static inline void sum_up(Lanes sums[4], Lanes part, Lanes one, Lanes two, Lanes three,
                          Lanes four)
{
    sums[0] = lanes_fma(part, one, sums[0]);
    sums[1] = lanes_fma(part, two, sums[1]);
    sums[2] = lanes_fma(part, three, sums[2]);
    sums[3] = lanes_fma(part, four, sums[3]);
}

/* The products of a query with four keys: side by side, as each alone would wait. */
static __m128 four_products(const float *query, const float *key, const int32_t *slots,
                            int64_t stride, int64_t width)
{
    const float *one = key + slots[0] * stride, *two = key + slots[1] * stride;
    const float *three = key + slots[2] * stride, *four = key + slots[3] * stride;
    const Lanes zero = lanes_of(0.0f);
    Lanes sums[4] = {zero, zero, zero, zero};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        sum_up(sums, lanes_at(query + i), lanes_at(one + i), lanes_at(two + i),
               lanes_at(three + i), lanes_at(four + i));
    if (i < width) {
        const Mask there = first_lanes(width - i);
        sum_up(sums, lanes_load(there, query + i), lanes_load(there, one + i),
               lanes_load(there, two + i), lanes_load(there, three + i),
               lanes_load(there, four + i));
    }
    return _mm_hadd_ps(
        _mm_hadd_ps(sums_of_quarters(sums[0]), sums_of_quarters(sums[1])),
        _mm_hadd_ps(sums_of_quarters(sums[2]), sums_of_quarters(sums[3])));
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
    const Lanes zero = lanes_of(0.0f), offset = lanes_of(highest);
    Lanes sum = zero;
    for (int64_t i = 0; i < count; i += LANES) {
        const Mask there = first_lanes(count - i);
        const Lanes each = lanes_exp(lanes_load(there, scores + i) - offset);
        lanes_store(scores + i, count - i, each);
        sum += lanes_where(there, each, zero);
    }
    return sum_of_lanes(sum);
}

/* Those of the values that it sees in as many columns as so many registers have lanes,
   each times its score. The number, 1, 2 or 4, is a literal where it is called. */
static inline __attribute__((always_inline)) void
average_registers(const Work *work, const float *value, int64_t stride, int64_t count,
                  Lanes factor, float *out, const int registers)
{
    Lanes first = lanes_of(0.0f), second = first, third = first, fourth = first;
    for (int64_t i = 0; i < count; i++) {
        const float *from = value + work->slots[i] * stride;
        const Lanes score = lanes_of(work->scores[i]);
        first = lanes_fma(score, lanes_at(from), first);
        if (registers > 1)
            second = lanes_fma(score, lanes_at(from + LANES), second);
        if (registers > 2) {
            third = lanes_fma(score, lanes_at(from + 2 * LANES), third);
            fourth = lanes_fma(score, lanes_at(from + 3 * LANES), fourth);
        }
    }
    lanes_store(out, LANES, first * factor);
    if (registers > 1)
        lanes_store(out + LANES, LANES, second * factor);
    if (registers > 2) {
        lanes_store(out + 2 * LANES, LANES, third * factor);
        lanes_store(out + 3 * LANES, LANES, fourth * factor);
    }
}

/* The same in the last columns, fewer than a register has lanes. */
static void average_last(const Work *work, const float *value, int64_t stride,
                         int64_t count, Lanes factor, float *out, int64_t left)
{
    const Mask there = first_lanes(left);
    Lanes sum = lanes_of(0.0f);
    for (int64_t i = 0; i < count; i++)
        sum = lanes_fma(lanes_of(work->scores[i]),
                        lanes_load(there, value + work->slots[i] * stride), sum);
    lanes_store(out, left, sum * factor);
}

static void average(const Work *work, const float *value, int64_t stride, int64_t count,
                    Lanes factor, float *out)
{
    int64_t left = work->stack->d_v;
#define AVERAGE(registers)                                                             \
    for (; left >= (registers) * LANES; left -= (registers) * LANES) {                 \
        average_registers(work, value, stride, count, factor, out, registers);         \
        value += (registers) * LANES;                                                  \
        out += (registers) * LANES;                                                    \
    }
    AVERAGE(4)
    AVERAGE(2)
    AVERAGE(1)
#undef AVERAGE
    if (left)
        average_last(work, value, stride, count, factor, out, left);
}

/* One head of a row; the scale is in the query already. */
static void attend_head(Work *work, const float *query, const float *key,
                        int64_t key_stride, const float *value, int64_t value_stride,
                        int64_t count, float *out)
{
    multiply_keys(work, query, key, key_stride, count);
    const float sum = exponentials(work->scores, count);
    average(work, value, value_stride, count, lanes_of(1 / sum), out);
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
