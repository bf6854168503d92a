/* Products of fp32 matrices that fit in the caches of one core. */
#ifndef TRANSDUCE_GEMM_SMALL_FP32_H
#define TRANSDUCE_GEMM_SMALL_FP32_H

#include <stdint.h>

#include "gemm/matrix.h"
#include "simd/vec.h"

/* Matrix of a tile of sums, and vectors of each row: 12 or 8 independent sums hide the
 * latency of multiply-add. */
#define TILE_ROWS 6
#define FEWER_TILE_ROWS 4
#define TILE_VECTORS 2

/* Matrix of any strides: element (row, column) is
 * data[row * row_stride + column * column_stride]. */
typedef struct {
    const float *data;
    int64_t row_stride, column_stride;
} StridedMatrix;

static inline StridedMatrix as_strided(Matrix matrix)
{
    return (StridedMatrix){matrix.data, matrix.stride, 1};
}

static inline StridedMatrix transposed(Matrix matrix)
{
    return (StridedMatrix){matrix.data, 1, matrix.stride};
}

/* Transpose `from` [rows, columns] into `to` [columns, rows], whose rows are padded
 * with zeros to whole vectors. */
static inline Matrix transpose(Matrix from, int64_t rows, int64_t columns, float *to)
{
    const int64_t width = round_up_to_lanes(rows);
    const int64_t whole_rows = rows / TRANSPOSE_SIDE * TRANSPOSE_SIDE;
    const int64_t whole_columns = columns / TRANSPOSE_SIDE * TRANSPOSE_SIDE;
    for (int64_t row = 0; row < whole_rows; row += TRANSPOSE_SIDE)
        for (int64_t column = 0; column < whole_columns; column += TRANSPOSE_SIDE)
            transpose_8x8(from.data + row * from.stride + column, from.stride,
                          to + column * width + row, width);
    for (int64_t column = 0; column < columns; column++) {
        float *result = to + column * width;
        for (int64_t row = column < whole_columns ? whole_rows : 0; row < rows; row++)
            result[row] = from.data[row * from.stride + column];
        for (int64_t row = rows; row < width; row++)
            result[row] = 0.0f;
    }
    return (Matrix){to, width};
}

/* c = a b for up to TILE_ROWS rows and TILE_VECTORS vectors of columns. `rows` and
 * `vectors` are literals at each call, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void
multiply_small_tile(StridedMatrix a, Matrix b, int64_t inner, Matrix c, int rows,
                    int vectors)
{
    vec sums[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = vec_set1(0.0f);
    for (int64_t i = 0; i < inner; i++) {
        vec columns[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            columns[v] = vec_load(b.data + i * b.stride + v * LANES);
        for (int r = 0; r < rows; r++) {
            const vec factor = vec_set1(a.data[r * a.row_stride + i * a.column_stride]);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = vec_fma(factor, columns[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            vec_store(c.data + r * c.stride + v * LANES, sums[r][v]);
}

static inline __attribute__((always_inline)) void
multiply_small_columns(StridedMatrix a, Matrix b, int64_t rows, int64_t inner, Matrix c,
                       int vectors)
{
    while (rows > 0) {
        const int64_t done =
            rows >= TILE_ROWS ? TILE_ROWS : min_i64(rows, FEWER_TILE_ROWS);
        switch (done) {
        case TILE_ROWS:
            multiply_small_tile(a, b, inner, c, TILE_ROWS, vectors);
            break;
        case FEWER_TILE_ROWS:
            multiply_small_tile(a, b, inner, c, FEWER_TILE_ROWS, vectors);
            break;
        case 3:
            multiply_small_tile(a, b, inner, c, 3, vectors);
            break;
        case 2:
            multiply_small_tile(a, b, inner, c, 2, vectors);
            break;
        default:
            multiply_small_tile(a, b, inner, c, 1, vectors);
        }
        a.data += done * a.row_stride;
        c.data += done * c.stride;
        rows -= done;
    }
}

/* c [rows, columns] = a [rows, inner] b [inner, columns], where `columns` is a multiple
 * of LANES. */
static inline void multiply_small(StridedMatrix a, Matrix b, int64_t rows,
                                  int64_t inner, int64_t columns, Matrix c)
{
    const int64_t step = TILE_VECTORS * LANES;
    for (; columns >= step; columns -= step) {
        multiply_small_columns(a, b, rows, inner, c, TILE_VECTORS);
        b.data += step;
        c.data += step;
    }
    for (; columns > 0; columns -= LANES) {
        multiply_small_columns(a, b, rows, inner, c, 1);
        b.data += LANES;
        c.data += LANES;
    }
}

#endif
