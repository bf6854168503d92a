/* Interface of the native library: training and decoding on CPUs.
 *
 * td_load() returns the functions for this processor. Handles are created by functions
 * named *_new, freed by functions named *_free (NULL is allowed), and used by one
 * thread at a time; a td_linear and a finished td_model may be used by several.
 *
 * Matrices are row-major; comments give shapes as [rows, columns]. Sizes and ids are
 * int64_t. Log-probabilities are in nats. Arrays need the alignment of their elements
 * only, and belong to the caller. Functions read arguments and arrays only during the
 * call, unless said. `num_threads` is from 1 to 4,096; unless said, results do not
 * depend on it.
 *
 * Functions that can fail return a td_status. A call that does not return TD_OK has no
 * effect, unless said; a *_new function then sets its handle to NULL. Any function may
 * return TD_BAD_ARGUMENT: a NULL pointer where an array or handle is needed, a size out
 * of range, or a state in which the call makes no sense. Comments name other statuses.
 *
 * Python reads this file itself (native.py), so that no layout is written twice. The
 * library reports a hash of the header that it was compiled with (td_header_hash).
 */
#ifndef TRANSDUCE_H
#define TRANSDUCE_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

typedef enum td_status {
    TD_OK = 0,
    TD_OUT_OF_MEMORY = 1, /* the system or td_use_allocation_check refused memory */
    TD_BAD_TOKEN = 2,     /* an id is outside the vocabulary */
    TD_BAD_ARGUMENT = 3   /* a size, pointer or state is not allowed */
} td_status;

/* ---- Training ---------------------------------------------------------------- */

/* Callers allocate results and workspaces; functions named *_workspace and *_states
 * return their sizes. Names are the paper's: heads, d_k, d_v; queries and keys are the
 * positions of both sides of an attention. The gradient of the loss with
 * respect to x is grad_x and has the shape of x.
 *
 * One struct holds the arguments of the forward and of the backward pass. Each pass
 * reads the fields that it needs; the others may be NULL. Sizes are below 2^31, and no
 * tensor has more than 2^48 elements. */

typedef uint16_t td_bf16; /* the upper half of a float */

/* How matrices are multiplied in bf16: by slow loops, by the dot products of AVX-512
 * BF16 (vdpbf16ps), or by AMX. All sum in fp32, in different orders. */
typedef enum td_bf16_unit {
    TD_BF16_LOOPS = 0,
    TD_BF16_AVX512 = 1,
    TD_BF16_AMX = 2
} td_bf16_unit;

/* A matrix [rows, columns] in bf16, in panels of 32 columns, as AMX reads it. `columns`
 * is a multiple of 32. Where panels are optional, NULL data stands for none. */
typedef struct td_panels {
    td_bf16 *data; /* [columns / 32, rows, 32] */
    int64_t rows;
} td_panels;

/* Keys to which each query may attend. */
typedef struct td_mask {
    const uint8_t *data;     /* [sentences, queries, keys]: 1 if it may, else 0 */
    int64_t sentence_stride; /* bytes; 0 if all sentences have the same mask */
    int64_t query_stride;    /* bytes; 0 if all queries have the same mask */
} td_mask;

/* Rate of dropout. An element is dropped if its 16 random bits are below num_dropped:
 * with probability num_dropped / 65,536. */
typedef struct td_dropout_rate {
    uint32_t num_dropped; /* 0 to 65,535 */
    float scale;          /* of kept elements: 65,536 / (65,536 - num_dropped) */
} td_dropout_rate;

/* Dropout of one tensor. Masks depend on seeds and indices of elements only. */
typedef struct td_dropout {
    uint32_t seeds[2];
    td_dropout_rate rate;
} td_dropout;

/* Dropout whose masks are stored for the backward pass. Masks are drawn block by block:
 * a block is a row, or a fixed number of elements; the last one may be shorter. */
typedef struct td_masking {
    const float *x;      /* [count]; backward: the gradient of y */
    float *y;            /* [count]; backward: the gradient of x */
    uint8_t *kept;       /* [blocks, block_masks]: 1 for kept elements, else 0 */
    int64_t count;       /* elements */
    int64_t block_width; /* elements of a block */
    int64_t block_masks; /* masks drawn for a block: even, at least block_width */
    int64_t first_block; /* number of the first one, if x is part of a larger tensor */
    td_dropout dropout;
} td_masking;

/* Multi-head attention (section 3.2) between projected queries, keys and values. A
 * query whose mask allows no key attends to all keys alike. */
