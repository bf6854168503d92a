/* Decoders whose sentences choose among shortlists, against the whole vocabulary. */
#include <math.h>

#include "tests/tiny_model.h"

enum { SENTENCES = 5, VOCAB = 2300, BOS = 1, EOS = 2, BEAM = 3, STEPS = 6 };

static const int64_t lengths[SENTENCES] = {5, 1, 9, 3, 7};

typedef struct {
    int64_t counts[SENTENCES];
    int32_t tokens[SENTENCES * VOCAB]; /* one list after the other */
} Lists;

/* Lists of very different lengths; that of one sentence has all tokens. */
static Lists *make_lists(int64_t whole)
{
    static const int64_t steps[SENTENCES] = {1, 40, 2, 300, 3};
    Lists *lists = calloc(1, sizeof *lists);
    int32_t *to = lists->tokens;
    for (int64_t i = 0; i < SENTENCES; i++)
        for (int64_t token = EOS; i != whole && token < VOCAB; token += steps[i]) {
            *to++ = (int32_t)token;
            lists->counts[i]++;
        }
    return lists;
}

static const int32_t *list_of(const Lists *lists, int64_t sentence)
{
    const int32_t *list = lists->tokens;
    for (int64_t i = 0; i < sentence; i++)
        list += lists->counts[i];
    return list;
}

static int is_listed(const Lists *lists, int64_t sentence, int64_t token)
{
    const int32_t *list = list_of(lists, sentence);
    for (int64_t i = 0; i < lists->counts[sentence]; i++)
        if (list[i] == token)
            return 1;
    return !lists->counts[sentence];
}

static TinyModel *make_model(const td_api *api, td_precision precision)
{
    td_model_config config = tiny_config();
    config.vocab_size = VOCAB;
    config.d_model = 64; /* a width that AMX can multiply */
    config.output_bias = 1;
    config.precision = precision;
    return tiny_new(api->decode, config, 5);
}

/* A decoder of the sentences `first` to `end` - 1, restricted unless lists is NULL. */
static td_decoder *make_decoder(const TinyModel *tiny, int64_t first, int64_t end,
                                const Lists *lists)
{
    int64_t ids[64], num_ids = 0, before = 0;
    for (int64_t i = 0; i < first; i++)
        before += lengths[i];
    for (int64_t i = first; i < end; i++)
        for (int64_t k = 0; k < lengths[i]; k++, num_ids++)
            ids[num_ids] = 7 + 31 * (before + num_ids);
    float *states = malloc((size_t)(num_ids * tiny->config.d_model) * sizeof *states);
    td_decoder *decoder = NULL;
    CHECK_STATUS(
        tiny->decode->encode(tiny->model, ids, lengths + first, end - first, states, 1),
        TD_OK);
    CHECK_STATUS(tiny->decode->decoder_new(tiny->model, states, lengths + first,
                                           end - first, 0, 1, &decoder),
                 TD_OK);
    if (lists)
        CHECK_STATUS(tiny->decode->decoder_set_shortlists(
                         decoder, lists->counts + first, list_of(lists, first)),
                     TD_OK);
    free(states);
    return decoder;
}

/* Check the logits of listed tokens bit for bit; all others are minus infinity. */
static void check_logits(const Lists *lists, int64_t sentence, const float *listed,
                         const float *whole)
{
    int64_t wrong = 0;
    for (int64_t token = 0; token < VOCAB; token++) {
        const float expected =
            is_listed(lists, sentence, token) ? whole[token] : -INFINITY;
        wrong += !are_same_bits(listed + token, &expected, 1);
    }
    CHECK_INT(wrong, 0);
}

