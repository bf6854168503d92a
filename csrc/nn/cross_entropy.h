/* Label-smoothed cross-entropy (section 5.4) of logits, which its gradient replaces. */
#ifndef TRANSDUCE_NN_CROSS_ENTROPY_H
#define TRANSDUCE_NN_CROSS_ENTROPY_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* TD_BAD_TOKEN if a target is outside the vocabulary, TD_BAD_ARGUMENT if they are
 * missing. */
TD_INTERNAL td_status check_targets(const int64_t *targets, int64_t rows,
                                    int64_t vocab);

TD_INTERNAL td_status td_cross_entropy_run(const td_cross_entropy *loss,
                                           int num_threads);

#endif
