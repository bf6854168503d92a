/* Small random models for tests of decoding, and a reference: section 3 of the paper in
 * double precision, without caches. */
#ifndef TRANSDUCE_TESTS_TINY_MODEL_H
#define TRANSDUCE_TESTS_TINY_MODEL_H

#include <stdlib.h>

#include "tests/check.h"

enum { MAX_TENSORS = 128, MAX_TOKENS = 96, MAX_D = 96 };

typedef struct {
    char name[96];
    int64_t rows, columns;
    float *values;
} Tensor;

typedef struct {
    td_model_config config;
    const td_decode_api *decode;
    td_model *model;
    Tensor tensors[MAX_TENSORS];
    int count;
    uint32_t seed;
} TinyModel;

static inline td_model_config tiny_config(void)
{
    return (td_model_config){
        .vocab_size = 23,
        .encoder_layers = 2,
        .decoder_layers = 2,
        .d_model = 16,
        .d_ff = 24,
        .num_heads = 2,
        .d_k = 8,
        .d_v = 8,
        .norm_epsilon = 1e-6,
    };
}

static inline void add_tensor(TinyModel *tiny, const char *prefix, const char *name,
                              int64_t rows, int64_t columns, float mean)
{
    Tensor *tensor = tiny->tensors + tiny->count++;
    snprintf(tensor->name, sizeof tensor->name, "%.60s%.30s", prefix, name);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->values = malloc((size_t)(rows * columns) * sizeof(float));
    for (int64_t i = 0; i < rows * columns; i++)
        tensor->values[i] = mean + 0.4f * random_float(&tiny->seed);
}

static inline void add_affine(TinyModel *tiny, const char *prefix, const char *name,
                              int64_t rows, int64_t columns, float mean)
{
    char full[96];
    snprintf(full, sizeof full, "%.60s%.30s", prefix, name);
    add_tensor(tiny, full, ".weight", rows, columns, mean);
    add_tensor(tiny, full, ".bias", rows, 1, 0.0f);
}

static inline void add_attention(TinyModel *tiny, const char *prefix, const char *name)
{
    const td_model_config *c = &tiny->config;
    char full[96];
    snprintf(full, sizeof full, "%.60s%.30s", prefix, name);
    add_affine(tiny, full, ".project_query", c->num_heads * c->d_k, c->d_model, 0.0f);
    add_affine(tiny, full, ".project_key_value", c->num_heads * (c->d_k + c->d_v),
               c->d_model, 0.0f);
    add_affine(tiny, full, ".project_output", c->d_model, c->num_heads * c->d_v, 0.0f);
    if (c->scores == TD_ADDITIVE)
        add_tensor(tiny, full, ".additive_weight", c->num_heads, c->d_k, 0.0f);
}

static inline void add_layer(TinyModel *tiny, const char *kind, int64_t number)
{
    const td_model_config *c = &tiny->config;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%.20s_layers.%d.", kind, (int)number);
    const int is_decoder = kind[0] == 'd';
    if (is_decoder && c->is_recurrent) {
        add_affine(tiny, prefix, "recurrence.forget_gate", c->d_model, c->d_model,
                   0.0f);
        add_tensor(tiny, prefix, "recurrence.candidate.weight", c->d_model, c->d_model,
                   0.0f);
        add_affine(tiny, prefix, "after_recurrence.norm", c->d_model, 1, 1.0f);
    } else {
        add_attention(tiny, prefix, "self_attention");
        add_affine(tiny, prefix, "after_self_attention.norm", c->d_model, 1, 1.0f);
    }
    if (is_decoder) {
        add_attention(tiny, prefix, "cross_attention");
        add_affine(tiny, prefix, "after_cross_attention.norm", c->d_model, 1, 1.0f);
    }
    add_affine(tiny, prefix, "feed_forward.inner", c->d_ff, c->d_model, 0.0f);
    add_affine(tiny, prefix, "feed_forward.outer", c->d_model, c->d_ff, 0.0f);
    add_affine(tiny, prefix, "after_feed_forward.norm", c->d_model, 1, 1.0f);
}

