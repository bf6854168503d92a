/* Models and decoders driven at random, with some invalid arguments: each
 * call returns a status, and none crashes. Run with sanitizers. */
#include "tests/fuzz.h"
#include "tests/tiny_model.h"

enum {
    MODELS = 60,
    CALLS = 120,
    MAX_DECODERS = 4,
    MAX_SENTENCES = 6,
    MAX_GROUP = 40, /* wider than the vocabulary */
    MAX_LENGTH = 12,
    LONG = 10000, /* length of an occasional very long source or search */
    MAX_VOCAB = 30,
    MAX_TOKENS_READ = MAX_SENTENCES * MAX_LENGTH + LONG,
    MAX_HYPOTHESES = 4 * MAX_SENTENCES * MAX_GROUP
};

/* Successful calls. */
static int64_t num_steps, num_joined, num_reordered, num_shortlisted, num_runs;

static td_model_config random_config(void)
{
    return (td_model_config){
        .vocab_size = pick(1, MAX_VOCAB),
        .target_vocab_size = pick(0, 1) ? 0 : pick(1, MAX_VOCAB),
        .encoder_layers = pick(1, 2),
        .decoder_layers = pick(1, 2),
        .d_model = pick(1, 20),
        .d_ff = pick(1, 20),
        .num_heads = pick(1, 3),
        .d_k = pick(1, 18),
        .d_v = pick(1, 18),
        .max_positions = pick(0, 1) ? 0 : pick(1, 9),
        .neighbourhood = pick(0, 1) ? 0 : pick(1, 4),
        .norm_epsilon = 1e-6,
        .norm = (td_norm)pick(0, 1),
        .scores = (td_scores)pick(0, 2),
        .activation = (td_activation)pick(0, 1),
        .is_recurrent = (int)pick(0, 1),
        .output_bias = (int)pick(0, 1),
        .has_output = (int)pick(0, 1),
        .position_base = (double)(pick(0, 1) * pick(2, 20000)),
        .precision = (td_precision)pick(0, 1),
    };
}

/* A configuration with one field out of range. */
static void odd_models_are_refused(const td_api *api)
{
    static const int64_t far[] = {INT64_MIN, -1, (int64_t)1 << 40, INT64_MAX};
    static const size_t sizes[] = {offsetof(td_model_config, vocab_size),
                                   offsetof(td_model_config, d_model),
                                   offsetof(td_model_config, encoder_layers),
                                   offsetof(td_model_config, d_ff),
                                   offsetof(td_model_config, decoder_layers),
                                   offsetof(td_model_config, d_k),
                                   offsetof(td_model_config, num_heads),
                                   offsetof(td_model_config, d_v),
                                   offsetof(td_model_config, max_positions),
                                   offsetof(td_model_config, target_vocab_size)};
    static const double epsilons[] = {NAN, -1, 0, 1, INFINITY};
    static const double bases[] = {NAN, -1, 0.5, 1, 1e300, INFINITY};
    for (int i = 0; i < 400; i++) {
        td_model_config config = random_config();
        td_model *model = (td_model *)&config;
        switch (pick(0, 11)) {
        case 0:
            config.norm_epsilon = epsilons[pick(0, 4)];
            break;
        case 1:
            config.scores = (td_scores)pick(3, 9);
            break;
        case 2:
            config.norm = (td_norm)pick(2, 9);
            break;
        case 3:
            config.activation = (td_activation)pick(2, 9);
            break;
        case 4:
            config.precision = (td_precision)pick(2, 9);
            break;
        case 5:
            config.is_recurrent = (int)(pick(0, 1) ? pick(2, 9) : pick(-9, -1));
            break;
        case 6:
            config.position_base = bases[pick(0, 5)];
            break;
        case 7:
            config.neighbourhood = far[pick(0, 1)];
            break;
        default:
            *(int64_t *)((char *)&config + sizes[pick(0, 9)]) = far[pick(0, 3)];
        }
        CHECK_STATUS(api->decode->model_new(&config, &model), TD_BAD_ARGUMENT);
        CHECK(!model);
    }
    CHECK_STATUS(api->decode->model_new(NULL, NULL), TD_BAD_ARGUMENT);
}

