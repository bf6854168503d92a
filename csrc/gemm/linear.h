/* Linear maps y = x W^T + b of decoding, in fp32 or with weights of 8 bits.
 *
 * A product reads packed weights and packed rows (gemm/tiles.h has the layouts). Rows
 * are packed once and may then be multiplied by several maps with as many inputs. */
#ifndef TRANSDUCE_GEMM_LINEAR_H
#define TRANSDUCE_GEMM_LINEAR_H

#include <stdint.h>

#include "gemm/matrix.h"
#include "isa/name.h"
#include "sizes.h"

#define MIN_ROWS 64 /* of a part of parallel_for, for element-wise work */

/* Stride for rows of `width` floats: an odd number of cache lines, as rows a power of
 * two apart would fall into a few sets of the cache. */
TD_INTERNAL int64_t padded_stride(int64_t width);

/* A packed linear map. The vectors [outputs] are padded with zeros to whole blocks. */
typedef struct {
    int64_t outputs, inputs;
    const void *packed;       /* weights, block after block */
    const float *scales;      /* of each output's int8 weights; NULL in fp32 */
    const float *weight_sums; /* sum of each output's int8 weights, times its scale;
                                 NULL in fp32 */
    const float *bias;
} Linear;

/* Rows packed for products: floats, or bytes in int8, where the byte n of a row stands
 * for min + scale * n. They are in tiles, or row after row for AMX. Instruction sets
 * that multiply signed bytes store n - INT8_OFFSET, and `min` is the value of the
 * stored byte 0. */
typedef struct {
    int64_t rows, stride; /* stride in bytes */
    int for_amx;
    uint8_t *data;
    float *scales, *min; /* [rows], in int8 */
} PackedActivations;

/* Bytes of `PackedActivations.data` for each row, in either precision. */
TD_INTERNAL int64_t packed_activation_bytes(int64_t inputs);

/* Pack x [rows, inputs] into the buffers of `into`, rounded if the map is in int8. */
TD_INTERNAL void pack_activations(const Linear *linear, const Matrix *x, int64_t rows,
                                  PackedActivations *into, int num_threads);

/* Linear map to `count` of the outputs, from `first` on, which begins a block. */
TD_INTERNAL Linear slice_outputs(const Linear *linear, int64_t first, int64_t count);

/* y [rows, outputs] = x W^T + b; with `relu`, max(0, x W^T + b). A row of y depends
 * neither on the other rows nor on the number of threads. */
TD_INTERNAL void multiply(const Linear *linear, const PackedActivations *x,
                          const Matrix *y, int relu, int num_threads);

#endif