static inline void add_tensors(TinyModel *tiny)
{
    const td_model_config *c = &tiny->config;
    const char *target = c->target_vocab_size ? "target_embedding" : "embedding";
    const int64_t vocab = c->target_vocab_size ? c->target_vocab_size : c->vocab_size;
    add_tensor(tiny, "embedding", ".weight", c->vocab_size, c->d_model, 0.0f);
    if (c->target_vocab_size)
        add_tensor(tiny, target, ".weight", vocab, c->d_model, 0.0f);
    if (c->has_output)
        add_tensor(tiny, "output", ".weight", vocab, c->d_model, 0.0f);
    if (c->output_bias)
        add_tensor(tiny, c->has_output ? "output" : target, ".bias", vocab, 1, 0.0f);
    if (c->max_positions)
        add_tensor(tiny, "positions", ".weight", c->max_positions, c->d_model, 0.0f);
    for (int64_t i = 0; i < c->encoder_layers; i++)
        add_layer(tiny, "encoder", i);
    for (int64_t i = 0; i < c->decoder_layers; i++)
        add_layer(tiny, "decoder", i);
    if (c->norm == TD_PRE_NORM) {
        add_affine(tiny, "", "encoder_norm", c->d_model, 1, 1.0f);
        add_affine(tiny, "", "decoder_norm", c->d_model, 1, 1.0f);
    }
}

static inline TinyModel *tiny_new(const td_decode_api *decode, td_model_config config,
                                  uint32_t seed)
{
    TinyModel *tiny = calloc(1, sizeof *tiny);
    tiny->config = config;
    tiny->decode = decode;
    tiny->seed = seed;
    add_tensors(tiny);
    CHECK_STATUS(decode->model_new(&config, &tiny->model), TD_OK);
    for (int i = 0; i < tiny->count; i++) {
        const Tensor *t = tiny->tensors + i;
        CHECK_STATUS(
            decode->model_set(tiny->model, t->name, t->values, t->rows, t->columns),
            TD_OK);
    }
    CHECK_STATUS(decode->model_finish(tiny->model, 1), TD_OK);
    return tiny;
}

static inline void tiny_free(TinyModel *tiny)
{
    tiny->decode->model_free(tiny->model);
    for (int i = 0; i < tiny->count; i++)
        free(tiny->tensors[i].values);
    free(tiny);
}

static inline const float *tensor_of(const TinyModel *tiny, const char *prefix,
                                     const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "%.60s%.35s", prefix, name);
    for (int i = 0; i < tiny->count; i++)
        if (strcmp(tiny->tensors[i].name, full) == 0)
            return tiny->tensors[i].values;
    return NULL;
}

/* ---- Reference ---------------------------------------------------------------- */

typedef struct {
    double x[MAX_TOKENS][MAX_D];
} Rows;

/* y = x W^T + b from output `first` on. */
static inline void map_rows(const TinyModel *tiny, const char *prefix, const char *name,
                            const Rows *x, int64_t rows, int64_t inputs, int64_t first,
                            int64_t outputs, Rows *y)
{
    char full[96];
    snprintf(full, sizeof full, "%.60s%.30s", prefix, name);
    const float *weight = tensor_of(tiny, full, ".weight");
    const float *bias = tensor_of(tiny, full, ".bias");
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias ? bias[first + o] : 0;
            for (int64_t i = 0; i < inputs; i++)
                sum += weight[(first + o) * inputs + i] * x->x[row][i];
            y->x[row][o] = sum;
        }
}

static inline void norm_rows(const TinyModel *tiny, const char *prefix,
                             const char *name, Rows *x, int64_t rows)
{
    char full[96];
    snprintf(full, sizeof full, "%.60s%.30s", prefix, name);
    const float *weight = tensor_of(tiny, full, ".weight");
    const float *bias = tensor_of(tiny, full, ".bias");
    const int64_t width = tiny->config.d_model;
    for (int64_t row = 0; row < rows; row++) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < width; i++)
            mean += x->x[row][i] / (double)width;
        for (int64_t i = 0; i < width; i++)
            variance += pow(x->x[row][i] - mean, 2) / (double)width;
        for (int64_t i = 0; i < width; i++)
            x->x[row][i] = (x->x[row][i] - mean) /
                               sqrt(variance + tiny->config.norm_epsilon) * weight[i] +
                           bias[i];
    }
}

