/* Steps of a search together with a decoder, against the same steps one by one. */
#include <stdlib.h>

#include "tests/check.h"

enum { BOS = 1, EOS = 2, SENTENCES = 3, MAX_BEAM = 4, MAX_VOCAB = 1100, D_MODEL = 64 };

static const int64_t source_lengths[SENTENCES] = {4, 2, 7};
static const int64_t max_lengths[SENTENCES] = {9, 40, 14};

typedef struct {
    const char *name;
    int64_t rows, columns;
} Parameter;

/* Parameters of a layer; those from cross-attention on are the decoder's only. */
static const Parameter layer_parameters[] = {
    {"self_attention.project_query.weight", 16, D_MODEL},
    {"self_attention.project_query.bias", 16, 1},
    {"self_attention.project_key_value.weight", 32, D_MODEL},
    {"self_attention.project_key_value.bias", 32, 1},
    {"self_attention.project_output.weight", D_MODEL, 16},
    {"self_attention.project_output.bias", D_MODEL, 1},
    {"after_self_attention.norm.weight", D_MODEL, 1},
    {"after_self_attention.norm.bias", D_MODEL, 1},
    {"feed_forward.inner.weight", 24, D_MODEL},
    {"feed_forward.inner.bias", 24, 1},
    {"feed_forward.outer.weight", D_MODEL, 24},
    {"feed_forward.outer.bias", D_MODEL, 1},
    {"after_feed_forward.norm.weight", D_MODEL, 1},
    {"after_feed_forward.norm.bias", D_MODEL, 1},
    {"cross_attention.project_query.weight", 16, D_MODEL},
    {"cross_attention.project_query.bias", 16, 1},
    {"cross_attention.project_key_value.weight", 32, D_MODEL},
    {"cross_attention.project_key_value.bias", 32, 1},
    {"cross_attention.project_output.weight", D_MODEL, 16},
    {"cross_attention.project_output.bias", D_MODEL, 1},
    {"after_cross_attention.norm.weight", D_MODEL, 1},
    {"after_cross_attention.norm.bias", D_MODEL, 1},
};
enum { DECODER_PARAMETERS = 22, ENCODER_PARAMETERS = 14 };

static float numbers[MAX_VOCAB * D_MODEL];

static void set(const td_decode_api *decode, td_model *model, const char *name,
                int64_t rows, int64_t columns)
{
    CHECK_STATUS(decode->model_set(model, name, numbers, rows, columns), TD_OK);
}

/* A model of one layer each, with random weights. */
static td_model *new_model(const td_decode_api *decode, int64_t vocab,
                           td_precision precision)
{
    const td_model_config config = {
        .vocab_size = vocab,
        .encoder_layers = 1,
        .decoder_layers = 1,
        .d_model = D_MODEL,
        .d_ff = 24,
        .num_heads = 2,
        .d_k = 8,
        .d_v = 8,
        .norm_epsilon = 1e-5,
        .precision = precision,
    };
    uint32_t state = 5;
    for (int64_t i = 0; i < MAX_VOCAB * D_MODEL; i++)
        numbers[i] = 0.6f * random_float(&state);
    td_model *model = NULL;
    CHECK_STATUS(decode->model_new(&config, &model), TD_OK);
    set(decode, model, "embedding.weight", vocab, D_MODEL);
    for (int i = 0; i < DECODER_PARAMETERS; i++) {
        const Parameter *each = layer_parameters + i;
        char name[80];
        snprintf(name, sizeof name, "decoder_layers.0.%s", each->name);
        set(decode, model, name, each->rows, each->columns);
        snprintf(name, sizeof name, "encoder_layers.0.%s", each->name);
        if (i < ENCODER_PARAMETERS)
            set(decode, model, name, each->rows, each->columns);
    }
    CHECK_STATUS(decode->model_finish(model, 1), TD_OK);
    return model;
}

static td_decoder *new_decoder(const td_decode_api *decode, const td_model *model,
                               int sum_attention)
{
    static float states[16 * D_MODEL];
    int64_t ids[16];
    for (int64_t i = 0; i < 16; i++)
        ids[i] = (7 * i + 3) % 19;
    td_decoder *decoder = NULL;
    CHECK_STATUS(decode->encode(model, ids, source_lengths, SENTENCES, states, 1),
                 TD_OK);
    CHECK_STATUS(decode->decoder_new(model, states, source_lengths, SENTENCES,
                                     sum_attention, 1, &decoder),
                 TD_OK);
    return decoder;
}

