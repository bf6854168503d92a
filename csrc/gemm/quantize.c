/* Rounding of weights to 8 bits. */
#include "gemm/quantize.h"

#include <math.h>

#define INVERSE_MAX_INT8 (1.0f / 127.0f) /* 1 / largest rounded weight */
#define MIN_ABS_MAX 1e-8f                /* keeps scales above zero */
/* 1.5 * 2^23. Floats of this size are integers, so that adding it rounds a number. */
#define ROUNDING_OFFSET 12582912.0f

float quantize_output(const float *weights, int64_t inputs, int8_t *values)
{
    float max = MIN_ABS_MAX;
    int is_finite = 1;
    for (int64_t i = 0; i < inputs; i++) {
        const float size = fabsf(weights[i]);
        max = size > max ? size : max;
        is_finite &= size < INFINITY; /* false for NaN */
    }
    const float scale = max * INVERSE_MAX_INT8;
    for (int64_t i = 0; i < inputs; i++) {
        /* Rounds to the nearest integer, and half-way cases to even. */
        const float rounded = (weights[i] / scale + ROUNDING_OFFSET) - ROUNDING_OFFSET;
        values[i] = (int8_t)(is_finite ? rounded : 0.0f);
    }
    return is_finite ? scale : NAN;
}
