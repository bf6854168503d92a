/* Forward and backward passes of a stack of layers. */
#include "nn/stack.h"

#include "checks.h"
#include "nn/attention.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/recurrence.h"
#include "nn/stack_layout.h"
#include "parallel.h"
#include "sizes.h"

/* ---- Sub-layers ---------------------------------------------------------------- */

/* Numbers, in the whole stack, of the sub-layers of a layer: self-attention or a
 * recurrent unit, cross-attention if there is one, feed-forward. */
static int64_t first_sublayer(const td_stack *s, int64_t layer)
{
    return layer * num_sublayers(s);
}

static int64_t last_sublayer(const td_stack *s, int64_t layer)
{
    return first_sublayer(s, layer + 1) - 1;
}

/* Inputs of an attention sub-layer. */
typedef struct {
    Activations x, memory; /* queries are formed from x, keys and values from memory */
    int64_t keys;          /* of each sentence */
    int64_t number;        /* of the sub-layer in the stack */
    td_mask mask;
} AttentionInputs;

static AttentionInputs self_attention_inputs(const td_stack *s, Activations x,
                                             int64_t layer)
{
    return (AttentionInputs){x, x, s->length, first_sublayer(s, layer), s->self_mask};
}

static AttentionInputs cross_attention_inputs(const td_stack *s, Activations x,
                                              int64_t layer)
{
    return (AttentionInputs){x, inputs_of(s).memory, s->memory_length,
                             first_sublayer(s, layer) + 1, s->cross_mask};
}

enum Place { WITHIN, OF_OUTPUT }; /* of a dropout: in a sub-layer, or of its output */
enum { DROPOUT_SEEDS = 2, SUBLAYER_SEEDS = 2 * DROPOUT_SEEDS };

static td_dropout dropout_of(const td_stack *s, int64_t sublayer, enum Place place,
                             td_dropout_rate rate)
{
    const uint32_t *seeds =
        s->seeds + SUBLAYER_SEEDS * sublayer + DROPOUT_SEEDS * place;
    return (td_dropout){{seeds[0], seeds[1]}, rate};
}

/* LayerNorm(x + Dropout(addend)); callers set its inputs and outputs. */
static td_layer_norm layer_norm_of(const td_stack *s, NormWeights weights,
                                   NormStates states)
{
    td_layer_norm norm = {.rows = num_rows(s),
                          .width = s->d_model,
                          .epsilon = s->epsilon,
                          .gain = weights.gain,
                          .bias = weights.bias,
                          .normalized = states.normalized,
                          .inverse_deviation = states.inverse_deviation};
    norm.masking = (td_masking){.kept = states.kept,
                                .count = num_rows(s) * s->d_model,
                                .block_width = s->d_model,
                                .block_masks = s->d_model,
                                .dropout.rate = s->dropout};
    return norm;
}

/* y = LayerNorm(x + Dropout(work->addend)) */
static void add_and_normalize(const td_stack *s, int64_t sublayer, Activations x,
                              NormWeights weights, NormStates states, Activations y,
                              const StackWorkspace *work)
{
    td_layer_norm norm = layer_norm_of(s, weights, states);
    norm.x = x.fp32;
    norm.masking.dropout = dropout_of(s, sublayer, OF_OUTPUT, s->dropout);
    norm.masking.first_block = first_row(s);
    norm.masking.x = work->addend;
    norm.y = y.fp32;
    norm.bf16_y = y.bf16;
    layer_norm_forward(norm, s->num_threads);
}

/* Write the gradients of x and of the addend, which is in bf16 if it has panels. */
static void add_and_normalize_backward(const td_stack *s, NormWeights weights,
                                       NormWeights grad, NormStates states,
                                       const float *grad_y, float *grad_x,
                                       Activations grad_addend,
                                       const StackWorkspace *work)
{
    td_layer_norm norm = layer_norm_of(s, weights, states);
    norm.grad_y = grad_y;
    norm.grad_x = grad_x;
    norm.grad_gain = grad.gain;
    norm.grad_bias = grad.bias;
    norm.workspace = work->layer_norm;
    norm.masking.y = grad_addend.fp32;
    norm.bf16_grad_addend = grad_addend.bf16;
    layer_norm_backward(norm, s->num_threads);
}

