/* A product of packed rows and a linear map, and its epilogue. */
#ifndef TRANSDUCE_GEMM_PRODUCT_H
#define TRANSDUCE_GEMM_PRODUCT_H

#include <math.h>

#include "gemm/linear.h"
#include "simd/vec.h"

typedef struct {
    const Linear *linear;
    const PackedActivations *x;
    const Matrix *y;
    int relu;
} Product;

/* Parameters of LANES outputs. */
typedef struct {
    vec bias, scales, weight_sums;
} OutputVectors;

static inline OutputVectors load_outputs(const Linear *linear, const int is_int8,
                                         int64_t output)
{
    OutputVectors vectors = {.bias = vec_load(linear->bias + output)};
    if (is_int8) {
        vectors.scales = vec_load(linear->scales + output);
        vectors.weight_sums = vec_load(linear->weight_sums + output);
    }
    return vectors;
}

/* Turn a row's sums of products into results. In int8, a weight is w = scale v and an
 * input is x = min + x_scale n, where v and n are bytes, so that
 *
 *   sum(w x) + bias = scale x_scale sum(v n) + min sum(w) + bias */
static inline vec dequantize(const PackedActivations *x, const int is_int8, vec sums,
                             int64_t row, const OutputVectors *outputs)
{
    if (!is_int8)
        return sums + outputs->bias;
    const vec rest =
        vec_fma(vec_set1(x->min[row]), outputs->weight_sums, outputs->bias);
    const vec scale = outputs->scales * vec_set1(x->scales[row]);
    return vec_fma(vec_from_i32(sums), scale, rest);
}

/* Write results of `count` rows from `row` on and of the block of outputs that begins
 * with `output`, given their sums [count, BLOCK_OUTPUTS]. `is_int8` is a literal at
 * each call. */
static inline __attribute__((always_inline)) void
write_results(const Product *product, const int is_int8, const vec *sums, int64_t row,
              int64_t count, int64_t output)
{
    const int64_t left = product->linear->outputs - output, stride = product->y->stride;
    const OutputVectors one = load_outputs(product->linear, is_int8, output);
    const OutputVectors two = load_outputs(product->linear, is_int8, output + LANES);
    const vec min = vec_set1(product->relu ? 0.0f : -INFINITY);
    const PackedActivations x = *product->x;
    float *to = row_of(product->y, row) + output;
    for (int64_t i = 0; i < count; i++, row++, sums += 2, to += stride) {
        /* vec_max returns its second argument if that is NaN. */
        vec_store_first(to, left,
                        vec_max(min, dequantize(&x, is_int8, sums[0], row, &one)));
        vec_store_first(to + LANES, left - LANES,
                        vec_max(min, dequantize(&x, is_int8, sums[1], row, &two)));
    }
}

#endif
