/* Models and decoders against a reference in double precision. */
#include "tests/tiny_model.h"

enum { SENTENCES = 3, STEPS = 40, BEAM = 3 };

static const int64_t lengths[SENTENCES] = {5, 1, 20};
static const int64_t num_tokens = 26;

static int64_t vocab_of(const TinyModel *tiny)
{
    const td_model_config *c = &tiny->config;
    return c->target_vocab_size ? c->target_vocab_size : c->vocab_size;
}

/* Encode random sentences by the library and by the reference. */
static float *encode_both(TinyModel *tiny, Rows *expected)
{
    int64_t ids[32];
    float *states = malloc((size_t)(num_tokens * tiny->config.d_model) * sizeof(float));
    for (int64_t i = 0; i < num_tokens; i++)
        ids[i] = random_int(&tiny->seed, 0, tiny->config.vocab_size - 1);
    CHECK_STATUS(tiny->decode->encode(tiny->model, ids, lengths, SENTENCES, states, 2),
                 TD_OK);
    for (int64_t i = 0, first = 0; i < SENTENCES; first += lengths[i++])
        reference_encode(tiny, ids + first, lengths[i], expected + i);
    return states;
}

static void states_are_near(const TinyModel *tiny, const float *states,
                            const Rows *expected)
{
    for (int64_t i = 0; i < SENTENCES; i++)
        for (int64_t row = 0; row < lengths[i]; row++)
            for (int64_t k = 0; k < tiny->config.d_model; k++)
                CHECK_NEAR(*states++, expected[i].x[row][k], 2e-5);
}

/* Tokens that each hypothesis has read. */
typedef struct {
    int64_t ids[SENTENCES * BEAM][STEPS];
} Histories;

/* Steps in which groups and caches grow and are reordered. */
static void steps_are_near(TinyModel *tiny, td_decoder *decoder, const Rows *memory)
{
    const int64_t vocab = vocab_of(tiny);
    Histories *histories = calloc(1, sizeof *histories),
              *before = malloc(sizeof *before);
    float *logits = malloc((size_t)(SENTENCES * BEAM * vocab) * sizeof(float));
    double *expected = malloc((size_t)vocab * sizeof(double));
    int64_t group = 1;
    for (int64_t step = 0; step < STEPS; step++) {
        int64_t ids[SENTENCES * BEAM], rows[SENTENCES * BEAM];
        for (int64_t row = 0; row < SENTENCES * group; row++) {
            ids[row] = random_int(&tiny->seed, 0, vocab - 1);
            histories->ids[row][step] = ids[row];
        }
        CHECK_STATUS(tiny->decode->decoder_step(decoder, ids, logits, 1), TD_OK);
        for (int64_t row = step % 4; row < SENTENCES * group; row += 4) {
            const int64_t sentence = row / group;
            reference_logits(tiny, memory + sentence, lengths[sentence],
                             histories->ids[row], step + 1, expected);
            for (int64_t token = 0; token < vocab; token++)
                CHECK_NEAR(logits[row * vocab + token], expected[token], 1e-4);
        }
        *before = *histories;
        for (int64_t i = 0; i < SENTENCES * BEAM; i++) {
            rows[i] = i / BEAM * group + random_int(&tiny->seed, 0, group - 1);
            memcpy(histories->ids[i], before->ids[rows[i]], sizeof before->ids[0]);
        }
        CHECK_STATUS(tiny->decode->decoder_reorder(decoder, rows, SENTENCES, BEAM),
                     TD_OK);
        group = BEAM;
    }
    free(histories);
    free(before);
    free(logits);
    free(expected);
}

