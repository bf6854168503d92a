/* Layout of a stack of layers. */
#include "nn/stack_layout.h"

#include <limits.h>

#include "gemm/fp32_product.h"
#include "nn/attention.h"
#include "nn/layer_norm.h"
#include "simd/vec.h"
#include "sizes.h"

TD_INTERNAL int64_t num_sublayers(const td_stack *s)
{
    return s->memory_length > 0 ? 3 : 2;
}

TD_INTERNAL int64_t num_rows(const td_stack *s) { return s->sentences * s->length; }

TD_INTERNAL int64_t first_row(const td_stack *s)
{
    return s->first_sentence * s->length;
}

/* Parameters, or gradients, that are taken one after another. */
typedef struct {
    float *const *pointers; /* to the next ones; NULL: they follow one another */
    float *grads;           /* the next one, without pointers */
    td_bf16 *packed_forward, *packed_backward; /* of the next linear map, or NULL */
    int64_t num_missing;                       /* pointers that were NULL */
} Parameters;

static float *take_parameter(Parameters *from, int64_t count)
{
    float *taken = from->pointers ? *from->pointers++ : from->grads;
    if (!from->pointers)
        from->grads += count;
    from->num_missing += !taken;
    return taken;
}

static td_bf16 *take_packed(td_bf16 **from, int64_t count)
{
    td_bf16 *taken = *from;
    if (taken)
        *from += count;
    return taken;
}

static LinearMap take_linear(Parameters *from, int64_t outputs, int64_t inputs,
                             int has_bias)
{
    const int64_t count = outputs * inputs;
    LinearMap linear = {.inputs = inputs, .outputs = outputs};
    linear.weight = take_parameter(from, count);
    linear.bias = has_bias ? take_parameter(from, outputs) : NULL;
    linear.packed_forward = take_packed(&from->packed_forward, count);
    linear.packed_backward = take_packed(&from->packed_backward, count);
    return linear;
}

static NormWeights take_norm(const td_stack *s, Parameters *from)
{
    NormWeights w;
    w.gain = take_parameter(from, s->d_model);
    w.bias = take_parameter(from, s->d_model);
    return w;
}

static AttentionWeights take_attention(const td_stack *s, Parameters *from)
{
    AttentionWeights w;
    w.query = take_linear(from, s->heads * s->d_k, s->d_model, 1);
    w.key_value = take_linear(from, s->heads * (s->d_k + s->d_v), s->d_model, 1);
    w.output = take_linear(from, s->d_model, s->heads * s->d_v, 1);
    w.norm = take_norm(s, from);
    return w;
}

static RecurrenceWeights take_recurrence(const td_stack *s, Parameters *from)
{
    RecurrenceWeights w;
    w.gate = take_linear(from, s->d_model, s->d_model, 1);
    w.candidate = take_linear(from, s->d_model, s->d_model, 0);
    w.norm = take_norm(s, from);
    return w;
}

static FeedForwardWeights take_feed_forward(const td_stack *s, Parameters *from)
{
    FeedForwardWeights w;
    w.inner = take_linear(from, s->d_ff, s->d_model, 1);
    w.outer = take_linear(from, s->d_model, s->d_ff, 1);
    w.norm = take_norm(s, from);
    return w;
}

/* Take the parameters of the first `layers` layers, which follow one another. Returns
 * the parameters of the last. */
static LayerWeights take_layers(const td_stack *s, Parameters *from, int64_t layers)
{
    LayerWeights w = {0};
    for (int64_t layer = 0; layer < layers; layer++) {
        if (s->is_recurrent)
            w.recurrence = take_recurrence(s, from);
        else
            w.self_attention = take_attention(s, from);
        if (s->memory_length > 0)
            w.cross_attention = take_attention(s, from);
        w.feed_forward = take_feed_forward(s, from);
    }
    return w;
}

static Parameters parameters_of(const td_stack *s)
{
    return (Parameters){.pointers = s->weights,
                        .packed_forward = s->packed_forward,
                        .packed_backward = s->packed_backward};
}

TD_INTERNAL LayerWeights weights_of_layer(const td_stack *s, int64_t layer)
{
    Parameters all = parameters_of(s);
    return take_layers(s, &all, layer + 1);
}

TD_INTERNAL LayerWeights grads_of_layer(const td_stack *s, int64_t layer)
{
    Parameters all = {.grads = s->grad_weights[0]};
    return take_layers(s, &all, layer + 1);
}

