/* Products of bytes by Intel's AMX, where the processor has it. */
#ifndef TRANSDUCE_GEMM_AMX_INT8_H
#define TRANSDUCE_GEMM_AMX_INT8_H

#include "decode/top_k.h"
#include "gemm/product.h"
#include "isa/name.h"

/* Whether AMX can compute a product of so many rows, and is worth it. */
TD_INTERNAL int suits_amx(const Linear *linear, int64_t rows);

/* Distance in bytes of the rows that AMX reads. Bytes behind the last row, up to a
 * whole tile, are read too, but do not matter. */
TD_INTERNAL int64_t amx_row_bytes(int64_t inputs);

/* Multiply by the blocks of outputs first .. end - 1. */
TD_INTERNAL void amx_multiply(const Product *product, int64_t first, int64_t end);

/* Who sees logits as they are summed up. */
typedef struct {
    const CandidateSearch *asked;
    Seeing *seeing;
    Glimpse *glimpses;
    int64_t first; /* the token that the first output is of */
} Watch;

/* The same with logits that are not put out, but seen. */
TD_INTERNAL void amx_watch(const Product *product, const Watch *watch, int64_t first,
                           int64_t end);

#endif
