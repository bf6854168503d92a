/* What the kernels do to several numbers at once: as many as this processor can. */
#ifndef TRANSDUCE_LANES_H
#define TRANSDUCE_LANES_H

#ifdef __AVX512VNNI__
#include "simd/vec_avx512.h"
#else
#include "simd/vec_avx2.h"
#endif

/* So many numbers, and what fills up their last register. */
static inline int64_t round_up_to_lanes(int64_t numbers)
{
    return (numbers + LANES - 1) / LANES * LANES;
}

/* The sum of the numbers of each of eight. */
static inline __m256 sum_each_of_8(const __m256 x[8])
{
    const __m256 first =
        _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const __m256 last =
        _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(first, last, 0x20),
                         _mm256_permute2f128_ps(first, last, 0x31));
}

/* Eight rows of eight numbers become columns. */
static inline void transpose_8x8(const float *from, int64_t stride, float *to,
                                 int64_t to_stride)
{
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        const __m256 one = _mm256_loadu_ps(from + i * stride);
        const __m256 other = _mm256_loadu_ps(from + (i + 1) * stride);
        pairs[i] = _mm256_unpacklo_ps(one, other);
        pairs[i + 1] = _mm256_unpackhi_ps(one, other);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            const __m256d one = _mm256_castps_pd(pairs[i + k]);
            const __m256d other = _mm256_castps_pd(pairs[i + k + 2]);
            fours[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(one, other));
            fours[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(one, other));
        }
    for (int i = 0; i < 4; i++) {
        const __m256 low = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        const __m256 high = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
        _mm256_storeu_ps(to + i * to_stride, low);
        _mm256_storeu_ps(to + (i + 4) * to_stride, high);
    }
}

#define PER_LOG2 1.44269504088896341f /* 1 / ln 2 */

/* The exponential, to about one unit in the last place; NaN stays NaN. */
static inline vec vec_exp(vec x)
{
    /* Further down it is zero; and in this order, NaN stays NaN. */
    x = vec_max(vec_set1(-200.0f), x);
    vec n = vec_round(x * vec_set1(PER_LOG2));
    /* ln 2 in two parts, so that the rest is exact. */
    vec r = vec_fma(n, vec_set1(-0.693359375f), x);
    r = vec_fma(n, vec_set1(2.12194440e-4f), r);
    /* |r| is at most ln 2 / 2. The two halves of the polynomial need not wait for each
       other; but for rounding, it is off by less than 4e-9 of the result. */
    const vec square = r * r;
    vec low = vec_fma(r, vec_set1(0.1666652113f), vec_set1(0.4999999404f));
    vec high = vec_fma(r, vec_set1(0.0083687454f), vec_set1(0.0416683927f));
    high = vec_fma(square, vec_set1(0.0013814536f), high);
    low = vec_fma(square, high, low);
    const vec sum = vec_fma(square, low, r) + vec_set1(1.0f);
    return vec_scale_pow2(sum, n);
}

/* 2 to the power of x, which is below 128 where there are eight lanes, to about one
   unit in the last place; NaN stays NaN. */
static inline vec lanes_exp2(vec x)
{
    /* Exactly one where x is whole; elsewhere, but for rounding, the polynomial is off
       by less than 1e-7 of the result. */
    const vec part = vec_fraction(x);
    vec sum = vec_fma(part, vec_set1(0.0018671317f), vec_set1(0.0090170270f));
    sum = vec_fma(part, sum, vec_set1(0.0557999164f));
    sum = vec_fma(part, sum, vec_set1(0.2401644439f));
    sum = vec_fma(part, sum, vec_set1(0.6931512952f));
    sum = vec_fma(part, sum, vec_set1(1.0f));
    return vec_scale_pow2(sum, x);
}

#endif
