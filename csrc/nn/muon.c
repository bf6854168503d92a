/* Updates of matrices by Muon. */
#include "nn/muon.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "arena.h"
#include "checks.h"
#include "gemm/bf16_product.h"
#include "gemm/pack_bf16.h"
#include "gemm/small_fp32.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define STRIP_WIDTH (TILE_VECTORS * LANES) /* columns that are multiplied together */
#define FACTORS_PER_STEP 3                 /* a, b and c of td_muon */

/* One thread's workspace for X [rows, columns], a matrix or the transpose of a tall
 * one, so that rows <= columns. */
typedef struct {
    int64_t rows, columns;
    float *x;
    float *transposed; /* [columns, rows]: the transpose of X */
    float *square;     /* [rows, rows]: S = X X^T */
    float *polynomial; /* [rows, rows]: P = b S + c S S */
    float *strip;      /* fp32: [columns, STRIP_WIDTH], the right factor of a product */
    td_panels left;    /* bf16: [rows, columns], the left factor of a product */
    td_bf16 *right;    /* bf16: [rows, columns], the right factor, packed */
} MuonWorkspace;

static MuonWorkspace take_muon_workspace(const td_muon *m, Arena *arena)
{
    const int64_t rows = min_i64(m->rows, m->columns);
    const int64_t columns = max_i64(m->rows, m->columns);
    MuonWorkspace work = {
        .rows = rows,
        .columns = columns,
        .x = take_floats(arena, rows * columns),
        .transposed = take_floats(arena, rows * columns),
        .square = take_floats(arena, rows * rows),
        .polynomial = take_floats(arena, rows * rows),
    };
    if (m->is_bf16) {
        work.left = take_panels(arena, rows, columns);
        work.right = take_bf16(arena, rows * columns);
    } else {
        work.strip = take_floats(arena, columns * STRIP_WIDTH);
    }
    return work;
}

/* Width of the strip that begins at a column; the last one may be narrower. */
static int64_t strip_width(int64_t column, int64_t columns)
{
    return min_i64(columns - column, STRIP_WIDTH);
}

/* Copy a strip into contiguous rows, the fastest right factor. */
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

static void scale_floats(float *x, int64_t count, float factor)
{
    const vec factors = vec_set1(factor);
    for (int64_t i = 0; i < count; i += LANES)
        vec_store(x + i, vec_load(x + i) * factors);
}

/* Copy the lower triangle of a symmetric matrix to the upper one. */
static void mirror(float *x, int64_t size)
{
    for (int64_t row = 0; row < size; row += TRANSPOSE_SIDE)
        for (int64_t column = row; column < size; column += TRANSPOSE_SIDE)
            transpose_8x8(x + column * size + row, size, x + row * size + column, size);
}

/* ---- Products in fp32 ---------------------------------------------------------- */

/* The lower triangle of S = X X^T. */
static void form_square(MuonWorkspace work)
{
    const int64_t rows = work.rows, columns = work.columns;
    for (int64_t first = 0; first < rows; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, rows);
        const Matrix from = {work.x + first * columns, columns};
        const Matrix strip = transpose(from, width, columns, work.strip);
        const Matrix to = {work.square + first * rows + first, rows};
        multiply_small(as_strided(from), strip, rows - first, columns, width, to);
    }
}

/* The lower triangle of S S, in the place of P. */
static void form_fourth_power(MuonWorkspace work)
{
    const int64_t size = work.rows;
    const float *s = work.square;
    for (int64_t first = 0; first < size; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, size);
        const Matrix strip = copy_strip(s + first, size, size, width, work.strip);
        const StridedMatrix lower = {s + first * size, size, 1};
        const Matrix to = {work.polynomial + first * size + first, size};
        multiply_small(lower, strip, size - first, size, width, to);
    }
}

