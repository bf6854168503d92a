/* The whole interface of the native library: training and decoding on CPUs.
 *
 * Python reads this file itself (native.py), so that no layout stands anywhere else;
 * library and header carry a hash of it, and only a matching pair is used.
 *
 * Conventions. Every function that can fail returns a td_status. Matrices are
 * row-major; comments give their shapes as [rows, columns]. Sizes and ids are int64_t.
 * Pointers to numbers need no alignment unless said. Handles are created by td_*_new,
 * freed by td_*_free, and used by one thread at a time.
 */
#ifndef TRANSDUCE_H
#define TRANSDUCE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

typedef enum td_status {
    TD_OK = 0,
    TD_OUT_OF_MEMORY = 1,
    TD_BAD_TOKEN = 2,    /* an id outside the vocabulary */
    TD_BAD_ARGUMENT = 3, /* a size or pointer that the function does not allow */
    TD_UNSUPPORTED = 4   /* not available in this build or on this processor */
} td_status;

/* ---- Training ---------------------------------------------------------------- */

/* Workspaces and outputs are allocated by the caller, in the sizes that the functions
 * named *_workspace and *_states return. Names as in the paper: sentences (a batch),
 * queries and keys (positions of the two sides of an attention), heads, d_k, d_v.
 * The gradient of a loss with respect to x is named grad_x and has the shape of x. */

typedef uint16_t td_bf16; /* the upper half of a float */

/* A bf16 matrix [rows, columns] cut into panels of 32 columns, as the AMX unit loads it.
 * Functions for which it is optional ignore it if data is NULL. */
typedef struct td_panels {
    td_bf16 *data; /* [columns / 32, rows, 32] */
    int64_t rows;
} td_panels;

/* Which keys a query may attend to. */
typedef struct td_mask {
    const uint8_t *data;     /* [sentences, queries, keys]: 1 if it may, else 0 */
    int64_t sentence_stride; /* bytes; 0 if all sentences share their masks */
    int64_t query_stride;    /* bytes; 0 if all queries share their masks */
} td_mask;

typedef struct td_dropout_rate {
    uint32_t num_dropped; /* of 65,536 random values, those that drop an element */
    float scale;          /* of kept elements: 65,536 / (65,536 - num_dropped) */
} td_dropout_rate;

/* Dropout of one tensor: a mask is a function of these and of the element's place. */
typedef struct td_dropout {
    uint32_t seeds[2];
    td_dropout_rate rate;
} td_dropout;

/* Dropout whose masks are kept for the backward pass. Masks are drawn block by block; a
 * block is a row, or a fixed number of elements. */
typedef struct td_masking {
    const float *x;      /* [count]; backward: the gradient of y */
    float *y;            /* [count]; backward: the gradient of x */
    uint8_t *kept;       /* [blocks, block_masks]: 1 for kept elements, else 0 */
    int64_t count;       /* elements */
    int64_t block_width; /* elements of a block */
    int64_t block_masks; /* masks drawn for a block: even, at least block_width */
    int64_t first_block; /* number of the first block if x is part of a larger tensor */
    td_dropout dropout;
} td_masking;

/* Multi-head attention (section 3.2) between projected queries, keys and values. d_k and
 * d_v are multiples of 16. */
typedef struct td_attention {
    int64_t sentences, heads, queries, keys, d_k, d_v;
    td_mask mask;
    float scale;            /* of the scores */
    const float *query;     /* [sentences, queries, heads * d_k] */
    const float *key_value; /* [sentences, keys, heads * d_k + heads * d_v] */
    float *weights;         /* [sentences, heads, queries, keys rounded up to lanes] */
    float *output;          /* [sentences, queries, heads * d_v] */
    const float *grad_output;
    float *grad_query, *grad_key_value;
    /* Where results are written instead, rounded to bf16, if data is not NULL. */
    td_panels bf16_output, bf16_grad_query, bf16_grad_key_value;
    int64_t first_sentence; /* number of the first one if these are part of a batch */
    td_dropout dropout;     /* of the weights */
    float *workspace;       /* [threads, attention_workspace] */
} td_attention;

