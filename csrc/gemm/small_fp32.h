/* Products of small matrices, whose numbers may lie in a row or far apart. */
#ifndef TRANSDUCE_PRODUCTS_H
#define TRANSDUCE_PRODUCTS_H

#include "simd/vec.h"

#define BLOCK_SIDE 8
#define TILE_ROWS 6
#define FEWER_ROWS 4
#define TILE_REGISTERS 2 /* side by side: so many sums hide how long one takes */

/* The number of a row and a column is at row * by_row + column * by_column. */
typedef struct {
    const float *at;
    int64_t by_row, by_column;
} Factor;

/* One whose numbers of a row follow each other. */
typedef struct {
    float *at;
    int64_t by_row;
} Rows;

/* Columns as rows, with zeros behind them up to whole lanes. */
static Rows side_by_side(Rows from, int64_t rows, int64_t columns, float *room)
{
    const int64_t width = round_up_to_lanes(rows);
    const int64_t whole_rows = rows / BLOCK_SIDE * BLOCK_SIDE;
    const int64_t whole_columns = columns / BLOCK_SIDE * BLOCK_SIDE;
    for (int64_t row = 0; row < whole_rows; row += BLOCK_SIDE)
        for (int64_t column = 0; column < whole_columns; column += BLOCK_SIDE)
            transpose_8x8(from.at + row * from.by_row + column, from.by_row,
                       room + column * width + row, width);
    for (int64_t column = 0; column < columns; column++) {
        float *to = room + column * width;
        for (int64_t row = column < whole_columns ? whole_rows : 0; row < rows; row++)
            to[row] = from.at[row * from.by_row + column];
        for (int64_t row = rows; row < width; row++)
            to[row] = 0.0f;
    }
    return (Rows){room, width};
}

static inline __attribute__((always_inline)) void
multiply_tile(Factor one, Rows other, int64_t inner, Rows to, int rows, int registers)
{
    vec sums[TILE_ROWS][TILE_REGISTERS];
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < registers; l++)
            sums[r][l] = vec_set1(0.0f);
    for (int64_t i = 0; i < inner; i++) {
        vec numbers[TILE_REGISTERS];
        for (int l = 0; l < registers; l++)
            numbers[l] = vec_load(other.at + i * other.by_row + l * LANES);
        for (int r = 0; r < rows; r++) {
            const vec factor = vec_set1(one.at[r * one.by_row + i * one.by_column]);
            for (int l = 0; l < registers; l++)
                sums[r][l] = vec_fma(factor, numbers[l], sums[r][l]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < registers; l++)
            vec_store_first(to.at + r * to.by_row + l * LANES, LANES, sums[r][l]);
}

static inline __attribute__((always_inline)) void
multiply_columns(Factor one, Rows other, int64_t rows, int64_t inner, Rows to,
                 int registers)
{
    while (rows > 0) {
        int64_t done = rows >= TILE_ROWS ? TILE_ROWS : FEWER_ROWS;
        done = rows < done ? rows : done;
        /* Numbers that the compiler knows, so that sums stay in registers. */
        switch (done) {
        case TILE_ROWS:
            multiply_tile(one, other, inner, to, TILE_ROWS, registers);
            break;
        case FEWER_ROWS:
            multiply_tile(one, other, inner, to, FEWER_ROWS, registers);
            break;
        case 3:
            multiply_tile(one, other, inner, to, 3, registers);
            break;
        case 2:
            multiply_tile(one, other, inner, to, 2, registers);
            break;
        default:
            multiply_tile(one, other, inner, to, 1, registers);
        }
        one.at += done * one.by_row;
        to.at += done * to.by_row;
        rows -= done;
    }
}

/* One [rows, inner] times other [inner, columns]; the columns are whole lanes. */
static void multiply(Factor one, Rows other, int64_t rows, int64_t inner,
                     int64_t columns, Rows to)
{
    const int64_t step = TILE_REGISTERS * LANES;
    for (; columns >= step; columns -= step) {
        multiply_columns(one, other, rows, inner, to, TILE_REGISTERS);
        other.at += step;
        to.at += step;
    }
    for (; columns > 0; columns -= LANES) {
        multiply_columns(one, other, rows, inner, to, 1);
        other.at += LANES;
        to.at += LANES;
    }
}

#endif
