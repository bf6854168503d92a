/* Small products in fp32, and packing and products in bf16, against plain loops. */
#include "gemm/amx_bf16.c"
#include "gemm/avx512_bf16.c"
#include "gemm/bf16_product.c"
#include "gemm/pack_bf16.c"
#include "gemm/small_fp32.h"
#include "tests/arrays.h"

static double product_of(const float *a, int64_t a_row, int64_t a_column,
                         const float *b, int64_t b_row, int64_t b_column, int64_t inner)
{
    double sum = 0.0;
    for (int64_t i = 0; i < inner; i++)
        sum += (double)a[a_row + i * a_column] * (double)b[i * b_row + b_column];
    return sum;
}

static void small_products_are_those_of_plain_loops(void)
{
    const int64_t columns = 3 * LANES;
    for (int64_t rows = 1; rows < 16; rows++)
        for (int64_t inner = 0; inner < 9; inner += 4) {
            float *a = random_floats(rows * inner), *b = random_floats(inner * columns);
            float *c = unset_floats(rows * columns), *d = unset_floats(rows * columns);
            multiply_small((StridedMatrix){a, inner, 1}, (Matrix){b, columns}, rows,
                           inner, columns, (Matrix){c, columns});
            multiply_small((StridedMatrix){a, 1, rows}, (Matrix){b, columns}, rows,
                           inner, columns, (Matrix){d, columns});
            for (int64_t row = 0; row < rows; row++)
                for (int64_t column = 0; column < columns; column++) {
                    const int64_t at = row * columns + column;
                    CHECK_NEAR(c[at],
                               product_of(a, row * inner, 1, b, columns, column, inner),
                               1e-5);
                    CHECK_NEAR(d[at],
                               product_of(a, row, rows, b, columns, column, inner),
                               1e-5);
                }
            release_arrays();
        }
}

static void transposes_are_padded_with_zeros(void)
{
    for (int64_t rows = 1; rows < 20; rows++)
        for (int64_t columns = 1; columns < 20; columns++) {
            const int64_t width = round_up_to_lanes(rows);
            float *from = random_floats(rows * columns);
            float *to = unset_floats(columns * width);
            transpose((Matrix){from, columns}, rows, columns, to);
            for (int64_t column = 0; column < columns; column++)
                for (int64_t row = 0; row < width; row++)
                    CHECK(to[column * width + row] ==
                          (row < rows ? from[row * columns + column] : 0.0f));
            release_arrays();
        }
}

/* Round to bf16, in fp32. */
static float *rounded(const float *from, int64_t count)
{
    td_bf16 *halves = new_array(count * (int64_t)sizeof *halves);
    float *to = unset_floats(count);
    floats_to_bf16(count, from, halves);
    bf16_to_floats(count, halves, to);
    return to;
}

static td_panels panels_of(const float *from, int64_t rows, int64_t columns)
{
    const td_panels to = {new_array(rows * columns * (int64_t)sizeof(td_bf16)), rows};
    for (int64_t row = 0; row < rows; row++)
        round_into_panels(to, row, 0, columns, from + row * columns);
    return to;
}

/* y [rows, outputs] = x W^T + b by both ways of packing, and x^T y. */
static void check_products(int64_t rows, int64_t inputs, int64_t outputs)
{
    const float *x = rounded(random_floats(rows * inputs), rows * inputs);
    const float *weight = rounded(random_floats(outputs * inputs), outputs * inputs);
    const float *bias = random_floats(outputs);
    const int64_t bytes = outputs * inputs * (int64_t)sizeof(td_bf16);
    float *y = unset_floats(rows * outputs), *back = unset_floats(rows * inputs);
    WeightPacking forward = {weight, outputs, inputs, new_array(bytes)};
    WeightPacking backward = {weight, outputs, inputs, new_array(bytes)};
    pack_forward(&forward, 0, outputs / PACKED_COLUMNS, 0);
    pack_backward(&backward, 0, inputs / PACKED_COLUMNS, 0);
    const td_panels panels = panels_of(x, rows, inputs);
    multiply_bf16(panels, (RowSpan){0, rows}, (Bf16Matrix){forward.to, inputs, outputs},
                  (Bf16Epilogue){.columns = outputs, .fp32 = y, .bias = bias});
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < outputs; o++)
            CHECK_NEAR(y[row * outputs + o],
                       product_of(x, row * inputs, 1, weight, 1, o * inputs, inputs) +
                           (double)bias[o],
                       1e-4);
    const float *grad = rounded(y, rows * outputs);
    multiply_bf16(panels_of(grad, rows, outputs), (RowSpan){0, rows},
                  (Bf16Matrix){backward.to, outputs, inputs},
                  (Bf16Epilogue){.columns = inputs, .fp32 = back});
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < inputs; i++)
            CHECK_NEAR(back[row * inputs + i],
                       product_of(grad, row * outputs, 1, weight, inputs, i, outputs),
                       1e-2);
    release_arrays();
}

