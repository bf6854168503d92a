/* What encoder and decoder have in common. */
#include "decode/stack.h"
#include "isa/name.h"

#include <math.h>
#include <stdlib.h>

#include "decode/attention.h"
#include "parallel.h"
#include "simd/prefetch.h"
#include "simd/vec.h"

#define LINE_FLOATS (LINE / (int64_t)sizeof(float))

/* So many numbers of four bytes, up to the end of a cache line, so that what comes next
   begins with one. */
static int64_t whole_lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static float *take(float **room, int64_t floats)
{
    float *taken = *room;
    *room += whole_lines(floats);
    return taken;
}

static Matrix take_matrix(float **room, int64_t rows, int64_t width)
{
    const int64_t stride = spread(width);
    return (Matrix){take(room, rows * stride), stride};
}

TD_INTERNAL int begin_work(Work *work, const Stack *stack, int64_t rows, int64_t slots,
                           int num_threads)
{
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t heads = stack->num_heads * stack->d_v;
    const int64_t wide = largest(2 * queries + heads, stack->d_ff);
    const int64_t inputs = largest(largest(stack->d_model, stack->d_ff), heads);
    const int64_t bytes = rows * row_bytes(inputs);
    const int64_t most_slots = whole_lines(slots + LANES);
    const int64_t all_slots = most_slots * num_threads;
    const int64_t heads_of_scores = largest(stack->num_heads, TOGETHER);
    const int64_t widths = 2 * spread(stack->d_model) + spread(wide) + spread(heads);
    const int64_t floats = rows * widths + 2 * whole_lines(rows) +
                           (heads_of_scores + 1) * all_slots +
                           whole_lines(bytes / (int64_t)sizeof(float));
    float *room = aligned_alloc(LINE, (size_t)floats * sizeof(float));
    if (!room)
        return 1;
    work->stack = stack;
    work->num_threads = num_threads;
    work->rows = rows;
    work->room = room;
    work->x = take_matrix(&room, rows, stack->d_model);
    work->read = take_matrix(&room, rows, stack->d_model);
    work->wide = take_matrix(&room, rows, wide);
    work->heads = take_matrix(&room, rows, heads);
    work->arranged.scales = take(&room, rows);
    work->arranged.lowest = take(&room, rows);
    work->most_slots = most_slots;
    work->scores = take(&room, heads_of_scores * all_slots);
    work->slots = (int32_t *)take(&room, all_slots);
    work->arranged.numbers = (uint8_t *)room;
    return 0;
}

TD_INTERNAL int are_tokens(const Embedding *embedding, const int64_t *ids,
                           int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= embedding->vocab)
            return 0;
    return 1;
}

TD_INTERNAL void embed_row(const Work *work, const Embedding *embedding, int64_t id,
                           const float *position, int64_t row)
{
    const int64_t width = work->stack->d_model;
    const float *token = embedding->tokens + id * width;
    float *x = row_of(&work->x, row);
    for (int64_t i = 0; i < width; i++)
        x[i] = token[i] * embedding->scale + position[i];
}

TD_INTERNAL void end_work(Work *work) { free(work->room); }

TD_INTERNAL Work of_worker(const Work *work, int worker)
{
    Work own = *work;
    own.scores += worker * largest(work->stack->num_heads, TOGETHER) * work->most_slots;
    own.slots += worker * work->most_slots;
    return own;
}

TD_INTERNAL void apply_linear(Work *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int is_rectified)
{
    arrange_rows(linear, x, work->rows, &work->arranged, work->num_threads);
    multiply(linear, &work->arranged, y, is_rectified, work->num_threads);
}

typedef struct {
    const Work *work;
    const Norm *norm;
    const Matrix *added; /* before, or none */
    const Matrix *y;     /* normalised, or none */
} Sum;

static float sum_of_row(const float *x, int64_t width)
{
    float sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += x[i];
    return sum;
}

/* Of what the numbers of a row are above their mean, the sum of squares: by two
   registers, so that none waits for another. */
static float sum_of_squares(const float *x, int64_t width, float mean)
{
    const vec means = vec_set1(mean), zero = vec_set1(0.0f);
    vec one = zero, other = zero;
    int64_t i = 0;
    for (; i + 2 * LANES <= width; i += 2 * LANES) {
        const vec above = vec_load(x + i) - means;
        const vec next = vec_load(x + i + LANES) - means;
        one = vec_fma(above, above, one);
        other = vec_fma(next, next, other);
    }
    for (; i < width; i += LANES) {
        const vec_mask there = vec_first(width - i);
        const vec above = vec_load_masked(there, x + i) - means;
        one = vec_fma(above, vec_select(there, above, zero), one);
    }
    return vec_reduce_add(one + other);
}

static void normalise_row(const float *x, int64_t width, float epsilon,
                          const Norm *norm, float *y)
{
    const float mean = sum_of_row(x, width) / (float)width;
    const float variance = sum_of_squares(x, width, mean) / (float)width;
    const float factor = 1 / sqrtf(variance + epsilon);
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
        float *x = row_of(&sum->work->x, row);
        const float *added = sum->added ? row_of(sum->added, row) : NULL;
        for (int64_t i = 0; added && i < width; i++)
            x[i] += added[i];
        if (sum->y)
            normalise_row(x, width, stack->norm_epsilon, sum->norm,
                          row_of(sum->y, row));
    }
}

TD_INTERNAL const Matrix *sublayer_input(Work *work, const Norm *norm)
{
    if (!work->stack->is_pre_norm)
        return &work->x;
    Sum sum = {work, norm, NULL, &work->read};
    parallel_for(sum_rows, &sum, work->rows, LEAST_ROWS, work->num_threads);
    return &work->read;
}

TD_INTERNAL void add_and_norm(Work *work, const Norm *norm)
{
    Sum sum = {work, norm, &work->read, work->stack->is_pre_norm ? NULL : &work->x};
    parallel_for(sum_rows, &sum, work->rows, LEAST_ROWS, work->num_threads);
}

TD_INTERNAL void feed_forward(Work *work, const Layer *layer)
{
    const Stack *stack = work->stack;
    apply_linear(work, &layer->inner, sublayer_input(work, &layer->after_feed_forward),
                 &work->wide, !stack->is_silu);
    for (int64_t row = 0; stack->is_silu && row < work->rows; row++) {
        float *inner = row_of(&work->wide, row);
        for (int64_t i = 0; i < stack->d_ff; i++)
            inner[i] /= 1 + expf(-inner[i]);
    }
    apply_linear(work, &layer->outer, &work->wide, &work->read, 0);
    add_and_norm(work, &layer->after_feed_forward);
}
