/* Candidates and searches by the public interface, against plain computations. */
#include <stdlib.h>

#include "tests/check.h"

enum { EOS = 2, MAX_VOCAB = 3000, MAX_GROUP = 4, MAX_COUNT = 40 };

/* ---- Candidates -------------------------------------------------------------- */

/* One continuation of a hypothesis. */
typedef struct {
    double rank, log_prob;
    int64_t parent, token;
} Continuation;

static double log_sum_exp(const float *logits, int64_t count)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return NAN;
        max = fmax(max, logits[i]);
    }
    for (int64_t i = 0; i < count; i++)
        sum += exp(logits[i] - max);
    return max > -INFINITY ? max + log(sum) : NAN;
}

static int is_excluded(const td_candidates *query, int64_t row, int64_t token)
{
    if (query->mask && query->mask[row * query->vocab + token])
        return 1;
    for (int64_t i = 0; i < query->num_excluded_tokens; i++)
        if (query->excluded_tokens[i] == token)
            return 1;
    const int64_t forced =
        query->forced_tokens ? query->forced_tokens[row / query->group] : -1;
    return forced >= 0 && forced != token;
}

/* Order of logits: largest first; of equal ones, the lower token first. */
static int compare_logits(const void *one, const void *other)
{
    const Continuation *a = one, *b = other;
    if (a->rank != b->rank)
        return a->rank > b->rank ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* Order of candidates: best first; of equal ones, the earlier parent first, then the
 * better of its tokens. NaN comes last. */
static int is_before(const Continuation *a, const Continuation *b)
{
    return a->rank > b->rank || (isnan(b->rank) && !isnan(a->rank));
}

/* Possible continuations of one hypothesis, best first. */
static int64_t sort_row(const td_candidates *query, const float *logits, int64_t row,
                        Continuation *sorted)
{
    int64_t found = 0;
    const float *own = logits + row * query->vocab;
    for (int64_t token = 0; token < query->vocab; token++)
        if (!is_excluded(query, row, token) && own[token] > -INFINITY)
            sorted[found++] = (Continuation){.rank = own[token], .token = token};
    qsort(sorted, (size_t)found, sizeof *sorted, compare_logits);
    const double log_sum = log_sum_exp(own, query->vocab);
    for (int64_t i = 0; i < found; i++) {
        sorted[i].parent = row % query->group;
        sorted[i].log_prob = sorted[i].rank - log_sum + query->log_probs[row];
        sorted[i].rank = sorted[i].log_prob - query->diversity * (double)i;
    }
    return found;
}

/* Whether two candidates are so close that rounding decides their order. */
static int is_near_tie(const Continuation *a, const Continuation *b)
{
    return a->rank != b->rank && fabs(a->rank - b->rank) < 1e-5;
}

/* Compare the candidates of a sentence with those of a merge of sorted rows. */
static void check_sentence(const td_candidates *query, const float *logits,
                           int64_t sentence)
{
    static Continuation rows[MAX_GROUP][MAX_VOCAB];
    int64_t left[MAX_GROUP], taken[MAX_GROUP] = {0};
    for (int64_t h = 0; h < query->group; h++)
        left[h] = sort_row(query, logits, sentence * query->group + h, rows[h]);
    for (int64_t i = 0; i < query->count; i++) {
        const Continuation *best = NULL;
        for (int64_t h = 0; h < query->group; h++)
            if (taken[h] < left[h] && (!best || is_before(rows[h] + taken[h], best)))
                best = rows[h] + taken[h];
        for (int64_t h = 0; h < query->group; h++)
            if (best && taken[h] < left[h] && is_near_tie(rows[h] + taken[h], best))
                return;
        const int64_t at = sentence * query->count + i;
        /* Impossible continuations of other rows come before NaN. */
        if (!best || isnan(best->log_prob)) {
            CHECK(!(query->found_log_probs[at] > -INFINITY));
            if (best)
                return;
            continue;
        }
        taken[best->parent]++;
        CHECK_NEAR(query->found_log_probs[at], best->log_prob,
                   1e-4 + 1e-5 * fabs(best->log_prob));
        if (best->log_prob == -INFINITY)
            continue;
        CHECK_INT(query->found_parents[at], best->parent);
        CHECK_INT(query->found_tokens[at], best->token);
    }
}

/* A query with arrays of its own. */
typedef struct {
    td_candidates query;
    float *logits;
    double log_probs[3 * MAX_GROUP], found_log_probs[3 * MAX_COUNT];
    int64_t found_parents[3 * MAX_COUNT], found_tokens[3 * MAX_COUNT];
} Case;

static Case *new_case(int64_t sentences, int64_t group, int64_t vocab, int64_t count)
{
    Case *made = calloc(1, sizeof *made);
    made->logits = calloc((size_t)(sentences * group * vocab), sizeof(float));
    made->query = (td_candidates){
        .sentences = sentences,
        .group = group,
        .vocab = vocab,
        .count = count,
        .log_probs = made->log_probs,
        .found_log_probs = made->found_log_probs,
        .found_parents = made->found_parents,
        .found_tokens = made->found_tokens,
    };
    return made;
}

static void free_case(Case *made)
{
    free(made->logits);
    free(made);
}

static void candidates_are_those_of_sorting(const td_api *api)
{
    static const int64_t vocabs[] = {1, 2, 5, 9, 64, 300, 1023, 1024, 1025, 2500};
    uint32_t state = 7;
    for (int i = 0; i < 300; i++) {
        const int64_t vocab = vocabs[random_int(&state, 0, 9)];
        Case *made = new_case(random_int(&state, 0, 3), random_int(&state, 1, 4), vocab,
                              random_int(&state, 1, MAX_COUNT));
        const int64_t rows = made->query.sentences * made->query.group;
        /* Multiples of ten: sums are exact, and many logits are equal. */
        const int whole = random_int(&state, 0, 3) == 0;
        const float scale = random_int(&state, 0, 1) ? 3.0f : 50.0f;
        for (int64_t k = 0; k < rows * vocab; k++) {
            const float logit = scale * random_float(&state);
            made->logits[k] = whole ? roundf(logit / 10) * 10 : logit;
            if (random_int(&state, 0, 9) == 0)
                made->logits[k] = -INFINITY;
        }
        for (int64_t k = 0; k < rows; k++)
            made->log_probs[k] = k % 3 == 2 ? -INFINITY : (double)-k / 4;
        if (rows && random_int(&state, 0, 4) == 0)
            made->logits[random_int(&state, 0, rows * vocab - 1)] = NAN;
        const int64_t excluded[] = {0, vocab / 2, vocab + 7};
        if (random_int(&state, 0, 1)) {
            made->query.excluded_tokens = excluded;
            made->query.num_excluded_tokens = random_int(&state, 0, 3);
        }
        const int64_t forced[] = {-1, vocab - 1, vocab / 2};
        if (random_int(&state, 0, 3) == 0)
            made->query.forced_tokens = forced;
        uint8_t *mask = calloc((size_t)(rows * vocab) + 1, 1);
        for (int64_t k = 0; k < rows * vocab; k++)
            mask[k] = random_int(&state, 0, 3) == 0;
        if (random_int(&state, 0, 2) == 0)
            made->query.mask = mask;
        made->query.diversity = random_int(&state, 0, 2) ? 0.0 : 0.75;
        CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits), TD_OK);
        for (int64_t k = 0; k < made->query.sentences; k++)
            check_sentence(&made->query, made->logits, k);
        free(mask);
        free_case(made);
    }
}

