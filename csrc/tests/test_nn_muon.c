/* Updates by Muon against plain loops in double precision. */
#include "tests/arrays.h"

enum { STEPS = 2 };
static const float COEFFICIENTS[STEPS * 3] = {3.5875f, -2.5845f, 0.4893f,
                                              2.6604f, -1.9134f, 0.4194f};
static const float EPSILON = 1e-7f, GRADIENT_WEIGHT = 0.05f, RATE = 0.5f;

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

static void divide(double *x, int64_t count, double divisor)
{
    for (int64_t i = 0; i < count; i++)
        x[i] /= divisor;
}

/* Transpose of x [rows, columns]. */
static double *transpose_naively(const double *x, int64_t rows, int64_t columns)
{
    double *transposed = new_doubles(rows * columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            transposed[j * rows + i] = x[i * columns + j];
    return transposed;
}

static void orthogonalize_naively(double *x, int64_t rows, int64_t columns)
{
    const int64_t size = rows * columns;
    double *square = new_doubles(rows * rows), *polynomial = new_doubles(rows * rows);
    double *product = new_doubles(size);
    divide(x, size, norm(x, size) + (double)EPSILON);
    multiply(x, transpose_naively(x, rows, columns), rows, columns, rows, square);
    divide(x, size, sqrt(norm(square, rows * rows)) + (double)EPSILON);
    for (int step = 0; step < STEPS; step++) {
        const float *abc = COEFFICIENTS + 3 * step;
        multiply(x, transpose_naively(x, rows, columns), rows, columns, rows, square);
        multiply(square, square, rows, rows, rows, polynomial);
        for (int64_t i = 0; i < rows * rows; i++)
            polynomial[i] = (double)abc[1] * square[i] + (double)abc[2] * polynomial[i];
        multiply(polynomial, x, rows, rows, columns, product);
        for (int64_t i = 0; i < size; i++)
            x[i] = (double)abc[0] * x[i] + product[i];
    }
}

static void update_naively(int64_t rows, int64_t columns, const float *gradient,
                           double *momentum, double *weight)
{
    const double share = (double)GRADIENT_WEIGHT;
    double *ahead = new_doubles(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        momentum[i] = (1.0 - share) * momentum[i] + share * (double)gradient[i];
        ahead[i] = (1.0 - share) * momentum[i] + share * (double)gradient[i];
    }
    if (rows > columns) {
        ahead = transpose_naively(ahead, rows, columns);
        orthogonalize_naively(ahead, columns, rows);
        ahead = transpose_naively(ahead, columns, rows);
    } else {
        orthogonalize_naively(ahead, rows, columns);
    }
    for (int64_t i = 0; i < rows * columns; i++)
        weight[i] -= (double)RATE * ahead[i];
}

static float **random_matrices(int64_t count, int64_t size)
{
    float **matrices = new_array(count * (int64_t)sizeof *matrices);
    for (int64_t item = 0; item < count; item++)
        matrices[item] = random_floats(size);
    return matrices;
}

static td_muon new_task(const td_api *api, int64_t count, int64_t rows, int64_t columns,
                        int is_bf16, int threads)
{
    td_muon task = {.count = count,
                    .rows = rows,
                    .columns = columns,
                    .steps = STEPS,
                    .factors = COEFFICIENTS,
                    .epsilon = EPSILON,
                    .gradient_weight = GRADIENT_WEIGHT,
                    .rate = RATE,
                    .gradients =
                        (const float *const *)random_matrices(count, rows * columns),
                    .momenta = random_matrices(count, rows * columns),
                    .weights = random_matrices(count, rows * columns),
                    .is_bf16 = is_bf16};
    task.workspace = unset_floats(threads * api->nn->muon_workspace(&task));
    return task;
}

static double *copied(const float *from, int64_t count)
{
    double *to = new_doubles(count);
    for (int64_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    return to;
}

static void check_updates(const td_api *api, int64_t count, int64_t rows,
                          int64_t columns, int is_bf16, double tolerance)
{
    const td_muon task = new_task(api, count, rows, columns, is_bf16, 2);
    const int64_t size = rows * columns;
    double **momenta = new_array(count * (int64_t)sizeof *momenta);
    double **weights = new_array(count * (int64_t)sizeof *weights);
    for (int64_t item = 0; item < count; item++) {
        momenta[item] = copied(task.momenta[item], size);
        weights[item] = copied(task.weights[item], size);
        update_naively(rows, columns, task.gradients[item], momenta[item],
                       weights[item]);
    }
    CHECK_STATUS(api->nn->muon(&task, 2), TD_OK);
    for (int64_t item = 0; item < count; item++) {
        check_near("momentum", task.momenta[item], momenta[item], size, 1e-6);
        check_near("weight", task.weights[item], weights[item], size, tolerance);
    }
    release_arrays();
}

static void updates_are_those_of_plain_loops(const td_api *api)
{
    check_updates(api, 1, 16, 16, 0, 1e-4);
    check_updates(api, 2, 16, 80, 0, 1e-4);
    check_updates(api, 2, 80, 16, 0, 1e-4);
    check_updates(api, 3, 48, 64, 0, 1e-4);
    check_updates(api, 0, 16, 32, 0, 1e-4);
}

static void updates_in_bf16_differ_by_rounding(const td_api *api)
{
    check_updates(api, 1, 32, 32, 1, 0.02);
    check_updates(api, 2, 32, 96, 1, 0.02);
    check_updates(api, 2, 96, 64, 1, 0.02);
}

static void zero_gradients_leave_a_weight_alone(const td_api *api)
{
    enum { SIZE = 32 * 64 };
    for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
        const td_muon task = new_task(api, 1, 32, 64, is_bf16, 1);
        memset((void *)task.gradients[0], 0, SIZE * sizeof(float));
        memset(task.momenta[0], 0, SIZE * sizeof(float));
        double *before = copied(task.weights[0], SIZE);
        CHECK_STATUS(api->nn->muon(&task, 1), TD_OK);
        check_near("weight", task.weights[0], before, SIZE, 0.0);
        release_arrays();
    }
}

static void bad_arguments_are_refused(const td_api *api)
{
    const td_muon good = new_task(api, 2, 16, 32, 0, 1);
    const float *one_gradient[] = {good.gradients[0], NULL};
    float *one_weight[] = {NULL, good.weights[1]};
    enum { COUNT = 13 };
    td_muon bad[COUNT];
    for (int i = 0; i < COUNT; i++)
        bad[i] = good;
    bad[0].rows = 40;
    bad[1].columns = 40;
    bad[2].is_bf16 = 1; /* for which 16 rows are too few */
    bad[3].factors = NULL;
    bad[4].count = -1;
    bad[5].gradients = NULL;
    bad[6].momenta = NULL;
    bad[7].weights = NULL;
    bad[8].gradients = one_gradient;
    bad[9].weights = one_weight;
    bad[10].momenta = one_weight;
    bad[11].workspace = NULL;
    bad[12].steps = -1;
    for (int i = 0; i < COUNT; i++)
        CHECK_STATUS(api->nn->muon(&bad[i], 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->muon(&good, 0), TD_BAD_ARGUMENT);
    CHECK_INT(api->nn->muon_workspace(&bad[0]), -1);
    CHECK_INT(api->nn->muon_workspace(&bad[2]), -1);
    release_arrays();
}

int main(void)
{
    for_each_isa(updates_are_those_of_plain_loops);
    for_each_isa(updates_in_bf16_differ_by_rounding);
    for_each_isa(zero_gradients_leave_a_weight_alone);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