/* Run a test with each unit for bf16 that this processor and instruction set have. */
static void for_each_bf16_unit(void (*test)(void))
{
    td_allow_amx(1);
    td_allow_avx512_bf16(1);
    if (bf16_unit() == TD_BF16_AMX)
        test();
    td_allow_amx(0);
    if (bf16_unit() == TD_BF16_AVX512)
        test();
    td_allow_avx512_bf16(0);
    CHECK(bf16_unit() == TD_BF16_LOOPS);
    test();
    td_allow_amx(1);
    td_allow_avx512_bf16(1);
}

static void check_product_sizes(void)
{
    const int64_t sizes[][3] = {{1, 32, 32}, {17, 64, 96}, {33, 96, 32}, {70, 32, 64}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_products(sizes[s][0], sizes[s][1], sizes[s][2]);
    for (int64_t rows = 2; rows < 40; rows++)
        check_products(rows, 32, 32);
}

static void bf16_products_are_those_of_plain_loops(void)
{
    for_each_bf16_unit(check_product_sizes);
}

/* A matrix of several blocks, whose rows are summed in several passes. */
static void check_long_sums(void)
{
    enum { ROWS = 14, INNER = 4128, COLUMNS = 320 };
    const float *x = rounded(random_floats(ROWS * INNER), ROWS * INNER);
    const float *weight = rounded(random_floats(COLUMNS * INNER), COLUMNS * INNER);
    const float *bias = random_floats(COLUMNS);
    WeightPacking packing = {weight, COLUMNS, INNER, new_array(COLUMNS * INNER * 2)};
    pack_forward(&packing, 0, COLUMNS / PACKED_COLUMNS, 0);
    float *y = unset_floats(ROWS * COLUMNS);
    multiply_bf16(panels_of(x, ROWS, INNER), (RowSpan){0, ROWS},
                  (Bf16Matrix){packing.to, INNER, COLUMNS},
                  (Bf16Epilogue){.columns = COLUMNS, .fp32 = y, .bias = bias});
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t o = 0; o < COLUMNS; o++)
            CHECK_NEAR(y[row * COLUMNS + o],
                       product_of(x, row * INNER, 1, weight, 1, o * INNER, INNER) +
                           (double)bias[o],
                       1e-3);
    release_arrays();
}

static void long_sums_are_those_of_plain_loops(void)
{
    for_each_bf16_unit(check_long_sums);
}

static void check_spans_of_rows(void)
{
    enum { ROWS = 41, INNER = 96, COLUMNS = 64 };
    const td_panels x = panels_of(random_floats(ROWS * INNER), ROWS, INNER);
    const float *weight = random_floats(COLUMNS * INNER);
    WeightPacking packing = {weight, COLUMNS, INNER, new_array(COLUMNS * INNER * 2)};
    pack_forward(&packing, 0, COLUMNS / PACKED_COLUMNS, 0);
    const Bf16Matrix matrix = {packing.to, INNER, COLUMNS};
    float *whole = unset_floats(ROWS * COLUMNS), *parts = unset_floats(ROWS * COLUMNS);
    multiply_bf16(x, (RowSpan){0, ROWS}, matrix,
                  (Bf16Epilogue){.columns = COLUMNS, .fp32 = whole});
    for (int64_t middle = 0; middle <= ROWS; middle++) {
        const Bf16Epilogue epilogue = {.columns = COLUMNS, .fp32 = parts};
        memset(parts, 0, ROWS * COLUMNS * sizeof *parts);
        multiply_bf16(x, (RowSpan){0, middle}, matrix, epilogue);
        multiply_bf16(x, (RowSpan){middle, ROWS}, matrix, epilogue);
        CHECK(are_same_bits(parts, whole, ROWS * COLUMNS));
    }
    release_arrays();
}

static void sums_do_not_depend_on_how_rows_are_divided(void)
{
    for_each_bf16_unit(check_spans_of_rows);
}

static void check_nan(void)
{
    enum { ROWS = 15, INNER = 32, COLUMNS = 32 };
    float *x = random_floats(ROWS * INNER);
    x[3 * INNER + 5] = NAN;
    const float *weight = random_floats(COLUMNS * INNER);
    WeightPacking packing = {weight, COLUMNS, INNER, new_array(COLUMNS * INNER * 2)};
    pack_forward(&packing, 0, COLUMNS / PACKED_COLUMNS, 0);
    const td_panels y = {new_array(ROWS * COLUMNS * 2), ROWS};
    multiply_bf16(panels_of(x, ROWS, INNER), (RowSpan){0, ROWS},
                  (Bf16Matrix){packing.to, INNER, COLUMNS},
                  (Bf16Epilogue){.columns = COLUMNS, .bf16 = y, .relu = 1});
    for (int64_t row = 0; row < ROWS; row++) {
        float found[COLUMNS];
        bf16_to_floats(COLUMNS, panel_element(y, row, 0), found);
        for (int64_t column = 0; column < COLUMNS; column++)
            CHECK(isnan(found[column]) == (row == 3));
    }
    release_arrays();
}

