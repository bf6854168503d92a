/* Rounding of weights to 8 bits. */
#include "gemm/quantize.h"

#include <math.h>

#define PER_MAX_INT8 (1.0f / 127.0f) /* 1 / largest rounded weight */
#define MIN_MAX_WEIGHT 1e-8f         /* keeps scales above zero */
#define INTEGER_BITS 12582912.0f     /* 1.5 * 2^23: a sum with it has no fraction */

float quantize_output(const float *weights, int64_t inputs, int8_t *values)
{
    float max = MIN_MAX_WEIGHT;
    int is_finite = 1;
    for (int64_t i = 0; i < inputs; i++) {
        const float size = fabsf(weights[i]);
        max = size > max ? size : max;
        is_finite &= size < INFINITY; /* false for NaN */
    }
    const float scale = max * PER_MAX_INT8;
    for (int64_t i = 0; i < inputs; i++) {
        /* Rounds to the nearest integer, and half-way cases to even. */
        const float rounded = (weights[i] / scale + INTEGER_BITS) - INTEGER_BITS;
        values[i] = (int8_t)(is_finite ? rounded : 0.0f);
    }
    return is_finite ? scale : NAN;
}
