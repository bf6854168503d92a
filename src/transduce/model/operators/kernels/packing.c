/* Matrices in bf16 as a matrix unit reads them (matrix_unit.c). */
#include "bf16.h"
#include "lanes.h"

#define TILE 16                 /* rows, or columns, of a tile */
#define TILE_DEPTH 32           /* numbers of each that are multiplied at once */
#define UNIT_COLUMNS (2 * TILE) /* columns that stand side by side */
#define DEPTH 512 /* as many of each stay in the nearest cache, with a panel */

/* A matrix [inner, columns], both of whole panels, as the unit reads it: panel by
   panel, and in it the numbers of each two rows in pairs. */
typedef struct {
    const Bf16 *packed;
    int64_t inner, columns;
} UnitMatrix;

/* Where to pack a matrix whose numbers are so far apart. */
typedef struct {
    const float *from;
    int64_t by_row, by_column, inner;
    Bf16 *to;
} Packed;

/* As panels of a matrix with its columns as rows, whose pairs are in a row already. */
static void pack_pairs(const Packed *p, int64_t panel)
{
    for (int64_t column = 0; column < UNIT_COLUMNS; column++) {
        Bf16 row[DEPTH];
        for (int64_t done = 0; done < p->inner; done += DEPTH) {
            const int64_t left = p->inner - done;
            const int64_t count = left < DEPTH ? left : DEPTH;
            narrow(count,
                   p->from + (panel * UNIT_COLUMNS + column) * p->by_column + done,
                   row);
            Bf16 *to = p->to + (panel * p->inner + done) * UNIT_COLUMNS + 2 * column;
            for (int64_t pair = 0; pair < count / 2; pair++)
                memcpy(to + 2 * pair * UNIT_COLUMNS, row + 2 * pair, 2 * sizeof *row);
        }
    }
}

static void pack_rows(const Packed *p, int64_t panel)
{
    for (int64_t i = 0; i < p->inner; i += 2) {
        Bf16 one[UNIT_COLUMNS], other[UNIT_COLUMNS];
        const float *from = p->from + i * p->by_row + panel * UNIT_COLUMNS;
        Bf16 *to = p->to + (panel * p->inner + i) * UNIT_COLUMNS;
        narrow(UNIT_COLUMNS, from, one);
        narrow(UNIT_COLUMNS, from + p->by_row, other);
        for (int64_t column = 0; column < UNIT_COLUMNS; column++) {
            to[2 * column] = one[column];
            to[2 * column + 1] = other[column];
        }
    }
}

static void pack_panels(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Packed *p = shared;
    for (int64_t panel = first; panel < end; panel++)
        if (p->by_row == 1)
            pack_pairs(p, panel);
        else
            pack_rows(p, panel);
}

/* Rows in bf16 that are to be multiplied with each other, a pair at a time: of the sum
   over them, which is padded with zeros up to a whole tile. */
typedef struct {
    const Bf16 *rows;
    int64_t count, width;
    Bf16 *to;
} Summed;

static int64_t in_depths(int64_t count)
{
    return (count + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH;
}

#ifdef __AVX512VNNI__

typedef __m512i Pairs; /* of each of TILE columns, the numbers of two rows */

static inline Pairs pairs_of(const Summed *s, int64_t row, int64_t column)
{
    __m256i one = _mm256_setzero_si256(), other = one;
    const Bf16 *from = s->rows + row * s->width + column;
    if (row < s->count)
        one = _mm256_loadu_si256((const __m256i *)from);
    if (row + 1 < s->count)
        other = _mm256_loadu_si256((const __m256i *)(from + s->width));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(one),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(other), 16));
}

static inline void store_pairs(Bf16 *to, Pairs pairs)
{
    _mm512_storeu_si512(to, pairs);
}

/* TILE times as many, with their columns as rows. */
static inline void turn_pairs(Pairs *rows)
{
    Pairs turned[TILE];
    for (int r = 0; r < TILE; r += 2) {
        turned[r] = _mm512_unpacklo_epi32(rows[r], rows[r + 1]);
        turned[r + 1] = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
    }
    for (int r = 0; r < TILE; r += 4)
        for (int half = 0; half < 2; half++) {
            const Pairs one = turned[r + half], other = turned[r + half + 2];
            rows[r + 2 * half] = _mm512_unpacklo_epi64(one, other);
            rows[r + 2 * half + 1] = _mm512_unpackhi_epi64(one, other);
        }
    /* Now each four rows have four columns in each quarter. */
    for (int r = 0; r < 4; r++)
        for (int half = 0; half < 2; half++) {
            const Pairs one = rows[8 * half + r], other = rows[8 * half + r + 4];
            turned[4 * half + r] = _mm512_shuffle_i32x4(one, other, 0x88);
            turned[4 * half + r + 8] = _mm512_shuffle_i32x4(one, other, 0xDD);
        }
    for (int r = 0; r < 4; r++) {
        rows[r] = _mm512_shuffle_i32x4(turned[r], turned[r + 4], 0x88);
        rows[r + 8] = _mm512_shuffle_i32x4(turned[r], turned[r + 4], 0xDD);
        rows[r + 4] = _mm512_shuffle_i32x4(turned[r + 8], turned[r + 12], 0x88);
        rows[r + 12] = _mm512_shuffle_i32x4(turned[r + 8], turned[r + 12], 0xDD);
    }
}

#else

typedef struct {
    Bf16 numbers[TILE][2];
} Pairs;

static inline Pairs pairs_of(const Summed *s, int64_t row, int64_t column)
{
    Pairs pairs;
    for (int64_t i = 0; i < TILE; i++)
        for (int64_t r = 0; r < 2; r++)
            pairs.numbers[i][r] =
                row + r < s->count ? s->rows[(row + r) * s->width + column + i] : 0;
    return pairs;
}

static inline void store_pairs(Bf16 *to, Pairs pairs)
{
    memcpy(to, &pairs, sizeof pairs);
}

static inline void turn_pairs(Pairs *rows)
{
    for (int r = 0; r < TILE; r++)
        for (int c = 0; c < r; c++) {
            Bf16 one[2];
            memcpy(one, rows[r].numbers[c], sizeof one);
            memcpy(rows[r].numbers[c], rows[c].numbers[r], sizeof one);
            memcpy(rows[c].numbers[r], one, sizeof one);
        }
}

#endif

/* As a packed matrix [rows, width]. */
static void pack_summed(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Summed *s = shared;
    const int64_t depth = in_depths(s->count);
    for (int64_t block = first; block < end; block++)
        for (int64_t column = 0; column < s->width; column += TILE) {
            Bf16 *panel = s->to + column / UNIT_COLUMNS * UNIT_COLUMNS * depth +
                          column % UNIT_COLUMNS * 2;
            for (int64_t row = block * TILE_DEPTH; row < (block + 1) * TILE_DEPTH;
                 row += 2)
                store_pairs(panel + row * UNIT_COLUMNS, pairs_of(s, row, column));
        }
}

/* As rows [width, rows]. */
static void turn_summed(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Summed *s = shared;
    const int64_t depth = in_depths(s->count);
    for (int64_t block = first; block < end; block++)
        for (int64_t column = 0; column < s->width; column += TILE) {
            Pairs pairs[TILE];
            for (int64_t pair = 0; pair < TILE; pair++)
                pairs[pair] = pairs_of(s, block * TILE_DEPTH + 2 * pair, column);
            turn_pairs(pairs);
            for (int64_t i = 0; i < TILE; i++)
                store_pairs(s->to + (column + i) * depth + block * TILE_DEPTH,
                            pairs[i]);
        }
}
