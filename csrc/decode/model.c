/* Functions of model handles: parameters are set by name, then packed. */
#include "decode/model.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "checks.h"
#include "gemm/pack.h"
#include "gemm/quantize.h"
#include "parallel.h"

#define UNLIMITED ((int64_t)1 << 62)

/* Parameters of a linear map, a layer norm or an embedding, in arrays of the caller.
 * The weight may be in int8: values [rows, columns] times scales [rows]. */
typedef struct {
    const float *weight; /* NULL if it is in int8 */
    const int8_t *values;
    const float *scales;
    const float *bias;
} Affine;

_Static_assert(offsetof(Affine, weight) == 0, "a weight has the address of its Affine");

typedef struct {
    Affine query, key_value, output;
    const float *additive;
} Attention;

typedef struct {
    Attention self_attention, cross_attention;
    Affine forget_gate, candidate; /* of a recurrent unit; the second has no bias */
    Affine inner, outer;
    Affine self_norm, cross_norm, feed_forward_norm;
} RawLayer;

/* Parameters of a model that is not finished. */
typedef struct Loading {
    RawLayer *encoder_layers, *decoder_layers;
    Affine embedding, target_embedding, output;
    Affine encoder_norm, decoder_norm;
    const float *positions;
} Loading;

/* ---- Names and shapes of parameters ------------------------------------------- */

typedef enum {
    ONE,
    D_MODEL,
    D_FF,
    HEADS,
    D_K,
    KEYS,       /* num_heads * d_k */
    VALUES,     /* num_heads * d_v */
    KEY_VALUES, /* both */
    VOCAB,
    TARGET_VOCAB,
    OUTPUTS, /* the target's vocabulary */
    POSITIONS
} Size;

static int64_t size_of(const td_model_config *config, Size size)
{
    const int64_t keys = config->num_heads * config->d_k;
    const int64_t values = config->num_heads * config->d_v;
    const int64_t sizes[] = {
        [ONE] = 1,
        [D_MODEL] = config->d_model,
        [D_FF] = config->d_ff,
        [HEADS] = config->num_heads,
        [D_K] = config->d_k,
        [KEYS] = keys,
        [VALUES] = values,
        [KEY_VALUES] = keys + values,
        [VOCAB] = config->vocab_size,
        [TARGET_VOCAB] = config->target_vocab_size,
        [OUTPUTS] =
            config->target_vocab_size ? config->target_vocab_size : config->vocab_size,
        [POSITIONS] = config->max_positions,
    };
    return sizes[size];
}

/* Conditions under which a model has a parameter; all bits must hold. */
enum {
    ALWAYS = 0,
    IN_DECODER = 1 << 0,
    IF_ADDITIVE = 1 << 1, /* scores are additive */
    IF_PRE_NORM = 1 << 2,
    IF_LEARNED = 1 << 3, /* positions are learned */
    IF_BIAS = 1 << 4,    /* logits have a bias */
    IF_SHARED = 1 << 5,  /* source and target have one matrix */
    IF_TARGET = 1 << 6,  /* the target has its own matrix */
    IF_TIED = 1 << 7,    /* logits have the matrix of the target's embedding */
    IF_OUTPUT = 1 << 8,  /* logits have their own matrix */
    IF_SELF_ATTENTION = 1 << 9,
    IF_RECURRENT = 1 << 10, /* a recurrent unit is in place of self-attention */
};

static int conditions_of(const td_model_config *config)
{
    return (config->scores == TD_ADDITIVE ? IF_ADDITIVE : 0) |
           (config->norm == TD_PRE_NORM ? IF_PRE_NORM : 0) |
           (config->max_positions ? IF_LEARNED : 0) |
           (config->output_bias ? IF_BIAS : 0) |
           (config->has_output ? IF_OUTPUT : IF_TIED) |
           (config->target_vocab_size ? IF_TARGET : IF_SHARED);
}

