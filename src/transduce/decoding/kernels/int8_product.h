/* Matrix products of 8-bit numbers (AVX-512 VNNI). */
#ifndef TRANSDUCE_INT8_PRODUCT_H
#define TRANSDUCE_INT8_PRODUCT_H

#include <stdint.h>

/* A linear map: weights in signed 8 bits, with a scale for each output. */
typedef struct {
    int64_t outputs, inputs;
    const int8_t *packed; /* 32 outputs after 32, of each 4 inputs after 4 */
    const float *scales;  /* of each output; padded, as sums and bias are, to 32 */
    const float *sums;    /* of each output's weights, scaled */
    const float *bias;
} Linear;

/* Rows in unsigned 8 bits: what a number n of a row stands for is
   lowest + scale * n. */
typedef struct {
    int64_t rows, stride;
    uint8_t *numbers;
    float *scales, *lowest;
} Quantized;

/* Bytes of a row of so many inputs. */
int64_t quantized_stride(int64_t inputs);

void quantize(const float *x, int64_t rows, int64_t inputs, Quantized *into);

/* y = x W^T + b, row by row; if it is to be rectified, max(0, y). */
void multiply(const Linear *linear, const Quantized *x, float *y, int is_rectified,
              int num_threads);

#endif
