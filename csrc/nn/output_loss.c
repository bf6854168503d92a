/* Loss of the output layer.
 *
 * A product in bf16 gives the logits, states W^T. The loss replaces them by their
 * gradient, from which two more products give the gradients of the states and of W. It
 * goes over the logits three times: for their maxima, for the sums of exponentials, and
 * for the gradient. As logits are in panels, LOSS_ROWS rows go from panel to panel
 * together.
 */
#include "nn/output_loss.h"

#include <math.h>

#include "arena.h"
#include "checks.h"
#include "gemm/pack_bf16.h"
#include "nn/cross_entropy.h"
#include "nn/linear.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define LOSS_ROWS 16 /* rows whose logits stay in the cache of a core */

typedef struct {
    td_panels states; /* [rows, width] */
    td_panels logits; /* [rows, vocab in whole panels], then their gradient */
    td_bf16 *packed_states, *transposed; /* of a WeightGradient */
} LossWorkspace;

static LossWorkspace take_loss_workspace(const td_output_loss *l, int num_threads,
                                         Arena *arena)
{
    const int64_t rows = l->rows, vocab = round_up_to_panels(l->vocab);
    LossWorkspace work;
    work.states = take_panels(arena, rows, l->width);
    work.logits = take_panels(arena, rows, vocab);
    work.packed_states = take_bf16(arena, round_up_to_panels(rows) * l->width);
    work.transposed = take_bf16(arena, num_threads * transposed_size(rows));
    return work;
}

/* Arguments of differentiate_tiles. */
typedef struct {
    const td_output_loss *loss;
    td_panels logits;
} LogitRows;

/* Load LANES logits of a row from a column on, with `padding` past the vocabulary. */
static inline vec load_panel_logits(const LogitRows *l, int64_t row, int64_t column,
                                    float padding)
{
    const vec x = vec_from_bf16(panel_element(l->logits, row, column));
    const int64_t left = l->loss->vocab - column;
    return left >= LANES ? x : vec_select(vec_mask_first(left), x, vec_set1(padding));
}

/* Sums over a row's logits, lane by lane; powers are e^(logit - max). */
typedef struct {
    vec maxima, sums, powers;
    float max, log_total, true_logit;
} RowSums;

/* First pass: maxima and sums. */
static void sum_logits(const LogitRows *l, RowSpan rows, RowSums *all)
{
    for (int64_t row = 0; row < rows.end - rows.first; row++) {
        all[row].maxima = vec_set1(-INFINITY);
        all[row].sums = all[row].powers = vec_set1(0.0f);
    }
    for (int64_t panel = 0; panel < l->loss->vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            RowSums *own = all + row - rows.first;
            for (int64_t column = panel; column < panel + PANEL_WIDTH;
                 column += LANES) {
                const vec x = load_panel_logits(l, row, column, -INFINITY);
                own->maxima = vec_max(own->maxima, x);
                own->sums += load_panel_logits(l, row, column, 0.0f);
            }
        }
}

/* Second pass: exponentials. */
static void sum_powers(const LogitRows *l, RowSpan rows, RowSums *all)
{
    for (int64_t panel = 0; panel < l->loss->vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            RowSums *own = all + row - rows.first;
            for (int64_t column = panel; column < panel + PANEL_WIDTH; column += LANES)
                own->powers += vec_exp(load_panel_logits(l, row, column, -INFINITY) -
                                       vec_set1(own->max));
        }
}

/* Third pass: replace logits by their gradient, without the share of the true token. */
static void differentiate_logits(const LogitRows *l, RowSpan rows, const RowSums *all)
{
    const int64_t vocab = l->loss->vocab;
    const vec uniform = vec_set1(l->loss->smoothing / (float)vocab);
    for (int64_t panel = 0; panel < vocab; panel += PANEL_WIDTH)
        for (int64_t row = rows.first; row < rows.end; row++) {
            const vec total = vec_set1(all[row - rows.first].log_total);
            for (int64_t column = panel; column < panel + PANEL_WIDTH;
                 column += LANES) {
                const vec x = load_panel_logits(l, row, column, -INFINITY);
                vec gradient = vec_exp(x - total) - uniform;
                if (column + LANES > vocab)
                    gradient = vec_select(vec_mask_first(vocab - column), gradient,
                                          vec_set1(0.0f));
                vec_store_bf16(panel_element(l->logits, row, column), gradient);
            }
        }
}

static void write_losses(const LogitRows *l, int64_t row, RowSums *own)
{
    const td_output_loss *loss = l->loss;
    own->log_total = own->max + logf(vec_reduce_add(own->powers));
    const float log_true = own->true_logit - own->log_total;
    const float mean_log =
        vec_reduce_add(own->sums) / (float)loss->vocab - own->log_total;
    loss->negative_log_likelihood[row] = -log_true;
    loss->smoothed[row] = smoothed_loss(loss->smoothing, log_true, mean_log);
}

/* Write the gradient of the true token's logit. */
static void differentiate_target(const LogitRows *l, int64_t row, const RowSums *own)
{
    const td_output_loss *loss = l->loss;
    const float probability = expf(own->true_logit - own->log_total);
    const float gradient =
        probability - loss->smoothing / (float)loss->vocab - (1.0f - loss->smoothing);
    floats_to_bf16(1, &gradient, panel_element(l->logits, row, loss->targets[row]));
}

