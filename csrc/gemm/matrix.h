/* Matrix of floats with contiguous rows. */
#ifndef TRANSDUCE_GEMM_MATRIX_H
#define TRANSDUCE_GEMM_MATRIX_H

#include <stdint.h>

typedef struct {
    float *data;
    int64_t stride; /* floats from row to row */
} Matrix;

static inline float *row_of(const Matrix *matrix, int64_t row)
{
    return matrix->data + row * matrix->stride;
}

#endif
