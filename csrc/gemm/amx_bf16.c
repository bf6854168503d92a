/* Products of matrices in bf16 by AMX. */
#include "gemm/bf16_product.h"

#include "gemm/amx.h"
#include "gemm/bf16_block.h"
#include "simd/prefetch.h"
#include "simd/vec.h"
#include "sizes.h"

#ifdef HAS_AVX512_BF16
/* The headers of GCC and of Clang. */
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_AMX_BF16
#endif
#endif

#ifdef HAS_AMX_BF16

/* A region of 2 x 2 tiles of sums is computed at a time: two tiles of rows by two tiles
 * of columns. RAM is slower than AMX, so a block of the matrix stays in the cache of a
 * core while all rows are multiplied by it. Meanwhile the memory of the next region's
 * results and the next two tiles of rows are prefetched. */

/* Processors without prfchw ignore the prefetches for writing. */
#define USES_AMX_BF16 __attribute__((target("amx-tile,amx-bf16,avx512bf16,prfchw")))

#define TILE AMX_ROWS          /* rows of a tile; columns of a tile of sums */
#define TILE_DEPTH PANEL_WIDTH /* elements of a row of a tile of factors */

#define BLOCK_ELEMENTS (1 << 19) /* of a block: half of the cache of a core */

/* Configure the tiles for a region of `rows` rows:
 *
 *                    tile 6: columns 0-15 | tile 7: columns 16-31
 *   tile 4: rows 0-15         sums: tile 0 | tile 1
 *   tile 5: rows 16-31        sums: tile 2 | tile 3
 */
static USES_AMX_BF16 void configure_tiles(int64_t rows)
{
    AmxTiles tiles = amx_full_tiles;
    for (int tile = 0; tile < 6; tile++) {
        const int is_lower = tile == 2 || tile == 3 || tile == 5;
        const int64_t left = is_lower ? rows - TILE : rows;
        tiles.rows[tile] = (uint8_t)max_i64(1, min_i64(left, TILE));
    }
    complete_writes();
    _tile_loadconfig(&tiles);
}

/* Results computed together: up to 2 TILE rows by PACKED_COLUMNS columns. */
typedef struct {
    int64_t row, column; /* the first ones */
    int64_t rows;
} Bf16Region;

/* Begin with the numbers in fp32 if results are added to them, with the bias or with
 * zeros. A stride of 0 loads the bias into each row. */
static USES_AMX_BF16 void begin_sums(const Bf16Epilogue *e, Bf16Region at)
{
    const int64_t stride = e->accumulates ? e->columns * (int64_t)sizeof(float) : 0;
    const float *from = e->bias ? e->bias + at.column : NULL;
    if (e->accumulates)
        from = e->fp32 + at.row * e->columns + at.column;
    if (!from) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, from, stride);
    _tile_loadd(1, from + TILE, stride);
    if (at.rows > TILE) {
        const float *lower = e->accumulates ? from + TILE * e->columns : from;
        _tile_loadd(2, lower, stride);
        _tile_loadd(3, lower + TILE, stride);
    }
}

static USES_AMX_BF16 void store_fp32_sums(float *to, int64_t columns, int64_t rows)
{
    const int64_t stride = columns * (int64_t)sizeof *to;
    _tile_stored(0, to, stride);
    _tile_stored(1, to + TILE, stride);
    if (rows > TILE) {
        _tile_stored(2, to + TILE * columns, stride);
        _tile_stored(3, to + TILE * columns + TILE, stride);
    }
}

static USES_AMX_BF16 void end_sums(const Bf16Epilogue *e, Bf16Region at)
{
    float sums[2 * TILE * PACKED_COLUMNS] __attribute__((aligned(64)));
    if (e->bf16.data) {
        store_fp32_sums(sums, PACKED_COLUMNS, at.rows);
        for (int64_t row = 0; row < at.rows; row++) {
            const float *from = sums + row * PACKED_COLUMNS;
            round_sums(e, at.row + row, at.column, vec_load(from),
                       vec_load(from + TILE));
        }
    } else {
        store_fp32_sums(e->fp32 + at.row * e->columns + at.column, e->columns, at.rows);
    }
}

/* Cache lines to prefetch while a region is computed: the next region's results, and
 * some of the next 2 TILE rows of x, whose part in a panel is one cache line. The
 * regions side by side in a block divide these rows evenly. Addresses are integers, as
 * they may be past the end of a matrix. */
typedef struct {
    uintptr_t results;  /* address of the next region's results */
    int64_t stride;     /* bytes from row to row of the results */
    int64_t lines;      /* cache lines of each row of the results */
    int64_t first, end; /* rows of x to prefetch, counted from the end of this region */
} RegionPrefetch;

/* Prefetch a share of these lines while panel number `panel` of x is multiplied: two
 * rows of the results with each of the first TILE panels, and the rows of x in this
 * panel. */