typedef struct td_attention {
    int64_t sentences, heads, queries, keys;
    int64_t d_k, d_v; /* multiples of 16 */
    td_mask mask;
    float scale;            /* of the scores: 1 / sqrt(d_k) in the paper */
    const float *query;     /* [sentences, queries, heads * d_k] */
    const float *key_value; /* [sentences, keys, heads * d_k + heads * d_v] */
    float *weights; /* [sentences, heads, queries, keys rounded up to lanes], before
                       dropout; the forward pass stores, the backward pass reads it */
    float *output;  /* [sentences, queries, heads * d_v] */
    const float *grad_output;
    float *grad_query, *grad_key_value;
    /* Optional: results are written here, rounded to bf16, instead of in fp32. */
    td_panels bf16_output, bf16_grad_query, bf16_grad_key_value;
    int64_t first_sentence; /* number of the first one, if these are part of a batch */
    td_dropout dropout;     /* of the weights */
    float *workspace;       /* [num_threads, attention_workspace] */
} td_attention;

/* Cells and outputs of a recurrent unit (SSRU; Kim et al., 2019), position by position,
 * between its two linear maps:
 *
 *   cell[t] = forget[t] cell[t - 1] + (1 - forget[t]) candidate[t]
 *   output[t] = max(0, cell[t]), forget[t] = sigmoid(gate[t]), cell[-1] = 0
 *
 * All arrays are [sentences, length, width]. */
typedef struct td_recurrence {
    int64_t sentences, length, width; /* width: a multiple of 16 */
    const float *gate, *candidate;    /* linear maps of the input */
    float *forget, *cells;            /* stored for the backward pass; forget may be in
                                         the place of gate */
    float *output;
    const float *grad_output;
    float *grad_gate, *grad_candidate;
} td_recurrence;

/* y = LayerNorm(x + Dropout(addend)) (sections 3.1 and 5.4). The addend is masking.x in
 * the forward pass; its gradient is masking.y in the backward pass. */
typedef struct td_layer_norm {
    int64_t rows, width;      /* width: a multiple of 16 */
    float epsilon;            /* added to the variance */
    const float *x;           /* [rows, width] */
    const float *gain, *bias; /* [width] */
    float *normalized;        /* [rows, width], stored for the backward pass */
    float *inverse_deviation; /* [rows], stored for the backward pass */
    float *y;                 /* [rows, width] */
    td_panels bf16_y;         /* [rows, width]: y rounded to bf16; optional */
    const float *grad_y;
    float *grad_x, *grad_gain, *grad_bias;
    td_panels bf16_grad_addend; /* optional: written instead of masking.y; block_masks
                                   is then `width` */
    td_masking masking;         /* of blocks of `width` elements; its y (forward) or x
                                   (backward) is not used */
    float *workspace;           /* backward: [layer_norm_workspace] */
} td_layer_norm;

/* Label-smoothed cross-entropy (section 5.4). The gradient of the sum of the smoothed
 * losses replaces the logits.
 *
 * With `consistency` alpha, rows r and rows/2 + r are two passes over one token (Liang
 * et al., 2021). Both losses of each row are then halved, and alpha/4 times D(p, q) is
 * added to the smoothed loss: the Kullback-Leibler divergence from the distribution p
 * of the row to q of the other pass. */
typedef struct td_cross_entropy {
    int64_t rows, vocab;    /* rows: even with consistency */
    float *logits;          /* [rows, vocab]; NULL if they are in bf16 */
    td_bf16 *bf16_logits;   /* [rows, vocab] */
    const int64_t *targets; /* [rows] ids */
    float smoothing;        /* probability that is spread over the whole vocabulary */
    float consistency;      /* alpha, at least 0; 0: rows are independent */
    float *smoothed;        /* [rows] smoothed loss in nats */
    float *negative_log_likelihood; /* [rows] nats */
    float *workspace;               /* with bf16_logits: [num_threads, vocab], or
                                       [num_threads, 2, vocab] with consistency */
} td_cross_entropy;

/* The same loss for the logits states * weight^T, which are computed in bf16 and not
 * stored, with the gradients of both factors. */
typedef struct td_output_loss {
    int64_t rows, vocab, width;     /* width: a multiple of 32 */
    const float *states;            /* [rows, width] */
    const float *weight;            /* [vocab, width] */
    const int64_t *targets;         /* [rows] ids */
    float smoothing;                /* probability spread over the whole vocabulary */
    float *smoothed;                /* [rows] smoothed loss in nats */
    float *negative_log_likelihood; /* [rows] nats */
    float *grad_states, *grad_weight;
    int64_t accumulates;     /* 1: the gradient of the weight is added to grad_weight */
    td_bf16 *packed_forward; /* [vocab rounded up to 32, width] */
    td_bf16 *packed_backward; /* [vocab rounded up to 32, width] */
    float *workspace;         /* [output_loss_workspace] */
} td_output_loss;

/* All layers of an encoder or a decoder (section 3.1, Figure 1), post-norm with ReLU.
 * The sentences may be cut into parts; one thread takes a part through all layers. */