/* Conditions of the layers of a stack. */
static int layer_conditions(const td_model_config *config, int is_decoder)
{
    const int is_recurrent = is_decoder && config->is_recurrent;
    return conditions_of(config) | (is_decoder ? IN_DECODER : 0) |
           (is_recurrent ? IF_RECURRENT : IF_SELF_ATTENTION);
}

typedef struct {
    const char *name;
    size_t offset; /* in RawLayer or Loading, of the pointer to its values */
    Size rows, columns;
    int conditions;
    int may_be_int8; /* 1: the weight of an Affine that is a matrix */
} Parameter;

/* Entries of the tables below: weight and bias of the Affine that is `field` of a
 * RawLayer or Loading (`type`), and all parameters of an attention sub-layer. */
#define AFFINE(type, name, field, rows, columns, conditions)                           \
    {name ".weight",  offsetof(type, field.weight), rows, columns, conditions,         \
     (columns) != ONE},                                                                \
        {name ".bias", offsetof(type, field.bias), rows, ONE, conditions, 0}
#define ATTENTION(name, field, conditions)                                             \
    AFFINE(RawLayer, name ".project_query", field.query, KEYS, D_MODEL, conditions),   \
        AFFINE(RawLayer, name ".project_key_value", field.key_value, KEY_VALUES,       \
               D_MODEL, conditions),                                                   \
        AFFINE(RawLayer, name ".project_output", field.output, D_MODEL, VALUES,        \
               conditions),                                                            \
        {name ".additive_weight",                                                      \
         offsetof(RawLayer, field.additive),                                           \
         HEADS,                                                                        \
         D_K,                                                                          \
         (conditions) | IF_ADDITIVE,                                                   \
         0}

/* Parameters of a layer; their names follow "encoder_layers.N." or
 * "decoder_layers.N.". */
static const Parameter layer_parameters[] = {
    ATTENTION("self_attention", self_attention, IF_SELF_ATTENTION),
    AFFINE(RawLayer, "after_self_attention.norm", self_norm, D_MODEL, ONE,
           IF_SELF_ATTENTION),
    AFFINE(RawLayer, "recurrence.forget_gate", forget_gate, D_MODEL, D_MODEL,
           IF_RECURRENT),
    {"recurrence.candidate.weight", offsetof(RawLayer, candidate.weight), D_MODEL,
     D_MODEL, IF_RECURRENT, 1},
    AFFINE(RawLayer, "after_recurrence.norm", self_norm, D_MODEL, ONE, IF_RECURRENT),
    ATTENTION("cross_attention", cross_attention, IN_DECODER),
    AFFINE(RawLayer, "after_cross_attention.norm", cross_norm, D_MODEL, ONE,
           IN_DECODER),
    AFFINE(RawLayer, "feed_forward.inner", inner, D_FF, D_MODEL, ALWAYS),
    AFFINE(RawLayer, "feed_forward.outer", outer, D_MODEL, D_FF, ALWAYS),
    AFFINE(RawLayer, "after_feed_forward.norm", feed_forward_norm, D_MODEL, ONE,
           ALWAYS),
    {NULL, 0, ONE, ONE, 0, 0},
};

static const Parameter model_parameters[] = {
    {"embedding.weight", offsetof(Loading, embedding.weight), VOCAB, D_MODEL, ALWAYS,
     1},
    {"embedding.bias", offsetof(Loading, embedding.bias), VOCAB, ONE,
     IF_SHARED | IF_TIED | IF_BIAS, 0},
    {"target_embedding.weight", offsetof(Loading, target_embedding.weight),
     TARGET_VOCAB, D_MODEL, IF_TARGET, 1},
    {"target_embedding.bias", offsetof(Loading, target_embedding.bias), TARGET_VOCAB,
     ONE, IF_TARGET | IF_TIED | IF_BIAS, 0},
    {"output.weight", offsetof(Loading, output.weight), OUTPUTS, D_MODEL, IF_OUTPUT, 1},
    {"output.bias", offsetof(Loading, output.bias), OUTPUTS, ONE, IF_OUTPUT | IF_BIAS,
     0},
    {"positions.weight", offsetof(Loading, positions), POSITIONS, D_MODEL, IF_LEARNED,
     0},
    AFFINE(Loading, "encoder_norm", encoder_norm, D_MODEL, ONE, IF_PRE_NORM),
    AFFINE(Loading, "decoder_norm", decoder_norm, D_MODEL, ONE, IF_PRE_NORM),
    {NULL, 0, ONE, ONE, 0, 0},
};