static td_attention attention_of(const td_stack *s, AttentionInputs in,
                                 AttentionStates states, const StackWorkspace *work)
{
    return (td_attention){.sentences = s->sentences,
                          .heads = s->heads,
                          .queries = s->length,
                          .keys = in.keys,
                          .d_k = s->d_k,
                          .d_v = s->d_v,
                          .mask = in.mask,
                          .scale = s->scale,
                          .query = states.query,
                          .key_value = states.key_value,
                          .weights = states.weights,
                          .output = states.heads.fp32,
                          .bf16_output = states.heads.bf16,
                          .first_sentence = s->first_sentence,
                          .dropout =
                              dropout_of(s, in.number, WITHIN, s->attention_dropout),
                          .workspace = work->attention};
}

static Activations only_fp32(float *rows) { return (Activations){rows, {NULL, 0}}; }

/* linear_forward() with the workspace of a stack. */
static void forward_map(const td_stack *s, const StackWorkspace *work,
                        LinearForward forward)
{
    forward.product_workspace = work->product_workspace;
    linear_forward(forward, s->num_threads);
}

static void attend(const td_stack *s, const AttentionWeights *w, AttentionInputs in,
                   AttentionStates states, Activations y, const StackWorkspace *work)
{
    forward_map(s, work,
                (LinearForward){.linear = w->query,
                                .rows = num_rows(s),
                                .x = in.x,
                                .y = only_fp32(states.query)});
    forward_map(s, work,
                (LinearForward){.linear = w->key_value,
                                .rows = s->sentences * in.keys,
                                .x = in.memory,
                                .y = only_fp32(states.key_value)});
    attention_forward(attention_of(s, in, states, work), s->num_threads);
    forward_map(s, work,
                (LinearForward){.linear = w->output,
                                .rows = num_rows(s),
                                .x = states.heads,
                                .y = only_fp32(work->addend)});
    add_and_normalize(s, in.number, in.x, w->norm, states.norm, y, work);
}

/* linear_backward() with the workspaces of a stack. */
static void backward_map(const td_stack *s, const StackWorkspace *work,
                         LinearBackward backward)
{
    backward.product_workspace = work->product_workspace;
    backward.packed_x = work->packed_x;
    backward.transposed = work->transposed;
    linear_backward(backward, s->num_threads);
}

/* Gradients of the output and of the inputs of an attention sub-layer. */
typedef struct {
    const float *y;    /* read */
    float *x, *memory; /* written; one array in self-attention */
    int adds_memory;   /* 1: add to the gradient of the memory */
} AttentionGrads;

static void attend_backward(const td_stack *s, const AttentionWeights *w,
                            const AttentionWeights *grad, AttentionInputs in,
                            AttentionStates states, AttentionGrads grads,
                            const StackWorkspace *work)
{
    const int threads = s->num_threads;
    const int64_t rows = num_rows(s), memory_rows = s->sentences * in.keys;
    const int is_self_attention = in.memory.fp32 == in.x.fp32;
    Activations grad_key_value = work->grad_key_value;
    grad_key_value.bf16.rows = memory_rows;
    add_and_normalize_backward(s, w->norm, grad->norm, states.norm, grads.y, grads.x,
                               work->grad_addend, work);
    backward_map(s, work,
                 (LinearBackward){.linear = w->output,
                                  .grad = grad->output,
                                  .rows = rows,
                                  .x = states.heads,
                                  .grad_y = work->grad_addend,
                                  .grad_x = only_fp32(work->grad_heads)});
    td_attention attention = attention_of(s, in, states, work);
    attention.grad_output = work->grad_heads;
    attention.grad_query = work->grad_query.fp32;
    attention.bf16_grad_query = work->grad_query.bf16;
    attention.grad_key_value = grad_key_value.fp32;
    attention.bf16_grad_key_value = grad_key_value.bf16;
    attention_backward(attention, threads);
    backward_map(s, work,
                 (LinearBackward){.linear = w->query,
                                  .grad = grad->query,
                                  .rows = rows,
                                  .x = in.x,
                                  .grad_y = work->grad_query,
                                  .grad_x = only_fp32(grads.x),
                                  .accumulates = 1});
    backward_map(s, work,
                 (LinearBackward){.linear = w->key_value,
                                  .grad = grad->key_value,
                                  .rows = memory_rows,
                                  .x = in.memory,
                                  .grad_y = grad_key_value,
                                  .grad_x = only_fp32(grads.memory),
                                  .accumulates = grads.adds_memory,
                                  .is_x_packed = is_self_attention});
}

static td_recurrence recurrence_of(const td_stack *s, RecurrenceStates states)
{
    return (td_recurrence){.sentences = s->sentences,
                           .length = s->length,
                           .width = s->d_model,
                           .gate = states.gate,
                           .candidate = states.candidate,
                           .forget = states.gate,
                           .cells = states.cells};
}

