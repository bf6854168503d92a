/* Blocks of products in bf16, and the rounding of their results, by AVX-512. */
#ifndef TRANSDUCE_GEMM_BF16_BLOCK_H
#define TRANSDUCE_GEMM_BF16_BLOCK_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gemm/bf16_product.h"
#include "simd/vec.h"
#include "sizes.h"

/* Byte of `kept` with the bit of an element. */
static inline const uint8_t *kept_bits(const Bf16Epilogue *e, int64_t row,
                                       int64_t column)
{
    return e->dropout->kept + (row * e->columns + column) / CHAR_BIT;
}

#if LANES == 16 && defined(__has_include)
#if __has_include(<avx512bf16intrin.h>)
#define HAS_AVX512_BF16
#endif
#endif

#ifdef HAS_AVX512_BF16

/* td_get_bf16_unit() has checked avx512bf16, for AMX too. */
#define USES_AVX512_BF16 __attribute__((target("avx512bf16")))

/* Rows of up to MAX_DEPTH elements are summed in one pass over the matrix. Longer ones
 * are summed DEPTH elements at a time if sums are stored in fp32. */
#define MAX_DEPTH 4096
#define DEPTH 1024

/* Block of a matrix: `width` columns from `column` on of `depth` rows from `row` on. It
 * stays in the cache of a core while all rows are multiplied by it. */
typedef struct {
    int64_t column, width, row, depth;
} Block;

/* Multiply some rows of x by a block. */
typedef void (*MultiplyBlock)(td_panels x, RowSpan rows, Bf16Matrix matrix, Block block,
                              const Bf16Epilogue *epilogue);

/* Columns of a block of up to `elements` elements, divided evenly among the blocks. */
static inline int64_t block_width(int64_t elements, int64_t depth, int64_t columns)
{
    const int64_t panels = columns / PACKED_COLUMNS;
    const int64_t max = elements / PACKED_COLUMNS / max_i64(depth, 1);
    const int64_t blocks = max > 0 ? ceil_div(panels, max) : panels;
    return blocks > 0 ? ceil_div(panels, blocks) * PACKED_COLUMNS : PACKED_COLUMNS;
}

/* Multiply block by block; a block has up to `elements` elements. */
static inline void multiply_bf16_blocks(MultiplyBlock multiply_block, int64_t elements,
                                        td_panels x, RowSpan rows, Bf16Matrix matrix,
                                        Bf16Epilogue e)
{
    const int64_t inner = matrix.inner, columns = matrix.columns;
    const int64_t depth = inner > MAX_DEPTH && !e.bf16.data ? DEPTH : inner;
    const int64_t width = block_width(elements, depth, columns);
    int64_t from = 0;
    do { /* once even if `inner` is 0, so that empty sums become zero */
        for (int64_t column = 0; column < columns; column += width)
            multiply_block(x, rows, matrix,
                           (Block){column, min_i64(columns - column, width), from,
                                   min_i64(inner - from, depth)},
                           &e);
        e.accumulates = 1;
        from += depth;
    } while (from < inner);
}

/* Apply the epilogue to sums of PACKED_COLUMNS columns of a row, and round them. */
static inline __attribute__((always_inline)) USES_AVX512_BF16 void
round_sums(const Bf16Epilogue *e, int64_t row, int64_t column, vec first, vec second)
{
    const vec min = vec_set1(e->relu ? 0.0f : -INFINITY);
    const vec scale = vec_set1(e->dropout ? e->dropout->scale : 1.0f);
    first = vec_max(min, first) * scale;
    second = vec_max(min, second) * scale;
    __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    if (e->relu_output.data) {
        const __m512i values =
            _mm512_loadu_si512(panel_element(e->relu_output, row, column));
        const __mmask32 is_positive =
            _mm512_cmpgt_epi16_mask(values, _mm512_setzero_si512());
        rounded = _mm512_maskz_mov_epi16(is_positive, rounded);
    }
    if (e->dropout && e->dropout->kept) {
        __mmask32 is_kept;
        memcpy(&is_kept, kept_bits(e, row, column), sizeof is_kept);
        rounded = _mm512_maskz_mov_epi16(is_kept, rounded);
    }
    _mm512_storeu_si512(panel_element(e->bf16, row, column), rounded);
}

#endif

#endif