static const float **floats_of(void *owner, const Parameter *parameter)
{
    return (const float **)((char *)owner + parameter->offset);
}

/* Affine of a parameter that may be in int8. */
static Affine *affine_of(void *owner, const Parameter *parameter)
{
    return (Affine *)((char *)owner + parameter->offset);
}

/* Values of a parameter that the caller gives: floats, or int8 and their scales. */
typedef struct {
    const float *floats; /* NULL in int8 */
    const int8_t *int8;
    const float *scales;
    int64_t rows, columns;
} Values;

/* Set the parameter of a table that has this name, if the model has it. */
static td_status set_parameter(const Parameter *table, const td_model_config *config,
                               int conditions, void *owner, const char *name,
                               const Values *given)
{
    for (const Parameter *parameter = table; parameter->name; parameter++) {
        if (strcmp(parameter->name, name) != 0)
            continue;
        if (parameter->conditions & ~conditions ||
            given->rows != size_of(config, parameter->rows) ||
            given->columns != size_of(config, parameter->columns) ||
            (given->int8 && !parameter->may_be_int8))
            return TD_BAD_ARGUMENT;
        *floats_of(owner, parameter) = given->floats;
        if (parameter->may_be_int8) {
            affine_of(owner, parameter)->values = given->int8;
            affine_of(owner, parameter)->scales = given->scales;
        }
        return TD_OK;
    }
    return TD_BAD_ARGUMENT;
}

static int is_set(const Parameter *parameter, void *owner)
{
    return *floats_of(owner, parameter) ||
           (parameter->may_be_int8 && affine_of(owner, parameter)->values);
}

static int are_set(const Parameter *table, int conditions, void *owner)
{
    for (const Parameter *parameter = table; parameter->name; parameter++)
        if (!(parameter->conditions & ~conditions) && !is_set(parameter, owner))
            return 0;
    return 1;
}

static int is_complete(const td_model *model)
{
    Loading *loading = model->loading;
    const int conditions = conditions_of(&model->config);
    int complete = are_set(model_parameters, conditions, loading);
    const int in_encoder = layer_conditions(&model->config, 0);
    const int in_decoder = layer_conditions(&model->config, 1);
    for (int64_t i = 0; complete && i < model->encoder.num_layers; i++)
        complete = are_set(layer_parameters, in_encoder, loading->encoder_layers + i);
    for (int64_t i = 0; complete && i < model->decoder.num_layers; i++)
        complete = are_set(layer_parameters, in_decoder, loading->decoder_layers + i);
    return complete;
}

/* If a name begins with `prefix`, a number and a dot, set the number and return the
 * rest of the name; otherwise return NULL. */
static const char *after_number(const char *name, const char *prefix, int64_t *number)
{
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0)
        return NULL;
    const char *digit = name + length;
    for (*number = 0; *digit >= '0' && *digit <= '9' && *number < MAX_LAYERS; digit++)
        *number = 10 * *number + (*digit - '0');
    return digit > name + length && *digit == '.' ? digit + 1 : NULL;
}

/* ---- Creation ----------------------------------------------------------------- */

