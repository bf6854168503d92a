/* Layer norm of training. decode/stack.c has the layer norm of decoding, for any width.
 * The two add in different orders, so their results can differ in the last bit. */
#include "nn/layer_norm.h"

#include <math.h>

#include "checks.h"
#include "gemm/pack_bf16.h"
#include "nn/dropout.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define ROW_GROUP 32 /* rows whose gradients of gain and bias are summed together */

/* Number of rows in the groups before `group`. */
static int64_t rows_before(const td_layer_norm *n, int64_t group)
{
    return min_i64(group * ROW_GROUP, n->rows);
}

static int64_t num_row_groups(const td_layer_norm *n)
{
    return ceil_div(n->rows, ROW_GROUP);
}

TD_INTERNAL int64_t layer_norm_workspace(const td_layer_norm *n)
{
    return num_row_groups(n) * 2 * n->width;
}

/* Normalize a row of x + Dropout(addend). `normalized` holds Dropout(addend) before the
 * call and the normalized sum after it. */
static void normalize_row(const td_layer_norm *n, int64_t row)
{
    const int64_t width = n->width;
    const float *x = n->x + row * width;
    float *normalized = n->normalized + row * width, *y = n->y + row * width;
    vec sums = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec sum = vec_load(x + i) + vec_load(normalized + i);
        vec_store(normalized + i, sum);
        sums += sum;
    }
    const vec mean = vec_set1(vec_reduce_add(sums) / (float)width);
    vec squares = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec difference = vec_load(normalized + i) - mean;
        squares = vec_fma(difference, difference, squares);
    }
    const float variance = vec_reduce_add(squares) / (float)width;
    const float inverse = 1.0f / sqrtf(variance + n->epsilon);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec result = (vec_load(normalized + i) - mean) * vec_set1(inverse);
        vec_store(normalized + i, result);
        vec_store(y + i, vec_fma(result, vec_load(n->gain + i), vec_load(n->bias + i)));
    }
    if (n->bf16_y.data)
        round_into_panels(n->bf16_y, row, 0, width, y);
    n->inverse_deviation[row] = inverse;
}

static void forward_groups(void *shared, int64_t first, int64_t end, int worker)
{
    td_layer_norm *n = shared;
    for (int64_t group = first; group < end; group++) {
        dropout_blocks_forward(&n->masking, rows_before(n, group),
                               rows_before(n, group + 1), worker);
        for (int64_t row = group * ROW_GROUP; row < rows_before(n, group + 1); row++)
            normalize_row(n, row);
    }
}

/* Write the gradient of a row of x to grad_x, and add the row's share to grad_gain and
 * grad_bias. For the normalized sum z, y = gain z + bias and g = gain grad_y,
 *
 *   grad_x = (g - mean(g) - z mean(g z)) / deviation
 *   grad_gain += grad_y z,  grad_bias += grad_y */
static void norm_row_backward(const td_layer_norm *n, int64_t row, float *grad_gain,
                              float *grad_bias)
{
    const int64_t width = n->width;
    const float *normalized = n->normalized + row * width;
    const float *grad_y = n->grad_y + row * width;
    float *grad_x = n->grad_x + row * width;
    vec sums = vec_set1(0.0f), products = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec z = vec_load(normalized + i), gradient = vec_load(grad_y + i);
        const vec g = gradient * vec_load(n->gain + i);
        sums += g;
        products = vec_fma(g, z, products);
        vec_store(grad_gain + i, vec_fma(gradient, z, vec_load(grad_gain + i)));
        vec_store(grad_bias + i, vec_load(grad_bias + i) + gradient);
    }
    const vec mean = vec_set1(vec_reduce_add(sums) / (float)width);
    const vec mean_product = vec_set1(vec_reduce_add(products) / (float)width);
    const vec inverse = vec_set1(n->inverse_deviation[row]);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec g = vec_load(grad_y + i) * vec_load(n->gain + i);
        const vec difference = g - mean - vec_load(normalized + i) * mean_product;
        vec_store(grad_x + i, difference * inverse);
    }
}

/* Write the gradient of the addend of some rows, given grad_x. */
static void dropout_rows_backward(td_layer_norm *n, int64_t first, int64_t end)
{
    if (!n->bf16_grad_addend.data) {
        dropout_blocks_backward(&n->masking, first, end, 0);
        return;
    }
    const float scale = n->masking.dropout.rate.scale;
    for (int64_t row = first; row < end; row++)
        for (int64_t column = 0; column < n->width; column += LANES) {
            const int64_t at = row * n->width + column;
            float gradient[LANES];
            for (int64_t i = 0; i < LANES; i++)
                gradient[i] =
                    n->grad_x[at + i] * (n->masking.kept[at + i] ? scale : 0.0f);
            round_into_panels(n->bf16_grad_addend, row, column, LANES, gradient);
        }
}

