/* What the kernels do to sixteen numbers at once (AVX-512). */
#ifndef TRANSDUCE_LANES_H
#define TRANSDUCE_LANES_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16

/* Those lanes that hold one of `left` numbers. */
static inline __mmask16 lanes_left(int64_t left)
{
    return left >= LANES ? (__mmask16)0xFFFF : (__mmask16)((1u << left) - 1u);
}

/* The exponential, to about two units in the last place; NaN stays NaN. */
static inline __m512 lanes_exp(__m512 x)
{
    const __m512 per_log2 = _mm512_set1_ps(1.44269504088896341f);
    /* Further down it is zero; and in this order, NaN stays NaN. */
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, per_log2),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* ln 2 in two parts, so that the rest is exact. */
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    /* Taylor's series around zero: |r| is at most ln 2 / 2. */
    __m512 sum = _mm512_set1_ps(1.0f / 5040.0f);
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 720.0f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 120.0f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 24.0f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 6.0f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, n);
}

#endif