static int is_valid_config(const td_model_config *c)
{
    return is_between(c->vocab_size, 1, MAX_VOCAB) &&
           is_between(c->target_vocab_size, 0, MAX_VOCAB) &&
           is_between(c->encoder_layers, 1, MAX_LAYERS) &&
           is_between(c->decoder_layers, 1, MAX_LAYERS) &&
           is_between(c->d_model, 1, MAX_D_MODEL) && is_between(c->d_ff, 1, MAX_D_FF) &&
           is_between(c->num_heads, 1, MAX_HEADS) &&
           is_between(c->d_k, 1, MAX_D_MODEL) && is_between(c->d_v, 1, MAX_D_MODEL) &&
           is_between(c->max_positions, 0, MAX_POSITIONS) &&
           is_between(c->neighbourhood, 0, UNLIMITED) && c->norm_epsilon > 0 &&
           c->norm_epsilon < 1 && is_between(c->norm, TD_POST_NORM, TD_PRE_NORM) &&
           is_between(c->scores, TD_SCALED, TD_ADDITIVE) &&
           (c->position_base == 0 || c->position_base > 1) &&
           c->position_base <= MAX_POSITION_BASE &&
           is_between(c->activation, TD_RELU, TD_SILU) &&
           is_between(c->is_recurrent, 0, 1) && is_precision(c->precision);
}

static void free_loading(Loading *loading)
{
    if (!loading)
        return;
    free(loading->encoder_layers);
    free(loading->decoder_layers);
    free(loading);
}

static void free_norm(Norm *norm) { free((void *)norm->gain); }

static void free_stack(Stack *stack)
{
    for (int64_t i = 0; stack->layers && i < stack->num_layers; i++) {
        Layer *layer = stack->layers + i;
        Linear *maps[] = {&layer->query_key_value, &layer->self_output,
                          &layer->gate_candidate,  &layer->cross_query,
                          &layer->cross_key_value, &layer->cross_output,
                          &layer->inner,           &layer->outer};
        for (size_t k = 0; k < sizeof maps / sizeof *maps; k++)
            free_linear(maps[k]);
        free_norm(&layer->self_norm);
        free_norm(&layer->cross_norm);
        free_norm(&layer->feed_forward_norm);
        free((void *)layer->self_additive);
        free((void *)layer->cross_additive);
    }
    free(stack->layers);
    free_norm(&stack->final_norm);
}

static void free_embedding(Embedding *embedding)
{
    free((void *)embedding->tokens);
    free((void *)embedding->rounded);
}

static void model_free(td_model *model)
{
    if (!model)
        return;
    free_loading(model->loading);
    free_stack(&model->encoder);
    free_stack(&model->decoder);
    if (model->config.target_vocab_size)
        free_embedding(&model->target_embedding);
    free_embedding(&model->source_embedding);
    free_linear(&model->output);
    positions_free(model->positions);
    free(model);
}

static td_status begin_stack(const td_model_config *config, int64_t num_layers,
                             int is_recurrent, Stack *stack)
{
    const int64_t neighbourhood =
        config->neighbourhood ? config->neighbourhood : UNLIMITED;
    *stack = (Stack){
        .num_layers = num_layers,
        .d_model = config->d_model,
        .d_ff = config->d_ff,
        .num_heads = config->num_heads,
        .d_k = config->d_k,
        .d_v = config->d_v,
        .neighbourhood = is_recurrent ? 1 : neighbourhood, /* one cell back */
        .is_recurrent = is_recurrent,
        .is_pre_norm = config->norm == TD_PRE_NORM,
        .is_silu = config->activation == TD_SILU,
        .norm_epsilon = (float)config->norm_epsilon,
        .layers = calloc((size_t)num_layers, sizeof(Layer)),
    };
    return stack->layers ? TD_OK : TD_OUT_OF_MEMORY;
}

static Loading *loading_new(const td_model_config *config)
{
    Loading *loading = calloc(1, sizeof *loading);
    if (!loading)
        return NULL;
    loading->encoder_layers = calloc((size_t)config->encoder_layers, sizeof(RawLayer));
    loading->decoder_layers = calloc((size_t)config->decoder_layers, sizeof(RawLayer));
    if (loading->encoder_layers && loading->decoder_layers)
        return loading;
    free_loading(loading);
    return NULL;
}

static td_status model_new(const td_model_config *config, td_model **model)
{
    if (!model)
        return TD_BAD_ARGUMENT;
    *model = NULL;
    if (!config || !is_valid_config(config))
        return TD_BAD_ARGUMENT;
    td_model *made = calloc(1, sizeof *made);
    if (!made)
        return TD_OUT_OF_MEMORY;
    made->config = *config;
    made->loading = loading_new(config);
    if (!made->loading ||
        begin_stack(config, config->encoder_layers, 0, &made->encoder) ||
        begin_stack(config, config->decoder_layers, config->is_recurrent,
                    &made->decoder)) {
        model_free(made);
        return TD_OUT_OF_MEMORY;
    }
    *model = made;
    return TD_OK;
}

