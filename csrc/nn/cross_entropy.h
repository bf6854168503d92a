/* Label-smoothed cross-entropy (section 5.4) of logits, which its gradient replaces. */
#ifndef TRANSDUCE_NN_CROSS_ENTROPY_H
#define TRANSDUCE_NN_CROSS_ENTROPY_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* Label-smoothed loss of a token: the cross-entropy of the target distribution, which
 * gives the true token 1 - smoothing and spreads `smoothing` over the vocabulary. It is
 *
 *   -(1 - smoothing) log p(true token) - smoothing mean(log p)
 *
 * given log p(true token) and the mean of log p over the vocabulary. */
static inline float smoothed_loss(float smoothing, float log_true, float mean_log)
{
    return -log_true - smoothing * (mean_log - log_true);
}

/* TD_BAD_TOKEN if a target is outside the vocabulary, TD_BAD_ARGUMENT if they are
 * missing. */
TD_INTERNAL td_status check_targets(const int64_t *targets, int64_t rows,
                                    int64_t vocab);

TD_INTERNAL td_status td_cross_entropy_run(const td_cross_entropy *loss,
                                           int num_threads);

#endif
