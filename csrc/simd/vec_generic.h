/* Vectors of eight floats in the vector extensions of GCC and Clang, for any processor.
 * This file documents all vector functions; vec_avx2.h, vec_avx512.h and vec_neon.h
 * define the same ones.
 *
 * Types: `vec` has LANES floats (8, or 16 with AVX-512) and supports +, - and *; `vec8`
 * always has eight floats; a `vec_mask` selects some of the lanes.
 *
 * NaN: arithmetic propagates it. vec_max and vec_min return their second argument if
 * either is NaN, so that vec_max(bound, x) keeps NaN in x. Comparisons with NaN are
 * false. Reductions to the maximum or minimum may ignore NaN.
 *
 * vec_neon.h defines TD_GENERIC_PARTS: it takes most functions from this file, and
 * defines the functions that this file then only declares.
 */
#ifndef TRANSDUCE_SIMD_VEC_GENERIC_H
#define TRANSDUCE_SIMD_VEC_GENERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sizes.h"

#if defined(__ASSOCIATIVE_MATH__) && !defined(TD_GENERIC_PARTS)
/* vec_exp subtracts n ln 2 in two steps, which must not be merged. */
#error "The generic vectors need -fno-associative-math"
#endif

#define LANES 8

typedef float vec __attribute__((vector_size(32), aligned(32)));
typedef vec vec8;
typedef int32_t vec_mask __attribute__((vector_size(32))); /* -1 in a lane, or 0 */

/* one * other + sum, rounded once (fused) or twice. */
static inline vec vec_fma(vec one, vec other, vec sum);

/* Nearest integer; halves are rounded to even. */
static inline vec vec_round(vec x);

static inline vec vec_floor(vec x);

/* Add to each lane's 32-bit sum the dot product of a group of INT8_GROUP bytes, common
 * to all lanes, and the lane's own weights. `weights` holds the first four weights of
 * each lane, lane after lane, then the next four. */
static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights);

/* Round numbers from 0 to 255 to bytes and store these in groups of INT8_GROUP. Groups
 * begin `stride` bytes apart. */
static inline void vec_store_int8(uint8_t *to, int64_t stride, vec x);

/* Mask of the first `left` lanes; `left` may be 0, negative or above LANES. */
static inline vec_mask vec_mask_first(int64_t left)
{
    const vec_mask lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t count = left <= 0 ? 0 : left >= LANES ? LANES : (int32_t)left;
    const vec_mask counts = {count, count, count, count, count, count, count, count};
    return lanes < counts;
}

static inline vec vec_set1(float number)
{
    return (vec){number, number, number, number, number, number, number, number};
}

/* `one` in the lanes of the mask, `other` elsewhere. */
static inline vec vec_select(vec_mask mask, vec one, vec other)
{
    return (vec)(((vec_mask)one & mask) | ((vec_mask)other & ~mask));
}

/* Mask of the lanes above zero. */
static inline vec_mask vec_gt_zero(vec x) { return x > vec_set1(0.0f); }

/* Loads and stores need no alignment. */
static inline vec vec_load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Load the lanes of the mask; the others are zero, and nothing is read for them. */
static inline vec vec_load_masked(vec_mask mask, const float *from)
{
    vec x = vec_set1(0.0f);
    for (int i = 0; i < LANES; i++)
        if (mask[i])
            x[i] = from[i];
    return x;
}

/* Store the first `left` lanes, and write nothing after them. */
static inline void vec_store_first(float *to, int64_t left, vec x)
{
    if (left >= LANES)
        memcpy(to, &x, sizeof x);
    else
        for (int64_t i = 0; i < left; i++)
            to[i] = x[i];
}

/* Larger of two numbers; `other` if either is NaN. */
static inline vec vec_max(vec one, vec other)
{
    return vec_select(one > other, one, other);
}

/* Smaller of two numbers; `other` if either is NaN. */
static inline vec vec_min(vec one, vec other)
{
    return vec_select(one < other, one, other);
}

/* one > other, as a bit for each lane. */
static inline uint32_t vec_gt_bits(vec one, vec other)
{
    const vec_mask is_greater = one > other;
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++)
        bits |= ((uint32_t)is_greater[i] & 1u) << i;
    return bits;
}

/* Sign bit of each lane. */
static inline uint32_t vec_sign_bits(vec x)
{
    const vec_mask as_int = (vec_mask)x;
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++)
        bits |= ((uint32_t)as_int[i] >> 31) << i;
    return bits;
}

/* Sum of the two halves of a vector of 16 floats; a vector of 8 floats unchanged. */
static inline vec8 vec_add_halves(vec x) { return x; }

/* Vector of 16 floats from its halves; of 8 floats, `first` alone. */
static inline vec vec_from_halves(vec8 first, vec8 last)
{
    (void)last;
    return first;
}

