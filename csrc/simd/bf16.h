/* Numbers in bf16: the upper halves of floats. */
#ifndef TRANSDUCE_BF16_H
#define TRANSDUCE_BF16_H

#include "simd/vec.h"

#define PANEL_WIDTH 32 /* columns of a panel */

typedef uint16_t Bf16;

/* Rows whose columns are cut into panels; these stand one after another, so that a
   tile of any, which is what a matrix unit reads, lies in one piece. */
typedef struct {
    Bf16 *at; /* or nowhere */
    int64_t rows;
} Panels;

static inline Bf16 *in_panels(Panels panels, int64_t row, int64_t column)
{
    return panels.at + (column / PANEL_WIDTH * panels.rows + row) * PANEL_WIDTH +
           column % PANEL_WIDTH;
}

#if LANES == 16

static inline vec vec_from_bf16(const Bf16 *from)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* To the nearest number in bf16, of two as near the even one; NaN stays NaN. */
static inline void vec_store_bf16(Bf16 *to, vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    __m512i nearest = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const vec_mask is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    nearest = _mm512_mask_mov_epi32(nearest, is_nan, _mm512_set1_epi32(0x7FC0));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(nearest));
}

#else

static inline vec vec_from_bf16(const Bf16 *from)
{
    const __m128i halves = _mm_loadu_si128((const __m128i *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline void vec_store_bf16(Bf16 *to, vec x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    nearest = _mm256_blendv_epi8(nearest, _mm256_set1_epi32(0x7FC0), is_nan);
    const __m256i halves = _mm256_packus_epi32(nearest, nearest);
    _mm_storeu_si128((__m128i *)to,
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}

#endif

static inline void widen(int64_t count, const Bf16 *from, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

static inline void narrow(int64_t count, const float *from, Bf16 *to)
{
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        vec_store_bf16(to + i, vec_load(from + i));
    if (whole < count) {
        Bf16 rest[LANES];
        vec_store_bf16(rest, vec_load_masked(vec_first(count - whole), from + whole));
        memcpy(to + whole, rest, (size_t)(count - whole) * sizeof *rest);
    }
}

/* From a column on; all are in whole lanes. */
static inline void narrow_into(Panels to, int64_t row, int64_t column, int64_t count,
                               const float *from)
{
    for (int64_t i = 0; i < count; i += LANES)
        vec_store_bf16(in_panels(to, row, column + i), vec_load(from + i));
}

#endif
