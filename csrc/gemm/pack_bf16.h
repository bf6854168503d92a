/* Matrices in bf16, laid out as AMX and AVX-512 BF16 read them.
 *
 * The left factor of a product is in panels of PANEL_WIDTH columns (td_panels), so that
 * each tile of rows is contiguous:
 *
 *   panel 0: row 0 columns 0-31  | row 1 columns 0-31  | ...
 *   panel 1: row 0 columns 32-63 | row 1 columns 32-63 | ...
 *
 * The right factor is packed in panels of PACKED_COLUMNS columns (Bf16Matrix) with the
 * elements of two rows in pairs, as one instruction multiplies pairs:
 *
 *   panel 0: (0,0) (1,0) (0,1) (1,1) ... (0,31) (1,31) | (2,0) (3,0) (2,1) (3,1) ... */
#ifndef TRANSDUCE_GEMM_PACK_BF16_H
#define TRANSDUCE_GEMM_PACK_BF16_H

#include <stdint.h>

#include "arena.h"
#include "isa/name.h"
#include "simd/bf16.h"
#include "simd/vec.h"
#include "sizes.h"
#include "transduce.h"

#define PACKED_COLUMNS 32

static inline int64_t round_up_to_panels(int64_t count)
{
    return round_up(count, PANEL_WIDTH);
}

static inline td_bf16 *take_bf16(Arena *arena, int64_t count)
{
    return (td_bf16 *)take_bytes(arena, count * (int64_t)sizeof(td_bf16));
}

/* Offset of an element in the data of panels. */
static inline int64_t panel_offset(td_panels panels, int64_t row, int64_t column)
{
    return (column / PANEL_WIDTH * panels.rows + row) * PANEL_WIDTH +
           column % PANEL_WIDTH;
}

static inline td_bf16 *panel_element(td_panels panels, int64_t row, int64_t column)
{
    return panels.data + panel_offset(panels, row, column);
}

/* Panels for a matrix [rows, columns], taken from an arena. */
static inline td_panels take_panels(Arena *arena, int64_t rows, int64_t columns)
{
    return (td_panels){take_bf16(arena, rows * columns), rows};
}

/* Round `count` floats into a row of panels from a column on; both are multiples of
 * LANES. */
static inline void round_into_panels(td_panels to, int64_t row, int64_t column,
                                     int64_t count, const float *from)
{
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_bf16(panel_element(to, row, column + i), vec_load(from + i));
}

/* A packed matrix [inner, columns]; both are multiples of the panel width. */
typedef struct {
    const td_bf16 *packed;
    int64_t inner, columns;
} Bf16Matrix;

/* Arguments of pack_forward and pack_backward. */
typedef struct {
    const float *weight;     /* [outputs, inputs] */
    int64_t outputs, inputs; /* outputs are padded with zeros to whole panels */
    td_bf16 *to;
} WeightPacking;

/* Pack panels `first` to `end` - 1 of the weight's transpose [inputs, outputs], for the
 * forward pass; a Part of parallel_for. */
TD_INTERNAL void pack_forward(void *packing, int64_t first, int64_t end, int worker);

/* Pack panels of the weight [outputs, inputs], for the backward pass. */
TD_INTERNAL void pack_backward(void *packing, int64_t first, int64_t end, int worker);

/* Arguments of pack_rows: rows to pack as the right factor of a weight's gradient. */
typedef struct {
    td_panels rows; /* [rows, width]; rows are padded with zeros to whole panels */
    int64_t width;
    td_bf16 *to;
} RowPacking;

TD_INTERNAL void pack_rows(void *packing, int64_t first, int64_t end, int worker);

/* Transpose the panel of columns that begins at `column` into rows `to_row` to
 * `to_row` + PANEL_WIDTH - 1 of `to`. */
TD_INTERNAL void transpose_panel(td_panels from, int64_t column, td_panels to,
                                 int64_t to_row);

#endif