typedef struct {
    TinyModel *tiny;
    int64_t vocab, target_vocab;
    td_decoder *decoders[MAX_DECODERS];
    int64_t summed_layers[MAX_DECODERS];
} Player;

static float states[MAX_TOKENS_READ * 20];
static float logits[MAX_HYPOTHESES * MAX_VOCAB];
static int64_t ids[MAX_TOKENS_READ], rows[MAX_HYPOTHESES];

static void fill_ids(int64_t count, int64_t vocab)
{
    for (int64_t i = 0; i < count; i++)
        ids[i] = pick(0, 2000) ? pick(0, vocab - 1) : odd(-1, vocab);
}

/* Encode sentences of these lengths, and create a decoder for them. */
static void begin(Player *player, int at)
{
    const td_decode_api *decode = player->tiny->decode;
    int64_t lengths[MAX_SENTENCES], tokens = 0;
    const int64_t sentences = pick(0, 30) ? pick(1, MAX_SENTENCES) : odd(0, 0);
    const int64_t counted =
        sentences > MAX_SENTENCES || sentences < 0 ? MAX_SENTENCES : sentences;
    for (int64_t i = 0; i < MAX_SENTENCES; i++) {
        lengths[i] = pick(0, 60) ? pick(1, MAX_LENGTH) : odd(0, 1);
        if (i < counted && lengths[i] > 0 && lengths[i] <= LONG)
            tokens += lengths[i];
    }
    if (tokens > MAX_TOKENS_READ || sentences > MAX_SENTENCES)
        return; /* the library cannot detect arrays that are too short */
    fill_ids(tokens, player->vocab);
    const td_status status =
        decode->encode(player->tiny->model, ids, pick(0, 60) ? lengths : NULL,
                       sentences, states, odd_threads());
    if (status != TD_OK)
        return;
    decode->decoder_free(player->decoders[at]);
    player->summed_layers[at] = odd(0, player->tiny->config.decoder_layers);
    CHECK((decode->decoder_new(player->tiny->model, pick(0, 60) ? states : NULL,
                               lengths, sentences, player->summed_layers[at],
                               odd_threads(), player->decoders + at) == TD_OK) ==
          (player->decoders[at] != NULL));
}

static void step(Player *player, int at)
{
    const td_decode_api *decode = player->tiny->decode;
    td_decoder *decoder = player->decoders[at];
    const int64_t hypotheses =
        decode->decoder_sentences(decoder) * decode->decoder_group(decoder);
    fill_ids(hypotheses, player->target_vocab);
    const td_status status = decode->decoder_step(
        decoder, pick(0, 60) ? ids : NULL, pick(0, 60) ? logits : NULL, odd_threads());
    num_steps += status == TD_OK;
    if (status == TD_OK)
        for (int64_t i = 0; i < hypotheses * player->target_vocab; i++)
            CHECK(isfinite(logits[i]) || logits[i] == -INFINITY);
}

/* Mostly groups of one sentence each. */
static void reorder(Player *player, int at)
{
    const td_decode_api *decode = player->tiny->decode;
    td_decoder *decoder = player->decoders[at];
    const int64_t before = decode->decoder_group(decoder);
    const int64_t sentences = decode->decoder_sentences(decoder);
    const int64_t group = pick(0, 9) ? before : odd(1, pick(0, 4) ? 5 : MAX_GROUP);
    const int64_t first = sentences ? pick(0, sentences - 1) : 0;
    const int64_t kept = pick(0, 9) ? sentences : odd(0, sentences);
    if (group > 0 && kept > 0 && kept > MAX_HYPOTHESES / group)
        return; /* `rows` would be too short */
    for (int64_t i = 0; group > 0 && kept > 0 && i < kept * group; i++) {
        const int64_t sentence = (first + i / group) % (sentences ? sentences : 1);
        rows[i] = pick(0, 500) ? sentence * before + pick(0, before ? before - 1 : 0)
                               : odd(-2, MAX_HYPOTHESES);
    }
    num_reordered += decode->decoder_reorder(decoder, pick(0, 60) ? rows : NULL, kept,
                                             group) == TD_OK;
}

