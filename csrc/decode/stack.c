/* What the layers of encoder and decoder have in common. */
#include "decode/stack.h"

#include <math.h>
#include <stdlib.h>

#include "alloc.h"
#include "parallel.h"
#include "simd/prefetch.h"
#include "simd/vec.h"

#define LINE_FLOATS (LINE / (int64_t)sizeof(float))

static int64_t whole_lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

/* Cut `floats` floats off the rest of the workspace, up to the end of a cache line. */
static float *take(float **rest, int64_t floats)
{
    float *taken = *rest;
    *rest += whole_lines(floats);
    return taken;
}

static Matrix take_matrix(float **rest, int64_t rows, int64_t width)
{
    const int64_t stride = padded_stride(width);
    return (Matrix){take(rest, rows * stride), stride};
}

TD_INTERNAL td_status begin_workspace(Workspace *work, const Stack *stack, int64_t rows,
                                      int64_t max_keys, int num_threads)
{
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t heads = stack->num_heads * stack->d_v;
    const int64_t wide = max_i64(2 * queries + heads, stack->d_ff);
    const int64_t inputs = max_i64(max_i64(stack->d_model, stack->d_ff), heads);
    const int64_t padded_keys = whole_lines(max_keys + LANES);
    const int64_t score_rows = max_i64(stack->num_heads, CROSS_ROWS);
    const double widths = 2.0 * (double)padded_stride(stack->d_model) +
                          (double)padded_stride(wide) + (double)padded_stride(heads) +
                          2.0;
    const double bytes =
        (double)rows * (widths * sizeof(float) + (double)quantized_row_bytes(inputs)) +
        (double)(score_rows + 1) * (double)padded_keys * num_threads * sizeof(float) +
        8.0 * LINE; /* parts begin with a line */
    float *rest = allocate_lines(bytes);
    if (!rest)
        return TD_OUT_OF_MEMORY;
    work->stack = stack;
    work->num_threads = num_threads;
    work->rows = rows;
    work->memory = rest;
    work->x = take_matrix(&rest, rows, stack->d_model);
    work->sublayer = take_matrix(&rest, rows, stack->d_model);
    work->wide = take_matrix(&rest, rows, wide);
    work->heads = take_matrix(&rest, rows, heads);
    work->quantized.scales = take(&rest, rows);
    work->quantized.min = take(&rest, rows);
    work->max_keys = padded_keys;
    work->scores = take(&rest, score_rows * padded_keys * num_threads);
    work->slots = (int32_t *)take(&rest, padded_keys * num_threads);
    work->quantized.numbers = (uint8_t *)rest;
    return TD_OK;
}

TD_INTERNAL void end_workspace(Workspace *work) { free(work->memory); }

TD_INTERNAL Workspace worker_view(const Workspace *work, int worker)
{
    Workspace view = *work;
    view.scores +=
        worker * max_i64(work->stack->num_heads, CROSS_ROWS) * work->max_keys;
    view.slots += worker * work->max_keys;
    return view;
}

TD_INTERNAL int are_tokens(const Embedding *embedding, const int64_t *ids,
                           int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= embedding->vocab_size)
            return 0;
    return 1;
}

TD_INTERNAL void embed_row(const Workspace *work, const Embedding *embedding,
                           int64_t id, const float *position, int64_t row)
{
    const int64_t width = work->stack->d_model;
    const float *token = embedding->tokens + id * width;
    float *x = row_of(&work->x, row);
    for (int64_t i = 0; i < width; i++)
        x[i] = token[i] * embedding->scale + position[i];
}

TD_INTERNAL void apply_linear(Workspace *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int relu)
{
    quantize_rows(linear, x, work->rows, &work->quantized, work->num_threads);
    multiply(linear, &work->quantized, y, relu, work->num_threads);
}

/* x += addend; y = layer norm of x. */
typedef struct {
    const Workspace *work;
    const Norm *norm;
    const Matrix *addend; /* or NULL */
    const Matrix *y;      /* or NULL */
} NormalizedSum;

static float sum_of_row(const float *x, int64_t width)
{
    float sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += x[i];
    return sum;
}

/* Sum of squared deviations from the mean, in two vectors so that none waits for the
 * other. */
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

static void normalize_row(const float *x, int64_t width, float epsilon,
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
    const NormalizedSum *sum = shared;
    const Stack *stack = sum->work->stack;
    const int64_t width = stack->d_model;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        float *x = row_of(&sum->work->x, row);
        const float *addend = sum->addend ? row_of(sum->addend, row) : NULL;
        for (int64_t i = 0; addend && i < width; i++)
            x[i] += addend[i];
        if (sum->y)
            normalize_row(x, width, stack->norm_epsilon, sum->norm,
                          row_of(sum->y, row));
    }
}

TD_INTERNAL const Matrix *sublayer_input(Workspace *work, const Norm *norm)
{
    if (!work->stack->is_pre_norm)
        return &work->x;
    NormalizedSum sum = {work, norm, NULL, &work->sublayer};
    parallel_for(sum_rows, &sum, work->rows, MIN_ROWS, work->num_threads);
    return &work->sublayer;
}

TD_INTERNAL void add_and_norm(Workspace *work, const Norm *norm)
{
    const Matrix *normalized = work->stack->is_pre_norm ? NULL : &work->x;
    NormalizedSum sum = {work, norm, &work->sublayer, normalized};
    parallel_for(sum_rows, &sum, work->rows, MIN_ROWS, work->num_threads);
}

TD_INTERNAL void feed_forward(Workspace *work, const Layer *layer)
{
    const Stack *stack = work->stack;
    apply_linear(work, &layer->inner, sublayer_input(work, &layer->feed_forward_norm),
                 &work->wide, !stack->is_silu);
    for (int64_t row = 0; stack->is_silu && row < work->rows; row++) {
        float *inner = row_of(&work->wide, row);
        for (int64_t i = 0; i < stack->d_ff; i++)
            inner[i] /= 1 + expf(-inner[i]);
    }
    apply_linear(work, &layer->outer, &work->wide, &work->sublayer, 0);
    add_and_norm(work, &layer->feed_forward_norm);
}