static void a_nan_makes_all_candidates_of_its_row_nan(const td_api *api)
{
    Case *made = new_case(1, 2, 100, 6);
    made->logits[31] = NAN;
    CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits), TD_OK);
    for (int64_t i = 0; i < 6; i++) { /* those of the other row come first */
        CHECK_INT(made->found_parents[i], 1);
        CHECK_NEAR(made->found_log_probs[i], -log(100), 1e-5);
    }
    free_case(made);
}

static void restricted_tokens_are_banned_or_penalized(const td_api *api)
{
    const int64_t vocab = 2100;
    Case *made = new_case(1, 2, vocab, 4);
    /* Log-probabilities are about -log(8), -log(8) - 1 ... of tokens 1500, 3, 2099, 9.
     */
    static const int64_t best[] = {1500, 3, 2099, 9};
    for (int64_t row = 0; row < 2; row++)
        for (int64_t i = 0; i < vocab; i++)
            made->logits[row * vocab + i] = -20.0f;
    for (int64_t row = 0; row < 2; row++)
        for (int i = 0; i < 4; i++)
            made->logits[row * vocab + best[i]] = (float)-i;
    made->log_probs[1] = -100.0;
    const double log_sum = log_sum_exp(made->logits, vocab);
    const int64_t banned_offsets[] = {0, 1, 2}, banned[] = {3, 5000};
    const int64_t repeated_offsets[] = {0, 3, 3}, repeated[] = {3, 1500, 2099};
    const td_restrictions restrictions = {banned_offsets, banned, repeated_offsets,
                                          repeated, 4.0};
    made->query.restrictions = &restrictions;
    CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits), TD_OK);
    static const int64_t tokens[] = {1500, 9, 2099};
    const double expected[] = {4 * -log_sum, -3 - log_sum, 4 * (-2 - log_sum)};
    for (int i = 0; i < 3; i++) {
        CHECK_INT(made->found_tokens[i], tokens[i]);
        CHECK_NEAR(made->found_log_probs[i], expected[i], 1e-4);
    }
    /* A forced token is free. */
    const int64_t forced[] = {3};
    made->query.forced_tokens = forced;
    CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits), TD_OK);
    CHECK_INT(made->found_tokens[0], 3);
    CHECK_NEAR(made->found_log_probs[0], -1 - log_sum, 1e-4);
    made->query.forced_tokens = NULL;
    td_restrictions bad = restrictions;
    const int64_t outside[] = {3, 1500, 2100}, falling[] = {0, 1, 0};
    bad.repeated_tokens = outside;
    made->query.restrictions = &bad;
    CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits),
                 TD_BAD_TOKEN);
    bad = restrictions;
    bad.banned_offsets = falling;
    CHECK_STATUS(api->decode->find_candidates(&made->query, made->logits),
                 TD_BAD_ARGUMENT);
    free_case(made);
}

