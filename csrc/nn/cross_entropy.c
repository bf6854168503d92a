/* Label-smoothed cross-entropy of logits in fp32 or bf16. */
#include "nn/cross_entropy.h"

#include <math.h>

#include "checks.h"
#include "parallel.h"
#include "simd/bf16.h"
#include "simd/vec.h"
#include "sizes.h"

#define MIN_LOSS_ROWS 4 /* of a part of parallel_for */

/* Load LANES logits, or the last `left` of a row followed by `padding`. */
static inline vec load_logits(const float *row, int64_t left, float padding)
{
    if (left >= LANES)
        return vec_load(row);
    const vec_mask first = vec_mask_first(left);
    return vec_select(first, vec_load_masked(first, row), vec_set1(padding));
}

/* Write both losses of a row, and replace its logits by their gradient: for the softmax
 * p of the logits,
 *
 *   p - smoothing / vocab - (1 - smoothing) [true token] */
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
    const float mean_log = vec_reduce_add(sums) / (float)vocab - log_total;
    c->negative_log_likelihood[row] = -log_true;
    c->smoothed[row] = smoothed_loss(c->smoothing, log_true, mean_log);
}

/* One of two passes over a token: its logits, and sums over them, lane by lane. */
typedef struct {
    vec sums;     /* of the logits */
    vec powers;   /* sums of e^(logit - max) */
    vec products; /* sums of e^(logit - max) (logit - logit of the other pass) */
    float *logits;
    float max;
    float log_total;  /* log of the sum of e^logit */
    float divergence; /* D(p, q) from this pass's distribution to the other's */
} Pass;

static void begin_pass(Pass *pass, float *logits, int64_t vocab)
{
    const vec zero = vec_set1(0.0f);
    vec maxima = vec_set1(-INFINITY);
    *pass = (Pass){.logits = logits, .sums = zero, .powers = zero, .products = zero};
    for (int64_t i = 0; i < vocab; i += LANES) {
        maxima = vec_max(maxima, load_logits(logits + i, vocab - i, -INFINITY));
        pass->sums += load_logits(logits + i, vocab - i, 0.0f);
    }
    pass->max = vec_reduce_max(maxima);
}

/* Add the exponentials of LANES logits, and their products with `difference`, these
 * logits minus those of the other pass. */
static inline void add_powers(Pass *pass, int64_t i, int64_t vocab, vec difference)
{
    const vec low = load_logits(pass->logits + i, vocab - i, -INFINITY);
    const vec power = vec_exp(low - vec_set1(pass->max));
    pass->powers += power;
    pass->products = vec_fma(power, difference, pass->products);
}

static float log_total(const Pass *pass)
{
    return pass->max + logf(vec_reduce_add(pass->powers));
}

/* Kullback-Leibler divergence D(p, q): the mean of log p - log q under p, where log p
 * is logit - log_total. */
static float divergence(const Pass *from, const Pass *to)
{
    const float mean_difference =
        vec_reduce_add(from->products) / vec_reduce_add(from->powers);
    return mean_difference - from->log_total + to->log_total;
}

/* Write both losses of a pass, and subtract the target from its gradient. */
static void finish_pass(const td_cross_entropy *c, const Pass *pass, int64_t row,
                        float true_logit)
{
    const float log_true = true_logit - pass->log_total;
    const float mean_log =
        vec_reduce_add(pass->sums) / (float)c->vocab - pass->log_total;
    const float smoothed = smoothed_loss(c->smoothing, log_true, mean_log);
    pass->logits[c->targets[row]] -= 0.5f * (1.0f - c->smoothing);
    c->negative_log_likelihood[row] = -0.5f * log_true;
    c->smoothed[row] = 0.5f * smoothed + 0.25f * c->consistency * pass->divergence;
}

/* Write the losses of two passes over a token, and replace their logits by gradients:
 * for the probabilities p and q of both passes and the divergence D(p, q),
 *
 *   (p - target) / 2 + alpha/4 (p (log p - log q - D(p, q)) + p - q) */
static void differentiate_passes(const td_cross_entropy *c, int64_t row, float *logits,
                                 float *other_logits)
{
    const int64_t vocab = c->vocab, other_row = row + c->rows / 2;
    const float true_logit = logits[c->targets[row]];
    const float other_true_logit = other_logits[c->targets[other_row]];
    Pass one, other;
    begin_pass(&one, logits, vocab);
    begin_pass(&other, other_logits, vocab);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec difference = load_logits(logits + i, vocab - i, 0.0f) -
                               load_logits(other_logits + i, vocab - i, 0.0f);
        add_powers(&one, i, vocab, difference);
        add_powers(&other, i, vocab, -difference);
    }
    one.log_total = log_total(&one);
    other.log_total = log_total(&other);
    one.divergence = divergence(&one, &other);
    other.divergence = divergence(&other, &one);
    const vec weight = vec_set1(0.25f * c->consistency), half = vec_set1(0.5f);
    const vec uniform = vec_set1(0.5f * c->smoothing / (float)vocab);
    const vec one_divergence = vec_set1(one.divergence);
    const vec other_divergence = vec_set1(other.divergence);
    for (int64_t i = 0; i < vocab; i += LANES) {
        const vec log_p =
            load_logits(logits + i, vocab - i, 0.0f) - vec_set1(one.log_total);
        const vec log_q =
            load_logits(other_logits + i, vocab - i, 0.0f) - vec_set1(other.log_total);
        const vec p = vec_exp(log_p), q = vec_exp(log_q), ratio = log_p - log_q;
        const vec from_p = p * (ratio - one_divergence) + p - q;
        const vec from_q = q * (-ratio - other_divergence) + q - p;
        vec_store_first(logits + i, vocab - i,
                        vec_fma(weight, from_p, half * p - uniform));
        vec_store_first(other_logits + i, vocab - i,
                        vec_fma(weight, from_q, half * q - uniform));
    }
    finish_pass(c, &one, row, true_logit);
    finish_pass(c, &other, other_row, other_true_logit);
}

static void differentiate_pairs(void *shared, int64_t first, int64_t end, int worker)
{
    const td_cross_entropy *c = shared;
    const int64_t vocab = c->vocab, distance = c->rows / 2 * vocab;
    for (int64_t row = first; row < end; row++) {
        if (c->logits) {
            float *logits = c->logits + row * vocab;
            differentiate_passes(c, row, logits, logits + distance);
            continue;
        }
        td_bf16 *rounded = c->bf16_logits + row * vocab;
        float *logits = c->workspace + 2 * worker * vocab;
        bf16_to_floats(vocab, rounded, logits);
        bf16_to_floats(vocab, rounded + distance, logits + vocab);
        differentiate_passes(c, row, logits, logits + vocab);
        floats_to_bf16(vocab, logits, rounded);
        floats_to_bf16(vocab, logits + vocab, rounded + distance);
    }
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
        bf16_to_floats(c->vocab, rounded, logits);
        differentiate_logit_row(c, row, logits);
        floats_to_bf16(c->vocab, logits, rounded);
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
        !is_size(c->vocab, 1) || !is_tensor(c->rows, c->vocab, 1) ||
        !(c->consistency >= 0) || (c->consistency > 0 && c->rows % 2))
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
    if (own.consistency > 0)
        parallel_for(differentiate_pairs, &own, own.rows / 2, MIN_LOSS_ROWS / 2,
                     num_threads);
    else
        parallel_for(differentiate_logit_rows, &own, own.rows, MIN_LOSS_ROWS,
                     num_threads);
    return TD_OK;
}
