/* The orthogonal matrix nearest to each of some small ones, about, by Newton-Schulz
   iterations (Jordan et al., 2024).

   A matrix stays in the cache of one core, and half of each symmetric product is
   enough; a library's products of a batch of them know neither. */
#include <math.h>
#include <string.h>

#include "gemm/small_fp32.h"
#include "parallel.h"

#define PANEL (TILE_REGISTERS * LANES) /* columns of a product at a time */

/* X X^T, a polynomial of it, and the panel that is being multiplied with. */
static int64_t orthogonalize_workspace(const td_orthogonalization *o)
{
    return o->rows * o->rows * 2 + o->columns * PANEL;
}

/* Of the panel that begins there; the last may be narrower. */
static int64_t panel_width(int64_t column, int64_t columns)
{
    return columns - column < PANEL ? columns - column : PANEL;
}

/* Side by side, as a product reads them. */
static Rows copied(const float *from, int64_t by_row, int64_t rows, int64_t columns,
                   float *room)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(room + row * columns, from + row * by_row,
               (size_t)columns * sizeof(float));
    return (Rows){room, columns};
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
    const vec share = vec_set1(1.0f / divisor);
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_first(x + i, LANES, vec_load(x + i) * share);
}

/* What is above the diagonal of a symmetric matrix, from what is below it. */
static void mirror(float *x, int64_t size)
{
    for (int64_t above = 0; above < size; above += BLOCK_SIDE)
        for (int64_t right = above; right < size; right += BLOCK_SIDE)
            transpose_8x8(x + right * size + above, size, x + above * size + right, size);
}

/* X X^T */
static void square(const float *x, int64_t rows, int64_t columns, float *to,
                   float *panel)
{
    for (int64_t first = 0; first < rows; first += PANEL) {
        const int64_t width = panel_width(first, rows);
        const Rows from = {(float *)x + first * columns, columns};
        const Rows other = side_by_side(from, width, columns, panel);
        const Factor one = {from.at, columns, 1};
        const Rows at = {to + first * rows + first, rows};
        multiply(one, other, rows - first, columns, width, at);
    }
    mirror(to, rows);
}

/* b S + c S S, of a symmetric S */
static void form_polynomial(const float *s, int64_t size, float b, float c, float *to,
                            float *panel)
{
    for (int64_t first = 0; first < size; first += PANEL) {
        const int64_t width = panel_width(first, size);
        const Rows other = copied(s + first, size, size, width, panel);
        const Factor one = {s + first * size, size, 1};
        multiply(one, other, size - first, size, width,
                 (Rows){to + first * size + first, size});
        for (int64_t i = first * size; i < size * size; i += size)
            for (int64_t j = i + first; j < i + first + width; j++)
                to[j] = b * s[j] + c * to[j];
    }
    mirror(to, size);
}

/* a X + P X, where X is */
static void advance(float *x, int64_t rows, int64_t columns, const float *polynomial,
                    float a, float *panel)
{
    for (int64_t first = 0; first < columns; first += PANEL) {
        const int64_t width = panel_width(first, columns);
        const Rows other = copied(x + first, columns, rows, width, panel);
        const Factor one = {polynomial, rows, 1};
        multiply(one, other, rows, rows, width, (Rows){x + first, columns});
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < width; i++)
                x[row * columns + first + i] += a * panel[row * width + i];
    }
}

static void orthogonalize_matrices(void *shared, int64_t first, int64_t end, int worker)
{
    const td_orthogonalization *o = shared;
    const int64_t size = o->rows * o->columns, squared_size = o->rows * o->rows;
    float *squared = o->workspace + worker * orthogonalize_workspace(o);
    float *polynomial = squared + squared_size, *panel = polynomial + squared_size;
    for (int64_t item = first; item < end; item++) {
        float *x = o->matrices + item * size;
        divide(x, size, norm_of(x, size) + o->epsilon);
        for (int64_t step = 0; step < o->steps; step++) {
            const float *factors = o->factors + step * 3;
            square(x, o->rows, o->columns, squared, panel);
            if (step == 0) {
                /* The Schatten norm of order four. */
                const float norm =
                    sqrtf(norm_of(squared, squared_size)) + o->epsilon;
                divide(x, size, norm);
                divide(squared, squared_size, norm * norm);
            }
            form_polynomial(squared, o->rows, factors[1], factors[2], polynomial,
                            panel);
            advance(x, o->rows, o->columns, polynomial, factors[0], panel);
        }
    }
}

static td_status orthogonalize(const td_orthogonalization *o, int num_threads)
{
    parallel_for(orthogonalize_matrices, (void *)o, o->count, 1, num_threads);
    return TD_OK;
}