static td_status set_values(td_model *model, const char *name, const Values *given)
{
    if (!model || !model->loading || !name)
        return TD_BAD_ARGUMENT;
    const td_model_config *config = &model->config;
    Loading *loading = model->loading;
    int64_t layer;
    const char *rest = after_number(name, "encoder_layers.", &layer);
    if (rest && layer < config->encoder_layers)
        return set_parameter(layer_parameters, config, layer_conditions(config, 0),
                             loading->encoder_layers + layer, rest, given);
    rest = after_number(name, "decoder_layers.", &layer);
    if (rest && layer < config->decoder_layers)
        return set_parameter(layer_parameters, config, layer_conditions(config, 1),
                             loading->decoder_layers + layer, rest, given);
    return set_parameter(model_parameters, config, conditions_of(config), loading, name,
                         given);
}

static td_status model_set(td_model *model, const char *name, const float *values,
                           int64_t rows, int64_t columns)
{
    const Values given = {.floats = values, .rows = rows, .columns = columns};
    return values ? set_values(model, name, &given) : TD_BAD_ARGUMENT;
}

static td_status model_set_int8(td_model *model, const char *name, const int8_t *values,
                                const float *scales, int64_t rows, int64_t columns)
{
    const Values given = {
        .int8 = values, .scales = scales, .rows = rows, .columns = columns};
    if (!model || model->config.precision != TD_INT8 || !values || !scales)
        return TD_BAD_ARGUMENT;
    return set_values(model, name, &given);
}

/* ---- Packing ------------------------------------------------------------------ */

typedef struct {
    const td_model_config *config;
    int num_threads;
} Packer;

static float *copy_floats(const float *from, int64_t count)
{
    float *copy = allocate_lines((double)count * (double)sizeof *copy);
    if (copy)
        memcpy(copy, from, (size_t)count * sizeof *copy);
    return copy;
}

static Weights weights_of(const Affine *affine, int64_t outputs, float factor)
{
    return (Weights){.outputs = outputs,
                     .weight = affine->weight,
                     .values = affine->values,
                     .scales = affine->scales,
                     .bias = affine->bias,
                     .factor = factor};
}

static td_status pack_affine(const Packer *packer, const Affine *affine,
                             int64_t outputs, int64_t inputs, Linear *into)
{
    const Weights weights = weights_of(affine, outputs, 1.0f);
    return pack_linear(&weights, 1, inputs, packer->config->precision,
                       packer->num_threads, into);
}

static td_status copy_norm(const Packer *packer, const Affine *affine, Norm *into)
{
    const int64_t width = packer->config->d_model;
    float *numbers = allocate_lines(2.0 * (double)width * (double)sizeof *numbers);
    if (!numbers)
        return TD_OUT_OF_MEMORY;
    memcpy(numbers, affine->weight, (size_t)width * sizeof *numbers);
    memcpy(numbers + width, affine->bias, (size_t)width * sizeof *numbers);
    *into = (Norm){numbers, numbers + width};
    return TD_OK;
}

/* Factor of queries, by which their products with keys are scaled (equation 1). */
static float query_scale(const td_model_config *config)
{
    return config->scores == TD_SCALED ? (float)(1 / sqrt((double)config->d_k)) : 1.0f;
}

/* Pack a map to scaled queries, and to keys and values unless `key_value` is NULL. */
static td_status pack_queries(const Packer *packer, const Affine *query,
                              const Affine *key_value, Linear *into)
{
    const td_model_config *config = packer->config;
    const int64_t queries = config->num_heads * config->d_k;
    Weights parts[2] = {weights_of(query, queries, query_scale(config))};
    if (key_value)
        parts[1] =
            weights_of(key_value, queries + config->num_heads * config->d_v, 1.0f);
    return pack_linear(parts, key_value ? 2 : 1, config->d_model, config->precision,
                       packer->num_threads, into);
}