/* X = a X + P X */
static void apply_polynomial(float a, MuonWorkspace work)
{
    const int64_t rows = work.rows, columns = work.columns;
    const StridedMatrix polynomial = {work.polynomial, rows, 1};
    for (int64_t first = 0; first < columns; first += STRIP_WIDTH) {
        const int64_t width = strip_width(first, columns);
        float *x = work.x + first;
        const Matrix strip = copy_strip(x, columns, rows, width, work.strip);
        multiply_small(polynomial, strip, rows, rows, width, (Matrix){x, columns});
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < width; i++)
                x[row * columns + i] += a * work.strip[row * width + i];
    }
}

/* ---- The same products in bf16 ------------------------------------------------- */

/* pack_backward packs a matrix as the right factor of a product; pack_forward packs its
 * transpose. */

static void round_left_factor(const float *from, int64_t columns, MuonWorkspace work)
{
    for (int64_t row = 0; row < work.rows; row++)
        round_into_panels(work.left, row, 0, columns, from + row * columns);
}

/* The lower triangle of the product of the left factor and the packed right one, a
 * matrix [inner, rows]. */
static void multiply_lower(int64_t inner, MuonWorkspace work, float *to)
{
    const int64_t size = work.rows;
    for (int64_t first = 0; first < size; first += PACKED_COLUMNS) {
        const Bf16Matrix panel = {work.right + first * inner, inner, PACKED_COLUMNS};
        const Bf16Epilogue lower = {.columns = size, .fp32 = to + first};
        multiply_bf16(work.left, (RowSpan){first, size}, panel, lower);
    }
}

static void form_square_in_bf16(MuonWorkspace work)
{
    WeightPacking transposed_x = {work.x, work.rows, work.columns, work.right};
    pack_forward(&transposed_x, 0, work.rows / PACKED_COLUMNS, 0);
    round_left_factor(work.x, work.columns, work);
    multiply_lower(work.columns, work, work.square);
}

static void form_fourth_power_in_bf16(MuonWorkspace work)
{
    WeightPacking square = {work.square, work.rows, work.rows, work.right};
    pack_backward(&square, 0, work.rows / PACKED_COLUMNS, 0);
    round_left_factor(work.square, work.rows, work);
    multiply_lower(work.rows, work, work.polynomial);
}

static void apply_polynomial_in_bf16(float a, MuonWorkspace work)
{
    const int64_t rows = work.rows, columns = work.columns;
    WeightPacking x = {work.x, rows, columns, work.right};
    pack_backward(&x, 0, columns / PACKED_COLUMNS, 0);
    round_left_factor(work.polynomial, rows, work);
    scale_floats(work.x, rows * columns, a);
    const Bf16Epilogue sum = {.columns = columns, .fp32 = work.x, .accumulates = 1};
    multiply_bf16(work.left, (RowSpan){0, rows},
                  (Bf16Matrix){work.right, rows, columns}, sum);
}

/* ---- Updates ------------------------------------------------------------------- */

/* P = b S + c P, where P holds S S. */
static void form_polynomial(float b, float c, MuonWorkspace work)
{
    const vec square_factor = vec_set1(b), fourth_factor = vec_set1(c);
    for (int64_t i = 0; i < work.rows * work.rows; i += LANES) {
        const vec fourth = fourth_factor * vec_load(work.polynomial + i);
        const vec sum = vec_fma(square_factor, vec_load(work.square + i), fourth);
        vec_store(work.polynomial + i, sum);
    }
}

/* Replace X by a nearly orthogonal matrix, by Newton-Schulz iterations (td_muon). */
static void orthogonalize(const td_muon *m, MuonWorkspace work)
{
    const int64_t size = work.rows * work.columns, square_size = work.rows * work.rows;
    scale_floats(work.x, size, 1.0f / (norm_of(work.x, size) + m->epsilon));
    for (int64_t step = 0; step < m->steps; step++) {
        /* X <- a X + P X, where P = b S + c S S and S = X X^T */
        const float *factors = m->factors + step * FACTORS_PER_STEP;
        const float a = factors[0], b = factors[1], c = factors[2];
        (m->is_bf16 ? form_square_in_bf16 : form_square)(work);
        mirror(work.square, work.rows);
        if (step == 0) {
            /* Schatten norm of order four: a tighter bound of the largest singular
             * value than the Frobenius norm. */
            const float norm = sqrtf(norm_of(work.square, square_size)) + m->epsilon;
            scale_floats(work.x, size, 1.0f / norm);
            scale_floats(work.square, square_size, 1.0f / (norm * norm));
        }
        (m->is_bf16 ? form_fourth_power_in_bf16 : form_fourth_power)(work);
        mirror(work.polynomial, work.rows);
        form_polynomial(b, c, work);
        (m->is_bf16 ? apply_polynomial_in_bf16 : apply_polynomial)(a, work);
    }
}

