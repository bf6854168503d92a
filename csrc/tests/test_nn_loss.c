/* Label-smoothed cross-entropy against plain loops in double precision. */
#include "tests/arrays.h"

static const float SMOOTHING = 0.4f;

static float from_bf16(td_bf16 half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static td_bf16 to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (td_bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

typedef struct {
    double smoothed, likelihood; /* negative log-likelihood */
} Losses;

/* Losses of a row, and the gradient of the smoothed one. */
static Losses loss_of_row(const double *logits, int64_t vocab, int64_t target,
                          double *gradient)
{
    double max = -1e30, total = 0.0, mean = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < vocab; i++)
        total += exp(logits[i] - max);
    const double log_total = max + log(total), smoothing = SMOOTHING;
    for (int64_t i = 0; i < vocab; i++) {
        mean += (logits[i] - log_total) / (double)vocab;
        gradient[i] = exp(logits[i] - log_total) - smoothing / (double)vocab -
                      (i == target ? 1.0 - smoothing : 0.0);
    }
    const double true_log = logits[target] - log_total;
    return (Losses){-(1.0 - smoothing) * true_log - smoothing * mean, -true_log};
}

/* Log-probabilities of logits. */
static void log_softmax(const double *logits, int64_t vocab, double *log_probabilities)
{
    double total = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        total += exp(logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        log_probabilities[i] = logits[i] - log(total);
}

/* Halve the losses and the gradient of a pass over a token, and add those of its
 * divergence from the other pass. */
static void add_consistency(const double *log_p, const double *log_q, int64_t vocab,
                            double alpha, double *smoothed, double *likelihood,
                            double *gradient)
{
    double divergence = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        divergence += exp(log_p[i]) * (log_p[i] - log_q[i]);
    for (int64_t i = 0; i < vocab; i++) {
        const double p = exp(log_p[i]), q = exp(log_q[i]);
        gradient[i] = gradient[i] / 2 +
                      alpha / 4 * (p * (log_p[i] - log_q[i] - divergence) + p - q);
    }
    *smoothed = *smoothed / 2 + alpha / 4 * divergence;
    *likelihood /= 2;
}

static void check_cross_entropy(const td_api *api, int64_t rows, int64_t vocab,
                                int is_bf16, float consistency)
{
    float *logits = random_floats(rows * vocab);
    td_bf16 *halves = new_array(rows * vocab * (int64_t)sizeof *halves);
    double *exact = new_doubles(rows * vocab), *gradient = new_doubles(rows * vocab);
    double *smoothed = new_doubles(rows), *likelihood = new_doubles(rows);
    const int64_t *targets = random_ids(rows, vocab);
    for (int64_t i = 0; i < rows * vocab; i++) {
        logits[i] *= 5.0f;
        halves[i] = to_bf16(logits[i]);
        exact[i] = is_bf16 ? from_bf16(halves[i]) : logits[i];
    }
    for (int64_t row = 0; row < rows; row++) {
        const Losses losses = loss_of_row(exact + row * vocab, vocab, targets[row],
                                          gradient + row * vocab);
        smoothed[row] = losses.smoothed;
        likelihood[row] = losses.likelihood;
    }
    double *logs = new_doubles(rows * vocab);
    for (int64_t row = 0; row < rows && consistency > 0; row++)
        log_softmax(exact + row * vocab, vocab, logs + row * vocab);
    for (int64_t row = 0; row < rows && consistency > 0; row++)
        add_consistency(logs + row * vocab, logs + (row + rows / 2) % rows * vocab,
                        vocab, consistency, smoothed + row, likelihood + row,
                        gradient + row * vocab);
    td_cross_entropy c = {.rows = rows,
                          .vocab = vocab,
                          .targets = targets,
                          .smoothing = SMOOTHING,
                          .consistency = consistency,
                          .smoothed = unset_floats(rows),
                          .negative_log_likelihood = unset_floats(rows)};
    if (is_bf16) {
        c.bf16_logits = halves;
        c.workspace = unset_floats(4 * vocab);
    } else
        c.logits = logits;
    CHECK_STATUS(api->nn->cross_entropy(&c, 2), TD_OK);
    check_near("smoothed", c.smoothed, smoothed, rows, 2e-5);
    check_near("likelihood", c.negative_log_likelihood, likelihood, rows, 2e-5);
    for (int64_t i = 0; i < rows * vocab && is_bf16; i++)
        logits[i] = from_bf16(halves[i]);
    check_near("gradient", logits, gradient, rows * vocab,
               (1 + consistency) * (is_bf16 ? 4e-3 : 1e-5));
    release_arrays();
}

static void cross_entropy_is_that_of_plain_loops(const td_api *api)
{
    const int64_t sizes[][2] = {{1, 1}, {3, 7}, {9, 16}, {20, 37}, {2, 513}, {0, 5}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            check_cross_entropy(api, sizes[s][0], sizes[s][1], is_bf16, 0.0f);
            check_cross_entropy(api, 2 * sizes[s][0], sizes[s][1], is_bf16, 3.0f);
        }
}

/* Factors that are exact in bf16, so that only logits and gradients are rounded. */
static float *random_bf16_floats(int64_t count)
{
    float *array = random_floats(count);
    for (int64_t i = 0; i < count; i++)
        array[i] = from_bf16(to_bf16(array[i]));
    return array;
}

static td_output_loss new_output_loss(const td_api *api, int64_t rows, int64_t vocab,
                                      int64_t width, int threads)
{
    const int64_t packed = (vocab + 31) / 32 * 32 * width * (int64_t)sizeof(td_bf16);
    td_output_loss l = {.rows = rows,
                        .vocab = vocab,
                        .width = width,
                        .states = random_bf16_floats(rows * width),
                        .weight = random_bf16_floats(vocab * width),
                        .targets = random_ids(rows, vocab),
                        .smoothing = SMOOTHING,
                        .smoothed = unset_floats(rows),
                        .negative_log_likelihood = unset_floats(rows),
                        .grad_states = unset_floats(rows * width),
                        .grad_weight = unset_floats(vocab * width),
                        .packed_forward = new_array(packed),
                        .packed_backward = new_array(packed)};
    l.workspace = unset_floats(api->nn->output_loss_workspace(&l, threads));
    return l;
}

static void check_output_loss(const td_api *api, int64_t rows, int64_t vocab)
{
    const int64_t width = 64;
    const td_output_loss l = new_output_loss(api, rows, vocab, width, 2);
    double *grad_states = new_doubles(rows * width);
    double *grad_weight = new_doubles(vocab * width);
    double *logits = new_doubles(vocab), *gradient = new_doubles(vocab);
    CHECK_STATUS(api->nn->output_loss_pack(&l, 2), TD_OK);
    CHECK_STATUS(api->nn->output_loss(&l, 2), TD_OK);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < vocab; i++) {
            logits[i] = 0.0;
            for (int64_t k = 0; k < width; k++)
                logits[i] +=
                    (double)l.states[row * width + k] * (double)l.weight[i * width + k];
        }
        const Losses losses = loss_of_row(logits, vocab, l.targets[row], gradient);
        /* Logits are below 16, so that bf16 rounds them by at most 1/32. */
        CHECK_NEAR(l.smoothed[row], losses.smoothed, 2.0 / 32);
        CHECK_NEAR(l.negative_log_likelihood[row], losses.likelihood, 2.0 / 32);
        for (int64_t i = 0; i < vocab; i++)
            for (int64_t k = 0; k < width; k++) {
                grad_states[row * width + k] +=
                    gradient[i] * (double)l.weight[i * width + k];
                grad_weight[i * width + k] +=
                    gradient[i] * (double)l.states[row * width + k];
            }
    }
    check_near("grad_states", l.grad_states, grad_states, rows * width, 2.0 / 32);
    check_near("grad_weight", l.grad_weight, grad_weight, vocab * width, 3.0 / 32);
    release_arrays();
}