static void model_is_near(const td_decode_api *decode, td_model_config config)
{
    TinyModel *tiny = tiny_new(decode, config, 7);
    Rows *memory = malloc(SENTENCES * sizeof *memory);
    float *states = encode_both(tiny, memory);
    states_are_near(tiny, states, memory);
    td_decoder *decoder = NULL;
    CHECK_STATUS(
        decode->decoder_new(tiny->model, states, lengths, SENTENCES, 1, 1, &decoder),
        TD_OK);
    steps_are_near(tiny, decoder, memory);
    double coverage[SENTENCES * BEAM];
    CHECK_STATUS(decode->decoder_coverage(decoder, coverage), TD_OK);
    /* The only source token has all attention of 40 steps: log(min(40, 1)) is 0. */
    CHECK_NEAR(coverage[BEAM], 0.0, 1e-12);
    CHECK(coverage[0] <= 0);
    decode->decoder_free(decoder);
    free(states);
    free(memory);
    tiny_free(tiny);
}

/* More rows than the encoder computes at once, and a sentence that is longer than
 * these: the states are those of each sentence alone. */
static void many_sentences_are_encoded_as_each_alone(const td_api *api)
{
    enum { COUNT = 90, LONG = 700 };
    TinyModel *tiny = tiny_new(api->decode, tiny_config(), 11);
    const int64_t d_model = tiny->config.d_model;
    int64_t own[COUNT], total = 0;
    for (int64_t i = 0; i < COUNT; i++)
        total += own[i] = i == COUNT / 2 ? LONG : i * 37 % 61 + 1;
    int64_t *ids = malloc((size_t)total * sizeof *ids);
    const size_t bytes = (size_t)(total * d_model) * sizeof(float);
    float *together = malloc(bytes), *alone = malloc(bytes);
    for (int64_t i = 0; i < total; i++)
        ids[i] = random_int(&tiny->seed, 0, tiny->config.vocab_size - 1);
    for (int64_t i = 0, first = 0; i < COUNT; first += own[i++])
        CHECK_STATUS(api->decode->encode(tiny->model, ids + first, own + i, 1,
                                         alone + first * d_model, 1),
                     TD_OK);
    for (int num_threads = 1; num_threads <= 2; num_threads++) {
        memset(together, 0, bytes);
        CHECK_STATUS(
            api->decode->encode(tiny->model, ids, own, COUNT, together, num_threads),
            TD_OK);
        CHECK(memcmp(together, alone, bytes) == 0);
    }
    free(ids);
    free(together);
    free(alone);
    tiny_free(tiny);
}

/* Weights of a step sum to 1 in each layer, over the tokens of the source alone. */
static void attention_is_taken(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    TinyModel *tiny = tiny_new(decode, tiny_config(), 7);
    Rows *memory = malloc(SENTENCES * sizeof *memory);
    float *states = encode_both(tiny, memory);
    const int64_t layers = tiny->config.decoder_layers, width = MAX_TOKENS;
    float *logits = malloc((size_t)(SENTENCES * vocab_of(tiny)) * sizeof *logits);
    float *attention = malloc((size_t)(SENTENCES * layers * width) * sizeof *attention);
    td_decoder *decoder = NULL, *other = NULL;
    const int64_t wrong[] = {-1, layers + 1};
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(decode->decoder_new(tiny->model, states, lengths, SENTENCES,
                                         wrong[i], 1, &decoder),
                     TD_BAD_ARGUMENT);
    for (int64_t summed = 0; summed <= layers; summed++) {
        decode->decoder_new(tiny->model, states, lengths, SENTENCES, summed, 1,
                            &decoder);
        double coverage[SENTENCES];
        CHECK_STATUS(decode->decoder_coverage(decoder, coverage),
                     summed == 1 ? TD_OK : TD_BAD_ARGUMENT);
        for (int64_t taken = 0; summed && taken < 3; taken++) {
            for (int64_t i = 0; i < taken; i++)
                CHECK_STATUS(
                    decode->decoder_step(decoder, (int64_t[]){1, 2, 3}, logits, 1),
                    TD_OK);
            CHECK_STATUS(decode->decoder_take_attention(decoder, attention, width),
                         TD_OK);
            for (int64_t row = 0; row < SENTENCES * summed; row++) {
                const int64_t length = lengths[row / summed];
                float sum = 0;
                for (int64_t i = 0; i < length; i++)
                    sum += attention[row * width + i];
                CHECK_NEAR(sum, (float)taken, 1e-5);
                for (int64_t i = length; i < width; i++)
                    CHECK_NEAR(attention[row * width + i], 0, 0);
            }
        }
        if (!summed) {
            other = decoder;
            continue;
        }
        CHECK_STATUS(decode->decoder_join(decoder, other), TD_BAD_ARGUMENT);
        CHECK_STATUS(decode->decoder_take_attention(decoder, NULL, width),
                     TD_BAD_ARGUMENT);
        CHECK_STATUS(decode->decoder_take_attention(decoder, attention, 1),
                     TD_BAD_ARGUMENT);
        decode->decoder_free(decoder);
    }
    CHECK_STATUS(decode->decoder_take_attention(other, attention, width),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_take_attention(NULL, attention, width),
                 TD_BAD_ARGUMENT);
    decode->decoder_free(other);
    free(attention);
    free(logits);
    free(states);
    free(memory);
    tiny_free(tiny);
}