static void join(Player *player, int at)
{
    const td_decode_api *decode = player->tiny->decode;
    const int other = (int)pick(0, MAX_DECODERS - 1);
    const int64_t sentences = decode->decoder_sentences(player->decoders[at]) +
                              decode->decoder_sentences(player->decoders[other]);
    if (sentences * decode->decoder_group(player->decoders[at]) <= MAX_HYPOTHESES)
        num_joined += decode->decoder_join(player->decoders[at],
                                           player->decoders[other]) == TD_OK;
}

/* Fill shortlists of some of the tokens, mostly valid. */
static void fill_lists(int64_t sentences, int64_t vocab, int64_t *counts,
                       int32_t *tokens)
{
    int64_t count = 0;
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t first = count;
        for (int32_t token = 0; i % 4 && token < vocab; token++)
            if (pick(0, 1))
                tokens[count++] = pick(0, 500) ? token : (int32_t)odd(-1, vocab);
        counts[i] = pick(0, 60) ? count - first : pick(-1, count - first);
    }
}

static void set_shortlists(Player *player, td_decoder *decoder)
{
    static int64_t counts[MAX_HYPOTHESES];
    static int32_t tokens[MAX_HYPOTHESES * MAX_VOCAB];
    const td_decode_api *decode = player->tiny->decode;
    fill_lists(decode->decoder_sentences(decoder), player->target_vocab, counts,
               tokens);
    num_shortlisted +=
        decode->decoder_set_shortlists(decoder, pick(0, 60) ? counts : NULL,
                                       pick(0, 60) ? tokens : NULL) == TD_OK;
}

static void take_attention(Player *player, int at)
{
    static float attention[MAX_HYPOTHESES * 2 * 2 * MAX_LENGTH];
    const td_status status = player->tiny->decode->decoder_take_attention(
        player->decoders[at], pick(0, 20) ? attention : NULL, pick(-1, 2 * MAX_LENGTH));
    if (!player->summed_layers[at])
        CHECK_STATUS(status, TD_BAD_ARGUMENT);
}

static void cover(Player *player, int at)
{
    static double coverage[MAX_HYPOTHESES];
    const td_decode_api *decode = player->tiny->decode;
    const td_status status =
        decode->decoder_coverage(player->decoders[at], pick(0, 20) ? coverage : NULL);
    if (player->summed_layers[at] != 1)
        CHECK_STATUS(status, TD_BAD_ARGUMENT);
}

