/* Matrices in bf16 cut into panels (td_panels). */
#ifndef TRANSDUCE_PACK_BF16_H
#define TRANSDUCE_PACK_BF16_H

#include "simd/bf16.h"
#include "simd/vec.h"
#include "transduce.h"

#define PANEL_WIDTH 32 /* columns of a panel */

static inline Bf16 *in_panels(td_panels panels, int64_t row, int64_t column)
{
    return panels.data + (column / PANEL_WIDTH * panels.rows + row) * PANEL_WIDTH +
           column % PANEL_WIDTH;
}

/* From a column on; all are in whole lanes. */
static inline void narrow_into(td_panels to, int64_t row, int64_t column, int64_t count,
                               const float *from)
{
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_bf16(in_panels(to, row, column + i), vec_load(from + i));
}

#endif
