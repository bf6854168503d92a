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
    .use_sgemm = use_sgemm,
    .uses_amx = uses_amx,
    .attention_workspace = attention_workspace,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .dropout_forward = dropout_forward,
    .dropout_backward = dropout_backward,
    .layer_norm_workspace = layer_norm_workspace,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .cross_entropy = cross_entropy,
    .output_loss_workspace = output_loss_workspace,
    .output_loss_pack = output_loss_pack,
    .output_loss = output_loss,
    .stack_states = stack_states,
    .stack_workspace = stack_workspace,
    .stack_pack = stack_pack,
    .stack_forward = stack_forward,
    .stack_backward = stack_backward,
    .orthogonalize_workspace = orthogonalize_workspace,
    .orthogonalize = orthogonalize,
};
