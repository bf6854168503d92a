/* Products of matrices in bf16, summed in fp32: by AMX, or by slow loops, so that they
 * can be tested anywhere. */
#ifndef TRANSDUCE_GEMM_AMX_BF16_H
#define TRANSDUCE_GEMM_AMX_BF16_H

#include <stdint.h>

#include "gemm/pack_bf16.h"
#include "isa/name.h"
#include "transduce.h"

/* Dropout of a product's results. */
typedef struct {
    const uint8_t *kept; /* [rows, columns / 8]: a bit for each element, 0 if dropped;
                            NULL for gradients, where `positive` has zeros for those */
    float scale;         /* of kept elements */
} Bf16Dropout;

/* Where the sums of a product are written, and how. */
typedef struct {
    int64_t columns;
    td_panels bf16;    /* [rows, columns] rounded; without data: */
    float *fp32;       /* [rows, columns] */
    const float *bias; /* [columns] to add, unless `accumulates`; or NULL */
    int accumulates;   /* fp32 only: add to what fp32 has */
    /* bf16 only: */
    int relu;
    const Bf16Dropout *dropout; /* or NULL */
    td_panels positive;         /* zero where these are not positive; or without data */
} Bf16Epilogue;

typedef struct {
    int64_t first, end; /* rows from the first to before the end */
} RowSpan;

/* Whether products are computed by AMX: td_has_amx_bf16(), and this instruction set can
 * use it. */
TD_INTERNAL int uses_amx_bf16(void);

/* Multiply some rows of x [rows, inner] with a packed matrix [inner, columns]. */
TD_INTERNAL void multiply_bf16(td_panels x, RowSpan rows, Bf16Matrix matrix,
                               Bf16Epilogue epilogue);

#endif
