/* Products of fp32 matrices against plain loops in double precision. */
#include "tests/arrays.h"

enum { THREADS = 3 };

/* A factor [rows, columns] with random elements, whose contiguous rows or columns have
 * further elements between them. */
static td_factor random_factor(int64_t rows, int64_t columns, int is_transposed)
{
    const int64_t stride = (is_transposed ? rows : columns) + 3;
    const float *data = random_floats((is_transposed ? columns : rows) * stride);
    return is_transposed ? (td_factor){data, 1, stride} : (td_factor){data, stride, 1};
}

static double number(td_factor factor, int64_t row, int64_t column)
{
    return factor.data[row * factor.row_stride + column * factor.column_stride];
}

static double expected(const td_product *p, const float *before, int64_t row,
                       int64_t column)
{
    double sum = p->accumulates ? before[row * p->columns + column] : 0.0;
    for (int64_t i = 0; i < p->inner; i++)
        sum += number(p->a, row, i) * number(p->b, i, column);
    if (p->bias)
        sum += p->bias[column];
    return p->relu && sum < 0.0 ? 0.0 : sum;
}

static void check_product(const td_api *api, td_product p)
{
    const int64_t count = p.rows * p.columns;
    p.workspace = unset_floats(THREADS * api->nn->product_workspace());
    float *before = random_floats(count), *alone = unset_floats(count);
    float *together = unset_floats(count);
    if (p.accumulates) {
        memcpy(alone, before, (size_t)count * sizeof *alone);
        memcpy(together, before, (size_t)count * sizeof *together);
    }
    p.c = alone;
    CHECK_STATUS(api->nn->product(&p, 1), TD_OK);
    for (int64_t row = 0; row < p.rows; row++)
        for (int64_t column = 0; column < p.columns; column++)
            CHECK_NEAR(alone[row * p.columns + column],
                       expected(&p, before, row, column), 1e-5 * (double)(p.inner + 1));
    p.c = together;
    CHECK_STATUS(api->nn->product(&p, THREADS), TD_OK);
    CHECK(are_same_bits(alone, together, count));
}

/* Sizes around those of tiles and blocks, with all layouts of the factors. */
static void products_are_those_of_plain_loops(const td_api *api)
{
    const int64_t sizes[][3] = {
        {0, 5, 4},      {5, 0, 4},    {5, 4, 0},     {1, 1, 1},     {6, 16, 8},
        {7, 17, 9},     {5, 33, 30},  {12, 32, 16},  {25, 47, 41},  {97, 31, 65},
        {13, 20, 7},    {40, 529, 3}, {3, 40, 1030}, {195, 15, 19}, {28, 18, 600},
        {203, 20, 530}, {7, 530, 520}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int layout = 0; layout < 4; layout++)
            for (int64_t relu = 0; relu < 2; relu++) {
                const int64_t *size = sizes[s];
                const td_product p = {.rows = size[0],
                                      .columns = size[1],
                                      .inner = size[2],
                                      .a = random_factor(size[0], size[2], layout & 1),
                                      .b = random_factor(size[2], size[1], layout >> 1),
                                      .bias = relu ? random_floats(size[1]) : NULL,
                                      .relu = relu,
                                      .accumulates = relu != (layout & 1)};
                check_product(api, p);
                release_arrays();
            }
}

static void products_without_inner_numbers_are_zeros(const td_api *api)
{
    enum { ROWS = 200, COLUMNS = 21 };
    const td_product p = {.rows = ROWS,
                          .columns = COLUMNS,
                          .a = {NULL, 1, 7},
                          .b = {NULL, COLUMNS, 1},
                          .c = unset_floats(ROWS * COLUMNS),
                          .workspace = unset_floats(api->nn->product_workspace())};
    CHECK_STATUS(api->nn->product(&p, 1), TD_OK);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        CHECK(p.c[i] == 0.0f);
    release_arrays();
}

static void nan_stays_in_its_row(const td_api *api)
{
    enum { ROWS = 15, INNER = 32, COLUMNS = 21 };
    float *a = random_floats(ROWS * INNER), *c = unset_floats(ROWS * COLUMNS);
    a[3 * INNER + 5] = NAN;
    const td_product p = {.rows = ROWS,
                          .columns = COLUMNS,
                          .inner = INNER,
                          .a = {a, INNER, 1},
                          .b = random_factor(INNER, COLUMNS, 1),
                          .c = c,
                          .relu = 1,
                          .workspace = unset_floats(api->nn->product_workspace())};
    CHECK_STATUS(api->nn->product(&p, 1), TD_OK);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        CHECK(isnan(c[i]) == (i / COLUMNS == 3));
    release_arrays();
}

static void bad_arguments_are_refused(const td_api *api)
{
    td_product p = {.rows = 2,
                    .columns = 3,
                    .inner = 4,
                    .a = random_factor(2, 4, 0),
                    .b = random_factor(4, 3, 1),
                    .c = unset_floats(6),
                    .workspace = unset_floats(api->nn->product_workspace())};
    CHECK_STATUS(api->nn->product(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->product(&p, 0), TD_BAD_ARGUMENT);
    td_product changed = p;
    changed.a.column_stride = 2;
    CHECK_STATUS(api->nn->product(&changed, 1), TD_BAD_ARGUMENT);
    changed = p;
    changed.b.column_stride = -7;
    CHECK_STATUS(api->nn->product(&changed, 1), TD_BAD_ARGUMENT);
    changed = p;
    changed.inner = -1;
    CHECK_STATUS(api->nn->product(&changed, 1), TD_BAD_ARGUMENT);
    changed = p;
    changed.c = NULL;
    CHECK_STATUS(api->nn->product(&changed, 1), TD_BAD_ARGUMENT);
    changed = p;
    changed.workspace = NULL;
    CHECK_STATUS(api->nn->product(&changed, 1), TD_BAD_ARGUMENT);
    release_arrays();
}

int main(void)
{
    for_each_isa(products_are_those_of_plain_loops);
    for_each_isa(products_without_inner_numbers_are_zeros);
    for_each_isa(nan_stays_in_its_row);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