static inline __attribute__((always_inline)) USES_AMX_BF16 void
prefetch_next_region(RegionPrefetch ahead, const td_bf16 *x, int64_t panel)
{
    for (int64_t row = 2 * panel; panel < TILE && row < 2 * panel + 2; row++)
        for (int64_t line = 0; line < ahead.lines; line++)
            __builtin_prefetch(
                (const void *)(ahead.results +
                               (uintptr_t)(row * ahead.stride + line * CACHE_LINE)),
                1);
    for (int64_t line = ahead.first; line < ahead.end; line++)
        _mm_prefetch((const char *)((uintptr_t)x +
                                    (uintptr_t)((2 * TILE + line) * AMX_ROW_BYTES)),
                     _MM_HINT_T1);
}

static inline __attribute__((always_inline)) USES_AMX_BF16 void
add_tile_products(const td_bf16 *x, int64_t panel_stride, const td_bf16 *packed,
                  int64_t inner, int has_lower, RegionPrefetch ahead)
{
    const int64_t row_stride = PANEL_WIDTH * sizeof *x;
    const int64_t pair_stride = 2 * PACKED_COLUMNS * sizeof *x;
    for (int64_t i = 0; i < inner; i += TILE_DEPTH) {
        _tile_loadd(6, packed, pair_stride);
        _tile_loadd(7, packed + 2 * TILE, pair_stride);
        _tile_loadd(4, x, row_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (has_lower) {
            _tile_loadd(5, x + TILE * PANEL_WIDTH, row_stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        prefetch_next_region(ahead, x, i / TILE_DEPTH);
        x += panel_stride;
        packed += TILE_DEPTH * PACKED_COLUMNS;
    }
}

/* Cache lines to prefetch during region `at` of the block of columns `end` - `width` to
 * `end` - 1. */
static RegionPrefetch region_prefetch(const Bf16Epilogue *e, Bf16Region at,
                                      int64_t width, int64_t end)
{
    int64_t row = at.row, column = at.column + PACKED_COLUMNS;
    if (column == end) {
        row += 2 * TILE;
        column -= width;
    }
    const int64_t panels = width / PACKED_COLUMNS;
    const int64_t panel = panels - (end - at.column) / PACKED_COLUMNS;
    RegionPrefetch ahead = {.first = 2 * TILE * panel / panels,
                            .end = 2 * TILE * (panel + 1) / panels};
    if (e->bf16.data) {
        ahead.results = (uintptr_t)e->bf16.data +
                        (uintptr_t)panel_offset(e->bf16, row, column) * sizeof(td_bf16);
        ahead.stride = PANEL_WIDTH * sizeof(td_bf16);
        ahead.lines = 1;
    } else {
        ahead.results =
            (uintptr_t)e->fp32 + (uintptr_t)(row * e->columns + column) * sizeof(float);
        ahead.stride = e->columns * (int64_t)sizeof(float);
        ahead.lines = 2;
    }
    return ahead;
}

static USES_AMX_BF16 void multiply_amx_block(td_panels x, RowSpan rows,
                                             Bf16Matrix matrix, Block b,
                                             const Bf16Epilogue *e)
{
    const int64_t panel_stride = x.rows * PANEL_WIDTH, end = b.column + b.width;
    for (int64_t row = rows.first; row < rows.end; row += 2 * TILE) {
        const int64_t left = rows.end - row;
        if (row == rows.first || left < 2 * TILE)
            configure_tiles(left);
        for (int64_t column = b.column; column < end; column += PACKED_COLUMNS) {
            const Bf16Region at = {row, column, min_i64(left, 2 * TILE)};
            const RegionPrefetch ahead = region_prefetch(e, at, b.width, end);
            const td_bf16 *packed =
                matrix.packed + column * matrix.inner + b.row * PACKED_COLUMNS;
            const td_bf16 *from = panel_element(x, row, b.row);
            begin_sums(e, at);
            if (left > TILE)
                add_tile_products(from, panel_stride, packed, b.depth, 1, ahead);
            else
                add_tile_products(from, panel_stride, packed, b.depth, 0, ahead);
            end_sums(e, at);
        }
    }
}

TD_INTERNAL USES_AMX_BF16 void multiply_by_amx(td_panels x, RowSpan rows,
                                               Bf16Matrix matrix, Bf16Epilogue epilogue)
{
    multiply_bf16_blocks(multiply_amx_block, BLOCK_ELEMENTS, x, rows, matrix, epilogue);
    _tile_release();
}

TD_INTERNAL int can_use_amx_bf16(void) { return 1; }

#else

TD_INTERNAL void multiply_by_amx(td_panels x, RowSpan rows, Bf16Matrix matrix,
                                 Bf16Epilogue epilogue)
{
    (void)x, (void)rows, (void)matrix, (void)epilogue;
}

TD_INTERNAL int can_use_amx_bf16(void) { return 0; }

#endif