static void nan_stays_in_its_row(void) { for_each_bf16_unit(check_nan); }

static void check_packed_rows(void)
{
    const int64_t width = 64, outputs = 32;
    for (int64_t rows = 1; rows < 70; rows += 17) {
        const int64_t inner = round_up_to_panels(rows);
        const float *x = rounded(random_floats(rows * width), rows * width);
        const float *grad = rounded(random_floats(rows * outputs), rows * outputs);
        float *product = unset_floats(outputs * width);
        const td_panels panels = panels_of(x, rows, width);
        RowPacking packing = {panels, width, new_array(inner * width * 2)};
        pack_rows(&packing, 0, width / PANEL_WIDTH, 0);
        const td_panels turned = {new_array(inner * outputs * 2), outputs};
        transpose_panel(panels_of(grad, rows, outputs), 0, turned, 0);
        multiply_bf16(turned, (RowSpan){0, outputs},
                      (Bf16Matrix){packing.to, inner, width},
                      (Bf16Epilogue){.columns = width, .fp32 = product});
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < width; i++)
                CHECK_NEAR(product[o * width + i],
                           product_of(grad, o, outputs, x, width, i, rows), 1e-4);
        release_arrays();
    }
}

static void rows_are_packed_and_transposed(void)
{
    for_each_bf16_unit(check_packed_rows);
}

static void check_epilogues(void)
{
    enum { ROWS = 18, INNER = 32, COLUMNS = 64 };
    const float *x = rounded(random_floats(ROWS * INNER), ROWS * INNER);
    const float *weight = rounded(random_floats(COLUMNS * INNER), COLUMNS * INNER);
    WeightPacking packing = {weight, COLUMNS, INNER, new_array(COLUMNS * INNER * 2)};
    pack_forward(&packing, 0, COLUMNS / PACKED_COLUMNS, 0);
    const Bf16Matrix matrix = {packing.to, INNER, COLUMNS};
    const td_panels panels = panels_of(x, ROWS, INNER);
    const td_panels y = {new_array(ROWS * COLUMNS * 2), ROWS};
    const td_panels signs = panels_of(random_floats(ROWS * COLUMNS), ROWS, COLUMNS);
    uint8_t *kept = new_array(ROWS * COLUMNS / 8);
    for (int i = 0; i < ROWS * COLUMNS / 8; i++)
        kept[i] = (uint8_t)random_int(&array_state, 0, 255);
    const Bf16Dropout dropout = {kept, 2.0f};
    float *sums = random_floats(ROWS * COLUMNS),
          *before = random_floats(ROWS * COLUMNS);
    memcpy(before, sums, ROWS * COLUMNS * sizeof *sums);
    const RowSpan all = {0, ROWS};
    multiply_bf16(panels, all, matrix,
                  (Bf16Epilogue){.columns = COLUMNS, .fp32 = sums, .accumulates = 1});
    multiply_bf16(panels, all, matrix,
                  (Bf16Epilogue){.columns = COLUMNS,
                                 .bf16 = y,
                                 .relu = 1,
                                 .dropout = &dropout,
                                 .relu_output = signs});
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t column = 0; column < COLUMNS; column++) {
            const int64_t at = row * COLUMNS + column;
            const double sum =
                product_of(x, row * INNER, 1, weight, 1, column * INNER, INNER);
            CHECK_NEAR(sums[at], (double)before[at] + sum, 1e-5);
            float sign, found;
            bf16_to_floats(1, panel_element(signs, row, column), &sign);
            bf16_to_floats(1, panel_element(y, row, column), &found);
            const int is_kept = kept[at / 8] >> at % 8 & 1;
            CHECK_NEAR(found, sum > 0.0 && sign > 0.0f && is_kept ? 2.0 * sum : 0.0,
                       0.01 + 0.01 * fabs(sum));
        }
    release_arrays();
}

static void epilogues_do_what_they_say(void) { for_each_bf16_unit(check_epilogues); }

/* Not a part of main(), which would use the instruction set before it is checked. */
static __attribute__((noinline)) void run_all(void)
{
    RUN(small_products_are_those_of_plain_loops);
    RUN(transposes_are_padded_with_zeros);
    RUN(bf16_products_are_those_of_plain_loops);
    RUN(long_sums_are_those_of_plain_loops);
    RUN(sums_do_not_depend_on_how_rows_are_divided);
    RUN(nan_stays_in_its_row);
    RUN(rows_are_packed_and_transposed);
    RUN(epilogues_do_what_they_say);
}

int main(void)
{
    SKIP_IF_UNSUPPORTED();
    run_all();
    return check_result();
}
