/* Packing of matrices in bf16. */
#include "gemm/pack_bf16.h"

#include <string.h>

#include "simd/bf16_pairs.h"

/* A panel is packed in halves of BF16_PAIRS columns. */
enum { HALVES = PACKED_COLUMNS / BF16_PAIRS };

TD_INTERNAL void pack_forward(void *packing, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const WeightPacking *p = packing;
    for (int64_t half = HALVES * first; half < HALVES * end; half++)
        for (int64_t input = 0; input < p->inputs; input += PANEL_WIDTH) {
            Bf16Pairs pairs[BF16_PAIRS];
            for (int64_t i = 0; i < BF16_PAIRS; i++) {
                const int64_t output = half * BF16_PAIRS + i;
                td_bf16 row[PANEL_WIDTH];
                pairs[i] = zero_bf16_pairs();
                if (output >= p->outputs)
                    continue;
                floats_to_bf16(PANEL_WIDTH, p->weight + output * p->inputs + input,
                               row);
                pairs[i] = load_bf16_pairs(row);
            }
            transpose_bf16_pairs(pairs);
            td_bf16 *to = p->to + half / HALVES * p->inputs * PACKED_COLUMNS +
                          input * PACKED_COLUMNS + half % HALVES * 2 * BF16_PAIRS;
            for (int64_t i = 0; i < BF16_PAIRS; i++)
                store_bf16_pairs(to + i * 2 * PACKED_COLUMNS, pairs[i]);
        }
}

TD_INTERNAL void pack_backward(void *packing, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const WeightPacking *p = packing;
    const int64_t inner = round_up_to_panels(p->outputs);
    for (int64_t half = HALVES * first; half < HALVES * end; half++)
        for (int64_t output = 0; output < inner; output += 2) {
            td_bf16 rows[2 * BF16_PAIRS];
            memset(rows, 0, sizeof rows);
            const float *from = p->weight + output * p->inputs + half * BF16_PAIRS;
            for (int64_t i = 0; i < 2 && output + i < p->outputs; i++)
                floats_to_bf16(BF16_PAIRS, from + i * p->inputs, rows + i * BF16_PAIRS);
            store_bf16_pairs(p->to + half / HALVES * inner * PACKED_COLUMNS +
                                 output * PACKED_COLUMNS +
                                 half % HALVES * 2 * BF16_PAIRS,
                             interleave_bf16(rows, BF16_PAIRS, 1));
        }
}

/* Pairs of elements of rows `row` and `row` + 1 from a column on; rows past the last
 * are zero. */
static inline Bf16Pairs pairs_in_panel(td_panels from, int64_t row, int64_t column)
{
    if (row >= from.rows)
        return zero_bf16_pairs();
    return interleave_bf16(panel_element(from, row, column), PANEL_WIDTH,
                           row + 1 < from.rows);
}

TD_INTERNAL void pack_rows(void *packing, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const RowPacking *p = packing;
    const int64_t inner = round_up_to_panels(p->rows.rows);
    for (int64_t column = first * PANEL_WIDTH; column < end * PANEL_WIDTH;
         column += PANEL_WIDTH)
        for (int64_t row = 0; row < inner; row += 2) {
            td_bf16 *to = p->to + column * inner + row * PACKED_COLUMNS;
            store_bf16_pairs(to, pairs_in_panel(p->rows, row, column));
            store_bf16_pairs(to + 2 * BF16_PAIRS,
                             pairs_in_panel(p->rows, row, column + BF16_PAIRS));
        }
}

TD_INTERNAL void transpose_panel(td_panels from, int64_t column, td_panels to,
                                 int64_t to_row)
{
    for (int64_t row = 0; row < from.rows; row += PANEL_WIDTH)
        for (int64_t half = 0; half < PANEL_WIDTH; half += BF16_PAIRS) {
            Bf16Pairs pairs[BF16_PAIRS];
            for (int64_t i = 0; i < BF16_PAIRS; i++)
                pairs[i] = pairs_in_panel(from, row + 2 * i, column + half);
            transpose_bf16_pairs(pairs);
            for (int64_t i = 0; i < BF16_PAIRS; i++)
                store_bf16_pairs(panel_element(to, to_row + half + i, row), pairs[i]);
        }
}
