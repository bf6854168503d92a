/* Linear maps, in fp32 or with weights of 8 bits. */
#ifndef TRANSDUCE_LINEAR_H
#define TRANSDUCE_LINEAR_H

#include "isa/name.h"
#include <stdint.h>

/* Rows, below which sharing them costs more than it gains: to read or write, and to
   attend with. */
#define LEAST_ROWS 64
#define LEAST_ATTENDING 16

/* Rows of numbers, so far apart. */
typedef struct {
    float *numbers;
    int64_t stride;
} Matrix;

static inline float *row_of(const Matrix *matrix, int64_t row)
{
    return matrix->numbers + row * matrix->stride;
}

/* How far apart rows of so many numbers are best: an odd number of cache lines, as rows
   a power of two apart would share few places of a cache. */
TD_INTERNAL int64_t spread(int64_t width);

/* y = x W^T + b. What belongs to each output is padded to whole blocks of them. */
typedef struct {
    int64_t outputs, inputs;
    const void *packed;  /* blocks of outputs, of each a group of inputs after one */
    const float *scales; /* of each output's weights, if they are in 8 bits, or none */
    const float *sums;   /* of these weights, scaled */
    const float *bias;
} Linear;

/* Rows as a product reads them: a group of inputs of each row of a tile after one, or
   each row for itself, as the matrix unit reads them. */
typedef struct {
    int64_t rows, stride; /* in bytes */
    int are_for_unit;
    uint8_t *numbers;
    /* In 8 bits, what a number n of a row stands for is lowest + scale * n. */
    float *scales, *lowest;
} Rows;

/* Bytes that are enough for a row of so many inputs. */
TD_INTERNAL int64_t row_bytes(int64_t inputs);

/* Put rows in order for a product, for which there is room. */
TD_INTERNAL void arrange_rows(const Linear *linear, const Matrix *x, int64_t rows,
                              Rows *into, int num_threads);

/* The same map, of so many of its outputs, from one on with which a block begins. */
TD_INTERNAL Linear some_outputs(const Linear *linear, int64_t first, int64_t count);

/* y = x W^T + b, row by row; if it is to be rectified, max(0, y). */
TD_INTERNAL void multiply(const Linear *linear, const Rows *x, const Matrix *y,
                          int is_rectified, int num_threads);

#endif
