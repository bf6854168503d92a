/* Dropout and LayerNorm(x + Dropout(addend)) against loops in double precision. */
#include "tests/arrays.h"

static td_masking new_masking(int64_t count, int64_t width, int64_t masks,
                              uint32_t num_dropped)
{
    const int64_t blocks = (count + width - 1) / width;
    td_masking m = {.count = count, .block_width = width, .block_masks = masks};
    m.x = random_floats(count);
    m.y = unset_floats(count);
    m.kept = new_array(blocks * masks);
    m.dropout.seeds[0] = 77;
    m.dropout.seeds[1] = 99;
    m.dropout.rate.num_dropped = num_dropped;
    m.dropout.rate.scale = 65536.0f / (float)(65536 - num_dropped);
    return m;
}

static void dropout_keeps_the_rate_and_repeats_its_masks(const td_api *api)
{
    td_masking m = new_masking(100000, 1024, 1024, 19661);
    CHECK_STATUS(api->nn->dropout_forward(&m, 2), TD_OK);
    int64_t num_kept = 0;
    for (int64_t i = 0; i < m.count; i++) {
        const float factor = m.kept[i] ? m.dropout.rate.scale : 0.0f;
        CHECK(m.y[i] == m.x[i] * factor);
        num_kept += m.kept[i];
    }
    CHECK_NEAR((double)num_kept / (double)m.count, 0.7, 0.006);
    td_masking back = m;
    back.x = random_floats(m.count);
    back.y = unset_floats(m.count);
    CHECK_STATUS(api->nn->dropout_backward(&back, 1), TD_OK);
    for (int64_t i = 0; i < m.count; i++)
        CHECK(back.y[i] == back.x[i] * (m.kept[i] ? m.dropout.rate.scale : 0.0f));
    release_arrays();
}

/* The masks of a part of a tensor are those of the whole tensor. */
static void masks_depend_on_places_only(const td_api *api)
{
    td_masking whole = new_masking(40 * 96, 96, 96, 30000);
    td_masking part = new_masking(13 * 96, 96, 96, 30000);
    part.first_block = 27;
    CHECK_STATUS(api->nn->dropout_forward(&whole, 3), TD_OK);
    CHECK_STATUS(api->nn->dropout_forward(&part, 1), TD_OK);
    CHECK(memcmp(whole.kept + 27 * 96, part.kept, 13 * 96) == 0);
    release_arrays();
}

static td_layer_norm new_layer_norm(int64_t rows, int64_t width, uint32_t num_dropped)
{
    td_layer_norm n = {.rows = rows, .width = width, .epsilon = 1e-5f};
    n.x = random_floats(rows * width);
    n.gain = random_floats(width);
    n.bias = random_floats(width);
    n.normalized = unset_floats(rows * width);
    n.inverse_deviation = unset_floats(rows);
    n.y = unset_floats(rows * width);
    n.grad_y = random_floats(rows * width);
    n.grad_x = unset_floats(rows * width);
    n.grad_gain = unset_floats(width);
    n.grad_bias = unset_floats(width);
    n.masking = new_masking(rows * width, width, (width + 31) / 32 * 32, num_dropped);
    return n;
}

static double factor_of(const td_layer_norm *n, int64_t row, int64_t i)
{
    const td_masking *m = &n->masking;
    return m->kept[row * m->block_masks + i] ? m->dropout.rate.scale : 0.0;
}