static void impossible_queries_are_refused(const td_api *api)
{
    Case *made = new_case(1, 1, 10, 2);
    td_status (*const find)(const td_candidates *, const float *) =
        api->decode->find_candidates;
    const int64_t bad[] = {10};
    CHECK_STATUS(find(NULL, made->logits), TD_BAD_ARGUMENT);
    CHECK_STATUS(find(&made->query, NULL), TD_BAD_ARGUMENT);
    td_candidates query = made->query;
    query.forced_tokens = bad;
    CHECK_STATUS(find(&query, made->logits), TD_BAD_TOKEN);
    query = made->query;
    query.count = 0;
    CHECK_STATUS(find(&query, made->logits), TD_BAD_ARGUMENT);
    query = made->query;
    query.vocab = INT64_MAX;
    CHECK_STATUS(find(&query, made->logits), TD_BAD_ARGUMENT);
    query = made->query;
    query.num_excluded_tokens = 1;
    CHECK_STATUS(find(&query, made->logits), TD_BAD_ARGUMENT);
    query = made->query;
    query.sentences = query.group = INT32_MAX;
    CHECK_STATUS(find(&query, made->logits), TD_OUT_OF_MEMORY);
    free_case(made);
}

/* ---- Searches ---------------------------------------------------------------- */

static td_search_config config_of(int64_t beam_size)
{
    return (td_search_config){
        .beam_size = beam_size,
        .eos = EOS,
        .num_best = 1,
        .end_candidates = 2 * beam_size,
        .finished_limit = INT64_MAX,
    };
}

static td_search *begin(const td_api *api, const td_search_config *config,
                        int64_t num_sentences, int64_t max_length)
{
    int64_t limits[8];
    td_search *search = NULL;
    for (int64_t i = 0; i < num_sentences; i++)
        limits[i] = max_length;
    CHECK_STATUS(
        api->decode->search_new(config, num_sentences, limits, NULL, NULL, &search),
        TD_OK);
    return search;
}

static td_hypothesis hypothesis(const td_api *api, td_search *search, int64_t number,
                                int64_t rank)
{
    td_hypothesis found = {0};
    CHECK_STATUS(api->decode->search_hypothesis(search, number, rank, &found), TD_OK);
    return found;
}