static void listed_logits_are_those_of_all(const td_api *api, td_precision precision,
                                           int64_t whole_sentence)
{
    TinyModel *tiny = make_model(api, precision);
    const td_decode_api *decode = tiny->decode;
    Lists *lists = make_lists(whole_sentence);
    td_decoder *whole = make_decoder(tiny, 0, SENTENCES, NULL);
    td_decoder *listed = make_decoder(tiny, 0, 3, lists);
    td_decoder *joined = make_decoder(tiny, 3, SENTENCES, lists);
    CHECK_STATUS(decode->decoder_join(listed, joined), TD_OK);
    decode->decoder_free(joined);
    const size_t size = sizeof(float) * SENTENCES * BEAM * VOCAB;
    float *one = malloc(size), *other = malloc(size);
    int64_t live = SENTENCES, group = 1, numbers[SENTENCES] = {0, 1, 2, 3, 4};
    for (int64_t step = 0; step < STEPS; step++) {
        int64_t ids[SENTENCES * BEAM], rows[SENTENCES * BEAM], kept = 0;
        for (int64_t i = 0; i < live * group; i++)
            ids[i] = random_int(&tiny->seed, 0, VOCAB - 1);
        CHECK_STATUS(decode->decoder_step(whole, ids, one, 1), TD_OK);
        CHECK_STATUS(decode->decoder_step(listed, ids, other, 2), TD_OK);
        for (int64_t i = 0; i < live * group; i++)
            check_logits(lists, numbers[i / group], other + i * VOCAB, one + i * VOCAB);
        /* A sentence leaves in every other step; the others change places. */
        const int64_t left = step % 2 && live > 1 ? 0 : -1;
        for (int64_t i = live - 1; i >= 0; i--) {
            if (i == left)
                continue;
            for (int64_t k = 0; k < BEAM; k++)
                rows[kept * BEAM + k] =
                    i * group + random_int(&tiny->seed, 0, group - 1);
            ids[kept++] = numbers[i];
        }
        memcpy(numbers, ids, sizeof numbers);
        CHECK_STATUS(decode->decoder_reorder(whole, rows, kept, BEAM), TD_OK);
        CHECK_STATUS(decode->decoder_reorder(listed, rows, kept, BEAM), TD_OK);
        live = kept;
        group = BEAM;
    }
    decode->decoder_free(whole);
    decode->decoder_free(listed);
    free(one);
    free(other);
    free(lists);
    tiny_free(tiny);
}

static void for_both_precisions(const td_api *api,
                                void (*test)(const td_api *, td_precision, int64_t),
                                int64_t argument)
{
    test(api, TD_FP32, argument);
    test(api, TD_INT8, argument);
}

static void test_logits(const td_api *api)
{
    for_both_precisions(api, listed_logits_are_those_of_all, -1);
    for_both_precisions(api, listed_logits_are_those_of_all, 3);
}

static td_search *make_search(const td_decode_api *decode, int64_t sentences)
{
    static const int64_t max_lengths[SENTENCES] = {12, 12, 12, 12, 12};
    static const int64_t excluded[] = {0, BOS};
    const td_search_config config = {
        .beam_size = BEAM,
        .eos = EOS,
        .num_best = 1,
        .end_candidates = 2 * BEAM,
        .finished_limit = INT64_MAX,
        .length_penalty = 0.6,
        .excluded_tokens = excluded,
        .num_excluded_tokens = 2,
    };
    td_search *search = NULL;
    CHECK_STATUS(
        decode->search_new(&config, sentences, max_lengths, NULL, NULL, &search),
        TD_OK);
    return search;
}

/* Search until all sentences are done: in one call on some threads, or step by step
 * with 0 threads. */
static td_search *search_all(const TinyModel *tiny, int64_t first, int64_t end,
                             const Lists *lists, int threads)
{
    const td_decode_api *decode = tiny->decode;
    td_decoder *decoder = make_decoder(tiny, first, end, lists);
    td_search *search = make_search(decode, end - first);
    int64_t tokens[SENTENCES * BEAM] = {BOS, BOS, BOS, BOS, BOS}, steps = 0;
    float *logits = malloc(sizeof(float) * SENTENCES * BEAM * VOCAB);
    for (int64_t step = 0; decode->search_num_live(search); step++) {
        if (step && threads) {
            CHECK_STATUS(
                decode->search_run(search, decoder, tokens, 100, 0, threads, &steps),
                TD_OK);
            break;
        }
        int64_t rows[SENTENCES * BEAM];
        CHECK_STATUS(decode->decoder_step(decoder, tokens, logits, 1), TD_OK);
        CHECK_STATUS(decode->search_grow_by_logits(search, logits, VOCAB, NULL, NULL),
                     TD_OK);
        CHECK_STATUS(decode->search_live(search, NULL, rows, tokens), TD_OK);
        const int64_t live = decode->search_num_live(search);
        if (live)
            CHECK_STATUS(decode->decoder_reorder(decoder, rows, live, BEAM), TD_OK);
    }
    free(logits);
    decode->decoder_free(decoder);
    return search;
}

static void check_equal_results(const td_decode_api *decode, td_search *one,
                                int64_t number, td_search *other, int64_t other_number,
                                double tolerance)
{
    td_hypothesis a, b;
    CHECK_STATUS(decode->search_hypothesis(one, number, 0, &a), TD_OK);
    CHECK_STATUS(decode->search_hypothesis(other, other_number, 0, &b), TD_OK);
    CHECK_INT(a.num_tokens, b.num_tokens);
    for (int64_t i = 0; i < a.num_tokens && i < b.num_tokens; i++) {
        CHECK_INT(a.tokens[i], b.tokens[i]);
        CHECK_NEAR(a.token_log_probs[i], b.token_log_probs[i], tolerance);
    }
    CHECK_NEAR(a.score, b.score, tolerance);
}