static void every_configuration(const td_api *api)
{
    const td_model_config tiny = tiny_config();
    td_model_config c = tiny;
    model_is_near(api->decode, c);
    c.norm = TD_PRE_NORM;
    c.output_bias = 1;
    model_is_near(api->decode, c);
    c = tiny;
    c.scores = TD_UNSCALED;
    c.activation = TD_SILU;
    c.target_vocab_size = 31;
    c.output_bias = 1;
    model_is_near(api->decode, c);
    c.has_output = 1;
    c.position_base = 12345.0;
    model_is_near(api->decode, c);
    c.target_vocab_size = 0;
    c.output_bias = 0;
    model_is_near(api->decode, c);
    c = tiny;
    c.max_positions = 7;
    c.neighbourhood = 2;
    c.decoder_layers = 3;
    model_is_near(api->decode, c);
    c = tiny;
    c.d_k = 12;
    c.d_v = 20;
    c.num_heads = 3;
    model_is_near(api->decode, c);
    c.d_k = 5;
    c.scores = TD_ADDITIVE;
    c.norm = TD_PRE_NORM;
    c.neighbourhood = 3;
    model_is_near(api->decode, c);
    c = tiny;
    c.d_model = 72;
    c.d_ff = 90;
    c.d_k = c.d_v = 33;
    model_is_near(api->decode, c);
    c = tiny;
    c.is_recurrent = 1;
    model_is_near(api->decode, c);
    c.d_model = 38;
    c.norm = TD_PRE_NORM;
    c.neighbourhood = 2; /* of the encoder */
    model_is_near(api->decode, c);
}

/* A decoder computes the same after another has joined it. */
static void joined_sentences_go_on(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    TinyModel *tiny = tiny_new(decode, tiny_config(), 3);
    Rows *memory = malloc(SENTENCES * sizeof *memory);
    float *states = encode_both(tiny, memory);
    td_decoder *alone, *joined, *other;
    const int64_t vocab = vocab_of(tiny);
    float *one = malloc((size_t)(2 * SENTENCES * vocab) * sizeof *one);
    float *both = malloc((size_t)(2 * SENTENCES * vocab) * sizeof *both);
    const size_t bytes = (size_t)(SENTENCES * vocab) * sizeof *one;
    int64_t ids[2 * SENTENCES] = {1, 2, 3, 4, 5, 6};
    td_decoder **made[] = {&alone, &joined, &other};
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(
            decode->decoder_new(tiny->model, states, lengths, SENTENCES, 0, 1, made[i]),
            TD_OK);
    for (int step = 0; step < 4; step++) {
        CHECK_STATUS(decode->decoder_step(alone, ids, one, 1), TD_OK);
        CHECK_STATUS(decode->decoder_step(joined, ids, both, 1), TD_OK);
    }
    CHECK_STATUS(decode->decoder_join(joined, other), TD_OK);
    decode->decoder_free(other);
    CHECK_INT(decode->decoder_sentences(joined), 2 * SENTENCES);
    for (int step = 0; step < 200; step++) {
        CHECK_STATUS(decode->decoder_step(alone, ids, one, 1), TD_OK);
        CHECK_STATUS(decode->decoder_step(joined, ids, both, 2), TD_OK);
        CHECK(memcmp(one, both, bytes) == 0);
    }
    CHECK(decode->decoder_capacity(joined) >= 204);
    /* The last sentence of the other decoder, which has read 200 tokens, and the first
     * sentence. */
    const int64_t rows[] = {5, 0};
    CHECK_STATUS(decode->decoder_reorder(joined, rows, 2, 1), TD_OK);
    CHECK_STATUS(decode->decoder_step(alone, ids, one, 1), TD_OK);
    const int64_t again[] = {9, ids[0]};
    CHECK_STATUS(decode->decoder_step(joined, again, both, 1), TD_OK);
    CHECK(are_same_bits(one, both + vocab, vocab));
    decode->decoder_free(alone);
    decode->decoder_free(joined);
    free(one);
    free(both);
    free(states);
    free(memory);
    tiny_free(tiny);
}