/* Search with a new decoder, step by step and by runs. */
static void search(Player *player)
{
    const td_decode_api *decode = player->tiny->decode;
    const int64_t lengths[] = {3, 1}, beam = pick(1, 3) == 1 ? MAX_GROUP : pick(1, 4);
    const int64_t limits[] = {odd(1, 20), pick(1, 20)};
    const td_search_config config = {
        .beam_size = beam,
        .is_greedy = beam == 1,
        .eos = pick(0, player->target_vocab - 1),
        .num_best = 1,
        .end_candidates = 2 * beam,
        .finished_limit = INT64_MAX,
        .length_penalty = 0.6,
        .coverage_penalty = pick(0, 1) && beam > 1 ? 0.3 : 0,
    };
    td_search *search = NULL;
    td_decoder *decoder = NULL;
    fill_ids(4, player->vocab);
    const td_status encoded =
        decode->encode(player->tiny->model, ids, lengths, 2, states, 1);
    const td_status begun =
        encoded ? encoded
                : decode->decoder_new(player->tiny->model, states, lengths, 2,
                                      pick(0, 1), 1, &decoder);
    decode->search_new(&config, 2, limits, NULL, NULL, &search);
    /* A list may lack the end token, so the search must end at its limit. */
    if (limits[0] <= 20 && pick(0, 1))
        set_shortlists(player, decoder);
    for (int i = 0; !begun && i < 30; i++) {
        int64_t steps, tokens[2 * MAX_GROUP];
        fill_ids(2 * MAX_GROUP, player->target_vocab);
        memcpy(tokens, ids, sizeof tokens);
        if (pick(0, 2)) {
            num_runs += decode->search_run(search, decoder, pick(0, 30) ? tokens : NULL,
                                           odd(0, 4), odd(0, 1), odd_threads(),
                                           pick(0, 30) ? &steps : NULL) == TD_OK;
        } else if (decode->search_num_live(search) ==
                   decode->decoder_sentences(decoder)) {
            double coverage[2 * MAX_GROUP] = {0};
            if (decode->decoder_step(decoder, tokens, logits, 1) ||
                decode->search_grow_by_logits(search, logits, player->target_vocab,
                                              NULL, coverage) ||
                decode->search_live(search, NULL, rows, NULL))
                break;
            if (decode->search_num_live(search))
                CHECK_STATUS(decode->decoder_reorder(
                                 decoder, rows, decode->search_num_live(search), beam),
                             TD_OK);
        }
    }
    decode->search_free(search);
    decode->decoder_free(decoder);
}

static void play(const td_decode_api *decode)
{
    Player player = {.tiny =
                         tiny_new(decode, random_config(), random_u32(&fuzz_state))};
    player.vocab = player.tiny->config.vocab_size;
    player.target_vocab = player.tiny->config.target_vocab_size
                              ? player.tiny->config.target_vocab_size
                              : player.vocab;
    for (int i = 0; i < CALLS; i++) {
        const int at = (int)pick(0, MAX_DECODERS - 1);
        switch (pick(0, 11)) {
        case 0:
            begin(&player, at);
            break;
        case 1:
            join(&player, at);
            break;
        case 2:
            cover(&player, at);
            break;
        case 3:
            if (pick(0, 9) == 0)
                search(&player);
            break;
        case 10:
            set_shortlists(&player, player.decoders[at]);
            break;
        case 11:
            take_attention(&player, at);
            break;
        case 4:
        case 5:
        case 6:
            reorder(&player, at);
            break;
        default:
            step(&player, at);
        }
    }
    for (int i = 0; i < MAX_DECODERS; i++)
        decode->decoder_free(player.decoders[i]);
    tiny_free(player.tiny);
}

static void random_calls_return_statuses(const td_api *api)
{
    num_steps = num_joined = num_reordered = num_shortlisted = num_runs = 0;
    for (int i = 0; i < MODELS; i++)
        play(api->decode);
    /* Most calls are valid. */
    CHECK(num_steps > 200 && num_joined > 20 && num_reordered > 200 && num_runs > 50 &&
          num_shortlisted > 50);
}

/* Set a tensor in eight bits, with odd sizes, names, scales and arrays at times. */
static td_status set_rounded(const td_decode_api *decode, td_model *model,
                             const Tensor *tensor, int8_t *values, float *scales)
{
    static const float far[] = {NAN, INFINITY, -INFINITY, -1.0f, 0.0f, 1e38f};
    for (int64_t i = 0; i < tensor->rows * tensor->columns; i++)
        values[i] = (int8_t)pick(-128, 127);
    for (int64_t i = 0; i < tensor->rows; i++)
        scales[i] = pick(0, 200) ? 0.01f : far[pick(0, 5)];
    const int is_valid = pick(0, 60) != 0;
    const int64_t rows = is_valid ? tensor->rows : odd(-1, 30);
    const int64_t columns = is_valid ? tensor->columns : odd(-1, 30);
    const char *name = pick(0, 200) ? tensor->name : "encoder_layers.9.x.weight";
    const td_status status =
        decode->model_set_int8(model, name, pick(0, 200) ? values : NULL,
                               pick(0, 200) ? scales : NULL, rows, columns);
    if (rows != tensor->rows || columns != tensor->columns || name != tensor->name)
        CHECK_STATUS(status, TD_BAD_ARGUMENT);
    return status;
}

