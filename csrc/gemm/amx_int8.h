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

/* Where logits go that are searched for the best instead of stored. */
typedef struct {
    const td_candidates *query;
    CandidateWorkspace *workspace;
    FusedSoftmax *rows;
    int64_t first_token; /* of the product's first output */
} LogitSink;

/* Compute a product like amx_multiply, all blocks of it, and pass on the results from
 * registers. Must not be called where suits_amx says no. */
TD_INTERNAL void amx_search(const Product *product, const LogitSink *sink);

#endif