/* A search, its decoder, and the newest tokens of hypotheses. */
typedef struct {
    const td_decode_api *decode;
    td_search *search;
    td_decoder *decoder;
    int64_t vocab, beam_size;
    int is_covered;
    int64_t tokens[SENTENCES * MAX_BEAM];
} Decoding;

static Decoding begin(const td_decode_api *decode, const td_model *model, int64_t vocab,
                      const td_search_config *config, const int64_t *prefix_lengths)
{
    static const int64_t prefix[] = {5, 6};
    Decoding made = {.decode = decode,
                     .vocab = vocab,
                     .beam_size = config->beam_size,
                     .is_covered = config->coverage_penalty > 0,
                     .tokens = {BOS, BOS, BOS}};
    made.decoder = new_decoder(decode, model, made.is_covered);
    CHECK_STATUS(decode->search_new(config, SENTENCES, max_lengths, prefix_lengths,
                                    prefix, &made.search),
                 TD_OK);
    return made;
}

static void end(const Decoding *decoding)
{
    decoding->decode->search_free(decoding->search);
    decoding->decode->decoder_free(decoding->decoder);
}

/* One step by separate calls. */
static void advance(Decoding *decoding)
{
    static float logits[SENTENCES * MAX_BEAM * MAX_VOCAB];
    double coverage[SENTENCES * MAX_BEAM];
    int64_t rows[SENTENCES * MAX_BEAM];
    const td_decode_api *decode = decoding->decode;
    CHECK_STATUS(decode->decoder_step(decoding->decoder, decoding->tokens, logits, 1),
                 TD_OK);
    if (decoding->is_covered)
        CHECK_STATUS(decode->decoder_coverage(decoding->decoder, coverage), TD_OK);
    CHECK_STATUS(decode->search_grow_by_logits(decoding->search, logits,
                                               decoding->vocab, NULL, coverage),
                 TD_OK);
    CHECK_STATUS(decode->search_live(decoding->search, NULL, rows, decoding->tokens),
                 TD_OK);
    const int64_t live = decode->search_num_live(decoding->search);
    if (live)
        CHECK_STATUS(
            decode->decoder_reorder(decoding->decoder, rows, live, decoding->beam_size),
            TD_OK);
}

static int64_t run(Decoding *decoding, int64_t max_steps, int64_t max_live)
{
    int64_t steps = -1;
    CHECK_STATUS(decoding->decode->search_run(decoding->search, decoding->decoder,
                                              decoding->tokens, max_steps, max_live, 1,
                                              &steps),
                 TD_OK);
    CHECK_STATUS(
        decoding->decode->search_live(decoding->search, NULL, NULL, decoding->tokens),
        TD_OK);
    return steps;
}

static void check_same_hypotheses(const Decoding *one, const Decoding *other)
{
    const td_decode_api *decode = one->decode;
    for (int64_t i = 0; i < SENTENCES; i++) {
        const int64_t count = decode->search_num_hypotheses(one->search, i);
        CHECK(count > 0);
        CHECK_INT(decode->search_num_hypotheses(other->search, i), count);
        for (int64_t rank = 0; rank < count; rank++) {
            td_hypothesis mine = {0}, theirs = {0};
            decode->search_hypothesis(one->search, i, rank, &mine);
            decode->search_hypothesis(other->search, i, rank, &theirs);
            CHECK_INT(mine.num_tokens, theirs.num_tokens);
            CHECK_NEAR(mine.score, theirs.score, 1e-5 * fabs(theirs.score));
            for (int64_t k = 0; k < mine.num_tokens && k < theirs.num_tokens; k++)
                CHECK_INT(mine.tokens[k], theirs.tokens[k]);
        }
    }
}

static td_search_config config_of(int64_t beam_size, double coverage_penalty)
{
    return (td_search_config){
        .beam_size = beam_size,
        .is_greedy = beam_size == 1,
        .eos = EOS,
        .min_length = 3,
        .num_best = 1,
        .end_candidates = 2 * beam_size,
        .finished_limit = INT64_MAX,
        .length_penalty = 0.6,
        .coverage_penalty = coverage_penalty,
    };
}

/* The same, with restrictions of the next token. */
static td_search_config restricted_config_of(int64_t beam_size)
{
    static const int64_t lengths[] = {1, 2}, tokens[] = {7, 5, 6};
    td_search_config config = config_of(beam_size, 0.0);
    config.no_repeat_ngram = 2;
    config.repetition_penalty = 1.4;
    config.num_bad_words = 2;
    config.bad_word_lengths = lengths;
    config.bad_word_tokens = tokens;
    return config;
}

