/* A product of packed rows and a linear map, and its epilogue. */
#ifndef TRANSDUCE_GEMM_PRODUCT_H
#define TRANSDUCE_GEMM_PRODUCT_H

#include <math.h>

#include "gemm/linear.h"
#include "simd/vec.h"

typedef struct {
    const Linear *linear;
    const QuantizedRows *x;
    const Matrix *y;
    int relu;
} Product;

/* Bias, scales and sums of the outputs in the lanes of a vector. */
typedef struct {
    vec bias, scales, sums;
} OutputVectors;

static inline OutputVectors load_outputs(const Linear *linear, const int is_int8,
                                         int64_t output)
{
    OutputVectors of = {.bias = vec_load(linear->bias + output)};
    if (is_int8) {
        of.scales = vec_load(linear->scales + output);
        of.sums = vec_load(linear->sums + output);
    }
    return of;
}

/* Sums of a row's products to results: add the bias and, in int8, undo the rounding. */
static inline vec dequantize(const QuantizedRows *x, const int is_int8, vec sums,
                             int64_t row, const OutputVectors *of)
{
    if (!is_int8)
        return sums + of->bias;
    const vec rest = vec_fma(vec_set1(x->min[row]), of->sums, of->bias);
    const vec scale = of->scales * vec_set1(x->scales[row]);
    return vec_fma(vec_from_i32(sums), scale, rest);
}

/* Write `count` rows of results from their sums [count, BLOCK_OUTPUTS], from an output
 * on that begins a block. `is_int8` is a literal at each call. */
static inline __attribute__((always_inline)) void
write_results(const Product *product, const int is_int8, const vec *sums, int64_t row,
              int64_t count, int64_t output)
{
    const int64_t left = product->linear->outputs - output, stride = product->y->stride;
    const OutputVectors one = load_outputs(product->linear, is_int8, output);
    const OutputVectors two = load_outputs(product->linear, is_int8, output + LANES);
    const vec low = vec_set1(product->relu ? 0.0f : -INFINITY);
    const QuantizedRows x = *product->x;
    float *to = row_of(product->y, row) + output;
    for (int64_t i = 0; i < count; i++, row++, sums += 2, to += stride) {
        /* In this order of operands, NaN stays NaN. */
        vec_store_first(to, left,
                        vec_max(low, dequantize(&x, is_int8, sums[0], row, &one)));
        vec_store_first(to + LANES, left - LANES,
                        vec_max(low, dequantize(&x, is_int8, sums[1], row, &two)));
    }
}

#endif
