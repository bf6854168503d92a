/* Layout of a stack of layers. */
#include "nn/stack_layout.h"

#include <limits.h>

#include "nn/attention.h"
#include "nn/layer_norm.h"
#include "simd/vec.h"
#include "sizes.h"

enum {
    ATTENTION_POINTERS = sizeof(AttentionWeights) / sizeof(void *),
    RECURRENCE_POINTERS = sizeof(RecurrenceWeights) / sizeof(void *),
    FEED_FORWARD_POINTERS = sizeof(FeedForwardWeights) / sizeof(void *)
};

TD_INTERNAL int64_t num_sublayers(const td_stack *s)
{
    return s->memory_length > 0 ? 3 : 2;
}

/* Pointers of the first sub-layer. */
static int64_t num_first_weights(const td_stack *s)
{
    return s->is_recurrent ? RECURRENCE_POINTERS : ATTENTION_POINTERS;
}

/* Pointers of cross-attention, if there is one. */
static int64_t num_cross_weights(const td_stack *s)
{
    return s->memory_length > 0 ? ATTENTION_POINTERS : 0;
}

TD_INTERNAL int64_t num_layer_weights(const td_stack *s)
{
    return num_first_weights(s) + num_cross_weights(s) + FEED_FORWARD_POINTERS;
}

TD_INTERNAL int64_t num_rows(const td_stack *s) { return s->sentences * s->length; }

TD_INTERNAL int64_t first_row(const td_stack *s)
{
    return s->first_sentence * s->length;
}

TD_INTERNAL LayerWeights weights_of_layer(const td_stack *s, void **weights,
                                          int64_t layer)
{
    void **own = weights + layer * num_layer_weights(s);
    void **cross = own + num_first_weights(s);
    void **feed_forward = cross + num_cross_weights(s);
    return (LayerWeights){
        .self_attention = s->is_recurrent ? NULL : (const AttentionWeights *)own,
        .recurrence = s->is_recurrent ? (const RecurrenceWeights *)own : NULL,
        .cross_attention =
            s->memory_length > 0 ? (const AttentionWeights *)cross : NULL,
        .feed_forward = (const FeedForwardWeights *)feed_forward,
    };
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

/* The states of a part are those of the kept layers, then the panels of the inputs. */
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
    if (!s->is_bf16)
        return work;
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
        own.grad_weights += part * s->layers * num_layer_weights(s);
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