static void recurrent_unit(const td_stack *s, const RecurrenceWeights *w, Activations x,
                           int64_t sublayer, RecurrenceStates states, Activations y,
                           const StackWorkspace *work)
{
    forward_map(s, work,
                (LinearForward){.linear = w->gate,
                                .rows = num_rows(s),
                                .x = x,
                                .y = only_fp32(states.gate)});
    forward_map(s, work,
                (LinearForward){.linear = w->candidate,
                                .rows = num_rows(s),
                                .x = x,
                                .y = only_fp32(states.candidate)});
    td_recurrence recurrence = recurrence_of(s, states);
    recurrence.output = work->addend;
    recurrence_forward(recurrence, s->num_threads);
    add_and_normalize(s, sublayer, x, w->norm, states.norm, y, work);
}

static void recurrent_unit_backward(const td_stack *s, const RecurrenceWeights *w,
                                    const RecurrenceWeights *grad, Activations x,
                                    RecurrenceStates states, const float *grad_y,
                                    float *grad_x, const StackWorkspace *work)
{
    const int threads = s->num_threads;
    add_and_normalize_backward(s, w->norm, grad->norm, states.norm, grad_y, grad_x,
                               only_fp32(work->grad_output), work);
    td_recurrence recurrence = recurrence_of(s, states);
    recurrence.grad_output = work->grad_output;
    recurrence.grad_gate = work->grad_gate.fp32;
    recurrence.grad_candidate = work->grad_candidate.fp32;
    recurrence_backward(recurrence, threads);
    round_activations(work->grad_gate, s->d_model, threads);
    round_activations(work->grad_candidate, s->d_model, threads);
    backward_map(s, work,
                 (LinearBackward){.linear = w->gate,
                                  .grad = grad->gate,
                                  .rows = num_rows(s),
                                  .x = x,
                                  .grad_y = work->grad_gate,
                                  .grad_x = only_fp32(grad_x),
                                  .accumulates = 1});
    backward_map(s, work,
                 (LinearBackward){.linear = w->candidate,
                                  .grad = grad->candidate,
                                  .rows = num_rows(s),
                                  .x = x,
                                  .grad_y = work->grad_candidate,
                                  .grad_x = only_fp32(grad_x),
                                  .accumulates = 1,
                                  .is_x_packed = 1});
}

static void feed_forward(const td_stack *s, const FeedForwardWeights *w, Activations x,
                         int64_t sublayer, FeedForwardStates states, Activations y,
                         const StackWorkspace *work)
{
    const Relu relu = {dropout_of(s, sublayer, WITHIN, s->relu_dropout), first_row(s),
                       work->mask_bits};
    forward_map(s, work,
                (LinearForward){.linear = w->inner,
                                .rows = num_rows(s),
                                .x = x,
                                .y = states.hidden,
                                .relu = &relu});
    forward_map(s, work,
                (LinearForward){.linear = w->outer,
                                .rows = num_rows(s),
                                .x = states.hidden,
                                .y = only_fp32(work->addend)});
    add_and_normalize(s, sublayer, x, w->norm, states.norm, y, work);
}

static void feed_forward_backward(const td_stack *s, const FeedForwardWeights *w,
                                  const FeedForwardWeights *grad, Activations x,
                                  FeedForwardStates states, const float *grad_y,
                                  float *grad_x, const StackWorkspace *work)
{
    add_and_normalize_backward(s, w->norm, grad->norm, states.norm, grad_y, grad_x,
                               work->grad_addend, work);
    backward_map(s, work,
                 (LinearBackward){.linear = w->outer,
                                  .grad = grad->outer,
                                  .rows = num_rows(s),
                                  .x = states.hidden,
                                  .grad_y = work->grad_addend,
                                  .grad_x = work->grad_hidden,
                                  .relu_x = states.hidden.bf16,
                                  .dropout_scale = s->relu_dropout.scale});
    backward_map(s, work,
                 (LinearBackward){.linear = w->inner,
                                  .grad = grad->inner,
                                  .rows = num_rows(s),
                                  .x = x,
                                  .grad_y = work->grad_hidden,
                                  .grad_x = only_fp32(grad_x),
                                  .accumulates = 1,
                                  .relu_y = states.hidden.fp32,
                                  .dropout_scale = s->relu_dropout.scale});
}

/* ---- Layers -------------------------------------------------------------------- */

/* Output of the first sub-layer. */
static Activations first_output(const td_stack *s, const LayerStates *states)
{
    return s->is_recurrent ? states->recurrence.norm.y : states->self_attention.norm.y;
}

