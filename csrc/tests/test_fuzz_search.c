/* Searches driven at random, with some invalid arguments: each call returns a
 * status, and none crashes. Run with sanitizers. */
#include <stdlib.h>

#include "tests/fuzz.h"

enum {
    CALLS = 8000,
    MAX_SEARCHES = 6,
    MAX_LIVE = 200,
    MAX_BEAM = 5,
    MAX_VOCAB = 70,
    SCRATCH = 1 << 17
};

static int64_t num_grown; /* successful steps */

static double odd_double(double high)
{
    static const double far[] = {NAN, INFINITY, -INFINITY, -1.0, 1e300};
    return pick(0, 29) ? high * (double)pick(0, 4) / 4 : far[pick(0, 4)];
}

/* Add restrictions of the next token, mostly valid ones. */
static void restrict_search(td_search_config *config)
{
    static int64_t lengths[2], tokens[4];
    for (int i = 0; i < 2; i++)
        lengths[i] = pick(0, 9) ? pick(1, 2) : pick(0, 2);
    for (int i = 0; i < 4; i++)
        tokens[i] = odd(0, MAX_VOCAB);
    config->no_repeat_ngram = odd(0, 3);
    config->repetition_penalty = pick(0, 1) ? 1.5 : odd_double(1);
    config->num_bad_words = pick(0, 2);
    config->bad_word_lengths = pick(0, 9) ? lengths : NULL;
    config->bad_word_tokens = pick(0, 9) ? tokens : NULL;
}

static td_search *new_search(const td_decode_api *decode)
{
    static int64_t excluded[3], limits[5], lengths[5], prefixes[5 * 4];
    const int64_t beam = pick(0, 29) ? pick(1, MAX_BEAM) : pick(0, 1) ? 0 : INT32_MAX;
    for (int i = 0; i < 3; i++)
        excluded[i] = odd(0, MAX_VOCAB);
    for (int i = 0; i < 5; i++) {
        limits[i] = odd(0, 30);
        lengths[i] = pick(0, 9) ? pick(0, 4) : odd(0, 4);
        if (lengths[i] > 4)
            lengths[i] = 4;
    }
    for (int i = 0; i < 20; i++)
        prefixes[i] = odd(0, MAX_VOCAB - 1);
    td_search_config config = {
        .beam_size = beam,
        .is_greedy = pick(0, 3) == 0 && beam == 1,
        .eos = odd(0, 3),
        .min_length = odd(0, 3),
        .num_best = odd(1, 2),
        .end_candidates = odd(1, 4),
        .finished_limit = odd(1, 9),
        .ranks_truncated = pick(0, 1),
        .length_penalty = odd_double(2),
        .is_power_penalty = pick(0, 1),
        .coverage_penalty = odd_double((double)pick(0, 1)),
        .diversity = odd_double((double)pick(0, 1)),
        .excluded_tokens = pick(0, 9) ? excluded : NULL,
        .num_excluded_tokens = pick(0, 3),
    };
    if (pick(0, 1))
        restrict_search(&config);
    td_search *search = NULL;
    const td_status status =
        decode->search_new(pick(0, 50) ? &config : NULL, pick(0, 20) ? pick(0, 5) : -1,
                           pick(0, 50) ? limits : NULL, pick(0, 1) ? lengths : NULL,
                           pick(0, 9) ? prefixes : NULL, pick(0, 50) ? &search : NULL);
    CHECK((status == TD_OK) == (search != NULL));
    return search;
}

/* Space for the largest search that grows. */
static float logits[SCRATCH];
static uint8_t mask[SCRATCH];
static double doubles[SCRATCH];
static int64_t ints[SCRATCH], other_ints[SCRATCH];

static void fill(void)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, 1e30f};
    for (int i = 0; i < 512; i++) {
        const int64_t at = pick(0, SCRATCH - 1);
        logits[at] = pick(0, 9) ? 5 * random_float(&fuzz_state) : special[pick(0, 4)];
        mask[at] = pick(0, 9) == 0;
        doubles[at] =
            pick(0, 19) ? -fabs((double)random_float(&fuzz_state)) : odd_double(1);
        ints[at] = odd(0, 4);
        other_ints[at] = odd(0, MAX_VOCAB);
    }
}

static void read_all(const td_decode_api *decode, td_search *search)
{
    decode->search_live(search, pick(0, 1) ? ints : NULL, pick(0, 1) ? ints : NULL,
                        pick(0, 1) ? ints : NULL);
    decode->search_query(search, pick(0, 1) ? doubles : NULL, pick(0, 1) ? ints : NULL);
    td_restrictions restrictions;
    decode->search_restrictions(search, pick(0, 9) ? &restrictions : NULL);
    const int64_t number = odd(0, 12), rank = odd(0, 2);
    const int64_t count = decode->search_num_hypotheses(search, number);
    td_hypothesis found;
    const td_status status = decode->search_hypothesis(search, number, rank, &found);
    CHECK((status == TD_OK) == (rank >= 0 && rank < count));
    if (status != TD_OK)
        return;
    int64_t sum = 0;
    for (int64_t i = 0; i < found.num_tokens; i++)
        sum += found.tokens[i];
    CHECK(sum >= 0);
    for (int64_t i = 0; i < found.num_tokens + found.is_finished; i++)
        CHECK(found.token_log_probs[i] <= INFINITY || isnan(found.token_log_probs[i]));
}