static td_status copy_additive(const Packer *packer, const Attention *attention,
                               const float **into)
{
    if (packer->config->scores != TD_ADDITIVE)
        return TD_OK;
    *into = copy_floats(attention->additive,
                        packer->config->num_heads * packer->config->d_k);
    return *into ? TD_OK : TD_OUT_OF_MEMORY;
}

static td_status pack_cross_attention(const Packer *packer, const RawLayer *raw,
                                      Layer *layer)
{
    const td_model_config *config = packer->config;
    const Attention *attention = &raw->cross_attention;
    const int64_t keys = config->num_heads * config->d_k;
    const int64_t values = config->num_heads * config->d_v;
    td_status status =
        pack_queries(packer, &attention->query, NULL, &layer->cross_query);
    if (status == TD_OK)
        status = pack_affine(packer, &attention->key_value, keys + values,
                             config->d_model, &layer->cross_key_value);
    if (status == TD_OK)
        status = pack_affine(packer, &attention->output, config->d_model, values,
                             &layer->cross_output);
    if (status == TD_OK)
        status = copy_additive(packer, attention, &layer->cross_additive);
    if (status == TD_OK)
        status = copy_norm(packer, &raw->cross_norm, &layer->cross_norm);
    return status;
}

static td_status pack_self_attention(const Packer *packer, const RawLayer *raw,
                                     Layer *layer)
{
    const td_model_config *config = packer->config;
    const Attention *attention = &raw->self_attention;
    td_status status = pack_queries(packer, &attention->query, &attention->key_value,
                                    &layer->query_key_value);
    if (status == TD_OK)
        status = pack_affine(packer, &attention->output, config->d_model,
                             config->num_heads * config->d_v, &layer->self_output);
    if (status == TD_OK)
        status = copy_additive(packer, attention, &layer->self_additive);
    return status;
}

static td_status pack_recurrence(const Packer *packer, const RawLayer *raw,
                                 Layer *layer)
{
    const int64_t d_model = packer->config->d_model;
    const Weights parts[2] = {weights_of(&raw->forget_gate, d_model, 1.0f),
                              weights_of(&raw->candidate, d_model, 1.0f)};
    return pack_linear(parts, 2, d_model, packer->config->precision,
                       packer->num_threads, &layer->gate_candidate);
}

static td_status pack_layer(const Packer *packer, const RawLayer *raw, int is_decoder,
                            Layer *layer)
{
    const td_model_config *config = packer->config;
    const int64_t d_model = config->d_model, d_ff = config->d_ff;
    td_status status = is_decoder && config->is_recurrent
                           ? pack_recurrence(packer, raw, layer)
                           : pack_self_attention(packer, raw, layer);
    if (status == TD_OK)
        status = copy_norm(packer, &raw->self_norm, &layer->self_norm);
    if (status == TD_OK && is_decoder)
        status = pack_cross_attention(packer, raw, layer);
    if (status == TD_OK)
        status = pack_affine(packer, &raw->inner, d_ff, d_model, &layer->inner);
    if (status == TD_OK)
        status = pack_affine(packer, &raw->outer, d_model, d_ff, &layer->outer);
    if (status == TD_OK)
        status = copy_norm(packer, &raw->feed_forward_norm, &layer->feed_forward_norm);
    return status;
}

static td_status pack_stack(const Packer *packer, const RawLayer *raw,
                            const Affine *final_norm, int is_decoder, Stack *stack)
{
    td_status status = TD_OK;
    for (int64_t i = 0; status == TD_OK && i < stack->num_layers; i++)
        status = pack_layer(packer, raw + i, is_decoder, stack->layers + i);
    if (status == TD_OK && stack->is_pre_norm)
        status = copy_norm(packer, final_norm, &stack->final_norm);
    return status;
}

typedef struct {
    const float *tokens;
    int64_t width;
    int8_t *values;
    float *scales;
} Rounding;