static void check_row(const td_layer_norm *n, int64_t row, const float *grad_addend,
                      double *grad_gain, double *grad_bias)
{
    const int64_t width = n->width, first = row * width;
    double *sums = new_doubles(width), *grads = new_doubles(width);
    double mean = 0.0, variance = 0.0, grad_mean = 0.0, product = 0.0;
    for (int64_t i = 0; i < width; i++) {
        sums[i] = (double)n->x[first + i] +
                  (double)n->masking.x[first + i] * factor_of(n, row, i);
        mean += sums[i] / (double)width;
    }
    for (int64_t i = 0; i < width; i++)
        variance += (sums[i] - mean) * (sums[i] - mean) / (double)width;
    const double inverse = 1.0 / sqrt(variance + (double)n->epsilon);
    for (int64_t i = 0; i < width; i++) {
        const double normalized = (sums[i] - mean) * inverse;
        const double grad_y = n->grad_y[first + i];
        CHECK_NEAR(n->y[first + i],
                   normalized * (double)n->gain[i] + (double)n->bias[i], 1e-5);
        grads[i] = grad_y * (double)n->gain[i];
        grad_mean += grads[i] / (double)width;
        product += grads[i] * normalized / (double)width;
        grad_gain[i] += grad_y * normalized;
        grad_bias[i] += grad_y;
    }
    for (int64_t i = 0; i < width; i++) {
        const double normalized = (sums[i] - mean) * inverse;
        const double grad_x = (grads[i] - grad_mean - normalized * product) * inverse;
        CHECK_NEAR(n->grad_x[first + i], grad_x, 1e-4);
        CHECK_NEAR(grad_addend[first + i], grad_x * factor_of(n, row, i), 1e-4);
    }
}

static void layer_norm_is_that_of_plain_loops(const td_api *api)
{
    const int64_t sizes[][2] = {{1, 16}, {3, 48}, {31, 32}, {70, 128}, {0, 32}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t num_dropped = 0; num_dropped < 40000; num_dropped += 20000) {
            const int64_t rows = sizes[s][0], width = sizes[s][1];
            td_layer_norm n = new_layer_norm(rows, width, num_dropped);
            CHECK_STATUS(api->nn->layer_norm_forward(&n, 2), TD_OK);
            td_layer_norm back = n;
            back.workspace = unset_floats(api->nn->layer_norm_workspace(&back));
            back.masking.x = NULL;
            back.masking.y = unset_floats(rows * width);
            CHECK_STATUS(api->nn->layer_norm_backward(&back, 2), TD_OK);
            double *grad_gain = new_doubles(width), *grad_bias = new_doubles(width);
            for (int64_t row = 0; row < rows; row++)
                check_row(&n, row, back.masking.y, grad_gain, grad_bias);
            check_near("grad_gain", n.grad_gain, grad_gain, width, 1e-4);
            check_near("grad_bias", n.grad_bias, grad_bias, width, 1e-4);
            release_arrays();
        }
}

static void bad_arguments_are_refused(const td_api *api)
{
    td_layer_norm good = new_layer_norm(5, 32, 0);
    good.workspace = unset_floats(api->nn->layer_norm_workspace(&good));
    enum { COUNT = 8 };
    td_layer_norm bad[COUNT];
    for (int i = 0; i < COUNT; i++)
        bad[i] = good;
    bad[0].rows = -2;
    bad[1].width = 40;
    bad[2].gain = NULL;
    bad[3].masking.count = 1;
    bad[4].masking.kept = NULL;
    bad[5].masking.block_masks = 16;
    bad[6].bf16_y = bad[6].bf16_grad_addend = (td_panels){new_array(64), 4};
    bad[7].masking.dropout.rate.num_dropped = 65536;
    for (int i = 0; i < COUNT; i++) {
        CHECK_STATUS(api->nn->layer_norm_forward(&bad[i], 1), TD_BAD_ARGUMENT);
        CHECK_STATUS(api->nn->layer_norm_backward(&bad[i], 1), TD_BAD_ARGUMENT);
    }
    td_masking odd = new_masking(10, 5, 5, 0), none = new_masking(10, 5, 6, 0);
    td_masking all = new_masking(10, 5, 6, 65536);
    none.kept = NULL;
    CHECK_STATUS(api->nn->dropout_forward(&odd, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->dropout_forward(&none, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->dropout_forward(&all, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->dropout_backward(NULL, 1), TD_BAD_ARGUMENT);
    release_arrays();
}

int main(void)
{
    for_each_isa(dropout_keeps_the_rate_and_repeats_its_masks);
    for_each_isa(masks_depend_on_places_only);
    for_each_isa(layer_norm_is_that_of_plain_loops);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
