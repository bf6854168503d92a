/* Layouts of packed weights and rows.
 *
 * Weights: blocks of BLOCK_OUTPUTS outputs, each a sequence of steps. A step holds a
 * group of inputs (1 in fp32, INT8_GROUP in int8) of all outputs of the block, the
 * first LANES outputs before the others:
 *
 *   fp32 step:  input i of outputs 0 .. LANES-1 | input i of LANES .. 2 LANES-1
 *   int8 step:  inputs 4i..4i+3 of output 0 | of output 1 | ... of LANES-1 | of LANES..
 *
 * Where a group has 8 inputs, each half of a step has the first four of all its
 * outputs before the last four.
 *
 * Rows: tiles of TILE_ROWS rows, the last with fewer. A tile has the first group of
 * each of its rows, then the second, and so on:
 *
 *   row 0 group 0 | row 1 group 0 | ... | row 0 group 1 | row 1 group 1 | ...
 *
 * Rows for AMX stand one after another at a stride of amx_row_bytes().
 */
#ifndef TRANSDUCE_GEMM_TILES_H
#define TRANSDUCE_GEMM_TILES_H

#include "gemm/linear.h"
#include "simd/vec.h"

#define BLOCK_OUTPUTS (2 * LANES)               /* two vectors of sums */
#define LINEAR_TILE_ROWS (LANES == 16 ? 12 : 6) /* 24 or 12 registers of sums */
#define DOT_INPUTS 4 /* int8 products that one lane adds up */

/* Inputs of a row that one step reads, and their bytes. */
static inline int64_t group_size(int is_int8) { return is_int8 ? INT8_GROUP : 1; }

static inline int64_t group_bytes(int is_int8)
{
    return is_int8 ? INT8_GROUP : (int64_t)sizeof(float);
}

/* Bytes of a block's weights that one step reads. */
static inline int64_t step_bytes(int is_int8)
{
    return BLOCK_OUTPUTS * group_bytes(is_int8);
}

static inline int64_t num_groups(int64_t inputs, int is_int8)
{
    return (inputs + group_size(is_int8) - 1) / group_size(is_int8);
}

static inline int64_t num_blocks(int64_t outputs)
{
    return (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
}

static inline int64_t block_bytes(int64_t inputs, int is_int8)
{
    return num_groups(inputs, is_int8) * step_bytes(is_int8);
}

/* Number of rows of the tile that a row belongs to. */
static inline int64_t tile_rows(int64_t row, int64_t rows)
{
    const int64_t first = row / LINEAR_TILE_ROWS * LINEAR_TILE_ROWS;
    return min_i64(rows - first, LINEAR_TILE_ROWS);
}

#endif