static void round_tokens(void *shared, int64_t first, int64_t end, int worker)
{
    const Rounding *rounding = shared;
    const int64_t width = rounding->width;
    (void)worker;
    for (int64_t i = first; i < end; i++)
        rounding->scales[i] = quantize_output(rounding->tokens + i * width, width,
                                              rounding->values + i * width);
}

/* Store the embeddings of all tokens in int8, in one block: values [vocab_size,
 * d_model], then their scales [vocab_size]. */
static td_status round_embedding(const Packer *packer, const Affine *tokens,
                                 Embedding *into)
{
    const int64_t width = packer->config->d_model, count = into->vocab_size;
    const int64_t bytes = round_up(count * width, CACHE_LINE);
    int8_t *values =
        allocate_lines((double)bytes + (double)count * (double)sizeof(float));
    if (!values)
        return TD_OUT_OF_MEMORY;
    float *scales = (float *)(values + bytes);
    into->rounded = values;
    into->token_scales = scales;
    if (tokens->weight) {
        Rounding rounding = {tokens->weight, width, values, scales};
        parallel_for(round_tokens, &rounding, count, MIN_ROWS, packer->num_threads);
    } else {
        memcpy(values, tokens->values, (size_t)(count * width));
        memcpy(scales, tokens->scales, (size_t)count * sizeof *scales);
    }
    return TD_OK;
}

static td_status copy_embedding(const Packer *packer, const Affine *tokens,
                                int64_t vocab_size, Embedding *into)
{
    const int64_t width = packer->config->d_model;
    into->vocab_size = vocab_size;
    into->scale = (float)sqrt((double)width);
    if (packer->config->precision == TD_INT8)
        return round_embedding(packer, tokens, into);
    into->tokens = copy_floats(tokens->weight, vocab_size * width);
    return into->tokens ? TD_OK : TD_OUT_OF_MEMORY;
}

/* Weights of logits whose matrix is the target's embedding; in int8, rounded. */
static Affine output_weights(const Affine *affine, const Embedding *embedding)
{
    if (!embedding->rounded)
        return *affine;
    return (Affine){.values = embedding->rounded,
                    .scales = embedding->token_scales,
                    .bias = affine->bias};
}

static td_status pack_embeddings(const Packer *packer, td_model *model)
{
    const td_model_config *config = packer->config;
    const Loading *loading = model->loading;
    const int has_target = config->target_vocab_size > 0;
    const Affine *target =
        has_target ? &loading->target_embedding : &loading->embedding;
    td_status status = copy_embedding(packer, &loading->embedding, config->vocab_size,
                                      &model->source_embedding);
    if (status == TD_OK && has_target)
        status = copy_embedding(packer, target, config->target_vocab_size,
                                &model->target_embedding);
    if (status == TD_OK && !has_target)
        model->target_embedding = model->source_embedding;
    if (status != TD_OK)
        return status;
    const Affine output = config->has_output
                              ? loading->output
                              : output_weights(target, &model->target_embedding);
    status = pack_affine(packer, &output, target_vocab_size(model), config->d_model,
                         &model->output);
    if (status != TD_OK)
        return status;
    model->positions = positions_new(config->d_model, config->position_base,
                                     loading->positions, config->max_positions);
    return model->positions ? TD_OK : TD_OUT_OF_MEMORY;
}

static td_status model_finish(td_model *model, int num_threads)
{
    if (!model || !model->loading || !is_thread_count(num_threads) ||
        !is_complete(model))
        return TD_BAD_ARGUMENT;
    Loading *loading = model->loading;
    const Packer packer = {&model->config, num_threads};
    td_status status = pack_embeddings(&packer, model);
    if (status == TD_OK)
        status = pack_stack(&packer, loading->encoder_layers, &loading->encoder_norm, 0,
                            &model->encoder);
    if (status == TD_OK)
        status = pack_stack(&packer, loading->decoder_layers, &loading->decoder_norm, 1,
                            &model->decoder);
    free_loading(loading);
    model->loading = NULL;
    model->is_finished = status == TD_OK;
    return status;
}