typedef struct td_stack {
    int64_t layers, sentences, length; /* length: positions of each sentence */
    int64_t d_model;                   /* a multiple of 32 */
    /* Multiples of 16. In bf16, d_ff, heads * d_k and heads * d_v must be multiples of
     * 32. */
    int64_t d_ff, d_k, d_v;
    int64_t heads;
    int64_t memory_length;  /* of the encoder's output; 0: no cross-attention */
    int64_t kept_layers;    /* layers whose states are stored: all; 1 if no backward */
    int64_t parts;          /* 1 to max(sentences, 1) */
    int64_t first_sentence; /* number of the first one, if these are part of a batch */
    int64_t is_bf16;        /* 1: matrices are multiplied in bf16 */
    int64_t is_recurrent;   /* 1: recurrent units (td_recurrence) are in the place of
                               self-attention, and there is no self_mask */
    float epsilon;          /* of the layer norms */
    float scale;            /* of the scores of attention */
    td_dropout_rate dropout, attention_dropout, relu_dropout;
    td_mask self_mask, cross_mask;
    const uint32_t *seeds; /* [layers, sub-layers, 4]: two seeds of the dropout within
                              the sub-layer, two of the dropout of its output */
    /* Pointers to the parameters of all layers. A layer has self-attention or a
     * recurrent unit, cross-attention if there is one, and feed-forward. A sub-layer
     * has its linear maps (query, key_value and output; gate and candidate; or inner
     * and outer), then gain and bias of its layer norm. A linear map has weight
     * [outputs, inputs] and bias; candidate has no bias. */
    float *const *weights;
    float *const *grad_weights; /* [parts] pointers to the gradients of all parameters,
                                   which follow one another */
    /* Weights of all linear maps, packed in bf16, one after another: as many elements
     * as the weights have. NULL in fp32; packed_backward is NULL also if there is no
     * backward pass. */
    td_bf16 *packed_forward, *packed_backward;
    const float *x;      /* [sentences, length, d_model] */
    const float *memory; /* [sentences, memory_length, d_model], the encoder's output */
    float *y;            /* [sentences, length, d_model] */
    float *states;       /* [parts, stack_states], stored for the backward pass */
    const float *grad_y;
    float *grad_x, *grad_memory;
    float *workspace; /* [parts, stack_workspace] */
    int num_threads;
} td_stack;

/* Update of matrices of one shape by Muon (Jordan et al., 2024): momentum is a moving
 * average of the gradients. Nesterov's momentum, divided by its norm, approaches the
 * nearest orthogonal matrix by Newton-Schulz iterations
 *
 *   X <- a X + b X X^T X + c (X X^T)^2 X,
 *
 * and rate * X is subtracted from the weight. */
typedef struct td_muon {
    int64_t count;
    int64_t rows, columns; /* multiples of 16, or of 32 with bf16 */
    int64_t steps;
    const float *factors;          /* [steps, 3]: coefficients a, b, c of each step */
    float epsilon;                 /* added to each norm */
    float gradient_weight;         /* of a new gradient in its average: 1 - momentum */
    float rate;                    /* learning rate, times the scale of an update */
    const float *const *gradients; /* [count] pointers to [rows, columns] */
    float *const *momenta;         /* likewise: averages of the gradients, updated */
    float *const *weights;         /* likewise: updated */
    int64_t is_bf16;               /* 1: products of bf16 numbers, summed in fp32 */
    float *workspace;              /* [num_threads, muon_workspace] */
} td_muon;

/* Factor of a product: element (row, column) is
 * data[row * row_stride + column * column_stride]. One of the strides is 1, and the
 * other not negative. */
typedef struct td_factor {
    const float *data;
    int64_t row_stride, column_stride;
} td_factor;

/* Product of fp32 matrices of any size: a b, plus c, plus the bias, with ReLU; the last
 * three are optional. c shares no memory with a factor. */
typedef struct td_product {
    int64_t rows, columns, inner;
    td_factor a;         /* [rows, inner] */
    td_factor b;         /* [inner, columns] */
    float *c;            /* [rows, columns], contiguous */
    const float *bias;   /* [columns] to add to each row, or NULL */
    int64_t relu;        /* 1: negative results become zero */
    int64_t accumulates; /* 1: the numbers in c are added */
    float *workspace;    /* [num_threads, product_workspace] */
} td_product;

/* Functions of training, of one instruction set. Functions that return int64_t return a
 * number of floats, or -1 if an argument is out of range; they do not read arrays. */