static inline float vec_reduce_max(vec x)
{
    float max = x[0];
    for (int i = 1; i < LANES; i++)
        max = max > x[i] ? max : x[i];
    return max;
}

static inline float vec_reduce_min(vec x)
{
    float min = x[0];
    for (int i = 1; i < LANES; i++)
        min = min < x[i] ? min : x[i];
    return min;
}

static inline float vec_reduce_add(vec x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Convert 32-bit integers, whose bits are in the lanes, to floats. */
static inline vec vec_from_i32(vec sums)
{
    return __builtin_convertvector((vec_mask)sums, vec);
}

/* x - floor(x); 0 for minus infinity. */
static inline vec vec_fraction(vec x)
{
    x = vec_max(vec_set1(-200.0f), x);
    return x - vec_floor(x);
}

/* x * 2^floor(n); 0 if n is below -126, and n must be below 128. */
static inline vec vec_scale_pow2(vec x, vec n)
{
    n = vec_floor(n);
    const vec min = vec_set1(-127.0f), max = vec_set1(128.0f);
    const vec_mask is_zero = n <= min;
    /* This order turns NaN in n into a number; x, from the same NaN, keeps it. */
    const vec exponent = vec_min(vec_max(n, min), max) + vec_set1(127.0f);
    const vec power = (vec)(__builtin_convertvector(exponent, vec_mask) << 23);
    return (vec)((vec_mask)(x * power) & ~is_zero);
}

typedef uint32_t GenericBits __attribute__((vector_size(32)));
typedef uint16_t GenericHalves __attribute__((vector_size(16)));

/* Convert LANES numbers from bf16, the upper halves of floats. */
static inline vec vec_from_bf16(const uint16_t *from)
{
    GenericHalves halves;
    memcpy(&halves, from, sizeof halves);
    return (vec)(__builtin_convertvector(halves, GenericBits) << 16);
}

/* Round to the nearest bf16, ties to even, and store; NaN stays NaN. */
static inline void vec_store_bf16(uint16_t *to, vec x)
{
    const GenericBits bits = (GenericBits)x;
    /* Adding 0x7FFF rounds to the nearest, and ties down; 1 more, if the last kept bit
     * is 1, rounds these ties up, to even. */
    const GenericBits nearest = (bits + ((bits >> 16 & 1u) + 0x7FFFu)) >> 16;
    const GenericBits is_nan = (GenericBits)(x != x);
    const GenericBits rounded = (nearest & ~is_nan) | (is_nan & (uint32_t)BF16_NAN);
    const GenericHalves halves = __builtin_convertvector(rounded, GenericHalves);
    memcpy(to, &halves, sizeof halves);
}

/* Sums of the lanes of eight vectors. */
static inline vec8 sum_each_of_8(const vec8 x[8])
{
    vec8 sums;
    for (int k = 0; k < 8; k++) {
        float lanes[8];
        memcpy(lanes, x + k, sizeof lanes);
        sums[k] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                  ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
    return sums;
}

/* Transpose 8 x 8 floats, possibly in place. Rows begin `stride` floats apart in `from`
 * and `to_stride` floats apart in `to`. They are stored one after another: if
 * `to_stride` is below 8, each row overwrites the end of the one before it. */
static inline void transpose_8x8(const float *from, int64_t stride, float *to,
                                 int64_t to_stride)
{
    float block[8][8];
    for (int row = 0; row < 8; row++)
        memcpy(block[row], from + row * stride, sizeof block[row]);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++)
            to[row * to_stride + column] = block[column][row];
}

#ifndef TD_GENERIC_PARTS

static inline vec vec_fma(vec one, vec other, vec sum) { return one * other + sum; }

static inline vec vec_round(vec x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = rintf(x[i]);
    return x;
}

static inline vec vec_floor(vec x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = floorf(x[i]);
    return x;
}

/* The number n of a row is stored as the byte n, or for signed bytes as the signed byte
 * n - INT8_OFFSET. With SUMS_IN_16_BITS, weights must be so small that sums of four
 * products fit in 16 bits. Loops over groups are unrolled UNROLLED times. */
enum { INT8_GROUP = 4, INT8_OFFSET = 0, SUMS_IN_16_BITS = 0, UNROLLED = 2 };

static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t lanes[LANES];
    memcpy(lanes, &sums, sizeof lanes);
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < INT8_GROUP; k++)
            lanes[i] += (int8_t)weights[INT8_GROUP * i + k] * group[k];
    memcpy(&sums, lanes, sizeof lanes);
    return sums;
}

/* NaN becomes 0. */
static inline void vec_store_int8(uint8_t *to, int64_t stride, vec x)
{
    x = vec_min(vec_max(vec_round(x), vec_set1(0.0f)), vec_set1(255.0f));
    for (int i = 0; i < LANES; i++)
        to[i / INT8_GROUP * stride + i % INT8_GROUP] = (uint8_t)x[i];
}

#endif

#endif
