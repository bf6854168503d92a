/* Vectors of sixteen floats in AVX-512; products of bytes by VNNI. vec_generic.h
 * documents the functions. */
#ifndef TRANSDUCE_SIMD_VEC_AVX512_H
#define TRANSDUCE_SIMD_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "simd/vec8_x86.h"
#include "sizes.h"

#define LANES 16

typedef __m512 vec;
typedef __mmask16 vec_mask;

static inline vec_mask vec_mask_first(int64_t left)
{
    if (left <= 0)
        return 0;
    return left >= LANES ? (vec_mask)0xFFFF : (vec_mask)((1u << left) - 1u);
}

static inline vec vec_set1(float number) { return _mm512_set1_ps(number); }

static inline vec vec_select(vec_mask mask, vec one, vec other)
{
    return _mm512_mask_blend_ps(mask, other, one);
}

static inline vec_mask vec_gt_zero(vec x)
{
    return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
}

static inline vec vec_load(const float *from) { return _mm512_loadu_ps(from); }

static inline vec vec_load_masked(vec_mask mask, const float *from)
{
    return _mm512_maskz_loadu_ps(mask, from);
}

static inline void vec_store_first(float *to, int64_t left, vec x)
{
    _mm512_mask_storeu_ps(to, vec_mask_first(left), x);
}

static inline vec vec_fma(vec one, vec other, vec sum)
{
    return _mm512_fmadd_ps(one, other, sum);
}

static inline vec vec_max(vec one, vec other) { return _mm512_max_ps(one, other); }

static inline vec vec_min(vec one, vec other) { return _mm512_min_ps(one, other); }

static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_fraction(vec x)
{
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

/* Larger n than vec_generic.h allows give infinity. */
static inline vec vec_scale_pow2(vec x, vec n) { return _mm512_scalef_ps(x, n); }

static inline uint32_t vec_gt_bits(vec one, vec other)
{
    return _mm512_cmp_ps_mask(one, other, _CMP_GT_OQ);
}

static inline uint32_t vec_sign_bits(vec x)
{
    return _mm512_movepi32_mask(_mm512_castps_si512(x));
}

static inline float vec_reduce_max(vec x) { return _mm512_reduce_max_ps(x); }
static inline float vec_reduce_min(vec x) { return _mm512_reduce_min_ps(x); }
static inline float vec_reduce_add(vec x) { return _mm512_reduce_add_ps(x); }

static inline vec8 vec_add_halves(vec x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

static inline vec vec_from_halves(vec8 first, vec8 last)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), last, 1);
}

enum { INT8_GROUP = 4, INT8_OFFSET = 0, SUMS_IN_16_BITS = 0, UNROLLED = 1 };

static inline void vec_store_int8(uint8_t *to, int64_t stride, vec x)
{
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x));
    if (stride == INT8_GROUP) {
        _mm_storeu_si128((__m128i *)to, bytes);
        return;
    }
    uint8_t groups[LANES];
    _mm_storeu_si128((__m128i *)groups, bytes);
    for (int i = 0; i < LANES / INT8_GROUP; i++)
        memcpy(to + i * stride, groups + i * INT8_GROUP, INT8_GROUP);
}

static inline void vec_store_int8_x4(uint8_t *to, const vec x[4])
{
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i one =
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
    const __m512i other =
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
    const __m512i bytes = _mm512_packus_epi16(one, other);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
}

static inline vec vec_from_i32(vec sums)
{
    return _mm512_cvtepi32_ps(_mm512_castps_si512(sums));
}

static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, group, sizeof numbers);
    /* GCC copies the sums of the intrinsic, which are integers, twice in a loop. */
    __asm__("vpdpbusd %2, %1, %0"
            : "+v"(sums)
            : "v"(_mm512_set1_epi32(numbers)), "v"(_mm512_loadu_si512(weights)));
    return sums;
}

static inline vec vec_from_bf16(const uint16_t *from)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline void vec_store_bf16(uint16_t *to, vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    /* Adding 0x7FFF rounds to the nearest, and ties down; 1 more, if the last kept bit
     * is 1, rounds these ties up, to even. */
    const __m512i last =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF));
    __m512i nearest = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const vec_mask is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    nearest = _mm512_mask_mov_epi32(nearest, is_nan, _mm512_set1_epi32(BF16_NAN));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(nearest));
}

#endif
