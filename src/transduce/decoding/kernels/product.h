/* A product of rows and a linear map, and how its sums are put out. */
#ifndef TRANSDUCE_PRODUCT_H
#define TRANSDUCE_PRODUCT_H

#include <math.h>

#include "lanes.h"
#include "linear.h"

typedef struct {
    const Linear *linear;
    const Rows *x;
    float *y;
    int is_rectified;
} Product;

/* What the sums of a row's products are, in the lanes from an output on. */
static inline Lanes numbers_of(const Product *product, const int is_int8, Lanes sums,
                               int64_t row, int64_t output)
{
    const Linear *linear = product->linear;
    const Lanes bias = lanes_at(linear->bias + output);
    if (!is_int8)
        return sums + bias;
    const Lanes weights = lanes_at(linear->sums + output);
    const Lanes rest = lanes_fma(lanes_of(product->x->lowest[row]), weights, bias);
    const Lanes scale =
        lanes_at(linear->scales + output) * lanes_of(product->x->scales[row]);
    return lanes_fma(lanes_of_sums(sums), scale, rest);
}

/* Put out the sums of a tile's rows, every second of them: those of half of its
   outputs, from one on. */
static inline __attribute__((always_inline)) void finish(const Product *product,
                                                         const int is_int8,
                                                         const Lanes *sums, int64_t row,
                                                         int64_t count, int64_t output)
{
    const int64_t outputs = product->linear->outputs;
    const Lanes least = lanes_of(product->is_rectified ? 0.0f : -INFINITY);
    float *to = product->y + row * outputs + output;
    for (int64_t i = 0; i < count; i++, to += outputs) {
        Lanes numbers = numbers_of(product, is_int8, sums[2 * i], row + i, output);
        /* In this order, NaN stays NaN. */
        lanes_store(to, outputs - output, lanes_max(least, numbers));
    }
}

#endif
