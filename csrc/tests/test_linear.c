/* Packed linear maps against products in double precision. */
#include <stdlib.h>

#include "tests/check.h"

static float *random_floats(uint32_t *seed, int64_t count, float scale, float mean)
{
    float *numbers = malloc((size_t)count * sizeof *numbers);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = mean + scale * random_float(seed);
    return numbers;
}

/* Largest error that rounding weights and a row to bytes can cause. Weights whose scale
 * is larger than a 127th of the largest were rounded to such 127ths before. */
static double rounding_of(const float *weight, const float *x, int64_t inputs,
                          double weight_step)
{
    double low = x[0], high = x[0], weights = 0, numbers = 0, largest = 0;
    for (int64_t i = 0; i < inputs; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
        largest = fmax(largest, fabs(weight[i]));
        weights += fabs(weight[i]);
        numbers += fabs(x[i]);
    }
    if (weight_step > 1.001 * largest / 127)
        weight_step += largest / 127;
    const double step = (high - low) / 255;
    return 0.5 * (step * weights + (numbers + step * (double)inputs) * weight_step);
}

static void product_is_near(const td_decode_api *decode, int64_t outputs,
                            int64_t inputs, int64_t rows, td_precision precision)
{
    uint32_t seed = (uint32_t)(1 + outputs + 31 * inputs + 977 * rows);
    float *weight = random_floats(&seed, outputs * inputs, 1.0f, 0.0f);
    float *bias = random_floats(&seed, outputs, 1.0f, 0.0f);
    float *x = random_floats(&seed, rows * inputs, 1.0f, 2.0f);
    float *y = malloc((size_t)(rows * outputs) * sizeof *y);
    float *alone = malloc((size_t)outputs * sizeof *alone);
    float *scales = calloc((size_t)outputs, sizeof *scales);
    td_linear *linear = NULL;
    CHECK_STATUS(
        decode->linear_new(weight, bias, outputs, inputs, precision, 1, &linear),
        TD_OK);
    CHECK_STATUS(decode->linear_apply(linear, x, rows, y, 3), TD_OK);
    CHECK_STATUS(decode->linear_scales(linear, scales),
                 precision == TD_INT8 ? TD_OK : TD_BAD_ARGUMENT);
    for (int64_t row = 0; row < rows; row++) {
        CHECK_STATUS(decode->linear_apply(linear, x + row * inputs, 1, alone, 1),
                     TD_OK);
        CHECK(are_same_bits(alone, y + row * outputs, outputs));
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias[o];
            for (int64_t i = 0; i < inputs; i++)
                sum += (double)weight[o * inputs + i] * x[row * inputs + i];
            const double rounding =
                precision == TD_INT8 ? rounding_of(weight + o * inputs,
                                                   x + row * inputs, inputs, scales[o])
                                     : 0;
            CHECK_NEAR(y[row * outputs + o], sum,
                       rounding + 2e-6 * (double)(inputs + 1));
        }
    }
    decode->linear_free(linear);
    free(weight);
    free(bias);
    free(x);
    free(y);
    free(alone);
    free(scales);
}

static void products_of_all_shapes(const td_api *api)
{
    static const int64_t sizes[][2] = {{1, 1},   {5, 3},   {16, 8},  {33, 17},
                                       {64, 64}, {48, 70}, {70, 129}};
    static const int64_t rows[] = {1, 2, 5, 6, 7, 8, 11, 12, 13, 25, 40};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            product_is_near(api->decode, sizes[i][0], sizes[i][1], rows[k], TD_FP32);
            product_is_near(api->decode, sizes[i][0], sizes[i][1], rows[k], TD_INT8);
        }
}

/* Weights and numbers of one sign, whose products in int8 sum to more than 32 bits. */
static void sums_of_very_many_inputs_do_not_overflow(const td_api *api)
{
    enum { INPUTS = 300000, OUTPUTS = 2, ROWS = 9 };
    float *weight = malloc(sizeof *weight * OUTPUTS * INPUTS);
    float *x = malloc(sizeof *x * ROWS * INPUTS), y[ROWS * OUTPUTS];
    for (int64_t i = 0; i < OUTPUTS * INPUTS; i++)
        weight[i] = i < INPUTS ? 1.0f : -1.0f;
    for (int64_t i = 0; i < ROWS * INPUTS; i++)
        x[i] = i % INPUTS ? 1.0f : 0.0f;
    td_linear *linear = NULL;
    CHECK_STATUS(
        api->decode->linear_new(weight, NULL, OUTPUTS, INPUTS, TD_INT8, 1, &linear),
        TD_OK);
    CHECK_STATUS(api->decode->linear_apply(linear, x, ROWS, y, 1), TD_OK);
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        CHECK_NEAR(y[i], i % OUTPUTS ? -INPUTS : INPUTS, 0.02 * INPUTS);
    api->decode->linear_free(linear);
    free(weight);
    free(x);
}

static void nan_stays_where_it_is(const td_api *api)
{
    uint32_t seed = 4;
    float *weight = random_floats(&seed, 40 * 20, 1.0f, 0.0f);
    float *x = random_floats(&seed, 2 * 20, 1.0f, 0.0f), y[2 * 40];
    weight[33 * 20 + 2] = NAN;
    for (int precision = TD_FP32; precision <= TD_INT8; precision++) {
        td_linear *linear = NULL;
        CHECK_STATUS(api->decode->linear_new(weight, NULL, 40, 20,
                                             (td_precision)precision, 1, &linear),
                     TD_OK);
        CHECK_STATUS(api->decode->linear_apply(linear, x, 2, y, 1), TD_OK);
        for (int i = 0; i < 80; i++)
            CHECK(isnan(y[i]) == (i % 40 == 33));
        api->decode->linear_free(linear);
    }
    free(weight);
    free(x);
}

static void wrong_arguments_are_refused(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    const float number = 1;
    float y;
    td_linear *linear = NULL;
    static const int64_t sizes[] = {INT64_MIN, -1, 0, INT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_STATUS(
            decode->linear_new(&number, NULL, sizes[i], 1, TD_FP32, 1, &linear),
            TD_BAD_ARGUMENT);
        CHECK_STATUS(
            decode->linear_new(&number, NULL, 1, sizes[i], TD_FP32, 1, &linear),
            TD_BAD_ARGUMENT);
    }
    CHECK_STATUS(decode->linear_new(NULL, NULL, 1, 1, TD_FP32, 1, &linear),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_new(&number, NULL, 1, 1, (td_precision)7, 1, &linear),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_new(&number, NULL, 1, 1, TD_FP32, 0, &linear),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_new(&number, NULL, 1, 1, TD_FP32, 1, NULL),
                 TD_BAD_ARGUMENT);
    CHECK(!linear);
    CHECK_STATUS(decode->linear_new(&number, NULL, 1, 1, TD_FP32, 1, &linear), TD_OK);
    CHECK_STATUS(decode->linear_apply(linear, NULL, 0, NULL, 1), TD_OK);
    CHECK_STATUS(decode->linear_apply(linear, &number, -1, &y, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_apply(linear, NULL, 1, &y, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_apply(NULL, &number, 1, &y, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->linear_apply(linear, &number, INT64_MAX, &y, 1),
                 TD_BAD_ARGUMENT);
    decode->linear_free(linear);
    decode->linear_free(NULL);
}

int main(void)
{
    for_each_isa(products_of_all_shapes);
    for_each_isa(sums_of_very_many_inputs_do_not_overflow);
    for_each_isa(nan_stays_where_it_is);
    for_each_isa(wrong_arguments_are_refused);
    return check_result();
}
