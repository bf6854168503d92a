/* Products of bytes by the processor's matrix unit (Intel's AMX), where it has one. */
#ifndef TRANSDUCE_MATRIX_UNIT_H
#define TRANSDUCE_MATRIX_UNIT_H

#include "product.h"

/* Whether such a product is one for the unit. */
int is_for_unit(const Linear *linear, int64_t rows);

/* Bytes between rows that it reads. They stand one after another, a number in each
   byte; what stands behind the last, up to a whole tile, is read too, but not used. */
int64_t unit_stride(int64_t inputs);

/* The blocks of outputs from the first to before the end. */
void multiply_in_unit(const Product *product, int64_t first, int64_t end);

#endif
