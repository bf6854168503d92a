/* Vectors of eight floats in AVX, for both numbers of LANES. */
#ifndef TRANSDUCE_SIMD_VEC8_X86_H
#define TRANSDUCE_SIMD_VEC8_X86_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256 vec8;

#define LOWER_HALVES 0x20 /* of both operands of permute2f128 */
#define UPPER_HALVES 0x31

/* Horizontal additions of neighbours: of 2, then 4 lanes of each vector, then of its
 * halves. */
static inline vec8 sum_each_of_8(const vec8 x[8])
{
    const vec8 first =
        _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const vec8 last =
        _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(first, last, LOWER_HALVES),
                         _mm256_permute2f128_ps(first, last, UPPER_HALVES));
}

/* Three stages interleave elements, pairs and halves. With letters for rows and digits
 * for columns, the first registers have:
 *
 *   pairs[0]: a0 b0 a1 b1 | a4 b4 a5 b5     fours[0]: a0 b0 c0 d0 | a4 b4 c4 d4
 *   pairs[1]: a2 b2 a3 b3 | a6 b6 a7 b7     fours[4]: e0 f0 g0 h0 | e4 f4 g4 h4
 *
 * and rows 0 and 4 of the result are the lower and the upper halves of fours[0] and
 * fours[4]. */
static inline void transpose_8x8(const float *from, int64_t stride, float *to,
                                 int64_t to_stride)
{
    vec8 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        const vec8 one = _mm256_loadu_ps(from + i * stride);
        const vec8 other = _mm256_loadu_ps(from + (i + 1) * stride);
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
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(to + i * to_stride,
                         _mm256_permute2f128_ps(fours[i], fours[i + 4], LOWER_HALVES));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(to + (i + 4) * to_stride,
                         _mm256_permute2f128_ps(fours[i], fours[i + 4], UPPER_HALVES));
}

#endif
