/* The smoothed cross-entropy of logits, and its gradient in their place. */
#include <math.h>

#include "parallel.h"
#include "simd/bf16.h"
#include "simd/vec.h"
#include "transduce.h"

#define LEAST_ROWS 4 /* fewer are not worth a thread */

/* Those of a row that are there; elsewhere what changes neither sum nor maximum. */
static inline vec logits_at(const float *row, int64_t left, float none)
{
    if (left >= LANES)
        return vec_load(row);
    const vec_mask there = vec_first(left);
    return vec_select(there, vec_load_masked(there, row), vec_set1(none));
}

static void form_row(const td_cross_entropy *c, int64_t number, float *row)
{
    const int64_t vocab = c->vocab, target = c->targets[number];
    vec highest = vec_set1(-INFINITY), sums = vec_set1(0.0f);
    for (int64_t i = 0; i < vocab; i += LANES) {
        highest = vec_max(highest, logits_at(row + i, vocab - i, -INFINITY));
        sums += logits_at(row + i, vocab - i, 0.0f);
    }
    const float most = vec_reduce_max(highest), true_logit = row[target];
    const vec shift = vec_set1(most);
    vec powers = vec_set1(0.0f);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec power = vec_exp(logits_at(row + i, vocab - i, -INFINITY) - shift);
        vec_store_first(row + i, vocab - i, power);
        powers += power;
    }
    const float total = vec_reduce_add(powers), log_total = most + logf(total);
    const vec share = vec_set1(1.0f / total);
    const vec uniform = vec_set1(c->smoothing / (float)vocab);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec probability = logits_at(row + i, vocab - i, 0.0f) * share;
        vec_store_first(row + i, vocab - i, probability - uniform);
    }
    row[target] -= 1.0f - c->smoothing;
    const float of_true = true_logit - log_total;
    const float mean = vec_reduce_add(sums) / (float)vocab - log_total;
    c->negative_log_likelihood[number] = -of_true;
    c->smoothed[number] = -of_true - c->smoothing * (mean - of_true);
}

static void form_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const td_cross_entropy *c = shared;
    for (int64_t number = first; number < end; number++) {
        if (c->logits) {
            form_row(c, number, c->logits + number * c->vocab);
            continue;
        }
        Bf16 *halves = c->bf16_logits + number * c->vocab;
        float *row = c->workspace + worker * c->vocab;
        widen(c->vocab, halves, row);
        form_row(c, number, row);
        narrow(c->vocab, row, halves);
    }
}

/* TD_BAD_TOKEN if an id is outside the vocabulary. */
static td_status check_targets(const int64_t *targets, int64_t rows, int64_t vocab)
{
    for (int64_t row = 0; row < rows; row++)
        if (targets[row] < 0 || targets[row] >= vocab)
            return TD_BAD_TOKEN;
    return TD_OK;
}

static td_status cross_entropy(const td_cross_entropy *c, int num_threads)
{
    const td_status status = check_targets(c->targets, c->rows, c->vocab);
    if (status != TD_OK)
        return status;
    parallel_for(form_rows, (void *)c, c->rows, LEAST_ROWS, num_threads);
    return TD_OK;
}