/* Update the moving average of the gradients. Nesterov's momentum is the next average
 * if the next gradient equals this one. */
static void update_momentum(const td_muon *m, int64_t item, float *nesterov)
{
    const float *gradient = m->gradients[item];
    float *momentum = m->momenta[item];
    const vec weight = vec_set1(m->gradient_weight);
    for (int64_t i = 0; i < m->rows * m->columns; i += LANES) {
        const vec newest = vec_load(gradient + i);
        vec mean = vec_load(momentum + i);
        mean = vec_fma(weight, newest - mean, mean);
        vec_store(momentum + i, mean);
        vec_store(nesterov + i, vec_fma(weight, newest - mean, mean));
    }
}

static void apply_update(const td_muon *m, int64_t item, const float *update)
{
    float *weight = m->weights[item];
    const vec factor = vec_set1(-m->rate);
    for (int64_t i = 0; i < m->rows * m->columns; i += LANES) {
        const vec moved = vec_fma(factor, vec_load(update + i), vec_load(weight + i));
        vec_store(weight + i, moved);
    }
}

static void update_matrix(const td_muon *m, int64_t item, MuonWorkspace work)
{
    const int64_t rows = m->rows, columns = m->columns;
    const int is_tall = rows > columns;
    update_momentum(m, item, is_tall ? work.transposed : work.x);
    if (is_tall)
        transpose((Matrix){work.transposed, columns}, rows, columns, work.x);
    orthogonalize(m, work);
    if (is_tall)
        transpose((Matrix){work.x, rows}, columns, rows, work.transposed);
    apply_update(m, item, is_tall ? work.transposed : work.x);
}

static void update_matrices(void *shared, int64_t first, int64_t end, int worker)
{
    const td_muon *m = shared;
    Arena arena = {m->workspace + worker * td_muon_workspace(m), 0};
    assert(arena.block); /* one without a block only counts */
    const MuonWorkspace work = take_muon_workspace(m, &arena);
    for (int64_t item = first; item < end; item++)
        update_matrix(m, item, work);
}

static int are_muon_sizes(const td_muon *m)
{
    if (!m)
        return 0;
    const int64_t factor = m->is_bf16 ? PANEL_WIDTH : ROW_MULTIPLE;
    return is_size(m->count, 0) && is_multiple(m->rows, factor) &&
           is_multiple(m->columns, factor) && is_size(m->steps, 0) &&
           is_tensor(max_i64(m->count, 1), m->rows, m->columns);
}

TD_INTERNAL int64_t td_muon_workspace(const td_muon *muon)
{
    if (!are_muon_sizes(muon))
        return -1;
    Arena arena = {NULL, 0};
    take_muon_workspace(muon, &arena);
    return arena.used;
}

TD_INTERNAL td_status td_muon_run(const td_muon *muon, int num_threads)
{
    if (!are_muon_sizes(muon) || !is_thread_count(num_threads) ||
        is_missing(muon->factors, muon->steps) ||
        is_missing(muon->gradients, muon->count) ||
        is_missing(muon->momenta, muon->count) ||
        is_missing(muon->weights, muon->count) ||
        is_missing(muon->workspace, muon->count))
        return TD_BAD_ARGUMENT;
    for (int64_t item = 0; item < muon->count; item++)
        if (!muon->gradients[item] || !muon->momenta[item] || !muon->weights[item])
            return TD_BAD_ARGUMENT;
    td_muon own = *muon;
    parallel_for(update_matrices, &own, own.count, 1, num_threads);
    return TD_OK;
}