/* Models whose weights are set in eight bits where the library takes them. */
static void rounded_weights_are_set_or_refused(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    static int8_t values[MAX_TENSORS][4096];
    static float scales[MAX_TENSORS][128]; /* the largest is 3 (18 + 18) x 20 */
    int64_t num_set = 0, num_encoded = 0;
    for (int k = 0; k < MODELS; k++) {
        td_model_config config = random_config();
        config.precision = TD_INT8;
        TinyModel *tiny = tiny_new(decode, config, random_u32(&fuzz_state));
        td_model *model = NULL;
        CHECK_STATUS(decode->model_new(&config, &model), TD_OK);
        for (int i = 0; i < tiny->count; i++) {
            const Tensor *t = tiny->tensors + i;
            if (!pick(0, 200))
                continue; /* the parameter stays unset */
            if (set_rounded(decode, model, t, values[i], scales[i]) == TD_OK)
                num_set++;
            else
                decode->model_set(model, t->name, t->values, t->rows, t->columns);
        }
        const td_status finished = decode->model_finish(model, odd_threads());
        fill_ids(4, config.vocab_size);
        const int64_t lengths[] = {3, 1};
        const td_status status = decode->encode(model, ids, lengths, 2, states, 1);
        if (finished != TD_OK)
            CHECK_STATUS(status, TD_BAD_ARGUMENT);
        num_encoded += status == TD_OK;
        decode->model_free(model);
        tiny_free(tiny);
    }
    CHECK(num_set > 5 * MODELS && num_encoded > MODELS / 4);
}

/* Linear maps of odd sizes, pointers and numbers. */
static void linear_maps_are_packed_or_refused(const td_api *api)
{
    enum { MOST = 60 };
    static float weight[MOST * MOST], bias[MOST], x[MOST], y[LONG * MOST], scales[MOST];
    const td_decode_api *decode = api->decode;
    int64_t num_packed = 0;
    for (int i = 0; i < 1000; i++) {
        static const int64_t far[] = {INT64_MIN, -1, 0, INT32_MAX, INT64_MAX};
        const int is_odd = pick(0, 19) == 0;
        const int64_t outputs = is_odd ? far[pick(0, 4)] : pick(1, MOST);
        const int64_t inputs = pick(0, 99) ? pick(1, MOST) : far[pick(0, 4)];
        const td_precision precision = (td_precision)(pick(0, 60) ? pick(0, 1) : 7);
        for (int k = 0; k < 100; k++)
            weight[pick(0, MOST * MOST - 1)] = bias[pick(0, MOST - 1)] =
                x[pick(0, MOST - 1)] = odd_float();
        td_linear *linear = NULL;
        const td_status status = decode->linear_new(
            pick(0, 60) ? weight : NULL, pick(0, 1) ? bias : NULL, outputs, inputs,
            precision, odd_threads(), pick(0, 60) ? &linear : NULL);
        CHECK((status == TD_OK) == (linear != NULL));
        if (is_odd)
            CHECK_STATUS(status, TD_BAD_ARGUMENT);
        num_packed += status == TD_OK;
        /* `x` may hold as many rows of one column as it has elements. */
        const int64_t fit = linear ? MOST / inputs : 0;
        const int64_t rows = pick(0, 9) ? pick(0, fit) : far[pick(0, 2)];
        const td_status applied =
            decode->linear_apply(linear, pick(0, 60) ? x : NULL, rows,
                                 pick(0, 60) ? y : NULL, odd_threads());
        if (!linear || rows < 0)
            CHECK_STATUS(applied, TD_BAD_ARGUMENT);
        const td_status scaled =
            decode->linear_scales(linear, pick(0, 9) ? scales : NULL);
        if (!linear || precision != TD_INT8)
            CHECK_STATUS(scaled, TD_BAD_ARGUMENT);
        decode->linear_free(linear);
    }
    CHECK(num_packed > 500);
    /* Very many rows. */
    static float many[LONG];
    td_linear *linear = NULL;
    CHECK_STATUS(decode->linear_new(weight, bias, MOST, 1, TD_INT8, 1, &linear), TD_OK);
    CHECK_STATUS(decode->linear_apply(linear, many, LONG, y, 2), TD_OK);
    CHECK_STATUS(decode->linear_apply(linear, many, INT64_MAX, y, 2), TD_BAD_ARGUMENT);
    decode->linear_free(linear);
}

