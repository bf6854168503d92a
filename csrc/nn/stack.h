/* All layers of an encoder or decoder, forward and backward (sections 3.1 to 3.3).
 *
 * One call for all layers saves most of the time that Python takes between the
 * operators of a small model, and lets each thread take its own sentences through all
 * layers (benchmarks/results/training_speed.md). */
#ifndef TRANSDUCE_NN_STACK_H
#define TRANSDUCE_NN_STACK_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

TD_INTERNAL int64_t td_stack_states(const td_stack *stack);
TD_INTERNAL int64_t td_stack_workspace(const td_stack *stack);
TD_INTERNAL td_status td_stack_pack(const td_stack *stack);
TD_INTERNAL td_status td_stack_forward(const td_stack *stack);
TD_INTERNAL td_status td_stack_backward(const td_stack *stack);

#endif