/* LayerNorm(x + Dropout(addend)) (sections 3.1 and 5.4). */
typedef struct td_layer_norm {
    int64_t rows, width; /* width: a multiple of 16 */
    float epsilon;
    const float *x;           /* [rows, width] */
    const float *gain, *bias; /* [width] */
    float *normalized;        /* [rows, width], kept for the backward pass */
    float *inverse_deviation; /* [rows], kept for the backward pass */
    float *y;                 /* [rows, width] */
    td_panels bf16_y;         /* y again, rounded; optional */
    const float *grad_y;
    float *grad_x, *grad_gain, *grad_bias;
    td_panels bf16_grad_addend; /* in place of masking.y, if data is not NULL */
    td_masking masking; /* forward: x is the addend; backward: y is its gradient */
    float *workspace;   /* backward: [layer_norm_workspace] */
} td_layer_norm;

/* Label-smoothed cross-entropy (section 5.4); logits become their gradient. */
typedef struct td_cross_entropy {
    int64_t rows, vocab;
    float *logits;          /* [rows, vocab], or NULL if they are in bf16 */
    td_bf16 *bf16_logits;   /* [rows, vocab] */
    const int64_t *targets; /* [rows] */
    float smoothing;
    float *smoothed;                /* [rows] loss in nats */
    float *negative_log_likelihood; /* [rows] nats */
    float *workspace;               /* with bf16_logits: [threads, vocab] */
} td_cross_entropy;

/* The same loss of the logits states * weight^T, which are formed in bf16 and not kept,
 * and the gradients of both factors. */
typedef struct td_output_loss {
    int64_t rows, vocab, width; /* width: a multiple of 32 */
    const float *states;        /* [rows, width] */
    const float *weight;        /* [vocab, width] */
    const int64_t *targets;     /* [rows] */
    float smoothing;
    float *smoothed;                /* [rows] loss in nats */
    float *negative_log_likelihood; /* [rows] nats */
    float *grad_states, *grad_weight;
    int64_t accumulates; /* 1: the gradient of the weight is added to grad_weight */
    /* The packed weight, each [vocab rounded up to 32, width]. */
    td_bf16 *packed_forward, *packed_backward;
    td_bf16 *workspace; /* [output_loss_workspace] */
} td_output_loss;

/* All encoder or all decoder layers (section 3.1, Figure 1), post-norm with ReLU. The
 * sentences may be cut into parts; each part goes through all layers in one thread. */
typedef struct td_stack {
    int64_t layers, sentences, length;
    int64_t d_model; /* a multiple of 32 */
    int64_t d_ff;    /* a multiple of 16; of 32 in bf16, as are heads * d_k or d_v */
    int64_t heads, d_k, d_v;
    int64_t memory_length; /* of the encoder's output; 0: no cross-attention */
    int64_t kept_layers;   /* layers, or 1 if there is no backward pass */
    int64_t parts;
    int64_t first_row; /* number of the first row if these are part of a batch */
    int64_t is_bf16;   /* 1: matrices are multiplied in bf16 */
    float epsilon, scale;
    td_dropout_rate dropout, attention_dropout, relu_dropout;
    td_mask self_mask, cross_mask;
    /* For each layer and sub-layer: two seeds for dropout within it, two for dropout of
     * its output. */
    const uint32_t *seeds;
    /* Pointers for each layer, sub-layer by sub-layer (self-attention, cross-attention,
     * feed-forward): of each linear map (query, key_value, output; or inner, outer) the
     * weight [outputs, inputs], the weight packed forward and packed backward (or NULL)
     * and the bias; then gain and bias of the layer norm. */
    void **weights;
    void **grad_weights; /* [parts, as many as weights]; packed weights are ignored */
    const float *x;      /* [sentences, length, d_model] */
    const float *memory; /* [sentences, memory_length, d_model] */
    float *y;            /* [sentences, length, d_model] */
    float *states;       /* [parts, stack_states], kept for the backward pass */
    const float *grad_y;
    float *grad_x, *grad_memory;
    float *workspace; /* [parts, stack_workspace] */
    int num_threads;
} td_stack;

/* Newton-Schulz iterations towards the nearest orthogonal matrices (Jordan et al.,
 * 2024). rows and columns are multiples of 16; rows are not more than columns. */