static void output_loss_is_that_of_plain_loops(const td_api *api)
{
    const int64_t sizes[][2] = {{1, 2}, {16, 33}, {17, 32}, {40, 100}, {0, 40}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_output_loss(api, sizes[s][0], sizes[s][1]);
}

static void bad_arguments_are_refused(const td_api *api)
{
    td_output_loss l = new_output_loss(api, 5, 40, 32, 1);
    int64_t *targets = (int64_t *)l.targets;
    float *logits = random_floats(5 * 40);
    td_cross_entropy c = {.rows = 5,
                          .vocab = 40,
                          .logits = logits,
                          .targets = targets,
                          .smoothed = unset_floats(5),
                          .negative_log_likelihood = unset_floats(5)};
    CHECK_STATUS(api->nn->output_loss_pack(&l, 1), TD_OK);
    const int64_t bad[] = {-1, 40, INT64_MIN, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        targets[3] = bad[i];
        CHECK_STATUS(api->nn->cross_entropy(&c, 1), TD_BAD_TOKEN);
        CHECK_STATUS(api->nn->output_loss(&l, 1), TD_BAD_TOKEN);
    }
    targets[3] = 0;
    c.logits = NULL;
    CHECK_STATUS(api->nn->cross_entropy(&c, 1), TD_BAD_ARGUMENT);
    c.logits = logits;
    c.rows = -1;
    CHECK_STATUS(api->nn->cross_entropy(&c, 1), TD_BAD_ARGUMENT);
    l.width = 33;
    CHECK_STATUS(api->nn->output_loss(&l, 1), TD_BAD_ARGUMENT);
    CHECK_INT(api->nn->output_loss_workspace(&l, 1), -1);
    release_arrays();
}

int main(void)
{
    for_each_isa(cross_entropy_is_that_of_plain_loops);
    for_each_isa(output_loss_is_that_of_plain_loops);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