static void differentiate_tiles(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const LogitRows *l = shared;
    for (int64_t tile = first; tile < end; tile++) {
        RowSums all[LOSS_ROWS];
        const int64_t row = tile * LOSS_ROWS;
        const RowSpan rows = {row, min_i64(row + LOSS_ROWS, l->loss->rows)};
        sum_logits(l, rows, all);
        for (int64_t r = rows.first; r < rows.end; r++) {
            RowSums *own = all + r - row;
            own->max = vec_reduce_max(own->maxima);
            bf16_to_floats(1, panel_element(l->logits, r, l->loss->targets[r]),
                           &own->true_logit);
        }
        sum_powers(l, rows, all);
        for (int64_t r = rows.first; r < rows.end; r++)
            write_losses(l, r, all + r - row);
        differentiate_logits(l, rows, all);
        for (int64_t r = rows.first; r < rows.end; r++)
            differentiate_target(l, r, all + r - row);
    }
}

static int are_loss_sizes(const td_output_loss *l, int num_threads)
{
    return l && is_thread_count(num_threads) && is_size(l->rows, 0) &&
           is_size(l->vocab, 1) && is_multiple(l->width, PANEL_WIDTH) &&
           is_tensor(l->rows, max_i64(l->vocab, l->width), 1) &&
           is_tensor(l->vocab, l->width, 1);
}

TD_INTERNAL int64_t td_output_loss_workspace(const td_output_loss *loss,
                                             int num_threads)
{
    if (!are_loss_sizes(loss, num_threads))
        return -1;
    Arena arena = {NULL, 0};
    take_loss_workspace(loss, num_threads, &arena);
    return arena.used;
}

TD_INTERNAL td_status td_output_loss_pack(const td_output_loss *l, int num_threads)
{
    if (!are_loss_sizes(l, num_threads) || !l->weight || !l->packed_forward ||
        !l->packed_backward)
        return TD_BAD_ARGUMENT;
    WeightPacking forward = {l->weight, l->vocab, l->width, l->packed_forward};
    WeightPacking backward = {l->weight, l->vocab, l->width, l->packed_backward};
    parallel_for(pack_forward, &forward, round_up_to_panels(l->vocab) / PACKED_COLUMNS,
                 1, num_threads);
    parallel_for(pack_backward, &backward, l->width / PACKED_COLUMNS, 1, num_threads);
    return TD_OK;
}

static td_status check_output_loss(const td_output_loss *l, int num_threads)
{
    if (!are_loss_sizes(l, num_threads) || !l->packed_forward || !l->packed_backward ||
        !l->grad_weight || is_missing(l->states, l->rows) ||
        is_missing(l->grad_states, l->rows) || is_missing(l->smoothed, l->rows) ||
        is_missing(l->negative_log_likelihood, l->rows) || !l->workspace)
        return TD_BAD_ARGUMENT;
    return check_targets(l->targets, l->rows, l->vocab);
}

static void compute_logits(const td_output_loss *l, LossWorkspace work, int num_threads)
{
    const int64_t vocab = round_up_to_panels(l->vocab);
    round_activations((Activations){(float *)l->states, work.states}, l->width,
                      num_threads);
    run_bf16_product((Bf16Product){work.states,
                                   {l->packed_forward, l->width, vocab},
                                   {.columns = vocab, .bf16 = work.logits}},
                     num_threads);
}

/* Write grad_states, given the gradient of the logits. */
static void differentiate_states(const td_output_loss *l, LossWorkspace work,
                                 int num_threads)
{
    const int64_t vocab = round_up_to_panels(l->vocab);
    run_bf16_product((Bf16Product){work.logits,
                                   {l->packed_backward, vocab, l->width},
                                   {.columns = l->width, .fp32 = l->grad_states}},
                     num_threads);
}

/* Write grad_weight, given the gradient of the logits. */
static void differentiate_weight(const td_output_loss *l, LossWorkspace work,
                                 int num_threads)
{
    const int64_t inner = round_up_to_panels(l->rows);
    RowPacking packing = {work.states, l->width, work.packed_states};
    parallel_for(pack_rows, &packing, l->width / PANEL_WIDTH, 1, num_threads);
    run_weight_gradient((WeightGradient){.grad_y = work.logits,
                                         .x = {work.packed_states, inner, l->width},
                                         .outputs = l->vocab,
                                         .weight = l->grad_weight,
                                         .accumulates = (int)l->accumulates,
                                         .transposed = work.transposed},
                        num_threads);
}

TD_INTERNAL td_status td_output_loss_run(const td_output_loss *l, int num_threads)
{
    const td_status status = check_output_loss(l, num_threads);
    if (status != TD_OK)
        return status;
    Arena arena = {l->workspace, 0};
    const LossWorkspace work = take_loss_workspace(l, num_threads, &arena);
    compute_logits(l, work, num_threads);
    LogitRows logits = {l, work.logits};
    parallel_for(differentiate_tiles, &logits, ceil_div(l->rows, LOSS_ROWS), 1,
                 num_threads);
    differentiate_states(l, work, num_threads);
    differentiate_weight(l, work, num_threads);
    return TD_OK;
}
