/* Label-smoothed cross-entropy (section 5.4) of the logits of the output layer (section
 * 3.4), and the gradients of states and weight, with products in bf16. */
#ifndef TRANSDUCE_NN_OUTPUT_LOSS_H
#define TRANSDUCE_NN_OUTPUT_LOSS_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

TD_INTERNAL int64_t td_output_loss_workspace(const td_output_loss *loss,
                                             int num_threads);
TD_INTERNAL td_status td_output_loss_pack(const td_output_loss *loss, int num_threads);
TD_INTERNAL td_status td_output_loss_run(const td_output_loss *loss, int num_threads);

#endif
