/* Vectors of floats with the same functions on all processors; vec_generic.h documents
 * them.
 *
 * The compiler's flags choose the implementation; TD_FORCE_GENERIC overrides them with
 * the generic one. */
#ifndef TRANSDUCE_SIMD_VEC_H
#define TRANSDUCE_SIMD_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sizes.h"

#if defined(TD_FORCE_GENERIC)
#include "simd/vec_generic.h"
#elif defined(__AVX512F__) && defined(__AVX512VNNI__)
#include "simd/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd/vec_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include "simd/vec_neon.h"
#else
#include "simd/vec_generic.h"
#endif

/* Integers in the lanes of a vec; casts between the three types keep all bits. */
typedef uint32_t vec_u32 __attribute__((vector_size(sizeof(vec))));
typedef int32_t vec_i32 __attribute__((vector_size(sizeof(vec))));

#define TRANSPOSE_SIDE 8 /* rows and columns that transpose_8x8 transposes */

/* Store all lanes. */
static inline void vec_store(float *to, vec x) { vec_store_first(to, LANES, x); }

static inline int64_t round_up_to_lanes(int64_t count)
{
    return round_up(count, LANES);
}

#if LANES == 8
/* Round four vectors of numbers from 0 to 255 to bytes and store these one after
 * another. */
static inline void vec_store_int8_x4(uint8_t *to, const vec x[4])
{
    for (int i = 0; i < 4; i++)
        vec_store_int8(to + i * LANES, INT8_GROUP, x[i]);
}
#endif

/* Write a statement for each row of a tile, so that sums are separate variables: GCC 12
 * would keep an array in memory. */
#define EACH_ROW(DO)                                                                   \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

#define LOG2_E 1.44269504088896341f /* log2(e) = 1 / ln 2 */

/* e^x with an error of about one unit in the last place; 0 below about -87; NaN for
 * NaN. With eight lanes, x must be below 88.7; with sixteen, larger x give infinity. */
static inline vec vec_exp(vec x)
{
    /* vec_max returns its second argument if that is NaN. */
    x = vec_max(vec_set1(-200.0f), x);
    vec n = vec_round(x * vec_set1(LOG2_E));
    /* r = x - n ln 2, with ln 2 in two parts so that the remainder is exact. */
    vec r = vec_fma(n, vec_set1(-0.693359375f), x);
    r = vec_fma(n, vec_set1(2.12194440e-4f), r);
    /* |r| is at most ln 2 / 2, and the polynomial's relative error is below 4e-9. Its
     * two halves are independent, so that they are computed at the same time. */
    const vec square = r * r;
    vec low = vec_fma(r, vec_set1(0.1666652113f), vec_set1(0.4999999404f));
    vec high = vec_fma(r, vec_set1(0.0083687454f), vec_set1(0.0416683927f));
    high = vec_fma(square, vec_set1(0.0013814536f), high);
    low = vec_fma(square, high, low);
    const vec sum = vec_fma(square, low, r) + vec_set1(1.0f);
    return vec_scale_pow2(sum, n);
}

/* 1 / (1 + e^-x), at least e^-80: no smaller one is needed, and denormals would be
 * slow. NaN for NaN. */
static inline vec vec_sigmoid(vec x)
{
    const vec one = vec_set1(1.0f);
    return one / (one + vec_exp(vec_min(vec_set1(80.0f), vec_set1(0.0f) - x)));
}

/* 2^x with an error of about one unit in the last place; NaN for NaN. With eight lanes,
 * x must be below 128. */
static inline vec vec_exp2(vec x)
{
    /* The polynomial is 2^part with a relative error below 1e-7, and 1 if part is 0. */
    const vec part = vec_fraction(x);
    vec sum = vec_fma(part, vec_set1(0.0018671317f), vec_set1(0.0090170270f));
    sum = vec_fma(part, sum, vec_set1(0.0557999164f));
    sum = vec_fma(part, sum, vec_set1(0.2401644439f));
    sum = vec_fma(part, sum, vec_set1(0.6931512952f));
    sum = vec_fma(part, sum, vec_set1(1.0f));
    return vec_scale_pow2(sum, x);
}

#endif
