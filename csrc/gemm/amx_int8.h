/* Products of bytes by the processor's matrix unit (Intel's AMX), where it has one. */
#ifndef TRANSDUCE_MATRIX_UNIT_H
#define TRANSDUCE_MATRIX_UNIT_H

#include "decode/top_k.h"
#include "gemm/product.h"
#include "isa/name.h"

/* Whether such a product is one for the unit. */
TD_INTERNAL int is_for_unit(const Linear *linear, int64_t rows);

/* Bytes between rows that it reads. They stand one after another, a number in each
   byte; what stands behind the last, up to a whole tile, is read too, but not used. */
TD_INTERNAL int64_t unit_stride(int64_t inputs);

/* The blocks of outputs from the first to before the end. */
TD_INTERNAL void multiply_in_unit(const Product *product, int64_t first, int64_t end);

/* Who sees logits as they are summed up. */
typedef struct {
    const CandidateSearch *asked;
    Seeing *seeing;
    Glimpse *glimpses;
    int64_t first; /* the token that the first output is of */
} Watch;

/* The same with logits that are not put out, but seen. */
TD_INTERNAL void watch_in_unit(const Product *product, const Watch *watch,
                               int64_t first, int64_t end);

#endif
