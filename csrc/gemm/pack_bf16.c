/* Matrices in bf16 as a matrix unit reads them (matrix_unit.c). */
#include "simd/bf16.h"
#include "simd/vec.h"

#define TILE 16                /* rows, or columns, of a tile */
#define TILE_DEPTH PANEL_WIDTH /* numbers of each that are multiplied at once */
#define UNIT_COLUMNS 32        /* columns that stand side by side */

/* A matrix [inner, columns], both of whole panels, as the unit reads it: panel by
   panel of columns, and in it the numbers of each two rows in pairs. */
typedef struct {
    const Bf16 *packed;
    int64_t inner, columns;
} UnitMatrix;

static int64_t at_most(int64_t count, int64_t most)
{
    return count < most ? count : most;
}

/* So many numbers, and zeros up to whole panels. */
static int64_t in_whole(int64_t count)
{
    return (count + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
}

#ifdef __AVX512VNNI__

typedef __m512i Pairs; /* of each of TILE columns, the numbers of two rows */

/* Of rows that follow each other, and of the second only if it is there. */
static inline Pairs pairs_of(const Bf16 *from, int64_t by_row, int has_second)
{
    __m256i one = _mm256_loadu_si256((const __m256i *)from);
    __m256i other = _mm256_setzero_si256();
    if (has_second)
        other = _mm256_loadu_si256((const __m256i *)(from + by_row));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(one),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(other), 16));
}

static inline Pairs no_pairs(void) { return _mm512_setzero_si512(); }

static inline Pairs load_pairs(const Bf16 *from) { return _mm512_loadu_si512(from); }

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

static inline Pairs no_pairs(void)
{
    Pairs pairs;
    memset(&pairs, 0, sizeof pairs);
    return pairs;
}

static inline Pairs pairs_of(const Bf16 *from, int64_t by_row, int has_second)
{
    Pairs pairs = no_pairs();
    for (int64_t i = 0; i < TILE; i++) {
        pairs.numbers[i][0] = from[i];
        if (has_second)
            pairs.numbers[i][1] = from[by_row + i];
    }
    return pairs;
}

static inline Pairs load_pairs(const Bf16 *from)
{
    Pairs pairs;
    memcpy(&pairs, from, sizeof pairs);
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

/* A weight [outputs, inputs] that is to be packed; the inputs are whole panels, and
   behind the outputs there are zeros up to as many. */
typedef struct {
    const float *weight;
    int64_t outputs, inputs;
    Bf16 *to;
} PackedWeight;

/* As a matrix [inputs, outputs], whose pairs are in a row already: some panels. */
static void pack_forth(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const PackedWeight *p = shared;
    for (int64_t half = 2 * first; half < 2 * end; half++)
        for (int64_t input = 0; input < p->inputs; input += PANEL_WIDTH) {
            Pairs pairs[TILE];
            for (int64_t i = 0; i < TILE; i++) {
                const int64_t output = half * TILE + i;
                Bf16 row[PANEL_WIDTH];
                pairs[i] = no_pairs();
                if (output >= p->outputs)
                    continue;
                narrow(PANEL_WIDTH, p->weight + output * p->inputs + input, row);
                pairs[i] = load_pairs(row);
            }
            turn_pairs(pairs);
            Bf16 *to = p->to + half / 2 * p->inputs * UNIT_COLUMNS +
                       input * UNIT_COLUMNS + half % 2 * 2 * TILE;
            for (int64_t i = 0; i < TILE; i++)
                store_pairs(to + i * 2 * UNIT_COLUMNS, pairs[i]);
        }
}

/* As a matrix [outputs, inputs]: some panels. */
static void pack_back(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const PackedWeight *p = shared;
    const int64_t inner = in_whole(p->outputs);
    for (int64_t half = 2 * first; half < 2 * end; half++)
        for (int64_t output = 0; output < inner; output += 2) {
            Bf16 rows[2 * TILE];
            memset(rows, 0, sizeof rows);
            const float *from = p->weight + output * p->inputs + half * TILE;
            for (int64_t i = 0; i < 2 && output + i < p->outputs; i++)
                narrow(TILE, from + i * p->inputs, rows + i * TILE);
            store_pairs(p->to + half / 2 * inner * UNIT_COLUMNS +
                            output * UNIT_COLUMNS + half % 2 * 2 * TILE,
                        pairs_of(rows, TILE, 1));
        }
}

/* Rows that are to be multiplied with others, a pair at a time: of the sum over them,
   which is padded with zeros up to a whole tile. */
typedef struct {
    Panels rows;
    int64_t width;
    Bf16 *to;
} Summed;

/* Of two rows in a panel from a column on; there may be but one, or none. */
static inline Pairs pairs_in_panel(Panels rows, int64_t row, int64_t column)
{
    if (row >= rows.rows)
        return no_pairs();
    return pairs_of(in_panels(rows, row, column), PANEL_WIDTH, row + 1 < rows.rows);
}

/* As a packed matrix [rows, width]: some panels. */
static void pack_summed(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Summed *s = shared;
    const int64_t depth = in_whole(s->rows.rows);
    for (int64_t column = first * PANEL_WIDTH; column < end * PANEL_WIDTH;
         column += PANEL_WIDTH)
        for (int64_t row = 0; row < depth; row += 2) {
            Bf16 *to = s->to + column * depth + row * UNIT_COLUMNS;
            store_pairs(to, pairs_in_panel(s->rows, row, column));
            store_pairs(to + 2 * TILE, pairs_in_panel(s->rows, row, column + TILE));
        }
}

/* A panel of columns as some of the rows [width, rows], from one of them on. */
static void turn_panel(Panels rows, int64_t column, Panels to, int64_t to_row)
{
    for (int64_t row = 0; row < rows.rows; row += PANEL_WIDTH)
        for (int64_t half = 0; half < PANEL_WIDTH; half += TILE) {
            Pairs pairs[TILE];
            for (int64_t i = 0; i < TILE; i++)
                pairs[i] = pairs_in_panel(rows, row + 2 * i, column + half);
            turn_pairs(pairs);
            for (int64_t i = 0; i < TILE; i++)
                store_pairs(in_panels(to, to_row + half + i, row), pairs[i]);
        }
}
