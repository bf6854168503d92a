/* Pairs of bf16 numbers, as matrix products in bf16 read them: element i of one row,
 * then element i of the next row, for each i. */
#ifndef TRANSDUCE_SIMD_BF16_PAIRS_H
#define TRANSDUCE_SIMD_BF16_PAIRS_H

#include <stdint.h>
#include <string.h>

#include "simd/bf16.h"
#include "simd/vec.h"

#define BF16_PAIRS 16 /* pairs of a Bf16Pairs */

#if LANES == 16

typedef __m512i Bf16Pairs;

static inline Bf16Pairs zero_bf16_pairs(void) { return _mm512_setzero_si512(); }

/* Pairs of the first BF16_PAIRS elements of two rows, which begin `stride` numbers
 * apart. Without a second row, its numbers are zero and nothing is read there. */
static inline Bf16Pairs interleave_bf16(const td_bf16 *from, int64_t stride,
                                        int has_second)
{
    const __m256i one = _mm256_loadu_si256((const __m256i *)from);
    __m256i other = _mm256_setzero_si256();
    if (has_second)
        other = _mm256_loadu_si256((const __m256i *)(from + stride));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(one),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(other), 16));
}

static inline Bf16Pairs load_bf16_pairs(const td_bf16 *from)
{
    return _mm512_loadu_si512(from);
}

static inline void store_bf16_pairs(td_bf16 *to, Bf16Pairs pairs)
{
    _mm512_storeu_si512(to, pairs);
}

#define EVEN_QUARTERS 0x88 /* quarters 0 and 2 of both operands of shuffle_i32x4 */
#define ODD_QUARTERS 0xDD  /* quarters 1 and 3 */

/* Transpose BF16_PAIRS rows of BF16_PAIRS pairs in place: four stages interleave pairs
 * of rows 1, 2, 4 and 8 apart. */
static inline void transpose_bf16_pairs(Bf16Pairs *rows)
{
    Bf16Pairs swapped[BF16_PAIRS];
    /* Within the quarters of a register: elements, then pairs of elements. */
    for (int r = 0; r < BF16_PAIRS; r += 2) {
        swapped[r] = _mm512_unpacklo_epi32(rows[r], rows[r + 1]);
        swapped[r + 1] = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
    }
    for (int r = 0; r < BF16_PAIRS; r += 4)
        for (int half = 0; half < 2; half++) {
            const Bf16Pairs one = swapped[r + half], other = swapped[r + half + 2];
            rows[r + 2 * half] = _mm512_unpacklo_epi64(one, other);
            rows[r + 2 * half + 1] = _mm512_unpackhi_epi64(one, other);
        }
    /* Rows 4i to 4i + 3 now hold, in each quarter of a register, one of its columns:
     * quarter q of row 4i + r has elements 4q + r of the old rows 4i to 4i + 3. Whole
     * quarters are interleaved from here on. */
    for (int r = 0; r < 4; r++)
        for (int half = 0; half < 2; half++) {
            const Bf16Pairs one = rows[8 * half + r], other = rows[8 * half + r + 4];
            swapped[4 * half + r] = _mm512_shuffle_i32x4(one, other, EVEN_QUARTERS);
            swapped[4 * half + r + 8] = _mm512_shuffle_i32x4(one, other, ODD_QUARTERS);
        }
    for (int r = 0; r < 4; r++) {
        const Bf16Pairs one = swapped[r], other = swapped[r + 4];
        const Bf16Pairs third = swapped[r + 8], fourth = swapped[r + 12];
        rows[r] = _mm512_shuffle_i32x4(one, other, EVEN_QUARTERS);
        rows[r + 8] = _mm512_shuffle_i32x4(one, other, ODD_QUARTERS);
        rows[r + 4] = _mm512_shuffle_i32x4(third, fourth, EVEN_QUARTERS);
        rows[r + 12] = _mm512_shuffle_i32x4(third, fourth, ODD_QUARTERS);
    }
}

#else

typedef struct {
    td_bf16 numbers[BF16_PAIRS][2];
} Bf16Pairs;

static inline Bf16Pairs zero_bf16_pairs(void)
{
    Bf16Pairs pairs;
    memset(&pairs, 0, sizeof pairs);
    return pairs;
}

static inline Bf16Pairs interleave_bf16(const td_bf16 *from, int64_t stride,
                                        int has_second)
{
    Bf16Pairs pairs = zero_bf16_pairs();
    for (int64_t i = 0; i < BF16_PAIRS; i++) {
        pairs.numbers[i][0] = from[i];
        if (has_second)
            pairs.numbers[i][1] = from[stride + i];
    }
    return pairs;
}

static inline Bf16Pairs load_bf16_pairs(const td_bf16 *from)
{
    Bf16Pairs pairs;
    memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

static inline void store_bf16_pairs(td_bf16 *to, Bf16Pairs pairs)
{
    memcpy(to, &pairs, sizeof pairs);
}

static inline void transpose_bf16_pairs(Bf16Pairs *rows)
{
    for (int r = 0; r < BF16_PAIRS; r++)
        for (int c = 0; c < r; c++) {
            td_bf16 one[2];
            memcpy(one, rows[r].numbers[c], sizeof one);
            memcpy(rows[r].numbers[c], rows[c].numbers[r], sizeof one);
            memcpy(rows[c].numbers[r], one, sizeof one);
        }
}

#endif

#endif