/* Results do not depend on other sentences, and those of one call are near those of
 * step after step, whose sums have zeros between. */
static void results_do_not_depend_on_others(const td_api *api, td_precision precision,
                                            int64_t whole_sentence)
{
    TinyModel *tiny = make_model(api, precision);
    const td_decode_api *decode = tiny->decode;
    Lists *lists = make_lists(whole_sentence);
    td_search *together = search_all(tiny, 0, SENTENCES, lists, 3);
    td_search *by_steps = search_all(tiny, 0, SENTENCES, lists, 0);
    for (int64_t i = 0; i < SENTENCES; i++) {
        td_search *alone = search_all(tiny, i, i + 1, lists, 1);
        if (i != whole_sentence) /* alone, all logits may be searched in registers */
            check_equal_results(decode, together, i, alone, 0, 0.0);
        check_equal_results(decode, together, i, by_steps, i, 1e-4);
        decode->search_free(alone);
    }
    decode->search_free(together);
    decode->search_free(by_steps);
    free(lists);
    tiny_free(tiny);
}

static void test_results(const td_api *api)
{
    for_both_precisions(api, results_do_not_depend_on_others, -1);
    for_both_precisions(api, results_do_not_depend_on_others, 2);
}

static void test_bad_lists(const td_api *api)
{
    TinyModel *tiny = make_model(api, TD_FP32);
    const td_decode_api *decode = tiny->decode;
    td_decoder *decoder = make_decoder(tiny, 0, 2, NULL);
    const int64_t counts[] = {2, 1}, negative[] = {2, -1}, many[] = {VOCAB + 1, 0};
    const int32_t good[] = {3, 9, 0}, falling[] = {9, 3, 0}, equal[] = {3, 3, 0};
    const int32_t large[] = {3, VOCAB, 0}, small[] = {-1, 3, 0};
    CHECK_STATUS(decode->decoder_set_shortlists(NULL, counts, good), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, NULL, good), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, NULL),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, negative, good),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, many, good), TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, falling),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, equal),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, large), TD_BAD_TOKEN);
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, small), TD_BAD_TOKEN);
    const int64_t ids[] = {BOS, BOS};
    float *logits = malloc(sizeof(float) * 2 * VOCAB);
    CHECK_STATUS(decode->decoder_step(decoder, ids, logits, 1), TD_OK);
    CHECK(logits[4] > -INFINITY); /* a refused list has no effect */
    CHECK_STATUS(decode->decoder_set_shortlists(decoder, counts, good), TD_OK);
    CHECK_STATUS(decode->decoder_step(decoder, ids, logits, 1), TD_OK);
    CHECK(logits[3] > -INFINITY && logits[9] > -INFINITY);
    CHECK(logits[4] == -INFINITY && logits[VOCAB] > -INFINITY);
    free(logits);
    decode->decoder_free(decoder);
    tiny_free(tiny);
}

static int64_t num_allowed; /* allocations before one is refused */

static int refuse_later(int64_t bytes)
{
    (void)bytes;
    return num_allowed-- > 0;
}

/* Each allocation of a step is refused in turn; at last the step succeeds. */
static void steps_without_memory_read_no_token(const td_api *api)
{
    TinyModel *tiny = make_model(api, TD_FP32);
    const td_decode_api *decode = tiny->decode;
    Lists *lists = make_lists(1);
    td_decoder *decoder = make_decoder(tiny, 0, 2, lists);
    td_decoder *other = make_decoder(tiny, 0, 2, lists);
    float *one = malloc(sizeof(float) * 2 * VOCAB);
    float *two = malloc(sizeof(float) * 2 * VOCAB);
    for (int step = 0; step < STEPS; step++) {
        const int64_t ids[] = {BOS + step, 9 + step};
        CHECK_STATUS(decode->decoder_step(decoder, ids, one, 1), TD_OK);
        td_status status = TD_OUT_OF_MEMORY;
        for (int64_t i = 0; status == TD_OUT_OF_MEMORY && i < 20; i++) {
            num_allowed = i;
            td_use_allocation_check(refuse_later, 0);
            status = decode->decoder_step(other, ids, two, 1);
            td_use_allocation_check(NULL, 0);
        }
        CHECK_STATUS(status, TD_OK);
        CHECK(are_same_bits(one, two, (int64_t)2 * VOCAB));
    }
    free(one);
    free(two);
    free(lists);
    decode->decoder_free(decoder);
    decode->decoder_free(other);
    tiny_free(tiny);
}

int main(void)
{
    for_each_isa(steps_without_memory_read_no_token);
    for_each_isa(test_logits);
    for_each_isa(test_results);
    for_each_isa(test_bad_lists);
    return check_result();
}
