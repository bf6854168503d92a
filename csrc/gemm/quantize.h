/* Rounding of weights to 8 bits.
 *
 * Compiled once, not for each instruction set: all processors have the same rounded
 * weights, which are also those of a quantized model folder.
 */
#ifndef TRANSDUCE_GEMM_QUANTIZE_H
#define TRANSDUCE_GEMM_QUANTIZE_H

#include <stdint.h>

/* Round the weights [inputs] of an output to multiples of a scale, which is 1 / 127 of
 * the largest absolute weight: a weight is about value * scale. Returns the scale; NaN
 * if a weight is not finite. */
float quantize_output(const float *weights, int64_t inputs, int8_t *values);

#endif
