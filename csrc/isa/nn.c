/* All of training for one instruction set. */
/* clang-format off */
#include "isa/name.h"
#include "transduce.h"
#include "nn/attention.c"
#include "nn/cross_entropy.c"
#include "nn/dropout.c"
#include "nn/orthogonalize.c"
#include "nn/residual.c"
#include "gemm/pack_bf16.c"
#include "gemm/amx_bf16.c"
#include "nn/linear.c"
#include "nn/output_loss.c"
#include "nn/stack.c"
#include "nn/layers.c"
/* clang-format on */

extern const td_nn_api TD_NAME(td_nn);
const td_nn_api TD_NAME(td_nn) = {
    .lanes = LANES,
};