static inline double score_of(const TinyModel *tiny, const double *query,
                              const double *key, const float *additive)
{
    double sum = 0;
    for (int64_t i = 0; i < tiny->config.d_k; i++)
        sum += additive ? additive[i] * tanh(query[i] + key[i]) : query[i] * key[i];
    return tiny->config.scores == TD_SCALED ? sum / sqrt((double)tiny->config.d_k)
                                            : sum;
}

/* Whether a query may attend to a key. Cross-attention has no limits. */
typedef enum { ENCODER, DECODER, CROSS } AttentionKind;

static inline int may_attend(const TinyModel *tiny, AttentionKind kind, int64_t query,
                             int64_t key)
{
    const int64_t near = tiny->config.neighbourhood;
    if (kind == CROSS)
        return 1;
    return (kind == ENCODER || key <= query) && (!near || llabs(query - key) <= near);
}

static inline void attend_rows(const TinyModel *tiny, const char *prefix,
                               const Rows *from, int64_t rows, const Rows *to,
                               int64_t keys, AttentionKind kind, Rows *y)
{
    const td_model_config *c = &tiny->config;
    const int64_t width = c->num_heads * c->d_k, values = c->num_heads * c->d_v;
    Rows *query = malloc(sizeof *query), *key = malloc(sizeof *key);
    Rows *value = malloc(sizeof *value), *heads = calloc(1, sizeof *heads);
    const float *additive = tensor_of(tiny, prefix, ".additive_weight");
    map_rows(tiny, prefix, ".project_query", from, rows, c->d_model, 0, width, query);
    map_rows(tiny, prefix, ".project_key_value", to, keys, c->d_model, 0, width, key);
    map_rows(tiny, prefix, ".project_key_value", to, keys, c->d_model, width, values,
             value);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < c->num_heads; h++) {
            double weights[MAX_TOKENS], sum = 0;
            for (int64_t k = 0; k < keys; k++) {
                weights[k] =
                    may_attend(tiny, kind, row, k)
                        ? exp(score_of(tiny, query->x[row] + h * c->d_k,
                                       key->x[k] + h * c->d_k,
                                       additive ? additive + h * c->d_k : NULL))
                        : 0;
                sum += weights[k];
            }
            for (int64_t k = 0; k < keys; k++)
                for (int64_t i = h * c->d_v; i < (h + 1) * c->d_v; i++)
                    heads->x[row][i] += weights[k] / sum * value->x[k][i];
        }
    map_rows(tiny, prefix, ".project_output", heads, rows, values, 0, c->d_model, y);
    free(query);
    free(key);
    free(value);
    free(heads);
}

/* The recurrent unit: cells from position to position, of which y is the ReLU. */
static inline void recur_rows(const TinyModel *tiny, const char *prefix, const Rows *x,
                              int64_t rows, Rows *y)
{
    const int64_t width = tiny->config.d_model;
    Rows *gate = malloc(sizeof *gate), *candidate = malloc(sizeof *candidate);
    double cell[MAX_D] = {0};
    map_rows(tiny, prefix, "recurrence.forget_gate", x, rows, width, 0, width, gate);
    map_rows(tiny, prefix, "recurrence.candidate", x, rows, width, 0, width, candidate);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) {
            const double forget = 1 / (1 + exp(-gate->x[row][i]));
            cell[i] = forget * cell[i] + (1 - forget) * candidate->x[row][i];
            y->x[row][i] = fmax(cell[i], 0);
        }
    free(gate);
    free(candidate);
}

static inline void feed_rows_forward(const TinyModel *tiny, const char *prefix,
                                     const Rows *x, int64_t rows, Rows *y)
{
    const td_model_config *c = &tiny->config;
    Rows *inner = malloc(sizeof *inner);
    map_rows(tiny, prefix, "feed_forward.inner", x, rows, c->d_model, 0, c->d_ff,
             inner);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < c->d_ff; i++) {
            double *number = &inner->x[row][i];
            *number = c->activation == TD_SILU ? *number / (1 + exp(-*number))
                                               : fmax(*number, 0);
        }
    map_rows(tiny, prefix, "feed_forward.outer", inner, rows, c->d_ff, 0, c->d_model,
             y);
    free(inner);
}

