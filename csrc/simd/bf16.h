/* Rows of numbers in bf16, the upper halves of floats. */
#ifndef TRANSDUCE_SIMD_BF16_H
#define TRANSDUCE_SIMD_BF16_H

#include <stdint.h>
#include <string.h>

#include "simd/vec.h"

#define PANEL_WIDTH 32 /* columns of a panel */

typedef uint16_t Bf16;

/* Rows whose columns are cut into panels. Panels follow one another, so that each tile,
 * which is what AMX reads, is contiguous. */
typedef struct {
    Bf16 *at; /* or NULL */
    int64_t rows;
} Panels;

static inline Bf16 *in_panels(Panels panels, int64_t row, int64_t column)
{
    return panels.at + (column / PANEL_WIDTH * panels.rows + row) * PANEL_WIDTH +
           column % PANEL_WIDTH;
}

/* bf16 to float. */
static inline void widen(int64_t count, const Bf16 *from, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* Float to the nearest bf16. */
static inline void narrow(int64_t count, const float *from, Bf16 *to)
{
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        vec_store_bf16(to + i, vec_load(from + i));
    if (whole < count) {
        Bf16 rest[LANES];
        vec_store_bf16(rest, vec_load_masked(vec_first(count - whole), from + whole));
        memcpy(to + whole, rest, (size_t)(count - whole) * sizeof *rest);
    }
}

/* Float to bf16 in a row of panels from a column on; all are multiples of LANES. */
static inline void narrow_into(Panels to, int64_t row, int64_t column, int64_t count,
                               const float *from)
{
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_bf16(in_panels(to, row, column + i), vec_load(from + i));
}

#endif
