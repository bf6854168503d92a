/* Layers of encoder and decoder: their parameters, workspace and common sub-layers
 * (section 3.1; Figure 1). */
#ifndef TRANSDUCE_DECODE_STACK_H
#define TRANSDUCE_DECODE_STACK_H

#include <stdint.h>

#include "gemm/linear.h"
#include "isa/name.h"
#include "transduce.h"

/* Parameters [d_model] of a layer norm. */
typedef struct {
    const float *gain, *bias;
} Norm;

/* One layer. Layers of the encoder have no cross-attention. The norm of a recurrent
 * unit is self_norm. */
typedef struct {
    Linear query_key_value, self_output; /* queries include the scale of equation 1 */
    Linear gate_candidate;               /* of a recurrent unit instead */
    Linear cross_query, cross_key_value, cross_output;
    Linear inner, outer;
    Norm self_norm, cross_norm, feed_forward_norm;
    const float *self_additive, *cross_additive; /* [num_heads, d_k], or NULL */
} Layer;

typedef struct {
    int64_t num_layers, d_model, d_ff, num_heads, d_k, d_v;
    int64_t neighbourhood; /* largest distance over which self-attention attends */
    int is_pre_norm, is_silu;
    int is_recurrent; /* recurrent units in place of self-attention */
    float norm_epsilon;
    Layer *layers;
    Norm final_norm; /* of pre-norm models */
} Stack;

/* Embedding of tokens (section 3.4). */
typedef struct {
    const float *tokens;   /* [vocab_size, d_model]; NULL in int8 */
    const int8_t *rounded; /* [vocab_size, d_model] in int8: tokens / token_scales */
    const float *token_scales; /* [vocab_size] in int8 */
    int64_t vocab_size;
    float scale; /* of the vectors: sqrt(d_model) */
} Embedding;

/* Whether all ids are in the vocabulary. */
TD_INTERNAL int are_tokens(const Embedding *embedding, const int64_t *ids,
                           int64_t count);

#define CROSS_ROWS 4 /* rows that attend to one source together */

/* Buffers for a pass of some rows through a stack. */
typedef struct {
    const Stack *stack;
    int num_threads;
    int64_t rows;
    Matrix x;        /* [rows, d_model]: output of a layer, input of the next */
    Matrix sublayer; /* [rows, d_model]: input of a sub-layer, then its output */
    Matrix wide;     /* [rows, ...]: queries, keys and values; gates and candidates of a
                        recurrent unit; or the inner layer of a feed-forward network */
    Matrix heads;    /* [rows, num_heads * d_v]: output of all heads */
    int64_t max_keys;
    float *scores;  /* [workers, max(num_heads, CROSS_ROWS), max_keys] */
    int32_t *slots; /* [workers, max_keys]: slots to which a row attends */
    PackedActivations packed;
    float *block; /* in which all buffers are */
} Workspace;

/* Allocate a workspace for `rows` rows that attend to up to `max_keys` keys each. */
TD_INTERNAL td_status begin_workspace(Workspace *work, const Stack *stack, int64_t rows,
                                      int64_t max_keys, int num_threads);
TD_INTERNAL void end_workspace(Workspace *work);

/* Copy of a workspace with the scores and slots of one worker. */
TD_INTERNAL Workspace worker_view(const Workspace *work, int worker);

/* Write the sum of a token's embedding and a position's encoding into a row of x
 * (sections 3.4 and 3.5). */
TD_INTERNAL void embed_row(const Workspace *work, const Embedding *embedding,
                           int64_t id, const float *position, int64_t row);

/* y = x W^T + b for all rows; with `relu`, max(0, x W^T + b). */
TD_INTERNAL void apply_linear(Workspace *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int relu);

/* Input of a sub-layer: x; or with pre-norm its layer norm, in work->sublayer. */
TD_INTERNAL const Matrix *sublayer_input(Workspace *work, const Norm *norm);
/* Add the output of a sub-layer to x; with post-norm, normalize the sum. */
TD_INTERNAL void add_and_norm(Workspace *work, const Norm *norm);

/* Feed-forward sub-layer (section 3.3). */
TD_INTERNAL void feed_forward(Workspace *work, const Layer *layer);

#endif
