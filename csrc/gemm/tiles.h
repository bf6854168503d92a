/* Layouts of packed weights and rows.
 *
 * Weights are in blocks of BLOCK_OUTPUTS outputs, each a sequence of steps. A step has
 * the weights of a group of inputs (1 in fp32, INT8_GROUP in int8) for all outputs of
 * the block, the first LANES outputs before the others:
 *
 *   fp32 step i:  input i for outputs 0, 1, ..., LANES-1 | for LANES, ..., 2 LANES-1
 *   int8 step i:  inputs 4i, ..., 4i+3 for output 0 | for output 1 | ...
 *
 * With groups of 8 inputs, each half of a step has the first four inputs for its LANES
 * outputs before the last four.
 *
 * Rows are in tiles of LINEAR_TILE_ROWS rows; the last tile may have fewer. A tile has
 * the first group of each of its rows, then the second, and so on:
 *
 *   row 0 group 0 | row 1 group 0 | ... | row 0 group 1 | row 1 group 1 | ...
 *
 * Rows for AMX follow one another at a stride of amx_row_bytes().
 */
#ifndef TRANSDUCE_GEMM_TILES_H
#define TRANSDUCE_GEMM_TILES_H

#include "gemm/linear.h"
#include "simd/vec.h"

#define BLOCK_OUTPUTS (2 * LANES)               /* two vectors of sums */
#define LINEAR_TILE_ROWS (LANES == 16 ? 12 : 6) /* 24 or 12 registers of sums */
#define DOT_INPUTS 4 /* int8 products that an instruction adds up in a lane */

/* A unit is the operand of one lane: a float, or DOT_INPUTS int8 weights of an output.
 * The units of LANES outputs follow one another; the units of one output in half a step
 * begin UNIT_STRIDE bytes apart. */
#define UNIT_BYTES 4
#define UNIT_STRIDE (LANES * UNIT_BYTES)

/* Inputs of a group, and their bytes in a row. */
static inline int64_t group_size(int is_int8) { return is_int8 ? INT8_GROUP : 1; }

static inline int64_t group_bytes(int is_int8)
{
    return is_int8 ? INT8_GROUP : (int64_t)sizeof(float);
}

/* Bytes of the weights of a step. */
static inline int64_t step_bytes(int is_int8)
{
    return BLOCK_OUTPUTS * group_bytes(is_int8);
}

static inline int64_t num_groups(int64_t inputs, int is_int8)
{
    return ceil_div(inputs, group_size(is_int8));
}

static inline int64_t num_blocks(int64_t outputs)
{
    return ceil_div(outputs, BLOCK_OUTPUTS);
}

static inline int64_t block_bytes(int64_t inputs, int is_int8)
{
    return num_groups(inputs, is_int8) * step_bytes(is_int8);
}

/* Bytes from the beginning of an output's block to its first weights. */
static inline int64_t output_offset(int64_t output, int is_int8)
{
    return output % BLOCK_OUTPUTS / LANES * (step_bytes(is_int8) / 2) +
           output % LANES * UNIT_BYTES;
}

/* Number of rows of the tile that has row `row` of `rows`. */
static inline int64_t tile_rows(int64_t row, int64_t rows)
{
    const int64_t first = row / LINEAR_TILE_ROWS * LINEAR_TILE_ROWS;
    return min_i64(rows - first, LINEAR_TILE_ROWS);
}

#endif