/* Beam of two: 7 and 8 go on, then 7 9 ends with a score that nothing can beat. */
static void a_beam_ends_when_nothing_can_overtake(const td_api *api)
{
    const td_decode_api *decode = api->decode;
    const td_search_config config = config_of(2);
    td_search *search = begin(api, &config, 1, 10);
    const double first[] = {-1, -2, -3, -4}, second[] = {-1.5, -1.75, -4, -5};
    const int64_t no_parents[4] = {0}, parents[] = {0, 1, 0, 1};
    const int64_t first_tokens[] = {7, 8, EOS, 9}, second_tokens[] = {EOS, 9, 9, 8};
    int64_t rows[2], tokens[2];
    double log_probs[2];
    CHECK_STATUS(decode->search_grow_by_candidates(search, 4, first, no_parents,
                                                   first_tokens, NULL),
                 TD_OK);
    CHECK_INT(decode->search_num_live(search), 1);
    CHECK_INT(decode->search_num_hypotheses(search, 0), 1); /* the empty one, at -3 */
    CHECK_STATUS(decode->search_live(search, NULL, rows, tokens), TD_OK);
    CHECK_STATUS(decode->search_query(search, log_probs, NULL), TD_OK);
    CHECK(rows[0] == 0 && rows[1] == 0 && tokens[0] == 7 && tokens[1] == 8);
    CHECK(log_probs[0] == -1 && log_probs[1] == -2);
    CHECK_STATUS(decode->search_grow_by_candidates(search, 4, second, parents,
                                                   second_tokens, NULL),
                 TD_OK);
    CHECK_INT(decode->search_num_live(search), 0); /* -1.5 is above -1.75 */
    CHECK_INT(decode->search_num_hypotheses(search, 0), 2);
    const td_hypothesis best = hypothesis(api, search, 0, 0);
    CHECK(best.score == -1.5 && best.log_prob == -1.5 && best.is_finished);
    CHECK(best.num_tokens == 1 && best.tokens[0] == 7);
    CHECK(best.token_log_probs[0] == -1 && best.token_log_probs[1] == -0.5);
    CHECK_INT(hypothesis(api, search, 0, 1).num_tokens, 0);
    CHECK_STATUS(decode->search_forget(search, 0), TD_OK);
    CHECK_INT(decode->search_num_hypotheses(search, 0), 0);
    CHECK_STATUS(decode->search_forget(search, 0), TD_BAD_ARGUMENT);
    decode->search_free(search);
}

static void scores_are_divided_by_the_length_penalty(const td_api *api)
{
    for (int is_power = 0; is_power < 2; is_power++) {
        td_search_config config = config_of(1);
        config.length_penalty = 0.5;
        config.is_power_penalty = is_power;
        config.min_length = 2;
        td_search *search = begin(api, &config, 1, 3);
        const int64_t parents[2] = {0}, tokens[] = {5, EOS}, ends[] = {EOS, 5};
        const double log_probs[] = {-1, -2};
        for (int step = 0; step < 3; step++)
            CHECK_STATUS(
                api->decode->search_grow_by_candidates(search, 2, log_probs, parents,
                                                       step < 2 ? tokens : ends, NULL),
                TD_OK);
        const double divisor = is_power ? sqrt(3) : sqrt(8.0 / 6.0);
        CHECK_NEAR(hypothesis(api, search, 0, 0).score, -1 / divisor, 1e-15);
        api->decode->search_free(search);
    }
}

static void coverage_is_added_to_scores(const td_api *api)
{
    td_search_config config = config_of(2);
    config.coverage_penalty = 0.5;
    td_search *search = begin(api, &config, 1, 1);
    const int64_t parents[4] = {0}, tokens[] = {EOS, 5, 6, 7};
    const double log_probs[] = {-1, -2, -3, -4}, coverage[] = {-3};
    CHECK_STATUS(api->decode->search_grow_by_candidates(search, 4, log_probs, parents,
                                                        tokens, NULL),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_grow_by_candidates(search, 4, log_probs, parents,
                                                        tokens, coverage),
                 TD_OK);
    CHECK(hypothesis(api, search, 0, 0).score == -2.5);
    api->decode->search_free(search);
}

