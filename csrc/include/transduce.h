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

/* A bf16 matrix [rows, columns] cut into panels of 32 columns, as the AMX unit loads
 * it. Functions for which it is optional ignore it if data is NULL. */
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

/* Multi-head attention (section 3.2) between projected queries, keys and values. d_k
 * and d_v are multiples of 16. */
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
    float *workspace; /* [output_loss_workspace] */
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

/* Functions of one instruction set. Sizes are numbers of floats, or -1 if an argument
 * is out of range. */
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

/* Numbers of matrix products. In int8, weights are rounded once with a scale for each
 * output, rows of activations as they come with a scale and an offset for each row. */
typedef enum td_precision { TD_FP32 = 0, TD_INT8 = 1 } td_precision;

typedef enum td_norm { TD_POST_NORM = 0, TD_PRE_NORM = 1 } td_norm;

typedef enum td_scores { TD_SCALED = 0, TD_UNSCALED = 1, TD_ADDITIVE = 2 } td_scores;

typedef enum td_activation { TD_RELU = 0, TD_SILU = 1 } td_activation;

/* Sizes and choices of a Transformer. */
typedef struct td_model_config {
    int64_t vocab_size;
    int64_t target_vocab_size; /* 0: one matrix for source, target and output */
    int64_t encoder_layers, decoder_layers;
    int64_t d_model, d_ff, num_heads, d_k, d_v;
    int64_t max_positions; /* rows of the table of learned positions; 0: sinusoids */
    int64_t neighbourhood; /* distance that self-attention sees; 0: unlimited */
    double norm_epsilon;
    td_norm norm;
    td_scores scores;
    td_activation activation;
    int output_bias; /* whether logits have a bias */
    td_precision precision;
} td_model_config;

/* A linear map y = x W^T + b with packed weights. */
typedef struct td_linear td_linear;

/* A Transformer with packed weights. Once finished it does not change, and several
 * threads may use it at a time. */
typedef struct td_model td_model;

/* State of a decoder: a group of hypotheses for each sentence, all groups equally
 * large, with their keys and values. Its model must be freed later. */
typedef struct td_decoder td_decoder;

/* Request for the likeliest ways to go on, and where they are written. */
typedef struct td_candidates {
    int64_t sentences, group, vocab; /* hypotheses of a sentence form a group */
    int64_t count;                   /* candidates wanted of each sentence */
    const double *log_probs;         /* [sentences, group] of the hypotheses so far */
    const uint8_t *mask; /* [sentences, group, vocab] not 0: the token may not come
                            after the hypothesis; or NULL */
    const int64_t *excluded_tokens; /* tokens that may never come */
    int64_t num_excluded_tokens;
    const int64_t *forced_tokens; /* [sentences] the only token that may come, or -1;
                                     NULL if there are none */
    double diversity; /* nats by which the k-th best token after a hypothesis is put
                         back, times k, in the choice of candidates */
    /* [sentences, count] each, best first: log-probability with the token, number of
     * the hypothesis in its group, token. Missing candidates have minus infinity; where
     * a hypothesis has NaN among its logits, its candidates have NaN and come last. */
    double *found_log_probs;
    int64_t *found_parents, *found_tokens;
} td_candidates;

/* How to search for translations (section 6.1). */
typedef struct td_search_config {
    int64_t beam_size;      /* hypotheses of a sentence that each step keeps */
    int64_t is_greedy;      /* whether the likeliest token always is chosen, beam 1 */
    int64_t eos;            /* end token */
    int64_t min_length;     /* tokens of a hypothesis at least, its end not counted */
    int64_t num_best;       /* hypotheses that must be beyond overtaking at the end */
    int64_t end_candidates; /* best candidates of a step that may end, of 2 beam_size */
    int64_t enough_finished;  /* finished hypotheses that end the search in any case */
    int64_t cut_ones_compete; /* whether those cut short by the length limit are ranked
                                 with finished ones, not only where none finished */
    double length_penalty;    /* alpha: a score is the log-probability divided by */
    int64_t is_power_penalty; /* ((5 + length) / 6)^alpha, or by length^alpha */
    double coverage_penalty;  /* beta: weight of coverage in scores; 0 for none */
    double diversity;         /* as in td_candidates */
    const int64_t *excluded_tokens; /* tokens that never come; copied */
    int64_t num_excluded_tokens;
} td_search_config;

