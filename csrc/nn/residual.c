/* LayerNorm(x + Dropout(s)) (sections 3.1 and 5.4; Ba et al., 2016), forwards and
   backwards, each in one pass over memory. */
#include <math.h>

#include "nn/dropout.h"
#include "parallel.h"
#include "gemm/pack_bf16.h"
#include "simd/vec.h"

#define GROUP 32 /* rows whose gradients of gain and bias are summed in one place */

static int64_t rows_before(const td_layer_norm *r, int64_t group)
{
    const int64_t end = group * GROUP;
    return end < r->rows ? end : r->rows;
}

static int64_t layer_norm_groups(const td_layer_norm *r)
{
    return (r->rows + GROUP - 1) / GROUP;
}

static void normalize_row(const td_layer_norm *r, int64_t row)
{
    const int64_t width = r->width;
    const float *x = r->x + row * width;
    float *normalized = r->normalized + row * width, *y = r->y + row * width;
    vec sums = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec sum = vec_load(x + i) + vec_load(normalized + i);
        vec_store_first(normalized + i, LANES, sum);
        sums += sum;
    }
    const vec mean = vec_set1(vec_reduce_add(sums) / (float)width);
    vec squares = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec apart = vec_load(normalized + i) - mean;
        squares = vec_fma(apart, apart, squares);
    }
    const float variance = vec_reduce_add(squares) / (float)width;
    const float inverse = 1.0f / sqrtf(variance + r->epsilon);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec number = (vec_load(normalized + i) - mean) * vec_set1(inverse);
        vec_store_first(normalized + i, LANES, number);
        vec_store_first(y + i, LANES,
                        vec_fma(number, vec_load(r->gain + i), vec_load(r->bias + i)));
    }
    if (r->bf16_y.data)
        narrow_into(r->bf16_y, row, 0, width, y);
    r->inverse_deviation[row] = inverse;
}

static void normalize_groups(void *shared, int64_t first, int64_t end, int worker)
{
    td_layer_norm *r = shared;
    for (int64_t group = first; group < end; group++) {
        drop_blocks(&r->masking, rows_before(r, group), rows_before(r, group + 1),
                    worker);
        for (int64_t row = group * GROUP; row < rows_before(r, group + 1); row++)
            normalize_row(r, row);
    }
}

/* To the gradient of the sum, and into those of gain and bias. */
static void differentiate_row(const td_layer_norm *r, int64_t row, float *of_gain,
                              float *of_bias)
{
    const int64_t width = r->width;
    const float *normalized = r->normalized + row * width,
                *of_y = r->grad_y + row * width;
    float *of_x = r->grad_x + row * width;
    vec sums = vec_set1(0.0f), products = vec_set1(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec number = vec_load(normalized + i), gradient = vec_load(of_y + i);
        const vec of_number = gradient * vec_load(r->gain + i);
        sums += of_number;
        products = vec_fma(of_number, number, products);
        vec_store_first(of_gain + i, LANES,
                        vec_fma(gradient, number, vec_load(of_gain + i)));
        vec_store_first(of_bias + i, LANES, vec_load(of_bias + i) + gradient);
    }
    const vec mean = vec_set1(vec_reduce_add(sums) / (float)width);
    const vec product = vec_set1(vec_reduce_add(products) / (float)width);
    const vec inverse = vec_set1(r->inverse_deviation[row]);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec of_number = vec_load(of_y + i) * vec_load(r->gain + i);
        const vec apart = of_number - mean - vec_load(normalized + i) * product;
        vec_store_first(of_x + i, LANES, apart * inverse);
    }
}

/* To the gradient of s. */
static void mask_rows(td_layer_norm *r, int64_t first, int64_t end)
{
    if (!r->bf16_grad_addend.data) {
        mask_blocks(&r->masking, first, end, 0);
        return;
    }
    const float scale = r->masking.dropout.rate.scale;
    for (int64_t row = first; row < end; row++)
        for (int64_t column = 0; column < r->width; column += LANES) {
            const int64_t at = row * r->width + column;
            float numbers[LANES];
            for (int64_t i = 0; i < LANES; i++)
                numbers[i] = r->grad_x[at + i] * (r->masking.kept[at + i] ? scale : 0.0f);
            narrow_into(r->bf16_grad_addend, row, column, LANES, numbers);
        }
}

static void differentiate_groups(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    td_layer_norm *r = shared;
    for (int64_t group = first; group < end; group++) {
        float *of_gain = r->workspace + group * 2 * r->width;
        float *of_bias = of_gain + r->width;
        for (int64_t i = 0; i < 2 * r->width; i++)
            of_gain[i] = 0.0f;
        for (int64_t row = group * GROUP; row < rows_before(r, group + 1); row++)
            differentiate_row(r, row, of_gain, of_bias);
        mask_rows(r, rows_before(r, group), rows_before(r, group + 1));
    }
}

/* Group after group, so that the sum is the same whichever thread had which. */
static void sum_groups(const td_layer_norm *r)
{
    for (int64_t i = 0; i < r->width; i++)
        r->grad_gain[i] = r->grad_bias[i] = 0.0f;
    for (int64_t group = 0; group < layer_norm_groups(r); group++) {
        const float *of_gain = r->workspace + group * 2 * r->width;
        for (int64_t i = 0; i < r->width; i++) {
            r->grad_gain[i] += of_gain[i];
            r->grad_bias[i] += of_gain[r->width + i];
        }
    }
}

static int64_t layer_norm_workspace(const td_layer_norm *r)
{
    return layer_norm_groups(r) * 2 * r->width;
}

static td_status layer_norm_forward(const td_layer_norm *norm, int num_threads)
{
    td_layer_norm own = *norm;
    own.masking.y = own.normalized;
    parallel_for(normalize_groups, &own, layer_norm_groups(&own), 1, num_threads);
    return TD_OK;
}

/* The gradient of s is where the masking writes. */
static td_status layer_norm_backward(const td_layer_norm *norm, int num_threads)
{
    td_layer_norm own = *norm;
    own.masking.x = own.grad_x;
    parallel_for(differentiate_groups, &own, layer_norm_groups(&own), 1, num_threads);
    sum_groups(&own);
    return TD_OK;
}
