/* Products of bytes by AMX. */
#ifndef TRANSDUCE_GEMM_AMX_INT8_H
#define TRANSDUCE_GEMM_AMX_INT8_H

#include "decode/top_k.h"
#include "gemm/product.h"
#include "isa/name.h"

/* Whether AMX can multiply `rows` rows by this map, and is faster than vectors. */
TD_INTERNAL int suits_amx(const Linear *linear, int64_t rows);

/* Stride in bytes of the rows that AMX reads. Whole tiles are read: up to AMX_ROWS - 1
 * rows past the last, whose values do not matter. */
TD_INTERNAL int64_t amx_row_bytes(int64_t inputs);

/* Multiply by the blocks of outputs `first` to `end` - 1. */
TD_INTERNAL void amx_multiply(const Product *product, int64_t first, int64_t end);

/* Search to which a product passes its logits instead of storing them. */
typedef struct {
    const td_candidates *query;
    CandidateWorkspace *workspace;
    FusedSoftmax *rows;
    int64_t first_token; /* id of the product's first output */
} LogitSink;

/* Compute all blocks of a product, whose results go from registers to the sink.
 * suits_amx() must hold. */
TD_INTERNAL void amx_search(const Product *product, const LogitSink *sink);

#endif
