/* Products in bf16 by the processor's matrix unit (Intel's AMX): sixteen rows times
   sixteen columns, 32 numbers of each at once, summed up in fp32.

   Memory, not the unit, is what they wait for. So a block of the matrix stays in the
   cache of a core while all rows go by, and while a sum is formed, the place of the
   next and the rows after these are fetched. */
#include <math.h>

/* Dropout of numbers. */
typedef struct {
    const uint8_t *kept; /* a bit for each number, zero if dropped; NULL for gradients,
                            where the rectified numbers tell which were kept */
    float scale;         /* factor on kept numbers */
} Dropped;

/* What becomes of the sums: they are rounded, or they stay in fp32. */
typedef struct {
    td_panels bf16; /* or nowhere: then */
    float *fp32; /* [rows, columns] */
    int64_t columns;
    const float *bias; /* to begin with, if nothing is added, or nowhere */
    int is_added;      /* to what there is; only in fp32 */
    int is_rectified;  /* what is negative becomes zero; only in bf16 */
    td_panels rectified;  /* zero where these are not positive; only in bf16, or nowhere */
    const Dropped *dropped; /* dropout after that, in bf16 only; or NULL */
} Sums;

/* vec_mask bits of the numbers from a column on. */
static inline const uint8_t *kept_bits(const Sums *s, int64_t row, int64_t column)
{
    return s->dropped->kept + (row * s->columns + column) / BITS_OF_BYTE;
}

/* Rows from one to another. */
typedef struct {
    int64_t first, end;
} Span;

#if LANES == 16 && defined(__has_include)
/* As GCC and clang name it. */
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_INTRINSICS
#endif
#endif

#ifdef HAS_INTRINSICS

/* Who lets the unit be used has seen that there is avx512bf16 too; prefetches for
   writing are hints, and do nothing where there are none. */
#define IN_UNIT __attribute__((target("amx-tile,amx-bf16,avx512bf16,prfchw")))

#define BLOCK_NUMBERS (1 << 19) /* of the matrix: half of the cache of a core */
#define DEEPEST 4096            /* numbers of a row that are summed up at once, */
#define DEPTH 1024              /* or else so many, if sums are in fp32 */

typedef struct {
    uint8_t palette, rest[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) Tiles;

/* Tiles 0, 1 and 4 are of the upper rows, 2, 3 and 5 of the lower, if there are any:
   the sums, and what is multiplied. */
static IN_UNIT void set_tiles(int64_t rows)
{
    Tiles tiles = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        const int is_lower = tile == 2 || tile == 3 || tile == 5;
        const int64_t its = tile > 5 ? TILE : is_lower ? rows - TILE : rows;
        tiles.row_bytes[tile] = 64;
        tiles.rows[tile] = (uint8_t)(its < 1 ? 1 : its > TILE ? TILE : its);
    }
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what it reads */
    _tile_loadconfig(&tiles);
}

/* Of a strip of up to two tiles of rows, some columns as many. */
typedef struct {
    int64_t row, column, rows;
} Place;

static IN_UNIT void begin_sums(const Sums *s, Place at)
{
    const int64_t stride = s->is_added ? s->columns * (int64_t)sizeof(float) : 0;
    const float *from = s->bias ? s->bias + at.column : 0;
    if (s->is_added)
        from = s->fp32 + at.row * s->columns + at.column;
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
        const float *lower = s->is_added ? from + TILE * s->columns : from;
        _tile_loadd(2, lower, stride);
        _tile_loadd(3, lower + TILE, stride);
    }
}

static IN_UNIT void store_sums(float *to, int64_t columns, int64_t rows)
{
    const int64_t stride = columns * (int64_t)sizeof *to;
    _tile_stored(0, to, stride);
    _tile_stored(1, to + TILE, stride);
    if (rows > TILE) {
        _tile_stored(2, to + TILE * columns, stride);
        _tile_stored(3, to + TILE * columns + TILE, stride);
    }
}