static void hypotheses_are_truncated_at_the_limit(const td_api *api)
{
    td_search_config config = config_of(3);
    td_search *search = begin(api, &config, 2, 0); /* the same as a limit of one */
    float logits[2 * 4] = {0, 0, -100, 1, 0, 0, -100, 1};
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 4, NULL, NULL),
                 TD_OK);
    CHECK_INT(api->decode->search_num_live(search), 0);
    CHECK_INT(api->decode->search_num_hypotheses(search, 1), 1);
    CHECK(hypothesis(api, search, 1, 0).is_finished); /* however unlikely */
    api->decode->search_free(search);
    config.min_length = 1;
    search = begin(api, &config, 2, 1);
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 4, NULL, NULL),
                 TD_OK);
    CHECK_INT(api->decode->search_num_hypotheses(search, 1), 3);
    const td_hypothesis best = hypothesis(api, search, 1, 0);
    CHECK(!best.is_finished && best.num_tokens == 1 && best.tokens[0] == 3);
    api->decode->search_free(search);
}

static void a_beam_may_be_wider_than_the_vocabulary(const td_api *api)
{
    td_search_config config = config_of(50);
    config.num_best = 50;
    td_search *search = begin(api, &config, 3, 4);
    float *logits = calloc(3 * 50 * 3, sizeof *logits);
    while (api->decode->search_num_live(search))
        CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 3, NULL, NULL),
                     TD_OK);
    /* All sequences of up to three tokens 0 and 1; the length limit cuts the others. */
    CHECK_INT(api->decode->search_num_hypotheses(search, 2), 1 + 2 + 4 + 8);
    free(logits);
    api->decode->search_free(search);
}

static void all_hypotheses_begin_with_the_prefix(const td_api *api)
{
    const int64_t limits[] = {4, 4, 4}, lengths[] = {2, 0, 1}, prefixes[] = {6, 7, 8};
    td_search_config config = config_of(2);
    config.num_best = 2;
    td_search *search = NULL;
    CHECK_STATUS(
        api->decode->search_new(&config, 3, limits, lengths, prefixes, &search), TD_OK);
    uint32_t state = 3;
    int64_t forced[3];
    CHECK_STATUS(api->decode->search_query(search, NULL, forced), TD_OK);
    CHECK(forced[0] == 6 && forced[1] == -1 && forced[2] == 8);
    while (api->decode->search_num_live(search)) {
        float logits[3 * 2 * 9];
        for (int i = 0; i < 3 * 2 * 9; i++)
            logits[i] = random_float(&state);
        CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 9, NULL, NULL),
                     TD_OK);
    }
    for (int64_t rank = 0; rank < api->decode->search_num_hypotheses(search, 0);
         rank++) {
        const td_hypothesis found = hypothesis(api, search, 0, rank);
        CHECK(found.num_tokens >= 2 && found.tokens[0] == 6 && found.tokens[1] == 7);
    }
    CHECK_INT(hypothesis(api, search, 2, 0).tokens[0], 8);
    api->decode->search_free(search);
}

static void a_prefix_outside_the_vocabulary_changes_nothing(const td_api *api)
{
    const int64_t limit = 4, length = 1, prefix = 9, negative = -1;
    const td_search_config config = config_of(2);
    const float logits[10] = {0};
    td_search *search = NULL;
    CHECK_STATUS(
        api->decode->search_new(&config, 1, &limit, &length, &negative, &search),
        TD_BAD_TOKEN);
    CHECK(!search);
    CHECK_STATUS(api->decode->search_new(&config, 1, &limit, &length, &prefix, &search),
                 TD_OK);
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 9, NULL, NULL),
                 TD_BAD_TOKEN);
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 10, NULL, NULL),
                 TD_OK);
    api->decode->search_free(search);
}

static void greedy_search_takes_the_likeliest_token(const td_api *api)
{
    td_search_config config = config_of(1);
    config.is_greedy = 1;
    config.min_length = 1;
    td_search *search = begin(api, &config, 1, 5);
    const float logits[] = {0, 1, 3, 2};
    int64_t token;
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 4, NULL, NULL),
                 TD_OK);
    CHECK_STATUS(api->decode->search_live(search, NULL, NULL, &token), TD_OK);
    CHECK_INT(token, 3); /* the end would come too early */
    CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 4, NULL, NULL),
                 TD_OK);
    CHECK_INT(api->decode->search_num_live(search), 0);
    const td_hypothesis found = hypothesis(api, search, 0, 0);
    CHECK(found.is_finished && found.num_tokens == 1 && found.tokens[0] == 3);
    CHECK(found.log_prob == found.token_log_probs[0] + found.token_log_probs[1]);
    api->decode->search_free(search);
}