/* Compute a layer; returns its output. */
static Activations layer_forward(const td_stack *s, int64_t layer, Activations x,
                                 const StackWorkspace *work)
{
    const LayerWeights w = weights_of_layer(s, layer);
    const LayerStates states = states_of_layer(s, layer);
    Activations y = first_output(s, &states);
    if (s->is_recurrent)
        recurrent_unit(s, &w.recurrence, x, first_sublayer(s, layer), states.recurrence,
                       y, work);
    else
        attend(s, &w.self_attention, self_attention_inputs(s, x, layer),
               states.self_attention, y, work);
    if (s->memory_length > 0) {
        x = y;
        y = states.cross_attention.norm.y;
        attend(s, &w.cross_attention, cross_attention_inputs(s, x, layer),
               states.cross_attention, y, work);
    }
    x = y;
    y = layer + 1 < s->layers ? states.feed_forward.norm.y : only_fp32(s->y);
    feed_forward(s, &w.feed_forward, x, last_sublayer(s, layer), states.feed_forward, y,
                 work);
    return y;
}

/* The buffer of grad_y that does not hold this gradient. */
static float *other_buffer(const StackWorkspace *work, const float *grad_y)
{
    return work->grad_y[grad_y == work->grad_y[0]];
}

/* Differentiate a layer; returns the gradient of its input. */
static const float *layer_backward(const td_stack *s, int64_t layer,
                                   const float *grad_y, const StackWorkspace *work)
{
    const LayerWeights w = weights_of_layer(s, layer);
    const LayerWeights grad = grads_of_layer(s, layer);
    const LayerStates states = states_of_layer(s, layer);
    const int is_first = layer == 0, is_last = layer + 1 == s->layers;
    const int has_memory = s->memory_length > 0;
    const Activations x =
        is_first ? inputs_of(s).x : states_of_layer(s, layer - 1).feed_forward.norm.y;
    const Activations first = first_output(s, &states);
    const Activations attended = has_memory ? states.cross_attention.norm.y : first;
    float *grad_x = other_buffer(work, grad_y);
    feed_forward_backward(s, &w.feed_forward, &grad.feed_forward, attended,
                          states.feed_forward, grad_y, grad_x, work);
    if (has_memory) {
        grad_y = grad_x;
        grad_x = other_buffer(work, grad_y);
        /* The last layer comes first: it writes grad_memory, and the others add. */
        const AttentionGrads grads = {grad_y, grad_x, s->grad_memory, !is_last};
        attend_backward(s, &w.cross_attention, &grad.cross_attention,
                        cross_attention_inputs(s, first, layer), states.cross_attention,
                        grads, work);
    }
    grad_y = grad_x;
    grad_x = is_first ? s->grad_x : other_buffer(work, grad_y);
    if (s->is_recurrent) {
        recurrent_unit_backward(s, &w.recurrence, &grad.recurrence, x,
                                states.recurrence, grad_y, grad_x, work);
    } else {
        const AttentionGrads grads = {grad_y, grad_x, grad_x, 1};
        attend_backward(s, &w.self_attention, &grad.self_attention,
                        self_attention_inputs(s, x, layer), states.self_attention,
                        grads, work);
    }
    return grad_x;
}

/* ---- Parts --------------------------------------------------------------------- */

static void forward_parts(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t part = first; part < end; part++) {
        StackWorkspace work;
        const td_stack own = stack_part(shared, part, &work);
        const StackInputs in = inputs_of(&own);
        round_activations(in.x, own.d_model, own.num_threads);
        round_activations(in.memory, own.d_model, own.num_threads);
        Activations x = in.x;
        for (int64_t layer = 0; layer < own.layers; layer++)
            x = layer_forward(&own, layer, x, &work);
    }
}

static void backward_parts(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t part = first; part < end; part++) {
        StackWorkspace work;
        const td_stack own = stack_part(shared, part, &work);
        const float *grad_y = own.grad_y;
        for (int64_t layer = own.layers - 1; layer >= 0; layer--)
            grad_y = layer_backward(&own, layer, grad_y, &work);
    }
}

static void pack_attention(const td_stack *s, const AttentionWeights *w)
{
    pack_weights(w->query, s->num_threads);
    pack_weights(w->key_value, s->num_threads);
    pack_weights(w->output, s->num_threads);
}

/* ---- Interface ----------------------------------------------------------------- */

