/* Matrices in bf16 as a matrix unit reads them (matrix_unit.c). */
#include "gemm/pack_bf16.h"
#include "simd/bf16_pairs.h"
#include "simd/vec.h"

#define TILE BF16_PAIRS        /* rows, or columns, of a tile */
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
            Bf16Pairs pairs[TILE];
            for (int64_t i = 0; i < TILE; i++) {
                const int64_t output = half * TILE + i;
                Bf16 row[PANEL_WIDTH];
                pairs[i] = zero_bf16_pairs();
                if (output >= p->outputs)
                    continue;
                narrow(PANEL_WIDTH, p->weight + output * p->inputs + input, row);
                pairs[i] = load_bf16_pairs(row);
            }
            transpose_bf16_pairs(pairs);
            Bf16 *to = p->to + half / 2 * p->inputs * UNIT_COLUMNS +
                       input * UNIT_COLUMNS + half % 2 * 2 * TILE;
            for (int64_t i = 0; i < TILE; i++)
                store_bf16_pairs(to + i * 2 * UNIT_COLUMNS, pairs[i]);
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
            store_bf16_pairs(p->to + half / 2 * inner * UNIT_COLUMNS +
                                 output * UNIT_COLUMNS + half % 2 * 2 * TILE,
                             interleave_bf16(rows, TILE, 1));
        }
}

/* Rows that are to be multiplied with others, a pair at a time: of the sum over them,
   which is padded with zeros up to a whole tile. */
typedef struct {
    td_panels rows;
    int64_t width;
    Bf16 *to;
} Summed;

/* Of two rows in a panel from a column on; there may be but one, or none. */
static inline Bf16Pairs pairs_in_panel(td_panels rows, int64_t row, int64_t column)
{
    if (row >= rows.rows)
        return zero_bf16_pairs();
    return interleave_bf16(in_panels(rows, row, column), PANEL_WIDTH,
                           row + 1 < rows.rows);
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
            store_bf16_pairs(to, pairs_in_panel(s->rows, row, column));
            store_bf16_pairs(to + 2 * TILE,
                             pairs_in_panel(s->rows, row, column + TILE));
        }
}

/* A panel of columns as some of the rows [width, rows], from one of them on. */
static void turn_panel(td_panels rows, int64_t column, td_panels to, int64_t to_row)
{
    for (int64_t row = 0; row < rows.rows; row += PANEL_WIDTH)
        for (int64_t half = 0; half < PANEL_WIDTH; half += TILE) {
            Bf16Pairs pairs[TILE];
            for (int64_t i = 0; i < TILE; i++)
                pairs[i] = pairs_in_panel(rows, row + 2 * i, column + half);
            transpose_bf16_pairs(pairs);
            for (int64_t i = 0; i < TILE; i++)
                store_bf16_pairs(in_panels(to, to_row + half + i, row), pairs[i]);
        }
}