static void joined_searches_find_what_they_find_alone(const td_api *api)
{
    const td_search_config config = config_of(2);
    td_search *search = begin(api, &config, 1, 40), *other = begin(api, &config, 2, 50);
    const float first[2 * 5] = {0, 1, -9, 2, 3, 3, 2, -9, 1, 0};
    float logits[3 * 2 * 5];
    int64_t numbers[3];
    for (int i = 0; i < 3 * 2 * 5; i++)
        logits[i] = i % 5 == EOS ? -9.0f : (float)(i % 7) / 4;
    CHECK_STATUS(api->decode->search_join(search, search), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_grow_by_logits(search, first, 5, NULL, NULL),
                 TD_OK);
    CHECK_STATUS(api->decode->search_join(search, other), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_grow_by_logits(other, first, 5, NULL, NULL),
                 TD_OK);
    CHECK_STATUS(api->decode->search_join(search, other), TD_OK);
    CHECK_INT(api->decode->search_num_live(other), 0);
    api->decode->search_free(other);
    CHECK_STATUS(api->decode->search_live(search, numbers, NULL, NULL), TD_OK);
    CHECK(numbers[0] == 0 && numbers[1] == 1 && numbers[2] == 2);
    int64_t steps = 1;
    for (; api->decode->search_num_live(search); steps++)
        CHECK_STATUS(api->decode->search_grow_by_logits(search, logits, 5, NULL, NULL),
                     TD_OK);
    CHECK_INT(steps, 50);
    CHECK_INT(hypothesis(api, search, 0, 0).tokens[0], 4);
    CHECK_INT(hypothesis(api, search, 2, 0).tokens[0], 0);
    CHECK_STATUS(api->decode->search_forget(search, 1), TD_OK);
    CHECK_INT(hypothesis(api, search, 2, 0).tokens[0], 0);
    api->decode->search_free(search);
}

static void impossible_configurations_are_refused(const td_api *api)
{
    const td_search_config good = config_of(4);
    td_search_config bad[15];
    for (int i = 0; i < 15; i++)
        bad[i] = good;
    bad[0].beam_size = 0;
    bad[1].beam_size = INT64_MAX;
    bad[2].is_greedy = 1;
    bad[3].eos = -1;
    bad[4].num_best = 5;
    bad[5].end_candidates = 9;
    bad[6].finished_limit = 0;
    bad[7].length_penalty = NAN;
    bad[8].coverage_penalty = INFINITY;
    bad[9].num_excluded_tokens = 3;
    bad[10].min_length = -1;
    bad[11].no_repeat_ngram = -1;
    bad[12].repetition_penalty = NAN;
    bad[13].num_bad_words = 1;
    const int64_t limit = 5, negative = -1;
    bad[14] = bad[13];
    bad[14].bad_word_lengths = bad[14].bad_word_tokens = &negative;
    td_search *search = NULL;
    for (int i = 0; i < 15; i++)
        CHECK_STATUS(api->decode->search_new(bad + i, 1, &limit, NULL, NULL, &search),
                     TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(NULL, 1, &limit, NULL, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(&good, 1, NULL, NULL, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(&good, -1, &limit, NULL, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(&good, 1, &negative, NULL, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(&good, 1, &limit, &negative, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(api->decode->search_new(&good, 1, &limit, &limit, NULL, &search),
                 TD_BAD_ARGUMENT);
    CHECK(!search);
    api->decode->search_free(NULL);
}

int main(void)
{
    for_each_isa(candidates_are_those_of_sorting);
    for_each_isa(a_nan_makes_all_candidates_of_its_row_nan);
    for_each_isa(restricted_tokens_are_banned_or_penalized);
    for_each_isa(impossible_queries_are_refused);
    for_each_isa(a_beam_ends_when_nothing_can_overtake);
    for_each_isa(scores_are_divided_by_the_length_penalty);
    for_each_isa(coverage_is_added_to_scores);
    for_each_isa(hypotheses_are_truncated_at_the_limit);
    for_each_isa(a_beam_may_be_wider_than_the_vocabulary);
    for_each_isa(all_hypotheses_begin_with_the_prefix);
    for_each_isa(a_prefix_outside_the_vocabulary_changes_nothing);
    for_each_isa(greedy_search_takes_the_likeliest_token);
    for_each_isa(joined_searches_find_what_they_find_alone);
    for_each_isa(impossible_configurations_are_refused);
    return check_result();
}