TD_INTERNAL int has_all_weights(const td_stack *s)
{
    Parameters all = parameters_of(s);
    if (s->weights)
        take_layers(s, &all, s->layers);
    return s->weights && all.num_missing == 0;
}

/* Panels of a matrix; without data if products are in fp32. */
static td_panels take_bf16_panels(const td_stack *s, Arena *arena, int64_t rows,
                                  int64_t width)
{
    return s->is_bf16 ? take_panels(arena, rows, width) : (td_panels){NULL, rows};
}

/* Activations that only products read: in fp32 or as panels, not both. */
static Activations take_factor(const td_stack *s, Arena *arena, int64_t rows,
                               int64_t width)
{
    Activations factor = {NULL, take_bf16_panels(s, arena, rows, width)};
    if (!s->is_bf16)
        factor.fp32 = take_floats(arena, rows * width);
    return factor;
}

static NormStates take_norm_states(const td_stack *s, Arena *arena)
{
    const int64_t rows = num_rows(s), count = rows * s->d_model;
    NormStates states;
    states.normalized = take_floats(arena, count);
    states.inverse_deviation = take_floats(arena, rows);
    states.y.fp32 = take_floats(arena, count);
    states.y.bf16 = take_bf16_panels(s, arena, rows, s->d_model);
    states.kept = take_bytes(arena, count);
    return states;
}

static AttentionStates take_attention_states(const td_stack *s, int64_t keys,
                                             Arena *arena)
{
    const int64_t rows = num_rows(s);
    AttentionStates states;
    states.query = take_floats(arena, rows * s->heads * s->d_k);
    states.key_value =
        take_floats(arena, s->sentences * keys * s->heads * (s->d_k + s->d_v));
    states.weights = take_floats(arena, rows * s->heads * round_up_to_lanes(keys));
    states.heads = take_factor(s, arena, rows, s->heads * s->d_v);
    states.norm = take_norm_states(s, arena);
    return states;
}

static RecurrenceStates take_recurrence_states(const td_stack *s, Arena *arena)
{
    const int64_t count = num_rows(s) * s->d_model;
    RecurrenceStates states;
    states.gate = take_floats(arena, count);
    states.candidate = take_floats(arena, count);
    states.cells = take_floats(arena, count);
    states.norm = take_norm_states(s, arena);
    return states;
}

static LayerStates take_layer_states(const td_stack *s, Arena *arena)
{
    LayerStates states = {0};
    if (s->is_recurrent)
        states.recurrence = take_recurrence_states(s, arena);
    else
        states.self_attention = take_attention_states(s, s->length, arena);
    if (s->memory_length > 0)
        states.cross_attention = take_attention_states(s, s->memory_length, arena);
    states.feed_forward.hidden = take_factor(s, arena, num_rows(s), s->d_ff);
    states.feed_forward.norm = take_norm_states(s, arena);
    return states;
}

static int64_t layer_states_size(const td_stack *s)
{
    Arena arena = {NULL, 0};
    take_layer_states(s, &arena);
    return arena.used;
}

static StackInputs take_inputs(const td_stack *s, Arena *arena)
{
    const int64_t memory_rows = s->sentences * s->memory_length;
    return (StackInputs){
        {(float *)s->x, take_bf16_panels(s, arena, num_rows(s), s->d_model)},
        {(float *)s->memory, take_bf16_panels(s, arena, memory_rows, s->d_model)},
    };
}

/* A part has the states of the kept layers, then the panels of the inputs. */
TD_INTERNAL LayerStates states_of_layer(const td_stack *s, int64_t layer)
{
    Arena arena = {s->states + layer % s->kept_layers * layer_states_size(s), 0};
    return take_layer_states(s, &arena);
}

TD_INTERNAL StackInputs inputs_of(const td_stack *s)
{
    Arena arena = {s->states + s->kept_layers * layer_states_size(s), 0};
    return take_inputs(s, &arena);
}

