/* Linear maps y = x W^T + b, in fp32 or with weights of 8 bits.
 *
 * A product reads packed weights and packed rows (gemm/tiles.h has the layouts). Rows
 * are packed once and may then be multiplied by several maps of equal inputs.
 */
#ifndef TRANSDUCE_GEMM_LINEAR_H
#define TRANSDUCE_GEMM_LINEAR_H

#include <stdint.h>

#include "isa/name.h"
#include "sizes.h"

/* Rows that are worth a thread: to read and write, and to attend with. */
#define MIN_ROWS 64
#define MIN_ATTENDING_ROWS 16

/* Rows of floats at a distance of `stride` floats. */
typedef struct {
    float *numbers;
    int64_t stride;
} Matrix;

static inline float *row_of(const Matrix *matrix, int64_t row)
{
    return matrix->numbers + row * matrix->stride;
}

/* Best stride of rows of `width` floats: an odd number of cache lines, because rows a
 * power of two apart would compete for few places of a cache. */
TD_INTERNAL int64_t padded_stride(int64_t width);

/* A packed linear map. The vectors are padded with zeros to whole blocks of outputs. */
typedef struct {
    int64_t outputs, inputs;
    const void *packed;  /* weights, block after block */
    const float *scales; /* step of each output's weights; NULL in fp32 */
    const float *sums;   /* sum of each output's rounded weights; NULL in fp32 */
    const float *bias;
} Linear;

/* Rows as a product reads them: tile after tile, or row after row for AMX. In int8,
 * the byte n of a row stands for min + scale * n. */
typedef struct {
    int64_t rows, stride; /* stride in bytes */
    int for_amx;
    uint8_t *numbers;
    float *scales, *min; /* of each row, in int8 */
} QuantizedRows;

/* Bytes of `QuantizedRows.numbers` that suffice for a row. */
TD_INTERNAL int64_t quantized_row_bytes(int64_t inputs);

/* Pack `rows` rows of x [rows, inputs] into the buffers of `into`; int8 rounds them. */
TD_INTERNAL void quantize_rows(const Linear *linear, const Matrix *x, int64_t rows,
                               QuantizedRows *into, int num_threads);

/* The map restricted to `count` outputs from `first` on, which begins a block. */
TD_INTERNAL Linear slice_outputs(const Linear *linear, int64_t first, int64_t count);

/* y [rows, outputs] = x W^T + b, or max(0, x W^T + b). The result of a row does not
 * depend on the other rows, nor on the number of threads. */
TD_INTERNAL void multiply(const Linear *linear, const QuantizedRows *x, const Matrix *y,
                          int relu, int num_threads);

#endif