static void wrong_calls_change_nothing(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    TinyModel *tiny = tiny_new(decode, tiny_config(), 5);
    TinyModel *second = tiny_new(decode, tiny_config(), 5);
    Rows *memory = malloc(SENTENCES * sizeof *memory);
    float *states = encode_both(tiny, memory);
    td_decoder *decoder, *same, *foreign;
    const int64_t vocab = vocab_of(tiny);
    float *one = malloc((size_t)(SENTENCES * vocab) * sizeof *one);
    float *other = malloc((size_t)(SENTENCES * vocab) * sizeof *other);
    decode->decoder_new(tiny->model, states, lengths, SENTENCES, 0, 1, &decoder);
    decode->decoder_new(tiny->model, states, lengths, SENTENCES, 0, 1, &same);
    decode->decoder_new(second->model, states, lengths, SENTENCES, 0, 1, &foreign);
    int64_t ids[] = {1, vocab, 2};
    CHECK_STATUS(decode->decoder_step(decoder, ids, one, 1), TD_BAD_TOKEN);
    ids[1] = -1;
    CHECK_STATUS(decode->decoder_step(decoder, ids, one, 1), TD_BAD_TOKEN);
    ids[1] = 3;
    CHECK_STATUS(decode->decoder_step(decoder, ids, NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_step(decoder, ids, one, 0), TD_BAD_ARGUMENT);
    const int64_t mixed[] = {0, 1, 2, 2}, twice[] = {1, 1}, beyond[] = {3};
    CHECK_STATUS(decode->decoder_reorder(decoder, mixed, 2, 2), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_reorder(decoder, twice, 2, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_reorder(decoder, beyond, 1, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_join(decoder, foreign), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_join(decoder, decoder), TD_BAD_ARGUMENT);
    double coverage[SENTENCES];
    CHECK_STATUS(decode->decoder_coverage(decoder, coverage), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_step(decoder, ids, one, 1), TD_OK);
    CHECK_STATUS(decode->decoder_step(same, ids, other, 1), TD_OK);
    CHECK(are_same_bits(one, other, SENTENCES * vocab));
    decode->decoder_free(decoder);
    decode->decoder_free(same);
    decode->decoder_free(foreign);
    free(one);
    free(other);
    free(states);
    free(memory);
    tiny_free(tiny);
    tiny_free(second);
}

static int is_rounded(const Tensor *tensor)
{
    const char *end = strrchr(tensor->name, '.');
    return tensor->columns > 1 && strcmp(end, ".weight") == 0 &&
           strncmp(tensor->name, "positions", 9) != 0;
}

/* Round a tensor as quantized model folders have it. */
static void round_tensor(const Tensor *tensor, int8_t *values, float *scales)
{
    for (int64_t row = 0; row < tensor->rows; row++) {
        const float *numbers = tensor->values + row * tensor->columns;
        float largest = 1e-8f;
        for (int64_t i = 0; i < tensor->columns; i++)
            largest = fmaxf(largest, fabsf(numbers[i]));
        scales[row] = largest * (1.0f / 127.0f);
        for (int64_t i = 0; i < tensor->columns; i++)
            values[row * tensor->columns + i] = (int8_t)rintf(numbers[i] / scales[row]);
    }
}

/* Model in int8 from the tensors of another, which are rounded here. */
static td_model *rounded_model(const TinyModel *tiny)
{
    const td_decode_api *decode = tiny->decode;
    int8_t *values[MAX_TENSORS];
    float *scales[MAX_TENSORS];
    td_model *model = NULL;
    CHECK_STATUS(decode->model_new(&tiny->config, &model), TD_OK);
    for (int i = 0; i < tiny->count; i++) {
        const Tensor *t = tiny->tensors + i;
        values[i] = malloc((size_t)(t->rows * t->columns));
        scales[i] = malloc((size_t)t->rows * sizeof *scales[i]);
        round_tensor(t, values[i], scales[i]);
        CHECK_STATUS(decode->model_set(model, t->name, t->values, t->rows, t->columns),
                     TD_OK);
        CHECK_STATUS(decode->model_set_int8(model, t->name, values[i], scales[i],
                                            t->rows, t->columns),
                     is_rounded(t) ? TD_OK : TD_BAD_ARGUMENT);
    }
    CHECK_STATUS(decode->model_finish(model, 2), TD_OK);
    for (int i = 0; i < tiny->count; i++) {
        free(values[i]);
        free(scales[i]);
    }
    return model;
}

/* Encode a sentence, read some tokens and return the states and the last logits. */
static float *run_model(const TinyModel *tiny, const td_model *model)
{
    const td_decode_api *decode = tiny->decode;
    const int64_t ids[] = {1, 7, 22, 0, 3}, length = 5;
    const int64_t count = length * tiny->config.d_model;
    float *numbers = malloc((size_t)(count + vocab_of(tiny)) * sizeof *numbers);
    td_decoder *decoder = NULL;
    CHECK_STATUS(decode->encode(model, ids, &length, 1, numbers, 1), TD_OK);
    CHECK_STATUS(decode->decoder_new(model, numbers, &length, 1, 0, 1, &decoder),
                 TD_OK);
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(decode->decoder_step(decoder, ids + i, numbers + count, 1), TD_OK);
    decode->decoder_free(decoder);
    return numbers;
}

static void rounded_weights_give_the_same_model(const td_api *api)
{
    td_model_config configs[4] = {tiny_config(), tiny_config(), tiny_config(),
                                  tiny_config()};
    configs[1].target_vocab_size = 29;
    configs[1].output_bias = 1;
    configs[2].norm = TD_PRE_NORM;
    configs[2].max_positions = 16;
    configs[2].d_k = 5; /* its root is no power of two */
    configs[2].d_v = 11;
    configs[3].scores = TD_ADDITIVE;
    for (int i = 0; i < 4; i++) {
        configs[i].precision = TD_INT8;
        TinyModel *tiny = tiny_new(api->decode, configs[i], 7 + (uint32_t)i);
        td_model *rounded = rounded_model(tiny);
        float *expected = run_model(tiny, tiny->model);
        float *found = run_model(tiny, rounded);
        const int64_t count = 5 * configs[i].d_model + vocab_of(tiny);
        CHECK(are_same_bits(found, expected, count));
        free(expected);
        free(found);
        api->decode->model_free(rounded);
        tiny_free(tiny);
    }
}

static void wrong_rounded_weights_are_refused(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    static const int8_t values[23 * 16];
    static const float scales[23];
    td_model_config config = tiny_config();
    td_model *model = NULL;
    CHECK_STATUS(decode->model_new(&config, &model), TD_OK);
    CHECK_STATUS(
        decode->model_set_int8(model, "embedding.weight", values, scales, 23, 16),
        TD_BAD_ARGUMENT); /* a model in fp32 */
    decode->model_free(model);
    config.precision = TD_INT8;
    CHECK_STATUS(decode->model_new(&config, &model), TD_OK);
    CHECK_STATUS(
        decode->model_set_int8(NULL, "embedding.weight", values, scales, 23, 16),
        TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_set_int8(model, NULL, values, scales, 23, 16),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(
        decode->model_set_int8(model, "embedding.weight", NULL, scales, 23, 16),
        TD_BAD_ARGUMENT);
    CHECK_STATUS(
        decode->model_set_int8(model, "embedding.weight", values, NULL, 23, 16),
        TD_BAD_ARGUMENT);
    CHECK_STATUS(
        decode->model_set_int8(model, "embedding.weight", values, scales, 16, 23),
        TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_set_int8(model,
                                        "encoder_layers.0.feed_forward.inner.bias",
                                        values, scales, 24, 1),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(
        decode->model_set_int8(model, "embedding.weight", values, scales, 23, 16),
        TD_OK);
    CHECK_STATUS(decode->model_finish(model, 1), TD_BAD_ARGUMENT);
    decode->model_free(model);
}

static void incomplete_models_are_refused(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    const td_model_config config = tiny_config();
    td_model *model = NULL;
    static const float values[23 * 16];
    CHECK_STATUS(decode->model_new(&config, &model), TD_OK);
    CHECK_STATUS(decode->model_finish(model, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_set(model, "embedding.weight", values, 23, 16), TD_OK);
    static const char *const names[] = {
        "embedding.weigh",
        "embedding.bias",
        "target_embedding.weight",
        "positions.weight",
        "encoder_norm.weight",
        "",
        "encoder_layers.",
        "encoder_layers.2.feed_forward.inner.bias",
        "encoder_layers.99999999999999999999.x",
        "encoder_layers.0.after_cross_attention.norm.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_STATUS(decode->model_set(model, names[i], values, 16, 1),
                     TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_set(model, "embedding.weight", values, 16, 23),
                 TD_BAD_ARGUMENT);
    const int64_t id = 1, length = 1;
    float states[16];
    CHECK_STATUS(decode->encode(model, &id, &length, 1, states, 1), TD_BAD_ARGUMENT);
    decode->model_free(model);
}

static int refuse(int64_t bytes)
{
    (void)bytes;
    return 0;
}

static void refused_memory_is_a_status(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    TinyModel *tiny = tiny_new(decode, tiny_config(), 5);
    const int64_t ids[] = {1, 2, 3}, length = 3;
    float states[3 * 16], logits[23];
    td_decoder *decoder = NULL;
    CHECK_STATUS(decode->encode(tiny->model, ids, &length, 1, states, 1), TD_OK);
    td_use_allocation_check(refuse, 0);
    CHECK_STATUS(decode->encode(tiny->model, ids, &length, 1, states, 1),
                 TD_OUT_OF_MEMORY);
    CHECK_STATUS(decode->decoder_new(tiny->model, states, &length, 1, 0, 1, &decoder),
                 TD_OUT_OF_MEMORY);
    CHECK(!decoder);
    td_use_allocation_check(NULL, 0);
    CHECK_STATUS(decode->decoder_new(tiny->model, states, &length, 1, 0, 1, &decoder),
                 TD_OK);
    td_use_allocation_check(refuse, 0);
    CHECK_STATUS(decode->decoder_step(decoder, ids, logits, 1), TD_OUT_OF_MEMORY);
    td_use_allocation_check(NULL, 0);
    CHECK_STATUS(decode->decoder_step(decoder, ids, logits, 1), TD_OK);
    decode->decoder_free(decoder);
    tiny_free(tiny);
}

int main(void)
{
    for_each_isa(every_configuration);
    for_each_isa(many_sentences_are_encoded_as_each_alone);
    for_each_isa(attention_is_taken);
    for_each_isa(joined_sentences_go_on);
    for_each_isa(wrong_calls_change_nothing);
    for_each_isa(rounded_weights_give_the_same_model);
    for_each_isa(wrong_rounded_weights_are_refused);
    for_each_isa(incomplete_models_are_refused);
    for_each_isa(refused_memory_is_a_status);
    return check_result();
}
