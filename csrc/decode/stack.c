/* Workspace and common sub-layers of encoder and decoder. */
#include "decode/stack.h"

#include <math.h>
#include <stdlib.h>

#include "alloc.h"
#include "arena.h"
#include "parallel.h"
#include "simd/vec.h"

#define MIN_SILU_ROWS 16 /* of a part of parallel_for */

static Matrix take_matrix(Arena *arena, int64_t rows, int64_t width)
{
    const int64_t stride = padded_stride(width);
    return (Matrix){take_floats(arena, rows * stride), stride};
}

/* Rows of a worker's scores. */
static int64_t num_score_rows(const Stack *stack)
{
    return max_i64(stack->num_heads, CROSS_ROWS);
}

/* Take the buffers of a workspace whose sizes are set. */
static void take_workspace(Workspace *work, Arena *arena)
{
    const Stack *stack = work->stack;
    const int64_t rows = work->rows, keys = work->max_keys * work->num_threads;
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t heads = stack->num_heads * stack->d_v;
    const int64_t inputs = max_i64(max_i64(stack->d_model, stack->d_ff), heads);
    const int64_t gates = stack->is_recurrent ? 2 * stack->d_model : 0;
    const int64_t wide = max_i64(2 * queries + heads, gates);
    work->x = take_matrix(arena, rows, stack->d_model);
    work->sublayer = take_matrix(arena, rows, stack->d_model);
    work->wide = take_matrix(arena, rows, max_i64(wide, stack->d_ff));
    work->heads = take_matrix(arena, rows, heads);
    work->packed.scales = take_floats(arena, rows);
    work->packed.min = take_floats(arena, rows);
    work->scores = take_floats(arena, num_score_rows(stack) * keys);
    work->slots = (int32_t *)take_floats(arena, keys);
    work->packed.data = take_bytes(arena, rows * packed_activation_bytes(inputs));
}

TD_INTERNAL td_status begin_workspace(Workspace *work, const Stack *stack, int64_t rows,
                                      int64_t max_keys, int num_threads)
{
    *work = (Workspace){
        .stack = stack,
        .num_threads = num_threads,
        .rows = rows,
        /* Scores and slots are read and written in whole vectors. */
        .max_keys = round_up(max_keys + LANES, CACHE_LINE_FLOATS),
    };
    Arena arena = {NULL, 0};
    take_workspace(work, &arena);
    work->block = allocate_lines((double)arena.used * (double)sizeof(float));
    if (!work->block)
        return TD_OUT_OF_MEMORY;
    arena = (Arena){work->block, 0};
    take_workspace(work, &arena);
    return TD_OK;
}

TD_INTERNAL void end_workspace(Workspace *work) { free(work->block); }

TD_INTERNAL Workspace worker_view(const Workspace *work, int worker)
{
    Workspace view = *work;
    view.scores += worker * num_score_rows(work->stack) * work->max_keys;
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
    float *x = row_of(&work->x, row);
    if (embedding->rounded) {
        const int8_t *token = embedding->rounded + id * width;
        const float scale = embedding->token_scales[id] * embedding->scale;
        for (int64_t i = 0; i < width; i++)
            x[i] = (float)token[i] * scale + position[i];
        return;
    }
    const float *token = embedding->tokens + id * width;
    for (int64_t i = 0; i < width; i++)
        x[i] = token[i] * embedding->scale + position[i];
}

TD_INTERNAL void apply_linear(Workspace *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int relu)
{
    pack_activations(linear, x, work->rows, &work->packed, work->num_threads);
    multiply(linear, &work->packed, y, relu, work->num_threads);
}

/* Add & norm (Figure 1): x += addend, then y = LayerNorm(x). */
typedef struct {
    const Workspace *work;
    const Norm *norm;
    const Matrix *addend; /* or NULL */
    const Matrix *y;      /* or NULL */
} AddNorm;

static float sum_of_row(const float *x, int64_t width)
{
    float sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += x[i];
    return sum;
}

/* Sum of squared deviations from the mean. Two accumulators halve the time spent
 * waiting for sums. */
static float sum_of_squares(const float *x, int64_t width, float mean)
{
    const vec means = vec_set1(mean), zero = vec_set1(0.0f);
    vec one = zero, other = zero;
    int64_t i = 0;
    for (; i + 2 * LANES <= width; i += 2 * LANES) {
        const vec first = vec_load(x + i) - means;
        const vec second = vec_load(x + i + LANES) - means;
        one = vec_fma(first, first, one);
        other = vec_fma(second, second, other);
    }
    for (; i < width; i += LANES) {
        const vec_mask mask = vec_mask_first(width - i);
        const vec last = vec_load_masked(mask, x + i) - means;
        one = vec_fma(last, vec_select(mask, last, zero), one);
    }
    return vec_reduce_add(one + other);
}

/* Layer norm of a row of any width (Ba et al., 2016). The layer norm of training
 * (nn/layer_norm.c) also stores values for its backward pass. */
static void normalize_row(const float *x, int64_t width, float epsilon,
                          const Norm *norm, float *y)
{
    const float mean = sum_of_row(x, width) / (float)width;
    const float variance = sum_of_squares(x, width, mean) / (float)width;
    const float factor = 1 / sqrtf(variance + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) * factor * norm->gain[i] + norm->bias[i];
}

static void add_norm_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const AddNorm *sum = shared;
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
    AddNorm sum = {work, norm, NULL, &work->sublayer};
    parallel_for(add_norm_rows, &sum, work->rows, MIN_ROWS, work->num_threads);
    return &work->sublayer;
}

TD_INTERNAL void add_and_norm(Workspace *work, const Norm *norm)
{
    const Matrix *normalized = work->stack->is_pre_norm ? NULL : &work->x;
    AddNorm sum = {work, norm, &work->sublayer, normalized};
    parallel_for(add_norm_rows, &sum, work->rows, MIN_ROWS, work->num_threads);
}

/* Replace the inner layer by SiLU(x) = x sigmoid(x) (Elfwing et al., 2018). */
static void apply_silu(void *shared, int64_t first, int64_t end, int worker)
{
    const Workspace *work = shared;
    const int64_t width = work->stack->d_ff;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        float *inner = row_of(&work->wide, row);
        for (int64_t i = 0; i < width; i += LANES) {
            const vec x = vec_load_masked(vec_mask_first(width - i), inner + i);
            vec_store_first(inner + i, width - i, x * vec_sigmoid(x));
        }
    }
}

TD_INTERNAL void feed_forward(Workspace *work, const Layer *layer)
{
    const int is_silu = work->stack->is_silu;
    apply_linear(work, &layer->inner, sublayer_input(work, &layer->feed_forward_norm),
                 &work->wide, !is_silu);
    if (is_silu)
        parallel_for(apply_silu, work, work->rows, MIN_SILU_ROWS, work->num_threads);
    apply_linear(work, &layer->outer, &work->wide, &work->sublayer, 0);
    add_and_norm(work, &layer->feed_forward_norm);
}