static int are_stack_sizes(const td_stack *s)
{
    if (!s || !is_size(s->layers, 1) || !is_size(s->sentences, 0) ||
        !is_size(s->length, 1) || !is_size(s->memory_length, 0) ||
        !is_size(s->heads, 1) || !is_thread_count(s->num_threads) ||
        !is_between(s->first_sentence, 0, MAX_ELEMENTS))
        return 0;
    if (!is_multiple(s->d_model, PANEL_WIDTH) || !is_multiple(s->d_ff, ROW_MULTIPLE) ||
        !is_multiple(s->d_k, ROW_MULTIPLE) || !is_multiple(s->d_v, ROW_MULTIPLE))
        return 0;
    if (s->is_bf16 && !(is_multiple(s->d_ff, PANEL_WIDTH) &&
                        is_multiple(s->heads * s->d_k, PANEL_WIDTH) &&
                        is_multiple(s->heads * s->d_v, PANEL_WIDTH)))
        return 0;
    const int64_t length = max_i64(s->length, s->memory_length);
    const int64_t width =
        max_i64(max_i64(s->d_model, s->d_ff), s->heads * s->d_k) + s->heads * s->d_v;
    if (!is_size(width, 1) || !is_size(s->sentences * length, 0) ||
        !is_tensor(length, max_i64(length, width), s->num_threads) ||
        !is_tensor(s->sentences * length, width, s->layers) ||
        !is_tensor(s->sentences * length, s->heads * s->layers, length) ||
        !is_tensor(s->first_sentence + s->sentences, s->heads, s->length))
        return 0;
    return s->parts >= 1 && s->parts <= max_i64(s->sentences, 1) &&
           (s->kept_layers == 1 || s->kept_layers == s->layers);
}

/* Check the fields that both passes read. */
static td_status check_stack(const td_stack *s)
{
    if (!are_stack_sizes(s) || !has_all_weights(s) || !s->is_bf16 != !s->packed_forward)
        return TD_BAD_ARGUMENT;
    if (is_missing(s->x, s->sentences) ||
        is_missing(s->memory, s->sentences * s->memory_length) ||
        is_missing(s->states, s->sentences) || !s->seeds || !s->workspace)
        return TD_BAD_ARGUMENT;
    if (!is_dropout_rate(s->dropout) || !is_dropout_rate(s->attention_dropout) ||
        !is_dropout_rate(s->relu_dropout))
        return TD_BAD_ARGUMENT;
    return TD_OK;
}

TD_INTERNAL int64_t td_stack_states(const td_stack *stack)
{
    return are_stack_sizes(stack) ? stack_states(stack) : -1;
}

TD_INTERNAL int64_t td_stack_workspace(const td_stack *stack)
{
    return are_stack_sizes(stack) ? stack_workspace(stack) : -1;
}

TD_INTERNAL td_status td_stack_pack(const td_stack *s)
{
    if (!are_stack_sizes(s) || !s->is_bf16 || !has_all_weights(s) || !s->packed_forward)
        return TD_BAD_ARGUMENT;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        const LayerWeights w = weights_of_layer(s, layer);
        if (s->is_recurrent) {
            pack_weights(w.recurrence.gate, s->num_threads);
            pack_weights(w.recurrence.candidate, s->num_threads);
        } else {
            pack_attention(s, &w.self_attention);
        }
        if (s->memory_length > 0)
            pack_attention(s, &w.cross_attention);
        pack_weights(w.feed_forward.inner, s->num_threads);
        pack_weights(w.feed_forward.outer, s->num_threads);
    }
    return TD_OK;
}

TD_INTERNAL td_status td_stack_forward(const td_stack *stack)
{
    const td_status status = check_stack(stack);
    if (status != TD_OK)
        return status;
    td_stack own = *stack;
    if (is_missing(own.y, own.sentences) ||
        is_missing(own.self_mask.data, own.is_recurrent ? 0 : own.sentences) ||
        is_missing(own.cross_mask.data, own.sentences * own.memory_length))
        return TD_BAD_ARGUMENT;
    parallel_for(forward_parts, &own, own.parts, 1, own.num_threads);
    return TD_OK;
}

TD_INTERNAL td_status td_stack_backward(const td_stack *stack)
{
    const td_status status = check_stack(stack);
    if (status != TD_OK)
        return status;
    td_stack own = *stack;
    if (own.kept_layers != own.layers || is_missing(own.grad_y, own.sentences) ||
        is_missing(own.grad_x, own.sentences) ||
        is_missing(own.grad_memory, own.sentences * own.memory_length) ||
        !own.grad_weights || (own.is_bf16 && !own.packed_backward))
        return TD_BAD_ARGUMENT;
    for (int64_t part = 0; part < own.parts; part++)
        if (!own.grad_weights[part])
            return TD_BAD_ARGUMENT;
    parallel_for(backward_parts, &own, own.parts, 1, own.num_threads);
    return TD_OK;
}
