/* Newton-Schulz iterations against plain loops in double precision. */
#include "tests/arrays.h"

enum { STEPS = 2 };
static const float FACTORS[STEPS * 3] = {3.5875f, -2.5845f, 0.4893f,
                                         2.6604f, -1.9134f, 0.4194f};
static const float EPSILON = 1e-7f;

/* c [n, p] = a [n, m] b [m, p] */
static void multiply(const double *a, const double *b, int64_t n, int64_t m, int64_t p,
                     double *c)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < p; j++) {
            c[i * p + j] = 0.0;
            for (int64_t k = 0; k < m; k++)
                c[i * p + j] += a[i * m + k] * b[k * p + j];
        }
}

static double norm(const double *x, int64_t count)
{
    double squares = 0.0;
    for (int64_t i = 0; i < count; i++)
        squares += x[i] * x[i];
    return sqrt(squares);
}

static void orthogonalize_naively(double *x, int64_t rows, int64_t columns)
{
    const int64_t size = rows * columns;
    double *turned = new_doubles(size), *square = new_doubles(rows * rows);
    double *fourth = new_doubles(rows * rows), *product = new_doubles(size);
    const double first_norm = norm(x, size) + (double)EPSILON;
    for (int64_t i = 0; i < size; i++)
        x[i] /= first_norm;
    for (int step = 0; step < STEPS; step++) {
        for (int pass = 0; pass < (step == 0 ? 2 : 1); pass++) {
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < columns; j++)
                    turned[j * rows + i] = x[i * columns + j];
            multiply(x, turned, rows, columns, rows, square);
            const double schatten = sqrt(norm(square, rows * rows)) + (double)EPSILON;
            for (int64_t i = 0; i < size && step == 0 && pass == 0; i++)
                x[i] /= schatten;
        }
        const float *factors = FACTORS + 3 * step;
        multiply(square, square, rows, rows, rows, fourth);
        for (int64_t i = 0; i < rows * rows; i++)
            fourth[i] = (double)factors[1] * square[i] + (double)factors[2] * fourth[i];
        multiply(fourth, x, rows, rows, columns, product);
        for (int64_t i = 0; i < size; i++)
            x[i] = (double)factors[0] * x[i] + product[i];
    }
}

static td_orthogonalization new_task(const td_api *api, int64_t count, int64_t rows,
                                     int64_t columns, int threads)
{
    td_orthogonalization task = {.count = count,
                                 .rows = rows,
                                 .columns = columns,
                                 .steps = STEPS,
                                 .factors = FACTORS,
                                 .epsilon = EPSILON,
                                 .matrices = random_floats(count * rows * columns)};
    task.workspace = unset_floats(threads * api->nn->orthogonalize_workspace(&task));
    return task;
}

static void matrices_are_those_of_plain_loops(const td_api *api)
{
    const int64_t shapes[][3] = {{1, 16, 16}, {2, 16, 80}, {3, 48, 64}, {0, 16, 32}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t count = shapes[s][0], rows = shapes[s][1], columns = shapes[s][2];
        const td_orthogonalization task = new_task(api, count, rows, columns, 2);
        const int64_t size = rows * columns;
        double *expected = new_doubles(count * size);
        for (int64_t i = 0; i < count * size; i++)
            expected[i] = task.matrices[i];
        for (int64_t item = 0; item < count; item++)
            orthogonalize_naively(expected + item * size, rows, columns);
        CHECK_STATUS(api->nn->orthogonalize(&task, 2), TD_OK);
        check_near("matrices", task.matrices, expected, count * size, 1e-4);
        release_arrays();
    }
}

static void bad_arguments_are_refused(const td_api *api)
{
    const td_orthogonalization good = new_task(api, 2, 16, 32, 1);
    td_orthogonalization bad[5];
    for (int i = 0; i < 5; i++)
        bad[i] = good;
    bad[0].rows = 48;
    bad[1].columns = 40;
    bad[2].matrices = NULL;
    bad[3].factors = NULL;
    bad[4].count = -1;
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(api->nn->orthogonalize(&bad[i], 1), TD_BAD_ARGUMENT);
    CHECK_INT(api->nn->orthogonalize_workspace(&bad[0]), -1);
    release_arrays();
}

int main(void)
{
    for_each_isa(matrices_are_those_of_plain_loops);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