typedef struct td_nn_api {
    int64_t lanes; /* floats of a vector register: 8 or 16 */

    /* Workspace of each thread. */
    int64_t (*product_workspace)(void);
    /* Compute c. */
    td_status (*product)(const td_product *product, int num_threads);
    /* Instructions that multiply matrices in bf16: td_get_bf16_unit(), if this
     * instruction set can use them. */
    td_bf16_unit (*bf16_unit)(void);

    /* Workspace of each thread. */
    int64_t (*attention_workspace)(const td_attention *attention);
    /* Compute weights and output. */
    td_status (*attention_forward)(const td_attention *attention, int num_threads);
    /* Compute grad_query and grad_key_value. */
    td_status (*attention_backward)(const td_attention *attention, int num_threads);

    /* Compute forget, cells and output. */
    td_status (*recurrence_forward)(const td_recurrence *recurrence, int num_threads);
    /* Compute grad_gate and grad_candidate. */
    td_status (*recurrence_backward)(const td_recurrence *recurrence, int num_threads);

    /* Draw masks and apply them: y = Dropout(x). */
    td_status (*dropout_forward)(const td_masking *masking, int num_threads);
    /* Apply the masks that dropout_forward has drawn. */
    td_status (*dropout_backward)(const td_masking *masking, int num_threads);

    /* Workspace of layer_norm_backward. */
    int64_t (*layer_norm_workspace)(const td_layer_norm *norm);
    /* Compute y, and the statistics that the backward pass reads. */
    td_status (*layer_norm_forward)(const td_layer_norm *norm, int num_threads);
    /* Compute grad_x, grad_gain, grad_bias and the gradient of the addend. */
    td_status (*layer_norm_backward)(const td_layer_norm *norm, int num_threads);

    /* Compute both losses and the gradient. TD_BAD_TOKEN: a target is outside vocab. */
    td_status (*cross_entropy)(const td_cross_entropy *loss, int num_threads);

    int64_t (*output_loss_workspace)(const td_output_loss *loss, int num_threads);
    /* Pack the weight into packed_forward and packed_backward. */
    td_status (*output_loss_pack)(const td_output_loss *loss, int num_threads);
    /* Compute both losses and the gradients, given the packed weight. TD_BAD_TOKEN: a
     * target is outside vocab. */
    td_status (*output_loss)(const td_output_loss *loss, int num_threads);

    /* States and workspace of each part. */
    int64_t (*stack_states)(const td_stack *stack);
    int64_t (*stack_workspace)(const td_stack *stack);
    /* Pack the weights into packed_forward and, unless it is NULL, packed_backward. */
    td_status (*stack_pack)(const td_stack *stack);
    /* Compute y and states; in bf16, given packed weights. */
    td_status (*stack_forward)(const td_stack *stack);
    /* Compute grad_x, grad_memory and grad_weights, given the states. */
    td_status (*stack_backward)(const td_stack *stack);

    /* Workspace of each thread. */
    int64_t (*muon_workspace)(const td_muon *muon);
    /* Update momenta and weights. */
    td_status (*muon)(const td_muon *muon, int num_threads);
} td_nn_api;

/* ---- Decoding ---------------------------------------------------------------- */

/* Precision of matrix products. In TD_INT8, weights and embeddings are rounded when
 * they are packed, with a scale for each output or token: 1 / 127 of its largest
 * absolute weight. Rows of activations are rounded in each product, with a scale and a
 * minimum for each row. Instruction sets that add products in 16 bits round the weights
 * of linear maps once more, with larger scales. */
typedef enum td_precision { TD_FP32 = 0, TD_INT8 = 1 } td_precision;

/* Layer norm of the sum after each sub-layer (the paper), or of a sub-layer's input. */
typedef enum td_norm { TD_POST_NORM = 0, TD_PRE_NORM = 1 } td_norm;

/* Scores of attention: dot products divided by sqrt(d_k) (equation 1), dot products, or
 * additive (Bahdanau et al., 2015). */
typedef enum td_scores { TD_SCALED = 0, TD_UNSCALED = 1, TD_ADDITIVE = 2 } td_scores;

typedef enum td_activation { TD_RELU = 0, TD_SILU = 1 } td_activation;

/* Configuration of a Transformer. The largest sizes are 2^24 tokens, 1,000 layers, 2^16
 * for d_model, d_k and d_v, 2^18 for d_ff, 1,024 heads and 2^20 learned positions. */
typedef struct td_model_config {
    int64_t vocab_size;        /* of the source, or of both sides */
    int64_t target_vocab_size; /* 0: one matrix for source, target and output */
    int64_t encoder_layers, decoder_layers;
    int64_t d_model, d_ff, num_heads, d_k, d_v;
    int64_t max_positions; /* rows of the table of learned positions; 0: sinusoids */
    int64_t neighbourhood; /* largest distance of self-attention; 0: unlimited */
    double norm_epsilon;   /* added to variances */
    td_norm norm;
    td_scores scores;
    td_activation activation;
    int is_recurrent; /* 1: recurrent units (SSRU; Kim et al., 2019) in place of the
                         decoder's self-attention */
    int output_bias;  /* 1: logits have a bias */
    int has_output;   /* 1: logits have a matrix of their own, 0: the target's embedding
                       */
    double position_base; /* of the wavelengths of sinusoids; 0: 10,000, the paper's */
    td_precision precision;
} td_model_config;

