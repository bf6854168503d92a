/* Products of matrices in bf16 by the dot products of AVX-512 BF16. */
#include "gemm/bf16_product.h"

#include "gemm/bf16_block.h"
#include "simd/vec.h"
#include "sizes.h"

#ifdef HAS_AVX512_BF16

/* An instruction adds two products to each of 16 sums: it multiplies one pair of
 * elements of a row of x by a pair of each of 16 columns. Sums of up to REGION_ROWS
 * rows by PACKED_COLUMNS columns stay in registers: 24 of 32. */
enum { REGION_ROWS = 12 };

#define AVX512_BLOCK_ELEMENTS (1 << 18) /* of a block: half of the cache of a core */

#define HALF (PACKED_COLUMNS / 2) /* columns of a register of sums */

typedef struct {
    vec first, second; /* PACKED_COLUMNS columns of a row */
} RowOfSums;

/* Where sums begin: the numbers in fp32, the bias, or zero. */
static inline __attribute__((always_inline)) RowOfSums first_sums(const Bf16Epilogue *e,
                                                                  int64_t row,
                                                                  int64_t column)
{
    const float *from = e->bias ? e->bias + column : NULL;
    if (e->accumulates)
        from = e->fp32 + row * e->columns + column;
    if (!from)
        return (RowOfSums){vec_set1(0.0f), vec_set1(0.0f)};
    return (RowOfSums){vec_load(from), vec_load(from + HALF)};
}

static inline __attribute__((always_inline)) USES_AVX512_BF16 void
end_row(const Bf16Epilogue *e, int64_t row, int64_t column, RowOfSums sums)
{
    if (e->bf16.data) {
        round_sums(e, row, column, sums.first, sums.second);
        return;
    }
    float *to = e->fp32 + row * e->columns + column;
    vec_store(to, sums.first);
    vec_store(to + HALF, sums.second);
}

/* A pair of elements, in all lanes of a register. */
static inline __attribute__((always_inline)) USES_AVX512_BF16 __m512bh
repeat_pair(const td_bf16 *pair)
{
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* Cache lines `first` to `end` - 1 of the next region's rows in each panel. They are
 * prefetched while a region is computed, as panels are too far apart for the
 * processor's own prefetchers. Each row of a panel is a cache line. */
typedef struct {
    int64_t first, end;
} RowPrefetch;

static RowPrefetch prefetch_at(Block b, int64_t column)
{
    const int64_t panels = b.width / PACKED_COLUMNS;
    const int64_t panel = (column - b.column) / PACKED_COLUMNS;
    return (RowPrefetch){REGION_ROWS * panel / panels,
                         REGION_ROWS * (panel + 1) / panels};
}

/* Multiply `count` rows, a constant, by a panel of a block. */
static inline __attribute__((always_inline)) USES_AVX512_BF16 void
multiply_region(int count, td_panels x, int64_t row, Bf16Matrix matrix, Block b,
                int64_t column, const Bf16Epilogue *e)
{
    const td_bf16 *from = panel_element(x, row, b.row);
    const td_bf16 *packed =
        matrix.packed + column * matrix.inner + b.row * PACKED_COLUMNS;
    const RowPrefetch ahead = prefetch_at(b, column);
    RowOfSums sums[REGION_ROWS];
#pragma GCC unroll REGION_ROWS
    for (int r = 0; r < count; r++)
        sums[r] = first_sums(e, row + r, column);
    for (int64_t panel = 0; panel < b.depth; panel += PANEL_WIDTH) {
        for (int64_t line = ahead.first; line < ahead.end; line++)
            __builtin_prefetch((const void *)((uintptr_t)from +
                                              (uintptr_t)(count + line) * CACHE_LINE),
                               0, 2);
        for (int64_t i = 0; i < PANEL_WIDTH; i += 2) {
            const __m512bh first = (__m512bh)_mm512_loadu_si512(packed);
            const __m512bh second = (__m512bh)_mm512_loadu_si512(packed + 2 * HALF);
#pragma GCC unroll REGION_ROWS
            for (int r = 0; r < count; r++) {
                const __m512bh pair = repeat_pair(from + r * PANEL_WIDTH + i);
                sums[r].first = _mm512_dpbf16_ps(sums[r].first, pair, first);
                sums[r].second = _mm512_dpbf16_ps(sums[r].second, pair, second);
            }
            packed += 2 * PACKED_COLUMNS;
        }
        from += x.rows * PANEL_WIDTH;
    }
#pragma GCC unroll REGION_ROWS
    for (int r = 0; r < count; r++)
        end_row(e, row + r, column, sums[r]);
}

/* Number of rows of the next region when `left` rows are left. The last two regions
 * share their rows evenly: a region of few rows has too few independent sums to hide
 * the latency of the instruction. */
static int64_t region_rows(int64_t left)
{
    const int is_last_pair = left > REGION_ROWS && left < 2 * REGION_ROWS;
    return is_last_pair ? ceil_div(left, 2) : min_i64(left, REGION_ROWS);
}

static USES_AVX512_BF16 void multiply_avx512_block(td_panels x, RowSpan rows,
                                                   Bf16Matrix matrix, Block b,
                                                   const Bf16Epilogue *e)
{
    int64_t count;
    for (int64_t row = rows.first; row < rows.end; row += count) {
        count = region_rows(rows.end - row);
        for (int64_t column = b.column; column < b.column + b.width;
             column += PACKED_COLUMNS)
            switch (count) {
#define REGION_OF(rows)                                                                \
    case rows:                                                                         \
        multiply_region(rows, x, row, matrix, b, column, e);                           \
        break;
                REGION_OF(1)
                REGION_OF(2)
                REGION_OF(3)
                REGION_OF(4)
                REGION_OF(5)
                REGION_OF(6)
                REGION_OF(7)
                REGION_OF(8)
                REGION_OF(9)
                REGION_OF(10)
                REGION_OF(11)
                REGION_OF(REGION_ROWS)
#undef REGION_OF
            }
    }
}

TD_INTERNAL void multiply_by_avx512(td_panels x, RowSpan rows, Bf16Matrix matrix,
                                    Bf16Epilogue epilogue)
{
    multiply_bf16_blocks(multiply_avx512_block, AVX512_BLOCK_ELEMENTS, x, rows, matrix,
                         epilogue);
}

TD_INTERNAL int can_use_avx512_bf16(void) { return 1; }

#else

TD_INTERNAL void multiply_by_avx512(td_panels x, RowSpan rows, Bf16Matrix matrix,
                                    Bf16Epilogue epilogue)
{
    (void)x, (void)rows, (void)matrix, (void)epilogue;
}

TD_INTERNAL int can_use_avx512_bf16(void) { return 0; }

#endif
