/* The stacks of encoder and decoder (section 3.1; Figure 1). */
#ifndef TRANSDUCE_TRANSFORMER_H
#define TRANSDUCE_TRANSFORMER_H

#include "isa/name.h"
#include <stdint.h>

#include "gemm/linear.h"

static inline int64_t largest(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

typedef struct {
    const float *weight, *bias;
} Norm;

/* The encoder's layers do without what is the memory's. */
typedef struct {
    Linear query_key_value, own_output;
    Linear memory_query, memory_key_value, memory_output;
    Linear inner, outer;
    Norm after_own, after_memory, after_feed_forward;
} Layer;

typedef struct {
    int64_t num_layers, d_model, d_ff, num_heads, d_k, d_v;
    int64_t is_pre_norm, is_silu;
    float norm_epsilon;
    const Layer *layers;
    Norm final; /* if pre-norm */
} Stack;

/* Keys or values: where those of a head of a sentence begin, in numbers. There is a row
   for each slot; those of the memory's keys stand in blocks, of as many as there are
   lanes, which have first their first numbers, then their second. */
typedef struct {
    float *numbers;
    int64_t per_sentence, per_head, per_row;
} Store;

/* What a stack works in. */
typedef struct {
    const Stack *stack;
    int num_threads;
    int64_t rows;
    Matrix x;    /* what passes between layers */
    Matrix read; /* what a sub-layer reads, and what it puts out */
    Matrix wide; /* queries, keys and values, or the inside of a feed-forward network */
    Matrix heads; /* what attention has found */
    int64_t most_slots;
    float *scores;  /* of the heads of a row, or of rows together, for each worker */
    int32_t *slots; /* that a row sees, for each worker */
    Rows arranged;  /* what a product reads */
    void *room;
} Work;

/* Token embeddings: a row for each (section 3.4). */
typedef struct {
    const float *tokens;
    int64_t vocab;
    float scale;
} Embedding;

TD_INTERNAL int are_tokens(const Embedding *embedding, const int64_t *ids,
                           int64_t count);

/* x = what a token is, at its position (section 3.5). */
TD_INTERNAL void embed_row(const Work *work, const Embedding *embedding, int64_t id,
                           const float *position, int64_t row);

/* Room for so many rows, each of which sees so many slots at most; 1 if there is none.
 */
TD_INTERNAL int begin_work(Work *work, const Stack *stack, int64_t rows, int64_t slots,
                           int num_threads);
TD_INTERNAL void end_work(Work *work);

/* As one of its workers sees it, with scores and slots of its own. */
TD_INTERNAL Work of_worker(const Work *work, int worker);

/* y = x W^T + b, of all rows; if it is to be rectified, max(0, y). */
TD_INTERNAL void apply_linear(Work *work, const Linear *linear, const Matrix *x,
                              const Matrix *y, int is_rectified);

/* What a sub-layer reads. */
TD_INTERNAL const Matrix *sublayer_input(Work *work, const Norm *norm);
/* What it has put out, in `read`, is added to what it has read. */
TD_INTERNAL void add_and_norm(Work *work, const Norm *norm);

TD_INTERNAL void feed_forward(Work *work, const Layer *layer);

#endif
