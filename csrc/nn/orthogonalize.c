/* Newton-Schulz iterations. */
#include "nn/orthogonalize.h"

#include <math.h>
#include <string.h>

#include "checks.h"
#include "gemm/small_fp32.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define STRIP_WIDTH (TILE_VECTORS * LANES) /* columns that are multiplied together */

/* One thread's workspace for a matrix X [rows, columns]. */
typedef struct {
    float *square;     /* [rows, rows]: X X^T */
    float *polynomial; /* [rows, rows]: a polynomial of the square */
    float *strip;      /* [columns, STRIP_WIDTH]: the right-hand factor of a product */
} MatrixWorkspace;

static int64_t workspace_size(const td_orthogonalization *o)
{
    return o->rows * o->rows * 2 + o->columns * STRIP_WIDTH;
}

static MatrixWorkspace matrix_workspace(const td_orthogonalization *o, int worker)
{
    float *own = o->workspace + worker * workspace_size(o);
    const int64_t size = o->rows * o->rows;
    return (MatrixWorkspace){own, own + size, own + 2 * size};
}

/* Width of the strip that begins at a column; the last one may be narrower. */
static int64_t strip_width(int64_t column, int64_t columns)
{
    return min_i64(columns - column, STRIP_WIDTH);
}

/* Copy a strip into contiguous rows, the fastest right-hand factor. */
static Matrix copy_strip(const float *from, int64_t stride, int64_t rows,
                         int64_t columns, float *to)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * columns, from + row * stride,
               (size_t)columns * sizeof(float));
    return (Matrix){to, columns};
}

static float norm_of(const float *x, int64_t count)
{
    vec squares = vec_set1(0.0f);
    for (int64_t i = 0; i < count; i += LANES)
        squares = vec_fma(vec_load(x + i), vec_load(x + i), squares);
    return sqrtf(vec_reduce_add(squares));
}

static void divide(float *x, int64_t count, float divisor)
{
    const vec factor = vec_set1(1.0f / divisor);
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_first(x + i, LANES, vec_load(x + i) * factor);
}

/* Copy the lower triangle of a symmetric matrix to the upper one. */
static void mirror(float *x, int64_t size)
{
    for (int64_t row = 0; row < size; row += TRANSPOSE_SIDE)
        for (int64_t column = row; column < size; column += TRANSPOSE_SIDE)
            transpose_8x8(x + column * size + row, size, x + row * size + column, size);
}

/* square = X X^T */
static void form_square(const float *x, int64_t rows, int64_t columns,
                        MatrixWorkspace work)
{
    for (int64_t first = 0; first < rows; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, rows);
        const Matrix from = {(float *)x + first * columns, columns};
        const Matrix strip = transpose(from, width, columns, work.strip);
        const Matrix to = {work.square + first * rows + first, rows};
        multiply_small(as_strided(from), strip, rows - first, columns, width, to);
    }
    mirror(work.square, rows);
}

/* polynomial = b S + c S S, where S is the square. */
static void form_polynomial(int64_t size, float b, float c, MatrixWorkspace work)
{
    const float *s = work.square;
    float *to = work.polynomial;
    for (int64_t first = 0; first < size; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, size);
        const Matrix strip = copy_strip(s + first, size, size, width, work.strip);
        const StridedMatrix lower = {s + first * size, size, 1};
        multiply_small(lower, strip, size - first, size, width,
                       (Matrix){to + first * size + first, size});
        for (int64_t i = first * size; i < size * size; i += size)
            for (int64_t j = i + first; j < i + first + width; j++)
                to[j] = b * s[j] + c * to[j];
    }
    mirror(to, size);
}

/* X = a X + P X, where P is the polynomial. */
static void advance(float *x, int64_t rows, int64_t columns, float a,
                    MatrixWorkspace work)
{
    for (int64_t first = 0; first < columns; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, columns);
        const Matrix strip = copy_strip(x + first, columns, rows, width, work.strip);
        const StridedMatrix polynomial = {work.polynomial, rows, 1};
        multiply_small(polynomial, strip, rows, rows, width,
                       (Matrix){x + first, columns});
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < width; i++)
                x[row * columns + first + i] += a * work.strip[row * width + i];
    }
}

static void orthogonalize_matrix(const td_orthogonalization *o, float *x,
                                 MatrixWorkspace work)
{
    const int64_t size = o->rows * o->columns, square_size = o->rows * o->rows;
    divide(x, size, norm_of(x, size) + o->epsilon);
    for (int64_t step = 0; step < o->steps; step++) {
        const float *factors = o->factors + step * 3;
        form_square(x, o->rows, o->columns, work);
        if (step == 0) {
            /* Schatten norm of order four: a tighter bound of the largest singular
             * value than the Frobenius norm. */
            const float norm = sqrtf(norm_of(work.square, square_size)) + o->epsilon;
            divide(x, size, norm);
            divide(work.square, square_size, norm * norm);
        }
        form_polynomial(o->rows, factors[1], factors[2], work);
        advance(x, o->rows, o->columns, factors[0], work);
    }
}

static void orthogonalize_matrices(void *shared, int64_t first, int64_t end, int worker)
{
    const td_orthogonalization *o = shared;
    for (int64_t item = first; item < end; item++)
        orthogonalize_matrix(o, o->matrices + item * o->rows * o->columns,
                             matrix_workspace(o, worker));
}

static int are_orthogonalization_sizes(const td_orthogonalization *o)
{
    return o && is_size(o->count, 0) && is_multiple(o->rows, 16) &&
           is_multiple(o->columns, 16) && o->rows <= o->columns &&
           is_size(o->steps, 0) && is_tensor(o->count, o->rows, o->columns) &&
           is_tensor(1, o->rows, o->columns);
}

TD_INTERNAL int64_t td_orthogonalize_workspace(const td_orthogonalization *task)
{
    return are_orthogonalization_sizes(task) ? workspace_size(task) : -1;
}

TD_INTERNAL td_status td_orthogonalize(const td_orthogonalization *task,
                                       int num_threads)
{
    if (!are_orthogonalization_sizes(task) || !is_thread_count(num_threads) ||
        is_missing(task->factors, task->steps) ||
        is_missing(task->matrices, task->count) ||
        is_missing(task->workspace, task->count))
        return TD_BAD_ARGUMENT;
    td_orthogonalization own = *task;
    parallel_for(orthogonalize_matrices, &own, own.count, 1, num_threads);
    return TD_OK;
}