/* Run a stack over all positions of one sentence; `memory` is NULL in the encoder. */
static inline void run_stack(const TinyModel *tiny, const char *kind, Rows *x,
                             int64_t rows, const Rows *memory, int64_t keys)
{
    const td_model_config *c = &tiny->config;
    const int is_pre = c->norm == TD_PRE_NORM;
    const int64_t layers = memory ? c->decoder_layers : c->encoder_layers;
    const int is_recurrent = memory && c->is_recurrent;
    Rows *input = malloc(sizeof *input), *change = malloc(sizeof *change);
    for (int64_t layer = 0; layer < layers; layer++)
        for (int sublayer = 0; sublayer < 3; sublayer++) {
            const char *const norms[] = {
                is_recurrent ? "after_recurrence.norm" : "after_self_attention.norm",
                "after_cross_attention.norm", "after_feed_forward.norm"};
            char prefix[64], full[96];
            if (sublayer == 1 && !memory)
                continue;
            snprintf(prefix, sizeof prefix, "%.20s_layers.%d.", kind, (int)layer);
            *input = *x;
            if (is_pre)
                norm_rows(tiny, prefix, norms[sublayer], input, rows);
            snprintf(full, sizeof full, "%.60s%.30s", prefix,
                     sublayer ? "cross_attention" : "self_attention");
            if (sublayer == 2)
                feed_rows_forward(tiny, prefix, input, rows, change);
            else if (sublayer == 1)
                attend_rows(tiny, full, input, rows, memory, keys, CROSS, change);
            else if (is_recurrent)
                recur_rows(tiny, prefix, input, rows, change);
            else
                attend_rows(tiny, full, input, rows, input, rows,
                            memory ? DECODER : ENCODER, change);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t i = 0; i < c->d_model; i++)
                    x->x[row][i] += change->x[row][i];
            if (!is_pre)
                norm_rows(tiny, prefix, norms[sublayer], x, rows);
        }
    if (is_pre)
        norm_rows(tiny, "", memory ? "decoder_norm" : "encoder_norm", x, rows);
    free(input);
    free(change);
}

static inline void embed_rows(const TinyModel *tiny, const char *embedding,
                              const int64_t *ids, int64_t rows, Rows *x)
{
    const int64_t width = tiny->config.d_model;
    const float *tokens = tensor_of(tiny, embedding, ".weight");
    const float *learned = tensor_of(tiny, "positions", ".weight");
    const double scale = sqrt((double)width);
    const double base =
        tiny->config.position_base ? tiny->config.position_base : 10000.0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) {
            const int64_t last = tiny->config.max_positions - 1;
            const int64_t even = i - i % 2;
            const double angle = (double)row / pow(base, (double)even / (double)width);
            const double position =
                learned ? learned[(row < last ? row : last) * width + i] * scale
                        : (i % 2 ? cos(angle) : sin(angle));
            x->x[row][i] = tokens[ids[row] * width + i] * scale + position;
        }
}

/* The encoder's states of one sentence. */
static inline void reference_encode(const TinyModel *tiny, const int64_t *ids,
                                    int64_t rows, Rows *states)
{
    embed_rows(tiny, "embedding", ids, rows, states);
    run_stack(tiny, "encoder", states, rows, NULL, 0);
}

/* Logits after the last of `rows` target tokens. */
static inline void reference_logits(const TinyModel *tiny, const Rows *memory,
                                    int64_t keys, const int64_t *ids, int64_t rows,
                                    double *logits)
{
    const td_model_config *c = &tiny->config;
    const char *target = c->target_vocab_size ? "target_embedding" : "embedding";
    const int64_t vocab = c->target_vocab_size ? c->target_vocab_size : c->vocab_size;
    const char *output = c->has_output ? "output" : target;
    const float *weight = tensor_of(tiny, output, ".weight");
    const float *bias = tensor_of(tiny, output, ".bias");
    Rows *x = malloc(sizeof *x);
    embed_rows(tiny, target, ids, rows, x);
    run_stack(tiny, "decoder", x, rows, memory, keys);
    for (int64_t token = 0; token < vocab; token++) {
        logits[token] = bias ? bias[token] : 0;
        for (int64_t i = 0; i < c->d_model; i++)
            logits[token] += weight[token * c->d_model + i] * x->x[rows - 1][i];
    }
    free(x);
}

#endif
