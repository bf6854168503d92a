/* Matrices in bf16, laid out as AMX reads them.
 *
 * The left factor of a product has panels (td_panels): each tile of rows is contiguous.
 * The right factor is packed (Bf16Matrix): panel by panel of columns, and in each panel
 * the elements of two rows in pairs, as one instruction multiplies pairs. */
#ifndef TRANSDUCE_GEMM_PACK_BF16_H
#define TRANSDUCE_GEMM_PACK_BF16_H

#include <stdint.h>

#include "isa/name.h"
#include "simd/bf16.h"
#include "simd/vec.h"
#include "transduce.h"

#define PANEL_WIDTH 32    /* columns of a panel */
#define PACKED_COLUMNS 32 /* columns of a panel of a packed matrix */

/* count, rounded up to whole panels. */
static inline int64_t round_up_to_panels(int64_t count)
{
    return (count + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
}

static inline td_bf16 *panel_element(td_panels panels, int64_t row, int64_t column)
{
    return panels.data + (column / PANEL_WIDTH * panels.rows + row) * PANEL_WIDTH +
           column % PANEL_WIDTH;
}

/* Round `count` floats into a row of panels from a column on; both are multiples of
 * LANES. */
static inline void round_into_panels(td_panels to, int64_t row, int64_t column,
                                     int64_t count, const float *from)
{
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_bf16(panel_element(to, row, column + i), vec_load(from + i));
}

/* A packed matrix [inner, columns], both multiples of the panel width. */
typedef struct {
    const td_bf16 *packed;
    int64_t inner, columns;
} Bf16Matrix;

/* A weight that is to be packed. */
typedef struct {
    const float *weight;     /* [outputs, inputs] */
    int64_t outputs, inputs; /* outputs are padded with zeros to whole panels */
    td_bf16 *to;
} WeightPacking;

/* Pack some panels of the weight's transpose [inputs, outputs], for the forward pass.
 */
TD_INTERNAL void pack_forward(void *packing, int64_t first, int64_t end, int worker);

/* Pack some panels of the weight [outputs, inputs], for the backward pass. */
TD_INTERNAL void pack_backward(void *packing, int64_t first, int64_t end, int worker);

/* Rows that are to be packed as the right factor of a gradient of a weight. */
typedef struct {
    td_panels rows; /* [rows, width]; rows are padded with zeros to whole panels */
    int64_t width;
    td_bf16 *to;
} RowPacking;

/* Pack some panels of a RowPacking. */
TD_INTERNAL void pack_rows(void *packing, int64_t first, int64_t end, int worker);

/* Transpose a panel of columns, from `column` on, into rows of `to`, from `to_row` on.
 */
TD_INTERNAL void transpose_panel(td_panels from, int64_t column, td_panels to,
                                 int64_t to_row);

#endif