static void check_run(const td_decode_api *decode, const td_model *model, int64_t vocab,
                      const td_search_config *config, const int64_t *prefix_lengths)
{
    Decoding one = begin(decode, model, vocab, config, prefix_lengths);
    Decoding other = begin(decode, model, vocab, config, prefix_lengths);
    advance(&one);
    advance(&other);
    while (decode->search_num_live(one.search))
        advance(&one);
    while (decode->search_num_live(other.search))
        CHECK(run(&other, 5, 0) > 0);
    check_same_hypotheses(&one, &other);
    end(&one);
    end(&other);
}

static void steps_together_find_what_single_steps_find(const td_api *api)
{
    static const int64_t vocabs[] = {20, 600, MAX_VOCAB};
    const int64_t prefix_lengths[SENTENCES] = {0, 2, 0};
    for (int i = 0; i < 6; i++) {
        const int64_t vocab = vocabs[i / 2];
        const td_precision precision = i % 2 ? TD_INT8 : TD_FP32;
        td_model *model = new_model(api->decode, vocab, precision);
        for (int64_t beam = 1; beam <= MAX_BEAM; beam++) {
            td_search_config config = config_of(beam, 0.0);
            check_run(api->decode, model, vocab, &config, NULL);
            check_run(api->decode, model, vocab, &config, prefix_lengths);
            config = config_of(beam, 0.5);
            if (beam > 1)
                check_run(api->decode, model, vocab, &config, NULL);
            config = restricted_config_of(beam);
            check_run(api->decode, model, vocab, &config, prefix_lengths);
        }
        api->decode->model_free(model);
    }
}

static void steps_end_when_few_sentences_are_live(const td_api *api)
{
    td_model *model = new_model(api->decode, 20, TD_FP32);
    td_search_config config = config_of(2, 0.0);
    config.min_length = 50; /* all go on to their limits of 9, 14 and 40 */
    Decoding decoding = begin(api->decode, model, 20, &config, NULL);
    advance(&decoding);
    CHECK_INT(run(&decoding, 100, 3), 0);
    CHECK_INT(run(&decoding, 3, 2), 3);
    CHECK_INT(run(&decoding, 100, 2), 5);
    CHECK_INT(api->decode->search_num_live(decoding.search), 2);
    advance(&decoding);
    CHECK_INT(run(&decoding, 100, 1), 4);
    CHECK_INT(run(&decoding, 100, 0), 26);
    CHECK_INT(api->decode->search_num_live(decoding.search), 0);
    CHECK_INT(run(&decoding, 100, 0), 0);
    end(&decoding);
    api->decode->model_free(model);
}

static void impossible_runs_are_refused(const td_api *api)
{
    td_model *model = new_model(api->decode, 20, TD_FP32);
    const td_search_config config = config_of(2, 0.5);
    Decoding decoding = begin(api->decode, model, 20, &config, NULL);
    td_decoder *blind = new_decoder(api->decode, model, 0);
    int64_t steps;
#define RUN_WITH(search, decoder, tokens, num_threads, steps)                          \
    api->decode->search_run(search, decoder, tokens, 10, 0, num_threads, steps)
    /* Groups are not yet as large as the beam. */
    CHECK_STATUS(
        RUN_WITH(decoding.search, decoding.decoder, decoding.tokens, 1, &steps),
        TD_BAD_ARGUMENT);
    advance(&decoding);
    const int64_t good = decoding.tokens[1];
    CHECK_STATUS(RUN_WITH(NULL, decoding.decoder, decoding.tokens, 1, &steps),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(RUN_WITH(decoding.search, NULL, decoding.tokens, 1, &steps),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(RUN_WITH(decoding.search, decoding.decoder, NULL, 1, &steps),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(
        RUN_WITH(decoding.search, decoding.decoder, decoding.tokens, 0, &steps),
        TD_BAD_ARGUMENT);
    CHECK_STATUS(RUN_WITH(decoding.search, decoding.decoder, decoding.tokens, 1, NULL),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(RUN_WITH(decoding.search, blind, decoding.tokens, 1, &steps),
                 TD_BAD_ARGUMENT);
    decoding.tokens[1] = 20;
    CHECK_STATUS(
        RUN_WITH(decoding.search, decoding.decoder, decoding.tokens, 1, &steps),
        TD_BAD_TOKEN);
    CHECK_INT(steps, 0);
    decoding.tokens[1] = good;
    CHECK(run(&decoding, 100, 0) > 0);
#undef RUN_WITH
    end(&decoding);
    api->decode->decoder_free(blind);
    api->decode->model_free(model);
}

int main(void)
{
    for_each_isa(steps_together_find_what_single_steps_find);
    for_each_isa(steps_end_when_few_sentences_are_live);
    for_each_isa(impossible_runs_are_refused);
    return check_result();
}