/* A linear map y = x W^T + b with packed weights. */
typedef struct td_linear td_linear;

/* A Transformer with packed weights. After model_finish it does not change. */
typedef struct td_model td_model;

/* State of a decoder: a group of hypotheses for each sentence, with their keys and
 * values. All groups have the same size. Its model must be freed after it. */
typedef struct td_decoder td_decoder;

/* Restrictions on the next token of each of some hypotheses, or rows. Offsets are [rows
 * + 1]: the tokens of row r are number offsets[r] to offsets[r + 1] - 1; the first
 * offset is 0. */
typedef struct td_restrictions {
    const int64_t *banned_offsets, *banned_tokens; /* that must not follow */
    /* Tokens whose log-probability is multiplied by repetition_penalty: for each row
     * different ones, in ascending order. */
    const int64_t *repeated_offsets, *repeated_tokens;
    double repetition_penalty; /* above 0 */
} td_restrictions;

/* Arguments of find_candidates: the hypotheses of some sentences, and where the best
 * ways to extend them by one token are written. */
typedef struct td_candidates {
    int64_t sentences, group, vocab; /* the hypotheses of a sentence form a group */
    int64_t count;                   /* candidates wanted for each sentence */
    const double *log_probs;         /* [sentences, group] of the hypotheses */
    const uint8_t *mask; /* [sentences, group, vocab]: not 0 if the token must not
                            follow the hypothesis; or NULL */
    const int64_t *excluded_tokens; /* [num_excluded_tokens] that must not follow any */
    int64_t num_excluded_tokens;
    const int64_t *forced_tokens; /* [sentences]: the only token that may follow, or -1;
                                     NULL if no sentence has one */
    const td_restrictions *restrictions; /* [sentences * group] rows; NULL: none. Forced
                                            tokens are not restricted. */
    double diversity; /* penalty, in nats for each rank, on the continuations of one
                         hypothesis when candidates are chosen (Li et al., 2016) */
    /* Results [sentences, count], best first: log-probability including the token,
     * number of the hypothesis in its group, token. If there are fewer than `count`
     * candidates, the others have minus infinity. If logits of a hypothesis are NaN, so
     * are its candidates, which come last. */
    double *found_log_probs;
    int64_t *found_parents, *found_tokens;
} td_candidates;

/* How to search for translations (section 6.1). */
typedef struct td_search_config {
    int64_t beam_size;  /* hypotheses of a sentence that each step keeps: 1 to 2^20 */
    int64_t is_greedy;  /* 1: always choose the best token; beam_size is 1 */
    int64_t eos;        /* end token */
    int64_t min_length; /* smallest number of tokens, without the end token */
    /* The search for a sentence ends when no live hypothesis can beat its num_best best
     * ones, when at least finished_limit and at least num_best hypotheses have
     * finished, or at its limit of tokens. */
    int64_t num_best, finished_limit;
    /* Number of best candidates of a step that may end a hypothesis: 1 to 2 beam_size.
     */
    int64_t end_candidates;
    /* Whether hypotheses that the length limit truncates are ranked with finished ones
     * (1), or only if none has finished (0). */
    int64_t ranks_truncated;
    /* A score is the log-probability divided by ((5 + length) / 6)^length_penalty, or
     * by length^length_penalty if is_power_penalty, plus coverage_penalty times the
     * coverage (Wu et al., 2016). The length includes the end token. */
    double length_penalty;
    int64_t is_power_penalty;
    double coverage_penalty;
    double diversity;               /* as in td_candidates */
    const int64_t *excluded_tokens; /* [num_excluded_tokens] that never occur; copied */
    int64_t num_excluded_tokens;
    /* Length of the n-grams that occur at most once in a hypothesis; 0: no limit. */
    int64_t no_repeat_ngram;
    /* Factor of the log-probability of tokens that a hypothesis contains (Keskar et
     * al., 2019); 0 or 1: none. */
    double repetition_penalty;
    /* Sequences of bad_word_lengths[i] >= 1 tokens that never occur. They follow one
     * another in bad_word_tokens. Copied. */
    int64_t num_bad_words;
    const int64_t *bad_word_lengths, *bad_word_tokens;
} td_search_config;

/* A search for translations of some sentences, which are numbered from 0. A sentence is
 * live until its search ends. */
typedef struct td_search td_search;