static void long_sources_and_targets_are_read(const td_api *api, int is_recurrent)
{
    td_model_config config = tiny_config();
    config.encoder_layers = config.decoder_layers = 1;
    config.neighbourhood = 3;
    config.is_recurrent = is_recurrent;
    TinyModel *tiny = tiny_new(api->decode, config, 3);
    const int64_t lengths[] = {LONG, 1};
    td_decoder *decoder = NULL;
    for (int64_t i = 0; i < LONG + 1; i++)
        ids[i] = i % config.vocab_size;
    CHECK_STATUS(api->decode->encode(tiny->model, ids, lengths, 2, states, 1), TD_OK);
    CHECK_STATUS(
        api->decode->decoder_new(tiny->model, states, lengths, 2, 1, 1, &decoder),
        TD_OK);
    CHECK_STATUS(api->decode->decoder_reorder(decoder, (int64_t[]){1}, 1, 1), TD_OK);
    for (int i = 0; i < 1000; i++)
        CHECK_STATUS(api->decode->decoder_step(decoder, ids, logits, 1), TD_OK);
    /* A neighbourhood or a cell is kept, not all positions. */
    CHECK(api->decode->decoder_capacity(decoder) <= 128);
    api->decode->decoder_free(decoder);
    tiny_free(tiny);
}

static void long_sentences_are_read_with_attention(const td_api *api)
{
    long_sources_and_targets_are_read(api, 0);
}

static void long_sentences_are_read_with_a_recurrence(const td_api *api)
{
    long_sources_and_targets_are_read(api, 1);
}

static void nothing_is_no_handle(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    int64_t number = 0;
    float float_number = 0;
    double double_number = 0;
    CHECK_STATUS(decode->model_set(NULL, "x", &float_number, 1, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_finish(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->encode(NULL, &number, &number, 1, &float_number, 1),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_new(NULL, &float_number, &number, 1, 0, 1, NULL),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_step(NULL, &number, &float_number, 1),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_reorder(NULL, &number, 1, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_join(NULL, NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(NULL, &number, NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_coverage(NULL, &double_number), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_take_attention(NULL, &float_number, 1),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->model_set_int8(NULL, "x", (int8_t[]){1}, &float_number, 1, 1),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->find_candidates(NULL, NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->search_run(NULL, NULL, NULL, 1, 0, 1, NULL), TD_BAD_ARGUMENT);
    CHECK_INT(decode->decoder_sentences(NULL), 0);
    CHECK_INT(decode->decoder_group(NULL), 0);
    CHECK_INT(decode->decoder_capacity(NULL), 0);
    decode->decoder_free(NULL);
    decode->model_free(NULL);
}

int main(void)
{
    for_each_isa(nothing_is_no_handle);
    for_each_isa(odd_models_are_refused);
    for_each_isa(random_calls_return_statuses);
    for_each_isa(rounded_weights_are_set_or_refused);
    for_each_isa(linear_maps_are_packed_or_refused);
    for_each_isa(long_sentences_are_read_with_attention);
    for_each_isa(long_sentences_are_read_with_a_recurrence);
    return check_result();
}
