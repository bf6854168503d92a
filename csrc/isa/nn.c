/* All units of training as one translation unit, for one instruction set. */
/* clang-format off */
#include "isa/name.h"
#include "transduce.h"
#include "nn/attention.c"
#include "nn/cross_entropy.c"
#include "nn/dropout.c"
#include "nn/layer_norm.c"
#include "gemm/fp32_product.c"
#include "gemm/pack_bf16.c"
#include "gemm/amx_bf16.c"
#include "gemm/avx512_bf16.c"
#include "gemm/bf16_product.c"
#include "nn/linear.c"
#include "nn/muon.c"
#include "nn/recurrence.c"
#include "nn/output_loss.c"
#include "nn/stack_layout.c"
#include "nn/stack.c"
/* clang-format on */

extern const td_nn_api TD_NAME(td_nn);
const td_nn_api TD_NAME(td_nn) = {
    .lanes = LANES,
    .product_workspace = td_product_workspace,
    .product = td_product_run,
    .bf16_unit = bf16_unit,
    .attention_workspace = td_attention_workspace,
    .attention_forward = td_attention_forward,
    .attention_backward = td_attention_backward,
    .recurrence_forward = td_recurrence_forward,
    .recurrence_backward = td_recurrence_backward,
    .dropout_forward = td_dropout_forward,
    .dropout_backward = td_dropout_backward,
    .layer_norm_workspace = td_layer_norm_workspace,
    .layer_norm_forward = td_layer_norm_forward,
    .layer_norm_backward = td_layer_norm_backward,
    .cross_entropy = td_cross_entropy_run,
    .output_loss_workspace = td_output_loss_workspace,
    .output_loss_pack = td_output_loss_pack,
    .output_loss = td_output_loss_run,
    .stack_states = td_stack_states,
    .stack_workspace = td_stack_workspace,
    .stack_pack = td_stack_pack,
    .stack_forward = td_stack_forward,
    .stack_backward = td_stack_backward,
    .muon_workspace = td_muon_workspace,
    .muon = td_muon_run,
};