/* A hypothesis of a sentence. The arrays belong to the search and are valid until the
 * next call with it. */
typedef struct td_hypothesis {
    double score;
    double log_prob;       /* of all tokens, the end token included */
    int64_t is_finished;   /* 1: it ends with the end token; 0: it is truncated */
    int64_t num_tokens;    /* without the end token */
    const int64_t *tokens; /* [num_tokens] */
    const double *token_log_probs; /* [num_tokens + is_finished] of each token */
} td_hypothesis;

/* Functions of decoding, of one instruction set. */
typedef struct td_decode_api {
    /* Pack weight [outputs, inputs] and bias [outputs]; NULL: a bias of zeros.
     * TD_OUT_OF_MEMORY. */
    td_status (*linear_new)(const float *weight, const float *bias, int64_t outputs,
                            int64_t inputs, td_precision precision, int num_threads,
                            td_linear **linear);
    /* Compute y [rows, outputs] from x [rows, inputs]. A row of y depends on its row of
     * x only. TD_OUT_OF_MEMORY. */
    td_status (*linear_apply)(const td_linear *linear, const float *x, int64_t rows,
                              float *y, int num_threads);
    /* Write the scales [outputs] of int8 weights. TD_BAD_ARGUMENT: the weights are in
     * fp32. */
    td_status (*linear_scales)(const td_linear *linear, float *scales);
    void (*linear_free)(td_linear *linear);

    /* Create a model without parameters. TD_OUT_OF_MEMORY. */
    td_status (*model_new)(const td_model_config *config, td_model **model);
    /* Set a parameter [rows, columns] by its name, such as
     * "encoder_layers.0.feed_forward.inner.weight"; a vector has one column. The values
     * are read by model_finish and must stay until then. */
    td_status (*model_set)(td_model *model, const char *name, const float *values,
                           int64_t rows, int64_t columns);
    /* Set the weight of a linear map or an embedding that is rounded already, in a
     * model whose precision is TD_INT8: weights are values [rows, columns] * scales
     * [rows]. The arrays must stay until model_finish. */
    td_status (*model_set_int8)(td_model *model, const char *name, const int8_t *values,
                                const float *scales, int64_t rows, int64_t columns);
    /* Copy and pack the parameters. TD_BAD_ARGUMENT: a parameter is not set.
     * TD_OUT_OF_MEMORY: the model can only be freed then. */
    td_status (*model_finish)(td_model *model, int num_threads);
    void (*model_free)(td_model *model);

    /* Encode sentences of `lengths` [sentences] tokens, 1 or more, whose `ids` [tokens]
     * follow one another, end tokens included. Writes the encoder's output, `states`
     * [tokens, d_model]. TD_BAD_TOKEN, TD_OUT_OF_MEMORY. */
    td_status (*encode)(const td_model *model, const int64_t *ids,
                        const int64_t *lengths, int64_t sentences, float *states,
                        int num_threads);

    /* Create a decoder that has read nothing, with one hypothesis for each sentence,
     * given `lengths` [sentences] and the `states` [tokens, d_model] that `encode` has
     * written. It sums the attention of each of its last `summed_layers` layers over
     * the steps: 0 for none, 1 for decoder_coverage. TD_OUT_OF_MEMORY. */
    td_status (*decoder_new)(const td_model *model, const float *states,
                             const int64_t *lengths, int64_t sentences,
                             int64_t summed_layers, int num_threads,
                             td_decoder **decoder);
    /* Restrict each sentence to a shortlist of `counts` [sentences] tokens; 0: all
     * tokens. The lists follow one another in `tokens` [sum of counts], each in
     * ascending order. Logits of other tokens are minus infinity from now on.
     * TD_BAD_TOKEN, TD_OUT_OF_MEMORY. */
    td_status (*decoder_set_shortlists)(td_decoder *decoder, const int64_t *counts,
                                        const int32_t *tokens);
    /* Read the next token of each hypothesis, `ids` [sentences, group], and write the
     * logits [sentences, group, target vocabulary] of the token after it.
     * TD_BAD_TOKEN, TD_OUT_OF_MEMORY. */
    td_status (*decoder_step)(td_decoder *decoder, const int64_t *ids, float *logits,
                              int num_threads);
    /* Keep the hypotheses `rows` [sentences, group] and drop the others; row h of group
     * g was number g * (size of the old groups) + h. Hypotheses may be repeated. All in
     * a new group must be of one sentence; each sentence has at most one group.
     * TD_OUT_OF_MEMORY. */
    td_status (*decoder_reorder)(td_decoder *decoder, const int64_t *rows,
                                 int64_t sentences, int64_t group);
    /* Append copies of the sentences of another decoder of the same model, with groups
     * of the same size. TD_OUT_OF_MEMORY. */
    td_status (*decoder_join)(td_decoder *decoder, const td_decoder *other);
    /* Write the coverage [sentences, group]: the sum of log(min(a, 1)) over source
     * positions, where `a` is the sum over steps of the attention to the position, the
     * mean over the heads of the last layer (Wu et al., 2016, equation 14). */
    td_status (*decoder_coverage)(const td_decoder *decoder, double *coverage);
    /* Write the attention [sentences, group, summed_layers, positions] to source
     * positions, summed over the steps since the last call, the mean over the heads; 0
     * beyond the end of a source. TD_BAD_ARGUMENT: no layer's attention is summed, or a
     * source is longer than `positions`. */
    td_status (*decoder_take_attention)(td_decoder *decoder, float *attention,
                                        int64_t positions);
    /* Number of sentences and of hypotheses of each; 0 for NULL. */
    int64_t (*decoder_sentences)(const td_decoder *decoder);
    int64_t (*decoder_group)(const td_decoder *decoder);
    /* Positions of a sentence whose keys and values fit into the allocated memory; 0
     * for NULL. Restricted attention keeps only the positions of a neighbourhood, a
     * recurrent unit the cells of the newest position and the one before. */
    int64_t (*decoder_capacity)(const td_decoder *decoder);
    void (*decoder_free)(td_decoder *decoder);

    /* Find candidates, given logits [sentences, group, vocab]. TD_BAD_TOKEN: a forced
     * or a repeated token is not below vocab. TD_OUT_OF_MEMORY. */
    td_status (*find_candidates)(const td_candidates *query, const float *logits);

    /* Begin a search. Translations have at most `max_lengths` [num_sentences] tokens,
     * the end token included; 0 has the effect of 1. They begin with prefixes of
     * `prefix_lengths` [num_sentences] tokens, which follow one another in
     * `prefix_tokens`; NULL lengths: no prefixes. TD_BAD_TOKEN: a prefix has a negative
     * id. TD_OUT_OF_MEMORY. */
    td_status (*search_new)(const td_search_config *config, int64_t num_sentences,
                            const int64_t *max_lengths, const int64_t *prefix_lengths,
                            const int64_t *prefix_tokens, td_search **search);
    void (*search_free)(td_search *search);

    /* Number of live sentences; 0 for NULL. Each has a group of one hypothesis before
     * the first step, and of beam_size after it. */
    int64_t (*search_num_live)(const td_search *search);
    /* Write the numbers [live] of live sentences and, for the hypotheses that the last
     * step kept, `rows` [live, group], the hypotheses that they extend, numbered as for
     * decoder_reorder, and `tokens` [live, group], their newest tokens. Any may be
     * NULL. */
    td_status (*search_live)(const td_search *search, int64_t *numbers, int64_t *rows,
                             int64_t *tokens);
    /* Write the fields of td_candidates that callers need to find candidates
     * themselves: log_probs [live, group] and forced_tokens [live]. Any may be NULL. */
    td_status (*search_query)(const td_search *search, double *log_probs,
                              int64_t *forced_tokens);
    /* Find the restrictions of the next token after the hypotheses [live, group]; all
     * pointers are NULL if the configuration has none. The arrays are valid until the
     * next call with the search. TD_OUT_OF_MEMORY. */
    td_status (*search_restrictions)(td_search *search, td_restrictions *restrictions);

    /* Extend the hypotheses of all live sentences by one token, given logits [live,
     * group, vocab] and `mask` as in td_candidates. With a coverage penalty, `coverage`
     * [live, group] of the hypotheses is needed. TD_BAD_TOKEN: a prefix or, with a
     * repetition penalty, a hypothesis has an id not below vocab. TD_OUT_OF_MEMORY. */
    td_status (*search_grow_by_logits)(td_search *search, const float *logits,
                                       int64_t vocab, const uint8_t *mask,
                                       const double *coverage);
    /* The same, given candidates [live, num_candidates], best first, as find_candidates
     * writes them; num_candidates is 2 beam_size. TD_BAD_TOKEN: a token does not fit in
     * 31 bits. TD_OUT_OF_MEMORY. */
    td_status (*search_grow_by_candidates)(td_search *search, int64_t num_candidates,
                                           const double *log_probs,
                                           const int64_t *parents,
                                           const int64_t *tokens,
                                           const double *coverage);

    /* Take steps of a decoder and a search together, until at most `max_live` sentences
     * are live or `max_steps` steps are taken. The decoder must have the search's live
     * sentences with groups of beam_size, and sum attention if there is a coverage
     * penalty. `tokens` [live, group] are read first. Writes the number of steps to
     * `num_steps`. With AMX in int8, log-probabilities may differ in their last digits
     * between one thread and several, and with the number of live hypotheses. With
     * shortlists they may differ in their last digits from those of single steps, which
     * sum over the whole vocabulary.
     *
     * If a step fails after others, the call returns TD_OK, and the next call reports
     * the failure. If the decoder cannot be reordered after a step, both handles can
     * only be freed. TD_BAD_TOKEN, TD_OUT_OF_MEMORY. */
    td_status (*search_run)(td_search *search, td_decoder *decoder,
                            const int64_t *tokens, int64_t max_steps, int64_t max_live,
                            int num_threads, int64_t *num_steps);

    /* Move the sentences of another search with the same configuration to the end of
     * this one. Their numbers rise by the number of sentences that this search has had.
     * If both have live sentences, their groups must have the same size.
     * TD_OUT_OF_MEMORY. */
    td_status (*search_join)(td_search *search, td_search *other);

    /* Number of hypotheses of a sentence that have finished so far or, if it is not
     * live, are truncated: at most beam_size; 0 if there is no such sentence. */
    int64_t (*search_num_hypotheses)(const td_search *search, int64_t number);
    /* Hypothesis `rank` of a sentence; 0 is the best. TD_OUT_OF_MEMORY. */
    td_status (*search_hypothesis)(td_search *search, int64_t number, int64_t rank,
                                   td_hypothesis *hypothesis);
    /* Free a sentence that is not live. */
    td_status (*search_forget)(td_search *search, int64_t number);
} td_decode_api;