static void backward_groups(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    td_layer_norm *n = shared;
    for (int64_t group = first; group < end; group++) {
        float *grad_gain = n->workspace + group * 2 * n->width;
        float *grad_bias = grad_gain + n->width;
        for (int64_t i = 0; i < 2 * n->width; i++)
            grad_gain[i] = 0.0f;
        for (int64_t row = group * ROW_GROUP; row < rows_before(n, group + 1); row++)
            norm_row_backward(n, row, grad_gain, grad_bias);
        dropout_rows_backward(n, rows_before(n, group), rows_before(n, group + 1));
    }
}

/* Sum the gradients of gain and bias in the order of the groups, so that the result
 * does not depend on threads. */
static void sum_groups(const td_layer_norm *n)
{
    for (int64_t i = 0; i < n->width; i++)
        n->grad_gain[i] = n->grad_bias[i] = 0.0f;
    for (int64_t group = 0; group < num_row_groups(n); group++) {
        const float *grad_gain = n->workspace + group * 2 * n->width;
        for (int64_t i = 0; i < n->width; i++) {
            n->grad_gain[i] += grad_gain[i];
            n->grad_bias[i] += grad_gain[n->width + i];
        }
    }
}

TD_INTERNAL void layer_norm_forward(td_layer_norm norm, int num_threads)
{
    norm.masking.y = norm.normalized;
    parallel_for(forward_groups, &norm, num_row_groups(&norm), 1, num_threads);
}

TD_INTERNAL void layer_norm_backward(td_layer_norm norm, int num_threads)
{
    norm.masking.x = norm.grad_x;
    parallel_for(backward_groups, &norm, num_row_groups(&norm), 1, num_threads);
    sum_groups(&norm);
}

static int are_norm_sizes(const td_layer_norm *n)
{
    return n && is_size(n->rows, 0) && is_multiple(n->width, ROW_MULTIPLE) &&
           is_tensor(n->rows, n->width, 1);
}

static td_status check_layer_norm(const td_layer_norm *n, int num_threads)
{
    if (!are_norm_sizes(n) || !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    const td_masking *m = &n->masking;
    if (m->count != n->rows * n->width || m->block_width != n->width ||
        !is_size(m->block_masks, n->width) || m->block_masks % 2 ||
        !is_between(m->first_block, 0, MAX_ELEMENTS) ||
        !is_dropout_rate(m->dropout.rate) ||
        !are_panels(n->bf16_y, n->rows, n->width) ||
        !are_panels(n->bf16_grad_addend, n->rows, n->width))
        return TD_BAD_ARGUMENT;
    if (!n->gain || is_missing(n->normalized, n->rows) ||
        is_missing(n->inverse_deviation, n->rows) || is_missing(m->kept, n->rows))
        return TD_BAD_ARGUMENT;
    return TD_OK;
}

TD_INTERNAL int64_t td_layer_norm_workspace(const td_layer_norm *norm)
{
    return are_norm_sizes(norm) ? layer_norm_workspace(norm) : -1;
}

TD_INTERNAL td_status td_layer_norm_forward(const td_layer_norm *n, int num_threads)
{
    const td_status status = check_layer_norm(n, num_threads);
    if (status != TD_OK)
        return status;
    if (!n->bias || is_missing(n->x, n->rows) || is_missing(n->masking.x, n->rows) ||
        is_missing(n->y, n->rows))
        return TD_BAD_ARGUMENT;
    layer_norm_forward(*n, num_threads);
    return TD_OK;
}

TD_INTERNAL td_status td_layer_norm_backward(const td_layer_norm *n, int num_threads)
{
    const td_status status = check_layer_norm(n, num_threads);
    if (status != TD_OK)
        return status;
    const int is_rounded = n->bf16_grad_addend.data != NULL;
    if (is_missing(n->grad_y, n->rows) || is_missing(n->grad_x, n->rows) ||
        !n->grad_gain || !n->grad_bias || is_missing(n->workspace, n->rows) ||
        (!is_rounded && is_missing(n->masking.y, n->rows)) ||
        (is_rounded && n->masking.block_masks != n->width))
        return TD_BAD_ARGUMENT;
    layer_norm_backward(*n, num_threads);
    return TD_OK;
}
