/* What a processor with AVX2 does to eight numbers at once; products of bytes by
   AVX-VNNI, if it has that too. */
#ifndef TRANSDUCE_AVX2_H
#define TRANSDUCE_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 8

typedef __m256 vec;
typedef __m256i vec_mask; /* some of the lanes */

/* Those lanes that hold one of `left` numbers, of which there may be none. */
static inline vec_mask vec_first(int64_t left)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int first = left <= 0 ? 0 : left >= LANES ? LANES : (int)left;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes);
}

static inline vec vec_set1(float number) { return _mm256_set1_ps(number); }

/* One where the mask says so, elsewhere the other. */
static inline vec vec_select(vec_mask mask, vec one, vec other)
{
    return _mm256_blendv_ps(other, one, _mm256_castsi256_ps(mask));
}

/* Where a number is above zero. */
static inline vec_mask vec_gt_zero(vec x)
{
    return _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}

static inline vec vec_load(const float *from) { return _mm256_loadu_ps(from); }

/* Numbers that are there; the others are not read, and zero. */
static inline vec vec_load_masked(vec_mask there, const float *from)
{
    return _mm256_maskload_ps(from, there);
}

/* The first `left` lanes; the others are not written. */
static inline void vec_store_first(float *to, int64_t left, vec x)
{
    /* By a mask it is slow on some processors. */
    if (left >= LANES)
        _mm256_storeu_ps(to, x);
    else
        _mm256_maskstore_ps(to, vec_first(left), x);
}

/* one * other + sum */
static inline vec vec_fma(vec one, vec other, vec sum)
{
    return _mm256_fmadd_ps(one, other, sum);
}

/* The second, if one is NaN. */
static inline vec vec_max(vec one, vec other) { return _mm256_max_ps(one, other); }

static inline vec vec_min(vec one, vec other) { return _mm256_min_ps(one, other); }

static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* What a number is above the next lower whole one; of minus infinity, zero. */
static inline vec vec_fraction(vec x)
{
    x = vec_max(_mm256_set1_ps(-200.0f), x);
    return x - _mm256_floor_ps(x);
}

/* x times 2 to the power of n, rounded down, which is below 128; zero, if that is too
   small. */
static inline vec vec_scale_pow2(vec x, vec n)
{
    n = _mm256_floor_ps(n);
    const __m256i exponent =
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    const __m256 is_large = _mm256_cmp_ps(n, _mm256_set1_ps(-127.0f), _CMP_NLE_UQ);
    return _mm256_and_ps(_mm256_mul_ps(x, power), is_large);
}

/* A bit for each lane. */
static inline uint32_t vec_gt_bits(vec one, vec other)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(one, other, _CMP_GT_OQ));
}

/* Eight sums that have the same sum. */
static inline __m256 vec_add_halves(vec x) { return x; }

/* As many as there are lanes of twice eight numbers. */
static inline vec vec_from_halves(__m256 first, __m256 last)
{
    (void)last;
    return first;
}

/* The sign of each lane as a bit. */
static inline uint32_t vec_sign_bits(vec x) { return (uint32_t)_mm256_movemask_ps(x); }

static inline float vec_reduce_max(vec x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline float vec_reduce_min(vec x)
{
    return -vec_reduce_max(_mm256_sub_ps(_mm256_setzero_ps(), x));
}

static inline float vec_reduce_add(vec x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#ifdef __AVXVNNI__

/* Of a row, four numbers from 0 to 255 are read at once, as one instruction sums up
   four products in 32 bits. */
enum { INT8_GROUP = 4, SUMS_IN_16_BITS = 0, UNROLLED = 2 };

/* To each sum, the products of its output's weights with a group of a row. */
static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, group, sizeof numbers);
    return _mm256_castsi256_ps(
        _mm256_dpbusd_avx_epi32(_mm256_castps_si256(sums), _mm256_set1_epi32(numbers),
                                _mm256_loadu_si256((const __m256i *)weights)));
}

#else

/* Of a row, eight numbers from 0 to 255 are read at once. One instruction sums up two
   products in 16 bits, and four are summed up so before they are widened: weights must
   be so small that this never overflows. */
enum { INT8_GROUP = 8, SUMS_IN_16_BITS = 1, UNROLLED = 2 };

/* The products of each output's four weights with four numbers, two by two. */
static inline __m256i int8_products(const uint8_t *four, const uint8_t *weights)
{
    int32_t numbers;
    memcpy(&numbers, four, sizeof numbers);
    return _mm256_maddubs_epi16(_mm256_set1_epi32(numbers),
                                _mm256_loadu_si256((const __m256i *)weights));
}

/* To each sum, the products of its output's weights with a group of a row. */
static inline vec vec_dot_int8(vec sums, const uint8_t *group, const uint8_t *weights)
{
    const __m256i products = _mm256_add_epi16(
        int8_products(group, weights), int8_products(group + 4, weights + LANES * 4));
    const __m256i wide = _mm256_madd_epi16(_mm256_set1_epi16(1), products);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sums), wide));
}

#endif

/* Put numbers down in groups, so far apart. */
static inline void vec_store_int8(uint8_t *to, int64_t apart, vec x)
{
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole),
                                           _mm256_extracti128_si256(whole, 1));
    uint8_t groups[LANES];
    _mm_storel_epi64((__m128i *)groups, _mm_packus_epi16(words, words));
    for (int i = 0; i < LANES / INT8_GROUP; i++)
        memcpy(to + i * apart, groups + i * INT8_GROUP, INT8_GROUP);
}

/* Put those of four registers down one after another. */
static inline void vec_store_int8_x4(uint8_t *to, const vec x[4])
{
    for (int i = 0; i < 4; i++)
        vec_store_int8(to + i * LANES, INT8_GROUP, x[i]);
}

/* What sums in 32 bits are as numbers. */
static inline vec vec_from_i32(vec sums)
{
    return _mm256_cvtepi32_ps(_mm256_castps_si256(sums));
}

#endif
