/* What a processor with AVX-512 VNNI does to sixteen numbers at once. */
#ifndef TRANSDUCE_AVX512_H
#define TRANSDUCE_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

typedef __m512 vec;
typedef __mmask16 vec_mask; /* some of the lanes */

/* Those lanes that hold one of `left` numbers, of which there may be none. */
static inline vec_mask vec_first(int64_t left)
{
    if (left <= 0)
        return 0;
    return left >= LANES ? (vec_mask)0xFFFF : (vec_mask)((1u << left) - 1u);
}

static inline vec vec_set1(float number) { return _mm512_set1_ps(number); }

/* One where the mask says so, elsewhere the other. */
static inline vec vec_select(vec_mask mask, vec one, vec other)
{
    return _mm512_mask_blend_ps(mask, other, one);
}

/* Where a number is above zero. */
static inline vec_mask vec_gt_zero(vec x)
{
    return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
}

static inline vec vec_load(const float *from) { return _mm512_loadu_ps(from); }

/* Numbers that are there; the others are not read, and zero. */
static inline vec vec_load_masked(vec_mask there, const float *from)
{
    return _mm512_maskz_loadu_ps(there, from);
}

/* The first `left` lanes; the others are not written. */
static inline void vec_store_first(float *to, int64_t left, vec x)
{
    _mm512_mask_storeu_ps(to, vec_first(left), x);
}

/* one * other + sum */
static inline vec vec_fma(vec one, vec other, vec sum)
{
    return _mm512_fmadd_ps(one, other, sum);
}

/* The second, if one is NaN. */
static inline vec vec_max(vec one, vec other) { return _mm512_max_ps(one, other); }

static inline vec vec_min(vec one, vec other) { return _mm512_min_ps(one, other); }

static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* What a number is above the next lower whole one; of minus infinity, zero. */
static inline vec vec_fraction(vec x)
{
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

/* x times 2 to the power of n, rounded down; infinity or zero beyond what there is. */
static inline vec vec_scale_pow2(vec x, vec n) { return _mm512_scalef_ps(x, n); }

/* A bit for each lane. */
static inline uint32_t vec_gt_bits(vec one, vec other)
{
    return _mm512_cmp_ps_mask(one, other, _CMP_GT_OQ);
}

/* The sign of each lane as a bit. */
static inline uint32_t vec_sign_bits(vec x)
{
    return _mm512_movepi32_mask(_mm512_castps_si512(x));
}

static inline float vec_reduce_max(vec x) { return _mm512_reduce_max_ps(x); }
static inline float vec_reduce_min(vec x) { return _mm512_reduce_min_ps(x); }
static inline float vec_reduce_add(vec x) { return _mm512_reduce_add_ps(x); }

/* Eight sums that have the same sum. */
static inline __m256 vec_add_halves(vec x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

/* Twice eight numbers. */
static inline vec vec_from_halves(__m256 first, __m256 last)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), last, 1);
}

/* Of a row, four numbers from 0 to 255 are read at once, as one instruction sums up
   four products in 32 bits. */
enum { INT8_GROUP = 4, SUMS_IN_16_BITS = 0, UNROLLED = 1 };

/* Put numbers down in groups, so far apart. */
static inline void vec_store_int8(uint8_t *to, int64_t apart, vec x)
{
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x));
    if (apart == INT8_GROUP) {
        _mm_storeu_si128((__m128i *)to, bytes);
        return;
    }
    uint8_t groups[LANES];
    _mm_storeu_si128((__m128i *)groups, bytes);
    for (int i = 0; i < LANES / INT8_GROUP; i++)
        memcpy(to + i * apart, groups + i * INT8_GROUP, INT8_GROUP);
}

/* Put those of four registers down one after another. */
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

/* What sums in 32 bits are as numbers. */
static inline vec vec_from_i32(vec sums)
{
    return _mm512_cvtepi32_ps(_mm512_castps_si512(sums));
}

/* To each sum, the products of its output's weights with a group of a row. */
static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, group, sizeof numbers);
    return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sums),
                                                   _mm512_set1_epi32(numbers),
                                                   _mm512_loadu_si512(weights)));
}

#endif