typedef struct td_orthogonalization {
    int64_t count, rows, columns;
    int64_t steps;
    const float *factors; /* [steps, 3]: of x, x^3 and x^5 */
    float epsilon;        /* added to each norm */
    float *matrices;      /* [count, rows, columns], overwritten by the result */
    float *workspace;     /* [threads, orthogonalize_workspace] */
} td_orthogonalization;

/* Functions of one instruction set. Sizes are numbers of floats, and of td_bf16 for
 * output_loss_workspace. */
typedef struct td_nn_api {
    int64_t lanes; /* floats that one vector register holds */

    /* Multiply matrices in fp32 by `sgemm_` of a Fortran BLAS. */
    td_status (*use_sgemm)(void *sgemm);
    /* Whether matrices are multiplied in bf16 by AMX (td_has_amx_bf16), which only some
     * instruction sets can use; otherwise slow loops give the same results. */
    int (*uses_amx)(void);

    int64_t (*attention_workspace)(const td_attention *attention);
    td_status (*attention_forward)(const td_attention *attention, int num_threads);
    td_status (*attention_backward)(const td_attention *attention, int num_threads);

    /* Draw masks and apply them; apply the masks that were drawn. */
    td_status (*dropout_forward)(const td_masking *masking, int num_threads);
    td_status (*dropout_backward)(const td_masking *masking, int num_threads);

    int64_t (*layer_norm_workspace)(const td_layer_norm *norm);
    td_status (*layer_norm_forward)(const td_layer_norm *norm, int num_threads);
    td_status (*layer_norm_backward)(const td_layer_norm *norm, int num_threads);

    td_status (*cross_entropy)(const td_cross_entropy *loss, int num_threads);

    /* output_loss needs the weight packed by output_loss_pack. */
    int64_t (*output_loss_workspace)(const td_output_loss *loss, int num_threads);
    td_status (*output_loss_pack)(const td_output_loss *loss, int num_threads);
    td_status (*output_loss)(const td_output_loss *loss, int num_threads);

    /* With is_bf16, stack_forward needs all matrices packed by stack_pack. */
    int64_t (*stack_states)(const td_stack *stack);
    int64_t (*stack_workspace)(const td_stack *stack);
    td_status (*stack_pack)(const td_stack *stack);
    td_status (*stack_forward)(const td_stack *stack);
    td_status (*stack_backward)(const td_stack *stack);

    int64_t (*orthogonalize_workspace)(const td_orthogonalization *task);
    td_status (*orthogonalize)(const td_orthogonalization *task, int num_threads);
} td_nn_api;

/* ---- Decoding ---------------------------------------------------------------- */

typedef struct td_decode_api {
    int64_t lanes;
} td_decode_api;

/* ---- Library ----------------------------------------------------------------- */

/* Everything, implemented with one instruction set. */
typedef struct td_api {
    const char *isa; /* name of the instruction set, such as "avx512" */
    const td_nn_api *nn;
    const td_decode_api *decode;
} td_api;

/* Name of a status, such as "TD_BAD_TOKEN", and a sentence that explains it. */
const char *td_status_name(td_status status);
const char *td_status_message(td_status status);

/* SHA-256 of the header that the library was compiled with, in hexadecimal. */
const char *td_header_hash(void);

/* Implementation for this processor: the fastest one, or the one that the environment
 * variable TRANSDUCE_ISA names. NULL if that one does not exist or cannot run here. */
const td_api *td_load(void);

/* Implementation by name; NULL if the library does not have it or this processor cannot
 * run it. */
const td_api *td_load_isa(const char *name);

/* Names of all implementations in the library, fastest first, separated by spaces. */
const char *td_isa_names(void);

/* Whether products in int8 or bf16 use AMX: the processor has it, the operating system
 * lets this process use it, and td_allow_amx has not switched it off. */
int td_has_amx_int8(void);
int td_has_amx_bf16(void);

/* Let products use AMX where it is available, which is the default, or not. */
void td_allow_amx(int is_allowed);

/* Run parallel work by GOMP_parallel of an OpenMP runtime, so that it shares the
 * threads of other users of that runtime; NULL for threads of this library's own. */
void td_use_openmp(void *gomp_parallel);

#pragma GCC visibility pop

#endif