static IN_UNIT void round_sums(const Sums *s, Place at, const float *sums)
{
    const vec least = vec_set1(s->is_rectified ? 0.0f : -INFINITY);
    const vec scale = vec_set1(s->dropped ? s->dropped->scale : 1.0f);
    for (int64_t row = 0; row < at.rows; row++) {
        const float *from = sums + row * UNIT_COLUMNS;
        const vec one = vec_max(least, vec_load(from)) * scale;
        const vec other = vec_max(least, vec_load(from + TILE)) * scale;
        __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(other, one);
        if (s->rectified.data) {
            const __m512i positive =
                _mm512_loadu_si512(in_panels(s->rectified, at.row + row, at.column));
            const __mmask32 is_on =
                _mm512_cmpgt_epi16_mask(positive, _mm512_setzero_si512());
            rounded = _mm512_maskz_mov_epi16(is_on, rounded);
        }
        if (s->dropped && s->dropped->kept) {
            __mmask32 is_kept;
            memcpy(&is_kept, kept_bits(s, at.row + row, at.column), sizeof is_kept);
            rounded = _mm512_maskz_mov_epi16(is_kept, rounded);
        }
        _mm512_storeu_si512(in_panels(s->bf16, at.row + row, at.column), rounded);
    }
}

static IN_UNIT void end_sums(const Sums *s, Place at)
{
    float sums[2 * TILE * UNIT_COLUMNS] __attribute__((aligned(64)));
    if (s->bf16.data) {
        store_sums(sums, UNIT_COLUMNS, at.rows);
        round_sums(s, at, sums);
    } else
        store_sums(s->fp32 + at.row * s->columns + at.column, s->columns, at.rows);
}

/* Lines that are wanted soon. */
typedef struct {
    const char *at; /* of the place of the next sums: */
    int64_t by_row, lines;
    int64_t first, end; /* of each tile of the rows that come next */
} Ahead;

/* With the tile of this number, some of them. What is behind the last row is fetched
   in vain, which does no harm. */
static inline __attribute__((always_inline)) IN_UNIT void
fetch(Ahead ahead, const Bf16 *x, int64_t tile)
{
    for (int64_t row = 2 * tile; tile < TILE && row < 2 * tile + 2; row++)
        for (int64_t line = 0; line < ahead.lines; line++)
            __builtin_prefetch(ahead.at + row * ahead.by_row + line * 64, 1);
    for (int64_t line = ahead.first; line < ahead.end; line++)
        _mm_prefetch((const char *)(x + (2 * TILE + line) * PANEL_WIDTH), _MM_HINT_T1);
}

