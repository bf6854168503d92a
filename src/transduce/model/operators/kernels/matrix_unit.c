/* Products in bf16 by the processor's matrix unit (Intel's AMX): sixteen rows times
   sixteen columns, 32 numbers of each at once, summed up in fp32. */
#include "exported.h"

#if defined(__AVX512VNNI__) && defined(__has_include)
/* As GCC and clang name it. */
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_INTRINSICS
#endif
#endif

#ifdef HAS_INTRINSICS

#define IN_UNIT __attribute__((target("amx-tile,amx-bf16")))

static int has_unit;

typedef struct {
    uint8_t palette, rest[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) Tiles;

/* Tiles 0 to 5 are of so many rows: the sums, and what is multiplied. */
static IN_UNIT void set_tiles(uint8_t rows)
{
    Tiles tiles = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = 64;
        tiles.rows[tile] = tile < 6 ? rows : TILE;
    }
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what it reads */
    _tile_loadconfig(&tiles);
}

/* What the next panel has in the place of what is multiplied at once. */
static inline void fetch(const Bf16 *panel)
{
    for (int64_t at = 0; at < TILE_DEPTH * UNIT_COLUMNS; at += TILE_DEPTH)
        _mm_prefetch((const char *)(panel + at), _MM_HINT_T1);
}

/* Two tiles of rows times a panel. */
static IN_UNIT void add_two_tiles(const Bf16 *x, int64_t by_row, const Bf16 *panel,
                                  int64_t ahead, int64_t depth, int has_sums, float *to,
                                  int64_t by_to)
{
    const int64_t stride = by_row * (int64_t)sizeof *x,
                  by_pair = 2 * UNIT_COLUMNS * sizeof *x;
    const int64_t to_stride = by_to * (int64_t)sizeof *to;
    if (has_sums) {
        _tile_loadd(0, to, to_stride);
        _tile_loadd(1, to + TILE, to_stride);
        _tile_loadd(2, to + TILE * by_to, to_stride);
        _tile_loadd(3, to + TILE * by_to + TILE, to_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < depth; i += TILE_DEPTH) {
        _tile_loadd(6, panel, by_pair);
        _tile_loadd(7, panel + 2 * TILE, by_pair);
        _tile_loadd(4, x + i, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + TILE * by_row + i, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        if (ahead)
            fetch(panel + ahead);
        panel += TILE_DEPTH * UNIT_COLUMNS;
    }
    _tile_stored(0, to, to_stride);
    _tile_stored(1, to + TILE, to_stride);
    _tile_stored(2, to + TILE * by_to, to_stride);
    _tile_stored(3, to + TILE * by_to + TILE, to_stride);
}

static IN_UNIT void add_tile(const Bf16 *x, int64_t by_row, const Bf16 *panel,
                             int64_t depth, int has_sums, float *to, int64_t by_to)
{
    const int64_t stride = by_row * (int64_t)sizeof *x,
                  by_pair = 2 * UNIT_COLUMNS * sizeof *x;
    const int64_t to_stride = by_to * (int64_t)sizeof *to;
    if (has_sums) {
        _tile_loadd(0, to, to_stride);
        _tile_loadd(1, to + TILE, to_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int64_t i = 0; i < depth; i += TILE_DEPTH) {
        _tile_loadd(6, panel, by_pair);
        _tile_loadd(7, panel + 2 * TILE, by_pair);
        _tile_loadd(4, x + i, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        panel += TILE_DEPTH * UNIT_COLUMNS;
    }
    _tile_stored(0, to, to_stride);
    _tile_stored(1, to + TILE, to_stride);
}

/* x [rows, inner] times the matrix, in the place of `to` or added to it. */
static IN_UNIT void multiply_in_unit(const Bf16 *x, int64_t rows, UnitMatrix matrix,
                                     int is_added, float *to)
{
    const int64_t inner = matrix.inner, columns = matrix.columns;
    for (int64_t row = 0; row < rows;) {
        const int64_t left = rows - row;
        const int64_t block = left >= 2 * TILE ? left / (2 * TILE) * (2 * TILE)
                                               : (left < TILE ? left : TILE);
        set_tiles((uint8_t)(block < TILE ? block : TILE));
        int64_t from = 0;
        do { /* once at least, so that of nothing the sums are zero */
            const int64_t depth = inner - from < DEPTH ? inner - from : DEPTH;
            const int has_sums = is_added || from > 0;
            for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
                const Bf16 *panel =
                    matrix.packed + column * inner + from * UNIT_COLUMNS;
                float *sums = to + row * columns + column;
                const Bf16 *numbers = x + row * inner + from;
                if (block <= TILE)
                    add_tile(numbers, inner, panel, depth, has_sums, sums, columns);
                else
                    for (int64_t done = 0; done < block; done += 2 * TILE)
                        add_two_tiles(numbers + done * inner, inner, panel,
                                      done ? 0 : inner * UNIT_COLUMNS, depth, has_sums,
                                      sums + done * columns, columns);
            }
            from += DEPTH;
        } while (from < inner);
        row += block;
    }
    _tile_release();
}

/* Whether it is used from now on. */
EXPORTED int transduce_use_matrix_unit(int is_there)
{
    has_unit = is_there;
    return has_unit;
}

#else

static const int has_unit = 0;

static void multiply_in_unit(const Bf16 *x, int64_t rows, UnitMatrix matrix,
                             int is_added, float *to)
{
    (void)x, (void)rows, (void)matrix, (void)is_added, (void)to;
}

EXPORTED int transduce_use_matrix_unit(int is_there)
{
    (void)is_there;
    return 0;
}

#endif

/* The same without the unit: slowly, so that it can be tried anywhere. */
static void multiply_packed(const Bf16 *x, int64_t rows, UnitMatrix matrix,
                            int is_added, float *to)
{
    const int64_t inner = matrix.inner;
    if (has_unit) {
        multiply_in_unit(x, rows, matrix, is_added, to);
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < matrix.columns; column++) {
            const Bf16 *numbers = matrix.packed +
                                  column / UNIT_COLUMNS * UNIT_COLUMNS * inner +
                                  column % UNIT_COLUMNS * 2;
            float *sum = to + row * matrix.columns + column;
            *sum = is_added ? *sum : 0.0f;
            for (int64_t i = 0; i < inner; i += 2) {
                float one[2], other[2];
                widen(2, x + row * inner + i, one);
                widen(2, numbers + i * UNIT_COLUMNS, other);
                *sum += one[0] * other[0] + one[1] * other[1];
            }
        }
}
