/* A product of rows and a linear map, and how its sums are put out. */
#ifndef TRANSDUCE_PRODUCT_H
#define TRANSDUCE_PRODUCT_H

#include <math.h>

#include "gemm/linear.h"
#include "simd/vec.h"

typedef struct {
    const Linear *linear;
    const Rows *x;
    const Matrix *y;
    int is_rectified;
} Product;

/* What belongs to the outputs in the lanes. */
typedef struct {
    vec bias, scales, sums;
} OfOutputs;

static inline OfOutputs of_outputs(const Linear *linear, const int is_int8,
                                   int64_t output)
{
    OfOutputs of = {.bias = vec_load(linear->bias + output)};
    if (is_int8) {
        of.scales = vec_load(linear->scales + output);
        of.sums = vec_load(linear->sums + output);
    }
    return of;
}

/* What the sums of a row's products are. */
static inline vec numbers_of(const Rows *x, const int is_int8, vec sums, int64_t row,
                             const OfOutputs *of)
{
    if (!is_int8)
        return sums + of->bias;
    const vec rest = vec_fma(vec_set1(x->lowest[row]), of->sums, of->bias);
    const vec scale = of->scales * vec_set1(x->scales[row]);
    return vec_fma(vec_from_i32(sums), scale, rest);
}

/* Put out the sums of a tile's rows, two registers of each, from an output on that a
   block begins with. */
static inline __attribute__((always_inline)) void finish(const Product *product,
                                                         const int is_int8,
                                                         const vec *sums, int64_t row,
                                                         int64_t count, int64_t output)
{
    const int64_t left = product->linear->outputs - output, stride = product->y->stride;
    const OfOutputs one = of_outputs(product->linear, is_int8, output);
    const OfOutputs two = of_outputs(product->linear, is_int8, output + LANES);
    const vec least = vec_set1(product->is_rectified ? 0.0f : -INFINITY);
    const Rows x = *product->x;
    float *to = row_of(product->y, row) + output;
    for (int64_t i = 0; i < count; i++, row++, sums += 2, to += stride) {
        /* In this order, NaN stays NaN. */
        vec_store_first(to, left,
                        vec_max(least, numbers_of(&x, is_int8, sums[0], row, &one)));
        vec_store_first(to + LANES, left - LANES,
                        vec_max(least, numbers_of(&x, is_int8, sums[1], row, &two)));
    }
}

#endif