static inline __attribute__((always_inline)) IN_UNIT void
add_products(const Bf16 *x, int64_t by_panel, const Bf16 *packed, int64_t inner,
             int has_lower, Ahead ahead)
{
    const int64_t by_row = PANEL_WIDTH * sizeof *x,
                  by_pair = 2 * UNIT_COLUMNS * sizeof *x;
    for (int64_t i = 0; i < inner; i += TILE_DEPTH) {
        _tile_loadd(6, packed, by_pair);
        _tile_loadd(7, packed + 2 * TILE, by_pair);
        _tile_loadd(4, x, by_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (has_lower) {
            _tile_loadd(5, x + TILE * PANEL_WIDTH, by_row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        fetch(ahead, x, i / TILE_DEPTH);
        x += by_panel;
        packed += TILE_DEPTH * UNIT_COLUMNS;
    }
}

/* What comes after a place in a block of so many columns up to an end. */
static Ahead ahead_of(const Sums *s, Place at, int64_t width, int64_t end)
{
    int64_t row = at.row, column = at.column + UNIT_COLUMNS;
    if (column == end) {
        row += 2 * TILE;
        column -= width;
    }
    const int64_t panels = width / UNIT_COLUMNS;
    const int64_t panel = panels - (end - at.column) / UNIT_COLUMNS;
    Ahead ahead = {.first = 2 * TILE * panel / panels,
                   .end = 2 * TILE * (panel + 1) / panels};
    if (s->bf16.data) {
        ahead.at = (const char *)in_panels(s->bf16, row, column);
        ahead.by_row = PANEL_WIDTH * sizeof(Bf16);
        ahead.lines = 1;
    } else {
        ahead.at = (const char *)(s->fp32 + row * s->columns + column);
        ahead.by_row = s->columns * (int64_t)sizeof(float);
        ahead.lines = 2;
    }
    return ahead;
}

/* Of the matrix: some columns of some depth, each from one on. */
typedef struct {
    int64_t column, width, from, depth;
} Block;

static IN_UNIT void multiply_block(td_panels x, Span rows, UnitMatrix matrix, Block b,
                                   const Sums *s)
{
    const int64_t by_panel = x.rows * PANEL_WIDTH, end = b.column + b.width;
    for (int64_t row = rows.first; row < rows.end; row += 2 * TILE) {
        const int64_t left = rows.end - row;
        if (row == rows.first || left < 2 * TILE)
            set_tiles(left);
        for (int64_t column = b.column; column < end; column += UNIT_COLUMNS) {
            const Place at = {row, column, left < 2 * TILE ? left : 2 * TILE};
            const Ahead ahead = ahead_of(s, at, b.width, end);
            const Bf16 *packed =
                matrix.packed + column * matrix.inner + b.from * UNIT_COLUMNS;
            const Bf16 *from = in_panels(x, row, b.from);
            begin_sums(s, at);
            if (left > TILE)
                add_products(from, by_panel, packed, b.depth, 1, ahead);
            else
                add_products(from, by_panel, packed, b.depth, 0, ahead);
            end_sums(s, at);
        }
    }
}

/* Of as many columns as stay in the cache, but all blocks about alike. */
static int64_t block_width(int64_t depth, int64_t columns)
{
    const int64_t all = columns / UNIT_COLUMNS;
    const int64_t most = BLOCK_NUMBERS / UNIT_COLUMNS / (depth > 0 ? depth : 1);
    const int64_t blocks = most > 0 ? (all + most - 1) / most : all;
    return blocks > 0 ? (all + blocks - 1) / blocks * UNIT_COLUMNS : UNIT_COLUMNS;
}

static IN_UNIT void multiply_in_unit(td_panels x, Span rows, UnitMatrix matrix, Sums sums)
{
    const int64_t inner = matrix.inner, columns = matrix.columns;
    const int64_t depth = inner > DEEPEST && !sums.bf16.data ? DEPTH : inner;
    const int64_t width = block_width(depth, columns);
    int64_t from = 0;
    do { /* once at least, so that of nothing the sums are zero */
        for (int64_t column = 0; column < columns; column += width)
            multiply_block(x, rows, matrix,
                           (Block){column, at_most(columns - column, width), from,
                                   at_most(inner - from, depth)},
                           &sums);
        sums.is_added = 1;
        from += depth;
    } while (from < inner);
    _tile_release();
}

static int uses_amx(void) { return td_has_amx_bf16(); }

#else

static void multiply_in_unit(td_panels x, Span rows, UnitMatrix matrix, Sums sums)
{
    (void)x, (void)rows, (void)matrix, (void)sums;
}

static int uses_amx(void) { return 0; }

#endif

static float product_of(td_panels x, int64_t row, UnitMatrix matrix, int64_t column)
{
    const Bf16 *packed = matrix.packed +
                         column / UNIT_COLUMNS * UNIT_COLUMNS * matrix.inner +
                         column % UNIT_COLUMNS * 2;
    float sum = 0.0f;
    for (int64_t i = 0; i < matrix.inner; i += 2) {
        float one[2], other[2];
        widen(2, in_panels(x, row, i), one);
        widen(2, packed + i * UNIT_COLUMNS, other);
        sum += one[0] * other[0] + one[1] * other[1];
    }
    return sum;
}

static void put_sum(const Sums *s, int64_t row, int64_t column, float sum)
{
    if (s->bias && !s->is_added)
        sum += s->bias[column];
    if (!s->bf16.data) {
        float *to = s->fp32 + row * s->columns + column;
        *to = s->is_added ? *to + sum : sum;
        return;
    }
    if (s->is_rectified && sum < 0.0f)
        sum = 0.0f;
    /* Numbers are positive where their bits are. */
    if (s->rectified.data && (int16_t)*in_panels(s->rectified, row, column) <= 0)
        sum = 0.0f;
    if (s->dropped) {
        sum *= s->dropped->scale;
        if (s->dropped->kept &&
            !(*kept_bits(s, row, column) >> column % BITS_OF_BYTE & 1))
            sum *= 0.0f; /* NaN stays NaN */
    }
    narrow(1, &sum, in_panels(s->bf16, row, column));
}

/* Some rows of x [rows, inner] times the matrix. Without the unit it is slow, so that
   it can be tried anywhere. */
static void multiply_packed(td_panels x, Span rows, UnitMatrix matrix, Sums sums)
{
    if (uses_amx()) {
        multiply_in_unit(x, rows, matrix, sums);
        return;
    }
    for (int64_t row = rows.first; row < rows.end; row++)
        for (int64_t column = 0; column < matrix.columns; column++)
            put_sum(&sums, row, column, product_of(x, row, matrix, column));
}
