/* Matrix products of 8-bit numbers. */
#ifndef TRANSDUCE_INT8_PRODUCT_H
#define TRANSDUCE_INT8_PRODUCT_H

#include <stdint.h>

/* A linear map: weights in signed 8 bits, with a scale for each output. */
typedef struct {
    int64_t outputs, inputs;
    const int8_t *packed; /* blocks of outputs, of each a group of inputs after one */
    const float *scales;  /* of each output; padded, as sums and bias are, to blocks */
    const float *sums;    /* of each output's weights, scaled */
    const float *bias;
} Linear;

/* Rows as numbers from 0 to 255: what a number n of a row stands for is
   lowest + scale * n. */
typedef struct {
    int64_t rows, stride; /* in bytes */
    uint8_t *numbers;     /* each in as many bytes as the product wants */
    float *scales, *lowest;
} Quantized;

/* Bytes of a row of so many inputs. */
int64_t quantized_stride(int64_t inputs);

void quantize(const float *x, int64_t rows, int64_t inputs, Quantized *into);

/* y = x W^T + b, row by row; if it is to be rectified, max(0, y). */
void multiply(const Linear *linear, const Quantized *x, float *y, int is_rectified,
              int num_threads);

#endif
