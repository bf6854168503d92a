/* The smoothed cross-entropy of what an output matrix makes of states, and the
   gradients of both (sections 3.4 and 5.4), with products in bf16. */
#include <math.h>

#include "parallel.h"

/* What is needed on the way only. */
typedef struct {
    td_panels states, logits; /* the latter become their gradient */
    Bf16 *paired, *turned;
} LossRoom;

/* Numbers in bf16, from where they are given. */
static int64_t take_loss_room(const td_output_loss *l, int num_threads, LossRoom *room)
{
    Bf16 *at = l->workspace;
    const int64_t rows = l->rows;
    room->states = (td_panels){at, rows};
    int64_t taken = rows * l->width;
    room->logits = (td_panels){at + taken, rows};
    taken += rows * in_whole(l->vocab);
    room->paired = at + taken;
    taken += in_whole(rows) * l->width;
    room->turned = at + taken;
    return taken + num_threads * turned_numbers(rows);
}

static int64_t output_loss_workspace(const td_output_loss *l, int num_threads)
{
    LossRoom room;
    return take_loss_room(l, num_threads, &room);
}

/* Some rows of logits. */
typedef struct {
    const td_output_loss *loss;
    td_panels logits;
} LossRows;

/* Of a panel's row, those in some lanes; elsewhere what is to change nothing. */
static inline vec panel_lanes(const LossRows *l, int64_t row, int64_t column,
                              float none)
{
    const vec x = vec_from_bf16(in_panels(l->logits, row, column));
    const int64_t left = l->loss->vocab - column;
    return left >= LANES ? x : vec_select(vec_first(left), x, vec_set1(none));
}

/* What is found of a row before its gradient is formed. */
typedef struct {
    vec highest, sums, powers;
    float most, log_total, true_logit;
} RowSums;

static void find_highest(const LossRows *l, Span rows, RowSums *found)
{
    for (int64_t row = 0; row < rows.end - rows.first; row++) {
        found[row].highest = vec_set1(-INFINITY);
        found[row].sums = found[row].powers = vec_set1(0.0f);
    }
    for (int64_t panel = 0; panel < l->loss->vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            RowSums *its = found + row - rows.first;
            for (int64_t column = panel; column < panel + PANEL_WIDTH;
                 column += LANES) {
                const vec x = panel_lanes(l, row, column, -INFINITY);
                its->highest = vec_max(its->highest, x);
                its->sums += panel_lanes(l, row, column, 0.0f);
            }
        }
}

static void add_powers(const LossRows *l, Span rows, RowSums *found)
{
    for (int64_t panel = 0; panel < l->loss->vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            RowSums *its = found + row - rows.first;
            for (int64_t column = panel; column < panel + PANEL_WIDTH; column += LANES)
                its->powers += vec_exp(panel_lanes(l, row, column, -INFINITY) -
                                       vec_set1(its->most));
        }
}

static void form_gradient_of_logits(const LossRows *l, Span rows, const RowSums *found)
{
    const int64_t vocab = l->loss->vocab;
    const vec uniform = vec_set1(l->loss->smoothing / (float)vocab);
    for (int64_t panel = 0; panel < vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            const vec total = vec_set1(found[row - rows.first].log_total);
            for (int64_t column = panel; column < panel + PANEL_WIDTH;
                 column += LANES) {
                const vec x = panel_lanes(l, row, column, -INFINITY);
                vec gradient = vec_exp(x - total) - uniform;
                if (column + LANES > vocab)
                    gradient =
                        vec_select(vec_first(vocab - column), gradient, vec_set1(0.0f));
                vec_store_bf16(in_panels(l->logits, row, column), gradient);
            }
        }
}

/* The losses of a row, once its sums are known; these get what the gradient needs. */
static void form_loss(const LossRows *l, int64_t row, RowSums *its)
{
    const td_output_loss *loss = l->loss;
    its->log_total = its->most + logf(vec_reduce_add(its->powers));
    const float of_true = its->true_logit - its->log_total;
    const float mean = vec_reduce_add(its->sums) / (float)loss->vocab - its->log_total;
    loss->negative_log_likelihood[row] = -of_true;
    loss->smoothed[row] = -of_true - loss->smoothing * (mean - of_true);
}

static void form_gradient_of_target(const LossRows *l, int64_t row, const RowSums *its)
{
    const td_output_loss *loss = l->loss;
    const float probability = expf(its->true_logit - its->log_total);
    const float gradient =
        probability - loss->smoothing / (float)loss->vocab - (1.0f - loss->smoothing);
    narrow(1, &gradient, in_panels(l->logits, row, loss->targets[row]));
}

/* The rows of a tile stay in the cache of a core. */
static void form_loss_tiles(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const LossRows *l = shared;
    for (int64_t tile = first; tile < end; tile++) {
        RowSums found[TILE];
        const int64_t row = tile * TILE;
        const Span rows = {row, at_most(row + TILE, l->loss->rows)};
        find_highest(l, rows, found);
        for (int64_t r = rows.first; r < rows.end; r++) {
            RowSums *its = found + r - row;
            its->most = vec_reduce_max(its->highest);
            widen(1, in_panels(l->logits, r, l->loss->targets[r]), &its->true_logit);
        }
        add_powers(l, rows, found);
        for (int64_t r = rows.first; r < rows.end; r++)
            form_loss(l, r, found + r - row);
        form_gradient_of_logits(l, rows, found);
        for (int64_t r = rows.first; r < rows.end; r++)
            form_gradient_of_target(l, r, found + r - row);
    }
}

/* The weight for both ways. */
static td_status output_loss_pack(const td_output_loss *l, int num_threads)
{
    PackedWeight forth = {l->weight, l->vocab, l->width, l->packed_forward};
    PackedWeight back = {l->weight, l->vocab, l->width, l->packed_backward};
    parallel_for(pack_forth, &forth, in_whole(l->vocab) / PANEL_WIDTH, 1, num_threads);
    parallel_for(pack_back, &back, l->width / PANEL_WIDTH, 1, num_threads);
    return TD_OK;
}

/* With the weight packed. */
static td_status output_loss(const td_output_loss *l, int num_threads)
{
    const td_status status = check_targets(l->targets, l->rows, l->vocab);
    if (status != TD_OK)
        return status;
    LossRoom room;
    take_loss_room(l, num_threads, &room);
    const int64_t rows = l->rows, width = l->width, vocab = in_whole(l->vocab);
    round_rows((Numbers){(float *)l->states, room.states}, width, num_threads);
    form_in_unit(
        (Product){room.states, {l->packed_forward, width, vocab}, {.bf16 = room.logits}},
        num_threads);
    LossRows logits = {l, room.logits};
    parallel_for(form_loss_tiles, &logits, (rows + TILE - 1) / TILE, 1, num_threads);
    form_in_unit((Product){room.logits,
                           {l->packed_backward, vocab, width},
                           {.fp32 = l->grad_states, .columns = width}},
                 num_threads);
    Summed states = {room.states, width, room.paired};
    parallel_for(pack_summed, &states, width / PANEL_WIDTH, 1, num_threads);
    form_weight_gradient((WeightGradient){.of_y = room.logits,
                                          .x = {room.paired, in_whole(rows), width},
                                          .outputs = l->vocab,
                                          .weight = l->grad_weight,
                                          .is_added = (int)l->accumulates,
                                          .turned = room.turned},
                         num_threads);
    return TD_OK;
}