/* ---- Alignment ---------------------------------------------------------------- */

/* Sentence pairs as ids. Sentences of a side follow one another: sentence i is the ids
 * from number ends[i - 1], or 0 for the first, to ends[i] - 1. */
typedef struct td_sentence_pairs {
    int64_t pairs, source_vocab, target_vocab;
    const int32_t *sources, *targets;
    const int64_t *source_ends, *target_ends; /* [pairs] */
} td_sentence_pairs;

/* Learn t(target | source) by IBM model 1 (Brown et al., 1993). Writes the `best`
 * likeliest targets of each source id, likeliest first, to `tokens` and `probs`
 * [source_vocab + 1, best]; the last row is of the NULL word, the source of target
 * words that no source word explains. Missing targets have -1 and 0. `iterations` is
 * from 1 to 1,000, `best` from 1 to target_vocab. Probabilities below 1e-5 count as 0
 * in the next iteration.
 * TD_BAD_TOKEN, TD_OUT_OF_MEMORY. */
td_status td_learn_lexicon(const td_sentence_pairs *pairs, int64_t iterations,
                           int64_t best, int num_threads, int32_t *tokens,
                           float *probs);

/* ---- Library ----------------------------------------------------------------- */

/* All functions, for one instruction set. */
typedef struct td_api {
    const char *isa; /* name of the instruction set, such as "avx512" */
    const td_nn_api *nn;
    const td_decode_api *decode;
} td_api;

