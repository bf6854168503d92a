/* Layout of a stack of layers: parameters, states that the forward pass keeps for the
 * backward pass, and workspace. */
#ifndef TRANSDUCE_NN_STACK_LAYOUT_H
#define TRANSDUCE_NN_STACK_LAYOUT_H

#include <stdint.h>

#include "arena.h"
#include "isa/name.h"
#include "nn/linear.h"
#include "transduce.h"

/* Parameters [d_model] of a layer norm, or their gradients. */
typedef struct {
    float *gain, *bias;
} NormWeights;

/* Parameters of one sub-layer, or their gradients. */
typedef struct {
    LinearMap query, key_value, output;
    NormWeights norm;
} AttentionWeights;

typedef struct {
    LinearMap gate, candidate;
    NormWeights norm;
} RecurrenceWeights;

typedef struct {
    LinearMap inner, outer;
    NormWeights norm;
} FeedForwardWeights;

/* Parameters of one layer, or their gradients; zeros for sub-layers that it lacks. */
typedef struct {
    AttentionWeights self_attention, cross_attention;
    RecurrenceWeights recurrence;
    FeedForwardWeights feed_forward;
} LayerWeights;

/* Result and states of LayerNorm(x + Dropout(addend)). */
typedef struct {
    float *normalized;        /* [rows, d_model] */
    float *inverse_deviation; /* [rows] */
    Activations y;            /* [rows, d_model] */
    uint8_t *kept;            /* [rows, d_model] masks */
} NormStates;

typedef struct {
    float *query;      /* [rows, heads * d_k] */
    float *key_value;  /* [memory rows, heads * (d_k + d_v)] */
    float *weights;    /* [sentences, heads, length, keys in whole vectors] */
    Activations heads; /* [rows, heads * d_v] */
    NormStates norm;
} AttentionStates;

typedef struct {
    float *gate;      /* [rows, d_model], then its sigmoid */
    float *candidate; /* [rows, d_model] */
    float *cells;     /* [rows, d_model] */
    NormStates norm;
} RecurrenceStates;

typedef struct {
    Activations hidden; /* [rows, d_ff] */
    NormStates norm;
} FeedForwardStates;

typedef struct {
    AttentionStates self_attention, cross_attention;
    RecurrenceStates recurrence;
    FeedForwardStates feed_forward;
} LayerStates;

/* Inputs of the stack, with panels for products in bf16. */
typedef struct {
    Activations x;      /* [rows, d_model] */
    Activations memory; /* [memory rows, d_model] */
} StackInputs;

/* Workspace of one part. */
typedef struct {
    float *addend;              /* [rows, d_model]: output of a sub-layer */
    float *grad_y[2];           /* [rows, d_model] each: gradients of the inputs of
                                   consecutive sub-layers, by turns */
    float *grad_heads;          /* [rows, heads * d_v] */
    Activations grad_addend;    /* [rows, d_model] */
    Activations grad_query;     /* [rows, heads * d_k] */
    Activations grad_key_value; /* [memory rows, heads * (d_k + d_v)] */
    Activations grad_hidden;    /* [rows, d_ff] */
    /* Of recurrent units, in fp32 and as panels: [rows, d_model] each. */
    Activations grad_gate, grad_candidate;
    float *grad_output;       /* of recurrent units: [rows, d_model] */
    float *attention;         /* [threads, attention_workspace] */
    float *layer_norm;        /* [layer_norm_workspace] */
    float *product_workspace; /* in fp32: [threads, td_product_workspace] */
    td_bf16 *packed_x;        /* of a LinearBackward */
    td_bf16 *transposed;      /* of a LinearBackward */
    uint8_t *mask_bits;       /* of a Relu: [rows, d_ff / 8] */
} StackWorkspace;

/* Number of sub-layers of each layer. */
TD_INTERNAL int64_t num_sublayers(const td_stack *s);

/* Rows of x: sentences * length. */
TD_INTERNAL int64_t num_rows(const td_stack *s);

/* Number of the first row of x in the whole batch. */
TD_INTERNAL int64_t first_row(const td_stack *s);

TD_INTERNAL LayerWeights weights_of_layer(const td_stack *s, int64_t layer);

/* Gradients of the parameters of a layer, for the first part of the stack. */
TD_INTERNAL LayerWeights grads_of_layer(const td_stack *s, int64_t layer);

/* Whether no pointer to a parameter is NULL. */
TD_INTERNAL int has_all_weights(const td_stack *s);

TD_INTERNAL LayerStates states_of_layer(const td_stack *s, int64_t layer);
TD_INTERNAL StackInputs inputs_of(const td_stack *s);

/* Stack of the sentences of one part, with the part's states, and its workspace. */
TD_INTERNAL td_stack stack_part(const td_stack *s, int64_t part,
                                StackWorkspace *workspace);

/* Floats of states and of workspace for each part. */
TD_INTERNAL int64_t stack_states(const td_stack *s);
TD_INTERNAL int64_t stack_workspace(const td_stack *s);

#endif
