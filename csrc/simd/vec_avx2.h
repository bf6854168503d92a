/* Vectors of eight floats in AVX2; products of bytes by AVX-VNNI if the compiler may
 * use it. vec_generic.h documents the functions. */
#ifndef TRANSDUCE_SIMD_VEC_AVX2_H
#define TRANSDUCE_SIMD_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "simd/vec8_x86.h"
#include "sizes.h"

#define LANES 8

typedef __m256 vec;
typedef __m256i vec_mask; /* all bits of a lane, or none */

static inline vec_mask vec_mask_first(int64_t left)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int first = left <= 0 ? 0 : left >= LANES ? LANES : (int)left;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes);
}

static inline vec vec_set1(float number) { return _mm256_set1_ps(number); }

static inline vec vec_select(vec_mask mask, vec one, vec other)
{
    return _mm256_blendv_ps(other, one, _mm256_castsi256_ps(mask));
}

static inline vec_mask vec_gt_zero(vec x)
{
    return _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}

static inline vec vec_load(const float *from) { return _mm256_loadu_ps(from); }

static inline vec vec_load_masked(vec_mask mask, const float *from)
{
    return _mm256_maskload_ps(from, mask);
}

static inline void vec_store_first(float *to, int64_t left, vec x)
{
    /* Masked stores are slow on some processors. */
    if (left >= LANES)
        _mm256_storeu_ps(to, x);
    else
        _mm256_maskstore_ps(to, vec_mask_first(left), x);
}

static inline vec vec_fma(vec one, vec other, vec sum)
{
    return _mm256_fmadd_ps(one, other, sum);
}

static inline vec vec_max(vec one, vec other) { return _mm256_max_ps(one, other); }

static inline vec vec_min(vec one, vec other) { return _mm256_min_ps(one, other); }

static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_fraction(vec x)
{
    x = vec_max(_mm256_set1_ps(-200.0f), x);
    return x - _mm256_floor_ps(x);
}

/* n must be below 128. */
static inline vec vec_scale_pow2(vec x, vec n)
{
    n = _mm256_floor_ps(n);
    const __m256i exponent =
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    const __m256 is_large = _mm256_cmp_ps(n, _mm256_set1_ps(-127.0f), _CMP_NLE_UQ);
    return _mm256_and_ps(_mm256_mul_ps(x, power), is_large);
}

static inline uint32_t vec_gt_bits(vec one, vec other)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(one, other, _CMP_GT_OQ));
}

static inline vec8 vec_add_halves(vec x) { return x; }

static inline vec vec_from_halves(vec8 first, vec8 last)
{
    (void)last;
    return first;
}

static inline uint32_t vec_sign_bits(vec x) { return (uint32_t)_mm256_movemask_ps(x); }

static inline float vec_reduce_max(vec x)
{
    const __m128 four =
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline float vec_reduce_min(vec x)
{
    return -vec_reduce_max(_mm256_sub_ps(_mm256_setzero_ps(), x));
}

static inline float vec_reduce_add(vec x)
{
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#ifdef __AVXVNNI__

enum { INT8_GROUP = 4, INT8_OFFSET = 0, SUMS_IN_16_BITS = 0, UNROLLED = 2 };

static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, group, sizeof numbers);
    /* GCC copies the sums of the intrinsic, which are integers, twice in a loop. */
    __asm__("%{vex%} vpdpbusd %2, %1, %0"
            : "+x"(sums)
            : "x"(_mm256_set1_epi32(numbers)),
              "x"(_mm256_loadu_si256((const __m256i *)weights)));
    return sums;
}

#else

/* One instruction adds two products in 16 bits, and two such sums are added before they
 * are widened to 32 bits: weights must be small enough that this never overflows. */
enum { INT8_GROUP = 8, INT8_OFFSET = 0, SUMS_IN_16_BITS = 1, UNROLLED = 2 };

/* Products of each lane's four weights and four numbers, added in pairs. */
static inline __m256i int8_products(const uint8_t *four, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, four, sizeof numbers);
    return _mm256_maddubs_epi16(_mm256_set1_epi32(numbers),
                                _mm256_loadu_si256((const __m256i *)weights));
}

static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    const __m256i products = _mm256_add_epi16(
        int8_products(group, weights), int8_products(group + 4, weights + LANES * 4));
    const __m256i wide = _mm256_madd_epi16(_mm256_set1_epi16(1), products);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sums), wide));
}

#endif

static inline void vec_store_int8(uint8_t *to, int64_t stride, vec x)
{
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole),
                                           _mm256_extracti128_si256(whole, 1));
    uint8_t groups[LANES];
    _mm_storel_epi64((__m128i *)groups, _mm_packus_epi16(words, words));
    for (int i = 0; i < LANES / INT8_GROUP; i++)
        memcpy(to + i * stride, groups + i * INT8_GROUP, INT8_GROUP);
}

static inline vec vec_from_i32(vec sums)
{
    return _mm256_cvtepi32_ps(_mm256_castps_si256(sums));
}

static inline vec vec_from_bf16(const uint16_t *from)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline void vec_store_bf16(uint16_t *to, vec x)
{
    const __m256i bits = _mm256_castps_si256(x);
    /* Adding 0x7FFF rounds to the nearest, and ties down; 1 more, if the last kept bit
     * is 1, rounds these ties up, to even. */
    const __m256i last =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF));
    __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    nearest = _mm256_blendv_epi8(nearest, _mm256_set1_epi32(BF16_NAN), is_nan);
    const __m256i halves = _mm256_packus_epi32(nearest, nearest);
    _mm_storeu_si128((__m128i *)to,
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}

#endif
