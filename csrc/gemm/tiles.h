/* How a product is cut: tiles of some rows times a block of outputs. */
#ifndef TRANSDUCE_TILES_H
#define TRANSDUCE_TILES_H

#include "gemm/linear.h"
#include "simd/vec.h"

#define COLUMNS (2 * LANES)         /* outputs of a block: two registers */
#define ROWS (LANES == 16 ? 12 : 6) /* of a tile: twice as many registers of sums */
#define NUMBERS_ADDED 4             /* of a row of bytes, for each sum of 32 bits */

/* Inputs of a row whose numbers are read at once, and their bytes. */
static inline int64_t group_size(int is_int8) { return is_int8 ? INT8_GROUP : 1; }

static inline int64_t group_bytes(int is_int8)
{
    return is_int8 ? INT8_GROUP : (int64_t)sizeof(float);
}

/* Bytes of the weights by which a block multiplies these. */
static inline int64_t step_bytes(int is_int8) { return COLUMNS * group_bytes(is_int8); }

static inline int64_t num_groups(int64_t inputs, int is_int8)
{
    return (inputs + group_size(is_int8) - 1) / group_size(is_int8);
}

static inline int64_t num_blocks(int64_t outputs)
{
    return (outputs + COLUMNS - 1) / COLUMNS;
}

/* Rows of the tile that a row belongs to. */
static inline int64_t tile_rows(int64_t row, int64_t rows)
{
    int64_t first = row / ROWS * ROWS;
    return rows - first < ROWS ? rows - first : ROWS;
}

#endif