/* Sentences that are searched together. A sentence is live until it is done. Sentences
 * are numbered from 0 in the order in which they came. */
typedef struct td_search td_search;

/* A hypothesis of a sentence. The arrays belong to the search, and are valid until its
 * next call. */
typedef struct td_hypothesis {
    double score;
    double log_prob;     /* of all tokens, the end token included */
    int64_t is_finished; /* whether it ended by itself */
    int64_t num_tokens;  /* the end token not counted */
    const int64_t *tokens;
    const double *gains; /* [num_tokens + is_finished] log-probability of each token */
} td_hypothesis;

typedef struct td_decode_api {
    int64_t lanes;

    /* Pack weight [outputs, inputs] and bias [outputs]; a NULL bias is zero. */
    td_status (*linear_new)(const float *weight, const float *bias, int64_t outputs,
                            int64_t inputs, td_precision precision, int num_threads,
                            td_linear **linear);
    /* y [rows, outputs] from x [rows, inputs]. A row of y depends on its row of x only,
     * not on the number of threads. */
    td_status (*linear_apply)(const td_linear *linear, const float *x, int64_t rows,
                              float *y, int num_threads);
    /* Step [outputs] of the rounded weights of each output, in int8. */
    td_status (*linear_scales)(const td_linear *linear, float *scales);
    void (*linear_free)(td_linear *linear);

    /* A model without weights. Each parameter must be set by its name, such as
     * "encoder_layers.0.feed_forward.inner.weight" [rows, columns]; a vector has one
     * column. The numbers must stay until model_finish, which copies and packs them. */
    td_status (*model_new)(const td_model_config *config, td_model **model);
    td_status (*model_set)(td_model *model, const char *name, const float *values,
                           int64_t rows, int64_t columns);
    td_status (*model_finish)(td_model *model, int num_threads);
    void (*model_free)(td_model *model);

    /* Encode sentences of lengths[i] tokens each, which follow one another in `ids`.
     * `states` [tokens, d_model] has a row for each token. */
    td_status (*encode)(const td_model *model, const int64_t *ids,
                        const int64_t *lengths, int64_t sentences, float *states,
                        int num_threads);

    /* A decoder that has read nothing, with one hypothesis for each sentence, from the
     * encoder's states. With `sum_attention`, decoder_coverage can be called. */
    td_status (*decoder_new)(const td_model *model, const float *states,
                             const int64_t *lengths, int64_t sentences,
                             int sum_attention, int num_threads, td_decoder **decoder);
    /* Read one more token of each hypothesis. `ids` has [sentences, group] tokens,
     * `logits` [sentences, group, target vocabulary] those of the next. A failed step
     * changes nothing. */
    td_status (*decoder_step)(td_decoder *decoder, const int64_t *ids, float *logits,
                              int num_threads);
    /* Keep the hypotheses `rows` [sentences, group], numbered through all groups. Those
     * of a new group must be of one sentence, and no sentence in two groups. */
    td_status (*decoder_reorder)(td_decoder *decoder, const int64_t *rows,
                                 int64_t sentences, int64_t group);
    /* Append copies of the sentences of another decoder of the same model, with groups
     * of the same size. */
    td_status (*decoder_join)(td_decoder *decoder, const td_decoder *other);
    /* Coverage [sentences, group]: sum of log(min(attention, 1)) over the source, where
     * attention is summed over steps (Wu et al., 2016, equation 14), and is the mean of
     * the last layer's heads. */
    td_status (*decoder_coverage)(const td_decoder *decoder, double *coverage);
    /* Sizes; 0 for NULL. Capacity: positions of a sentence for which memory is held. */
    int64_t (*decoder_sentences)(const td_decoder *decoder);
    int64_t (*decoder_group)(const td_decoder *decoder);
    int64_t (*decoder_capacity)(const td_decoder *decoder);
    void (*decoder_free)(td_decoder *decoder);

    /* Find candidates given logits [sentences, group, vocab]. */
    td_status (*find_candidates)(const td_candidates *query, const float *logits);

    /* Begin to search for translations of max_lengths[i] tokens at most, the end token
     * included. All hypotheses of a sentence begin with its prefix, if there are
     * prefixes: prefix_lengths[i] tokens of prefix_tokens, where prefixes follow one
     * another. NULL lengths: none. */
    td_status (*search_new)(const td_search_config *config, int64_t num_sentences,
                            const int64_t *max_lengths, const int64_t *prefix_lengths,
                            const int64_t *prefix_tokens, td_search **search);
    void (*search_free)(td_search *search);

    /* Live sentences; 0 for NULL. Each has one hypothesis before the first step, and
     * beam_size from then on: its group. */
    int64_t (*search_num_live)(const td_search *search);
    /* Numbers [live] of the live sentences; of the hypotheses that the last step kept,
     * `rows` [live, group], those that they extend, numbered through all groups of that
     * step, and `tokens` [live, group] that they read next. Any may be NULL. */
    td_status (*search_live)(const td_search *search, int64_t *numbers, int64_t *rows,
                             int64_t *tokens);
    /* What candidates of the next step depend on, for callers that find them by other
     * means: log-probabilities [live, group], and the only token that may come [live],
     * or -1. Any may be NULL. */
    td_status (*search_next)(const td_search *search, double *log_probs,
                             int64_t *forced_tokens);

    /* Grow all live sentences by one token, given logits [live, group, vocab]. `mask`
     * is as in td_candidates. `coverage` [live, group] of the hypotheses is needed if
     * there is a coverage penalty. A failed step changes nothing. */
    td_status (*search_advance)(td_search *search, const float *logits, int64_t vocab,
                                const uint8_t *mask, const double *coverage);
    /* The same given the candidates [live, 2 beam_size] themselves, best first. */
    td_status (*search_grow)(td_search *search, int64_t num_candidates,
                             const double *log_probs, const int64_t *parents,
                             const int64_t *tokens, const double *coverage);

    /* Take steps of a decoder and its search, whose groups are as large as the beam,
     * until `few` sentences or fewer are live or `max_steps` are taken. Hypotheses read
     * `tokens` [live, group] first. `num_steps` says how many were taken. A step that
     * fails changes nothing; if others were taken before, the call returns TD_OK, and
     * the next one reports the failure. Only if the decoder cannot be reordered after
     * a step is neither handle good for anything but freeing. */
    td_status (*search_run)(td_search *search, td_decoder *decoder,
                            const int64_t *tokens, int64_t max_steps, int64_t few,
                            int num_threads, int64_t *num_steps);

    /* Move the sentences of another search with the same configuration behind one's
     * own. Their numbers rise by the count of sentences that this search has ever had.
     * Where both have live sentences, these must have groups of the same size. */
    td_status (*search_join)(td_search *search, td_search *other);

    /* Hypotheses of a sentence that ended so far or, if it is done, were cut short; 0
     * if there is no such sentence. At most beam_size, best first. */
    int64_t (*search_num_hypotheses)(const td_search *search, int64_t number);
    td_status (*search_hypothesis)(td_search *search, int64_t number, int64_t rank,
                                   td_hypothesis *hypothesis);
    /* Free the hypotheses of a sentence that is done. */
    td_status (*search_forget)(td_search *search, int64_t number);
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

/* Call `may_allocate` before an allocation of `min_bytes` bytes or more; if it returns
 * 0, the call that needs them ends with TD_OUT_OF_MEMORY. NULL: never ask, the default.
 */
void td_use_allocation_check(int (*may_allocate)(int64_t bytes), int64_t min_bytes);

#pragma GCC visibility pop

#endif