static StackWorkspace take_stack_workspace(const td_stack *s, Arena *arena)
{
    const int64_t rows = num_rows(s);
    const int64_t keys = max_i64(s->length, s->memory_length);
    const int64_t memory_rows = s->sentences * keys;
    const td_attention attention = {
        .queries = s->length, .keys = keys, .d_k = s->d_k, .d_v = s->d_v};
    const td_layer_norm norm = {.rows = rows, .width = s->d_model};
    StackWorkspace work = {0};
    work.addend = take_floats(arena, rows * s->d_model);
    work.grad_y[0] = take_floats(arena, rows * s->d_model);
    work.grad_y[1] = take_floats(arena, rows * s->d_model);
    work.grad_heads = take_floats(arena, rows * s->heads * s->d_v);
    work.grad_addend = take_factor(s, arena, rows, s->d_model);
    work.grad_query = take_factor(s, arena, rows, s->heads * s->d_k);
    work.grad_key_value =
        take_factor(s, arena, memory_rows, s->heads * (s->d_k + s->d_v));
    work.grad_hidden = take_factor(s, arena, rows, s->d_ff);
    if (s->is_recurrent) {
        const int64_t count = rows * s->d_model;
        work.grad_gate.fp32 = take_floats(arena, count);
        work.grad_gate.bf16 = take_bf16_panels(s, arena, rows, s->d_model);
        work.grad_candidate.fp32 = take_floats(arena, count);
        work.grad_candidate.bf16 = take_bf16_panels(s, arena, rows, s->d_model);
        work.grad_output = take_floats(arena, count);
    }
    work.attention =
        take_floats(arena, s->num_threads * attention_workspace(&attention));
    work.layer_norm = take_floats(arena, layer_norm_workspace(&norm));
    if (!s->is_bf16) {
        work.product_workspace =
            take_floats(arena, s->num_threads * td_product_workspace());
        return work;
    }
    const int64_t inputs = max_i64(s->d_ff, max_i64(s->d_model, s->heads * s->d_v));
    work.packed_x = take_bf16(arena, round_up_to_panels(memory_rows) * inputs);
    work.transposed = take_bf16(arena, s->num_threads * transposed_size(memory_rows));
    if (s->relu_dropout.num_dropped > 0)
        work.mask_bits = take_bytes(arena, rows * s->d_ff / CHAR_BIT);
    return work;
}

/* at + count; NULL if `at` is NULL. */
static float *advance_pointer(const float *at, int64_t count)
{
    return at ? (float *)at + count : NULL;
}

static td_mask mask_from_sentence(td_mask mask, int64_t sentence)
{
    if (mask.data)
        mask.data += sentence * mask.sentence_stride;
    return mask;
}

/* Stack of the sentences of one part, with pointers to the states and the workspace of
 * all parts. No part has more sentences than the last. */
static td_stack part_of(const td_stack *s, int64_t part)
{
    td_stack own = *s;
    const int64_t first = s->sentences * part / s->parts;
    own.sentences = s->sentences * (part + 1) / s->parts - first;
    own.parts = 1;
    own.num_threads = s->parts > 1 ? 1 : s->num_threads;
    own.first_sentence += first;
    const int64_t elements = first * s->length * s->d_model;
    const int64_t memory_elements = first * s->memory_length * s->d_model;
    own.self_mask = mask_from_sentence(s->self_mask, first);
    own.cross_mask = mask_from_sentence(s->cross_mask, first);
    if (s->grad_weights)
        own.grad_weights += part;
    own.x = advance_pointer(s->x, elements);
    own.memory = advance_pointer(s->memory, memory_elements);
    own.y = advance_pointer(s->y, elements);
    own.grad_y = advance_pointer(s->grad_y, elements);
    own.grad_x = advance_pointer(s->grad_x, elements);
    own.grad_memory = advance_pointer(s->grad_memory, memory_elements);
    return own;
}

TD_INTERNAL td_stack stack_part(const td_stack *s, int64_t part,
                                StackWorkspace *workspace)
{
    td_stack own = part_of(s, part);
    own.states += part * stack_states(s);
    Arena arena = {s->workspace + part * stack_workspace(s), 0};
    *workspace = take_stack_workspace(&own, &arena);
    return own;
}

TD_INTERNAL int64_t stack_states(const td_stack *s)
{
    const td_stack largest = part_of(s, s->parts - 1);
    Arena arena = {NULL, 0};
    take_inputs(&largest, &arena);
    return s->kept_layers * layer_states_size(&largest) + arena.used;
}

TD_INTERNAL int64_t stack_workspace(const td_stack *s)
{
    const td_stack largest = part_of(s, s->parts - 1);
    Arena arena = {NULL, 0};
    take_stack_workspace(&largest, &arena);
    return arena.used;
}
