/* Vectors of eight floats, each in two registers of NEON. vec_generic.h documents the
 * functions and defines those that need no intrinsics.
 *
 * Clang keeps such vectors in registers. GCC before 15 moves them through the stack in
 * loops that carry sums, which is correct but slow. */
#ifndef TRANSDUCE_SIMD_VEC_NEON_H
#define TRANSDUCE_SIMD_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define TD_GENERIC_PARTS
#include "simd/vec_generic.h"

typedef union {
    vec all;
    float32x4_t half[2];
    int32x4_t ints[2];
} NeonPair;

static inline vec vec_fma(vec one, vec other, vec sum)
{
    const NeonPair a = {one}, b = {other};
    NeonPair c = {sum};
    for (int i = 0; i < 2; i++)
        c.half[i] = vfmaq_f32(c.half[i], a.half[i], b.half[i]);
    return c.all;
}

static inline vec vec_round(vec x)
{
    NeonPair pair = {x};
    for (int i = 0; i < 2; i++)
        pair.half[i] = vrndnq_f32(pair.half[i]);
    return pair.all;
}

static inline vec vec_floor(vec x)
{
    NeonPair pair = {x};
    for (int i = 0; i < 2; i++)
        pair.half[i] = vrndmq_f32(pair.half[i]);
    return pair.all;
}

/* NEON multiplies signed bytes by signed bytes: numbers are stored less 128. */
enum { INT8_GROUP = 4, INT8_OFFSET = 128, SUMS_IN_16_BITS = 0, UNROLLED = 2 };

/* Add four products to each of four sums. */
static inline int32x4_t neon_dot_int8(int32x4_t sums, int8x16_t one, int8x16_t other)
{
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sums, one, other);
#else
    const int32x4_t first = vpaddlq_s16(vmull_s8(vget_low_s8(one), vget_low_s8(other)));
    const int32x4_t last =
        vpaddlq_s16(vmull_s8(vget_high_s8(one), vget_high_s8(other)));
    return vaddq_s32(sums, vpaddq_s32(first, last));
#endif
}

static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, group, sizeof numbers);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(numbers));
    NeonPair pair = {sums};
    for (int i = 0; i < 2; i++) {
        const int8x16_t weight = vreinterpretq_s8_u8(vld1q_u8(weights + 16 * i));
        pair.ints[i] = neon_dot_int8(pair.ints[i], weight, four);
    }
    return pair.all;
}

/* NaN becomes 0, whose byte is 128. */
static inline void vec_store_int8(uint8_t *to, int64_t stride, vec x)
{
    const NeonPair pair = {x};
    const int16x8_t words = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(pair.half[0])),
                                         vqmovn_s32(vcvtnq_s32_f32(pair.half[1])));
    uint8_t groups[LANES];
    vst1_u8(groups, veor_u8(vqmovun_s16(words), vdup_n_u8(INT8_OFFSET)));
    for (int i = 0; i < LANES / INT8_GROUP; i++)
        memcpy(to + i * stride, groups + i * INT8_GROUP, INT8_GROUP);
}

#endif
