/* Label-smoothed cross-entropy of logits in fp32 or bf16. */
#include "nn/cross_entropy.h"

#include <math.h>

#include "checks.h"
#include "parallel.h"
#include "simd/bf16.h"
#include "simd/vec.h"
#include "sizes.h"

#define MIN_LOSS_ROWS 4 /* of a part of parallel_for */

/* Load LANES logits, or the last `left` of a row with `padding` behind them. */
static inline vec load_logits(const float *row, int64_t left, float padding)
{
    if (left >= LANES)
        return vec_load(row);
    const vec_mask first = vec_first(left);
    return vec_select(first, vec_load_masked(first, row), vec_set1(padding));
}

/* Write both losses of a row, and replace its logits by their gradient. */
static void differentiate_logit_row(const td_cross_entropy *c, int64_t row,
                                    float *logits)
{
    const int64_t vocab = c->vocab, target = c->targets[row];
    vec maxima = vec_set1(-INFINITY), sums = vec_set1(0.0f);
    for (int64_t i = 0; i < vocab; i += LANES) {
        maxima = vec_max(maxima, load_logits(logits + i, vocab - i, -INFINITY));
        sums += load_logits(logits + i, vocab - i, 0.0f);
    }
    const float max = vec_reduce_max(maxima), true_logit = logits[target];
    const vec shift = vec_set1(max);
    vec powers = vec_set1(0.0f);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec power =
            vec_exp(load_logits(logits + i, vocab - i, -INFINITY) - shift);
        vec_store_first(logits + i, vocab - i, power);
        powers += power;
    }
    const float total = vec_reduce_add(powers), log_total = max + logf(total);
    const vec inverse = vec_set1(1.0f / total);
    const vec uniform = vec_set1(c->smoothing / (float)vocab);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec probability = load_logits(logits + i, vocab - i, 0.0f) * inverse;
        vec_store_first(logits + i, vocab - i, probability - uniform);
    }
    logits[target] -= 1.0f - c->smoothing;
    const float log_true = true_logit - log_total;
    const float mean = vec_reduce_add(sums) / (float)vocab - log_total;
    c->negative_log_likelihood[row] = -log_true;
    c->smoothed[row] = -log_true - c->smoothing * (mean - log_true);
}

static void differentiate_logit_rows(void *shared, int64_t first, int64_t end,
                                     int worker)
{
    const td_cross_entropy *c = shared;
    for (int64_t row = first; row < end; row++) {
        if (c->logits) {
            differentiate_logit_row(c, row, c->logits + row * c->vocab);
            continue;
        }
        td_bf16 *rounded = c->bf16_logits + row * c->vocab;
        float *logits = c->workspace + worker * c->vocab;
        widen(c->vocab, rounded, logits);
        differentiate_logit_row(c, row, logits);
        narrow(c->vocab, logits, rounded);
    }
}

TD_INTERNAL td_status check_targets(const int64_t *targets, int64_t rows, int64_t vocab)
{
    if (is_missing(targets, rows))
        return TD_BAD_ARGUMENT;
    for (int64_t row = 0; row < rows; row++)
        if (targets[row] < 0 || targets[row] >= vocab)
            return TD_BAD_TOKEN;
    return TD_OK;
}

static td_status check_cross_entropy(const td_cross_entropy *c, int num_threads)
{
    if (!c || !is_thread_count(num_threads) || !is_size(c->rows, 0) ||
        !is_size(c->vocab, 1) || !is_tensor(c->rows, c->vocab, 1))
        return TD_BAD_ARGUMENT;
    const int is_rounded = !c->logits;
    if (is_missing(c->smoothed, c->rows) ||
        is_missing(c->negative_log_likelihood, c->rows) ||
        (is_rounded && is_missing(c->bf16_logits, c->rows)) ||
        (is_rounded && is_missing(c->workspace, c->rows)))
        return TD_BAD_ARGUMENT;
    return check_targets(c->targets, c->rows, c->vocab);
}

TD_INTERNAL td_status td_cross_entropy_run(const td_cross_entropy *c, int num_threads)
{
    const td_status status = check_cross_entropy(c, num_threads);
    if (status != TD_OK)
        return status;
    td_cross_entropy own = *c;
    parallel_for(differentiate_logit_rows, &own, own.rows, MIN_LOSS_ROWS, num_threads);
    return TD_OK;
}