static void grow(const td_decode_api *decode, td_search *search)
{
    static const int64_t bad_vocabs[] = {0, -1, INT64_MIN, INT64_MAX};
    const double *coverage = pick(0, 9) ? doubles : NULL;
    const int64_t vocab = pick(0, 19) ? pick(1, MAX_VOCAB) : bad_vocabs[pick(0, 3)];
    if (decode->search_num_live(search) > MAX_LIVE)
        return;
    const td_status status =
        pick(0, 3)
            ? decode->search_grow_by_logits(search, pick(0, 30) ? logits : NULL, vocab,
                                            pick(0, 4) ? NULL : mask, coverage)
            : decode->search_grow_by_candidates(search, odd(2, 10), doubles, ints,
                                                other_ints, coverage);
    num_grown += status == TD_OK;
}

/* Offsets of a random number of tokens for each row, which mostly rise in a row. */
static void fill_restrictions(int64_t rows, int64_t *offsets, int64_t *tokens)
{
    offsets[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t count = pick(0, 3);
        for (int64_t i = 0, token = pick(0, 3); i < count; i++, token += pick(1, 9))
            tokens[offsets[row] + i] = pick(0, 60) ? token : odd(0, MAX_VOCAB);
        offsets[row + 1] = pick(0, 200) ? offsets[row] + count : offsets[row];
    }
}

static int is_candidate(const td_candidates *query, int64_t row)
{
    return query->found_parents[row] >= 0 && query->found_parents[row] < query->group &&
           query->found_tokens[row] >= 0 && query->found_tokens[row] < query->vocab;
}

/* Candidates of hypotheses whose sizes, tokens and restrictions are odd at times. */
static void candidates_of_odd_hypotheses_are_found_or_refused(const td_api *api)
{
    enum { ROWS = 4 * 5, MOST = 3 * ROWS, COUNT = 12 };
    static int64_t offsets[2][ROWS + 1], tokens[2][MOST], forced[4], excluded[3];
    static double found[4 * COUNT];
    static int64_t parents[4 * COUNT], found_tokens[4 * COUNT];
    int64_t num_found = 0;
    for (int call = 0; call < CALLS; call++) {
        fill();
        for (int i = 0; i < 4; i++)
            forced[i] = pick(0, 3) ? -1 : odd(0, MAX_VOCAB - 1);
        for (int i = 0; i < 3; i++)
            excluded[i] = odd(0, MAX_VOCAB);
        for (int i = 0; i < 2; i++)
            fill_restrictions(ROWS, offsets[i], tokens[i]);
        const int has_banned = (int)pick(0, 9), has_repeated = (int)pick(0, 9);
        const td_restrictions restrictions = {
            .banned_offsets = has_banned ? offsets[0] : NULL,
            .banned_tokens = has_banned ? tokens[0] : NULL,
            .repeated_offsets = has_repeated ? offsets[1] : NULL,
            .repeated_tokens = has_repeated ? tokens[1] : NULL,
            .repetition_penalty = pick(0, 9) ? 1.3 : odd_double(2),
        };
        td_candidates query = {
            .sentences = pick(0, 4),
            .group = pick(1, 5),
            .vocab = pick(1, MAX_VOCAB),
            .count = pick(1, COUNT),
            .log_probs = pick(0, 60) ? doubles : NULL,
            .mask = pick(0, 2) ? NULL : mask,
            .excluded_tokens = pick(0, 60) ? excluded : NULL,
            .num_excluded_tokens = pick(0, 60) ? pick(0, 3) : -1,
            .forced_tokens = pick(0, 1) ? forced : NULL,
            .restrictions = pick(0, 1) ? &restrictions : NULL,
            .diversity = pick(0, 1) ? 0 : odd_double(1),
            .found_log_probs = pick(0, 60) ? found : NULL,
            .found_parents = pick(0, 60) ? parents : NULL,
            .found_tokens = pick(0, 60) ? found_tokens : NULL,
        };
        static const int64_t far[] = {INT64_MIN, -1, (int64_t)1 << 40, INT64_MAX};
        int64_t *const sizes[] = {&query.sentences, &query.group, &query.vocab,
                                  &query.count};
        const int is_odd = !pick(0, 19);
        if (is_odd)
            *sizes[pick(0, 3)] = far[pick(0, 3)];
        const td_status status =
            api->decode->find_candidates(&query, pick(0, 60) ? logits : NULL);
        if (is_odd)
            CHECK(status != TD_OK);
        num_found += status == TD_OK;
        for (int64_t i = 0; status == TD_OK && i < query.sentences * query.count; i++)
            CHECK(found[i] == -INFINITY || is_candidate(&query, i));
    }
    CHECK(num_found > CALLS / 3);
    CHECK_STATUS(api->decode->find_candidates(NULL, logits), TD_BAD_ARGUMENT);
}

static void calls_in_any_order_return_statuses(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    td_search *searches[MAX_SEARCHES] = {NULL};
    for (int call = 0; call < CALLS; call++) {
        td_search **search = searches + pick(0, MAX_SEARCHES - 1);
        td_search *other = searches[pick(0, MAX_SEARCHES - 1)];
        fill();
        switch (pick(0, 9)) {
        case 0:
            decode->search_free(*search);
            *search = new_search(decode);
            break;
        case 1:
            decode->search_join(*search, other);
            break;
        case 2:
            decode->search_forget(*search, odd(0, 12));
            break;
        case 3:
        case 4:
            read_all(decode, *search);
            break;
        default:
            grow(decode, *search);
        }
    }
    for (int i = 0; i < MAX_SEARCHES; i++)
        decode->search_free(searches[i]);
    CHECK(num_grown > CALLS / 20);
}

int main(void)
{
    for_each_isa(calls_in_any_order_return_statuses);
    for_each_isa(candidates_of_odd_hypotheses_are_found_or_refused);
    return check_result();
}
