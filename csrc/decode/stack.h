/* What the layers of encoder and decoder have in common (section 3.1; Figure 1). */
#ifndef TRANSDUCE_DECODE_STACK_H
#define TRANSDUCE_DECODE_STACK_H

#include <stdint.h>

#include "gemm/linear.h"
#include "isa/name.h"
#include "transduce.h"

/* Gain and bias [d_model] of a layer norm. */
typedef struct {
    const float *weight, *bias;
} Norm;

/* One layer. The encoder's have no cross-attention. */
typedef struct {
    Linear query_key_value, self_output; /* queries are scaled as equation 1 says */
    Linear cross_query, cross_key_value, cross_output;
    Linear inner, outer;
    Norm self_norm, cross_norm, feed_forward_norm;
    const float *self_additive, *cross_additive; /* [num_heads, d_k], or NULL */
} Layer;

typedef struct {
    int64_t num_layers, d_model, d_ff, num_heads, d_k, d_v;
    int64_t neighbourhood; /* distance that self-attention sees */
    int is_pre_norm, is_silu;
    float norm_epsilon;
    Layer *layers;
    Norm final_norm; /* of pre-norm models */
} Stack;

/* Token embeddings [vocab_size, d_model] (section 3.4). */
typedef struct {
    const float *tokens;
    int64_t vocab_size;
    float scale;
} Embedding;

TD_INTERNAL int are_tokens(const Embedding *embedding, const int64_t *ids,
                           int64_t count);

#define CROSS_ROWS 4 /* rows that attend to one source together */

/* Scratch memory of a stack for a number of rows. */
typedef struct {
    const Stack *stack;
    int num_threads;
    int64_t rows;
    Matrix x;        /* [rows, d_model]: what passes between layers */
    Matrix sublayer; /* [rows, d_model]: input of a sub-layer, then its output */
    Matrix wide;     /* queries, keys and values, or the inside of a feed-forward net */
    Matrix heads;    /* [rows, num_heads * d_v]: averages that attention has found */
    int64_t max_keys;
    float *scores;  /* of each worker: [max(num_heads, CROSS_ROWS), max_keys] */
    int32_t *slots; /* of each worker: [max_keys], slots that a row attends to */
    QuantizedRows quantized;
    void *memory;
} Workspace;

/* Allocate for rows that attend to up to `max_keys` keys each. */
TD_INTERNAL td_status begin_workspace(Workspace *work, const Stack *stack, int64_t rows,
                                      int64_t max_keys, int num_threads);
TD_INTERNAL void end_workspace(Workspace *work);

/* The workspace with the scores and slots of one worker. */
TD_INTERNAL Workspace worker_view(const Workspace *work, int worker);

/* Put the sum of a token's embedding and its position's into a row of x (section 3.5).
 */
TD_INTERNAL void embed_row(const Workspace *work, const Embedding *embedding,
                           int64_t id, const float *position, int64_t row);

/* y = x W^T + b for all rows, or max(0, y). */
TD_INTERNAL void apply_linear(Workspace *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int relu);

/* Input of a sub-layer: x, normalised if pre-norm. */
TD_INTERNAL const Matrix *sublayer_input(Workspace *work, const Norm *norm);
/* Add the output of a sub-layer to x; normalise the sum if post-norm. */
TD_INTERNAL void add_and_norm(Workspace *work, const Norm *norm);

TD_INTERNAL void feed_forward(Workspace *work, const Layer *layer);

#endif
