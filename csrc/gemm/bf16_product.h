/* Products of matrices in bf16, summed in fp32: by AMX, by the dot products of AVX-512
 * BF16, or by slow loops that let tests run on any processor. Sums do not depend on how
 * rows are divided among calls. */
#ifndef TRANSDUCE_GEMM_BF16_PRODUCT_H
#define TRANSDUCE_GEMM_BF16_PRODUCT_H

#include <stdint.h>

#include "gemm/pack_bf16.h"
#include "isa/name.h"
#include "transduce.h"

/* Dropout of a product's results. */
typedef struct {
    const uint8_t *kept; /* [rows, columns / 8]: a bit for each element, 0 if it is
                            dropped. NULL in the backward pass, where `relu_output` is
                            zero for dropped elements. */
    float scale;         /* of kept elements */
} Bf16Dropout;

/* Epilogue of a product: the operations on the sums, and the place of the results. */
typedef struct {
    int64_t columns;
    td_panels bf16; /* [rows, columns] rounded results; without data, `fp32` is used */
    float *fp32;    /* [rows, columns] */
    const float *bias; /* [columns] to add, unless `accumulates`; or NULL */
    int accumulates;   /* 1: add to the numbers in `fp32` */
    /* Only with `bf16`: */
    int relu;                   /* 1: negative sums become zero */
    const Bf16Dropout *dropout; /* or NULL */
    td_panels relu_output;      /* [rows, columns], in the backward pass of a ReLU:
                                   results become zero where it is not positive;
                                   optional */
} Bf16Epilogue;

/* Rows `first` to `end` - 1. */
typedef struct {
    int64_t first, end;
} RowSpan;

/* Unit that computes the products: td_get_bf16_unit(), if this instruction set has it.
 */
TD_INTERNAL td_bf16_unit bf16_unit(void);

/* Whether this instruction set was compiled with these units. */
TD_INTERNAL int can_use_amx_bf16(void);
TD_INTERNAL int can_use_avx512_bf16(void);

/* multiply_bf16 by one unit, which this processor and instruction set must have. */
TD_INTERNAL void multiply_by_amx(td_panels x, RowSpan rows, Bf16Matrix matrix,
                                 Bf16Epilogue epilogue);
TD_INTERNAL void multiply_by_avx512(td_panels x, RowSpan rows, Bf16Matrix matrix,
                                    Bf16Epilogue epilogue);

/* Multiply some rows of x [rows, inner] by a packed matrix [inner, columns]. */
TD_INTERNAL void multiply_bf16(td_panels x, RowSpan rows, Bf16Matrix matrix,
                               Bf16Epilogue epilogue);

#endif