/* Name of a status, such as "TD_BAD_TOKEN", and a sentence that explains it. */
const char *td_status_name(td_status status);
const char *td_status_message(td_status status);

/* SHA-256 of the header with which the library was compiled, in hexadecimal. */
const char *td_header_hash(void);

/* Functions for this processor: of the fastest instruction set, or of the one that the
 * environment variable TRANSDUCE_ISA names. NULL if the library does not have that one
 * or this processor cannot run it. */
const td_api *td_load(void);

/* Functions of an instruction set by name; NULL if the library does not have it or this
 * processor cannot run it. */
const td_api *td_load_isa(const char *name);

/* Names of all instruction sets in the library, fastest first, separated by spaces. */
const char *td_isa_names(void);

/* 1 if products in int8 or bf16 may use AMX: the processor and the operating system
 * support it, and td_allow_amx has not disabled it. */
int td_has_amx_int8(void);
int td_has_amx_bf16(void);

/* The fastest unit of this processor that is allowed. */
td_bf16_unit td_get_bf16_unit(void);

/* Allow products to use AMX, or the dot products of AVX-512 BF16 (1, the default), or
 * not (0). */
void td_allow_amx(int is_allowed);
void td_allow_avx512_bf16(int is_allowed);

/* Run parallel work by `GOMP_parallel` of an OpenMP runtime, and so on the threads of
 * that runtime; NULL (the default): on threads of this library. The child of a fork
 * always uses the latter, as the runtime's threads do not survive a fork. */
void td_use_openmp(void *gomp_parallel);

/* Call `may_allocate` before each allocation of weights, states or workspace of
 * `min_bytes` bytes or more. If it returns 0, the call that needs the memory returns
 * TD_OUT_OF_MEMORY. NULL (the default): no check. */
void td_use_allocation_check(int (*may_allocate)(int64_t bytes), int64_t min_bytes);

#pragma GCC visibility pop

#endif
