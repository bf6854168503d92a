/* Functions of search handles, with checks of their arguments. */
#include "decode/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"
#include "decode/beam_search.h"
#include "sizes.h"

#define MAX_BEAM_SIZE (1 << 20)
#define FIRST_CAPACITY 32 /* steps; enough for most sentences */

/* Allocate an array [rows, columns] of zeros; NULL if allocation fails, never if it is
 * empty. */
static void *new_array(int64_t rows, int64_t columns, size_t size)
{
    int64_t count;
    size_t bytes;
    if (__builtin_mul_overflow(rows, columns, &count) ||
        __builtin_mul_overflow((size_t)count, size, &bytes))
        return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

/* ---- Memory ------------------------------------------------------------------ */

static void free_sentence(Sentence *sentence)
{
    if (sentence)
        free(sentence->entries);
    free(sentence);
}

/* A sentence with its ranked hypotheses and its prefix in one block. */
static Sentence *new_sentence(const td_search_config *config, int64_t max_length,
                              const int64_t *prefix, int64_t prefix_length)
{
    const size_t ranked = (size_t)config->beam_size * sizeof(RankedHypothesis);
    size_t prefix_bytes, bytes;
    if (__builtin_mul_overflow((size_t)prefix_length, sizeof *prefix, &prefix_bytes) ||
        __builtin_add_overflow(sizeof(Sentence) + ranked, prefix_bytes, &bytes))
        return NULL;
    Sentence *sentence = calloc(1, bytes);
    if (!sentence)
        return NULL;
    sentence->max_length = max_length;
    sentence->last_divisor = length_divisor(config, max_length);
    sentence->ranked = (RankedHypothesis *)(sentence + 1);
    sentence->prefix = (int64_t *)(sentence->ranked + config->beam_size);
    sentence->prefix_length = prefix_length;
    if (prefix_length)
        memcpy(sentence->prefix, prefix, prefix_bytes);
    return sentence;
}

/* Allocate entries of one more step, doubling the capacity if it is used up. */
static td_status reserve_entries(const td_search *search, Sentence *sentence)
{
    if (sentence->num_steps < sentence->capacity)
        return TD_OK;
    const int64_t capacity = max_i64(2 * sentence->capacity, FIRST_CAPACITY);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)capacity,
                               (size_t)search->config.beam_size * sizeof(BeamEntry),
                               &bytes))
        return TD_OUT_OF_MEMORY;
    BeamEntry *entries = realloc(sentence->entries, bytes);
    if (!entries)
        return TD_OUT_OF_MEMORY;
    sentence->entries = entries;
    sentence->capacity = capacity;
    return TD_OK;
}

td_status reserve_step(td_search *search)
{
    for (int64_t i = 0; i < search->num_live; i++)
        if (reserve_entries(search, search->live[i]) != TD_OK)
            return TD_OUT_OF_MEMORY;
    return TD_OK;
}

/* Replace an array by one of [rows, columns] elements that begins with the `used` first
 * rows. Returns 0, and keeps the array, if allocation fails. */
static int enlarge(void **array, int64_t used, int64_t rows, int64_t columns,
                   size_t size)
{
    void *larger = new_array(rows, columns, size);
    if (!larger)
        return 0;
    if (*array)
        memcpy(larger, *array, (size_t)(used * columns) * size);
    free(*array);
    *array = larger;
    return 1;
}

#define ENLARGE(array, used, rows, columns)                                            \
    enlarge((void **)&(array), used, rows, columns, sizeof *(array))

/* Allocate arrays for `capacity` live sentences. After a failure, all stay usable. */
static td_status reserve_live(td_search *search, int64_t capacity)
{
    if (capacity <= search->live_capacity && search->live)
        return TD_OK;
    const int64_t used = search->num_live, size = search->config.beam_size;
    const int64_t count = search->num_candidates;
    /* Before the first step, rows and tokens have nothing to copy. */
    const int64_t used_rows = search->group == size ? used : 0;
    const int are_enlarged =
        /* Of each sentence. */
        ENLARGE(search->live, used, capacity, 1) &&
        ENLARGE(search->forced_tokens, used, capacity, 1) &&
        /* Of each hypothesis. */
        ENLARGE(search->log_probs, used_rows, capacity, size) &&
        ENLARGE(search->rows, used_rows, capacity, size) &&
        ENLARGE(search->tokens, used_rows, capacity, size) &&
        /* Written anew in each step. */
        ENLARGE(search->coverage, 0, capacity, size) &&
        ENLARGE(search->found_log_probs, 0, capacity, count) &&
        ENLARGE(search->found_parents, 0, capacity, count) &&
        ENLARGE(search->found_tokens, 0, capacity, count);
    if (!are_enlarged)
        return TD_OUT_OF_MEMORY;
    search->live_capacity = capacity;
    return TD_OK;
}

/* Allocate for `capacity` sentences, live or done. */
static td_status reserve_sentences(td_search *search, int64_t capacity)
{
    if (capacity <= search->sentence_capacity && search->sentences)
        return TD_OK;
    if (search->sentence_capacity)
        capacity = max_i64(capacity, 2 * search->sentence_capacity);
    if (!ENLARGE(search->sentences, search->num_sentences, capacity, 1))
        return TD_OUT_OF_MEMORY;
    search->sentence_capacity = capacity;
    return TD_OK;
}

static td_status reserve_trace(td_search *search, int64_t num_steps)
{
    if (num_steps < search->trace_capacity)
        return TD_OK;
    const int64_t capacity = 2 * num_steps + 1;
    if (!ENLARGE(search->trace_tokens, 0, capacity, 1) ||
        !ENLARGE(search->trace_log_probs, 0, capacity, 1))
        return TD_OUT_OF_MEMORY;
    search->trace_capacity = capacity;
    return TD_OK;
}

/* ---- Interface --------------------------------------------------------------- */

static int is_nonnegative(double number) { return isfinite(number) && number >= 0; }

/* Whether the n-grams, bad words and repetition penalty of a configuration are valid.
 */
static int are_valid_restrictions(const td_search_config *config)
{
    int64_t num_tokens = 0;
    if (config->no_repeat_ngram < 0 || config->num_bad_words < 0 ||
        !is_nonnegative(config->repetition_penalty))
        return 0;
    if (is_missing(config->bad_word_lengths, config->num_bad_words) ||
        is_missing(config->bad_word_tokens, config->num_bad_words))
        return 0;
    for (int64_t i = 0; i < config->num_bad_words; i++)
        if (config->bad_word_lengths[i] < 1 ||
            __builtin_add_overflow(num_tokens, config->bad_word_lengths[i],
                                   &num_tokens))
            return 0;
    return 1;
}

static int is_valid_config(const td_search_config *config)
{
    const int64_t size = config->beam_size;
    return is_between(size, 1, config->is_greedy ? 1 : MAX_BEAM_SIZE) &&
           config->eos >= 0 && config->min_length >= 0 &&
           config->num_excluded_tokens >= 0 &&
           !is_missing(config->excluded_tokens, config->num_excluded_tokens) &&
           is_between(config->num_best, 1, size) &&
           is_between(config->end_candidates, 1, 2 * size) &&
           config->finished_limit >= 1 && is_nonnegative(config->length_penalty) &&
           is_nonnegative(config->coverage_penalty) &&
           is_nonnegative(config->diversity) && are_valid_restrictions(config);
}

/* Whether limits and prefixes are valid. */
static td_status check_sentences(int64_t num_sentences, const int64_t *max_lengths,
                                 const int64_t *prefix_lengths,
                                 const int64_t *prefix_tokens)
{
    int64_t num_tokens = 0;
    if (num_sentences < 0 || is_missing(max_lengths, num_sentences))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < num_sentences; i++)
        if (max_lengths[i] < 0)
            return TD_BAD_ARGUMENT;
    for (int64_t i = 0; prefix_lengths && i < num_sentences; i++)
        if (prefix_lengths[i] < 0 ||
            __builtin_add_overflow(num_tokens, prefix_lengths[i], &num_tokens))
            return TD_BAD_ARGUMENT;
    if (is_missing(prefix_tokens, num_tokens))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < num_tokens; i++)
        if (prefix_tokens[i] < 0)
            return TD_BAD_TOKEN;
    return TD_OK;
}

static int64_t count_bad_tokens(const td_search_config *config)
{
    int64_t count = 0;
    for (int64_t i = 0; i < config->num_bad_words; i++)
        count += config->bad_word_lengths[i];
    return count;
}

/* A copy of an array; NULL if allocation fails, never if it is empty. */
static int64_t *copy_array(const int64_t *from, int64_t count)
{
    int64_t *copy = new_array(count, 1, sizeof *copy);
    if (copy && count)
        memcpy(copy, from, (size_t)count * sizeof *copy);
    return copy;
}

static td_status copy_config(td_search *search, const td_search_config *config)
{
    td_search_config *copy = &search->config;
    *copy = *config;
    copy->excluded_tokens =
        copy_array(config->excluded_tokens, config->num_excluded_tokens);
    copy->bad_word_lengths =
        copy_array(config->bad_word_lengths, config->num_bad_words);
    copy->bad_word_tokens =
        copy_array(config->bad_word_tokens, count_bad_tokens(config));
    return copy->excluded_tokens && copy->bad_word_lengths && copy->bad_word_tokens
               ? TD_OK
               : TD_OUT_OF_MEMORY;
}

static td_status add_sentences(td_search *search, int64_t num_sentences,
                               const int64_t *max_lengths,
                               const int64_t *prefix_lengths, const int64_t *prefixes)
{
    for (int64_t i = 0; i < num_sentences; i++) {
        const int64_t length = prefix_lengths ? prefix_lengths[i] : 0;
        Sentence *sentence =
            new_sentence(&search->config, max_lengths[i], prefixes, length);
        if (!sentence)
            return TD_OUT_OF_MEMORY;
        if (length)
            prefixes += length;
        sentence->number = search->next_number++;
        search->sentences[search->num_sentences++] = sentence;
        search->live[search->num_live] = sentence;
        search->forced_tokens[search->num_live++] = forced_token(sentence);
    }
    return TD_OK;
}

td_status search_new(const td_search_config *config, int64_t num_sentences,
                     const int64_t *max_lengths, const int64_t *prefix_lengths,
                     const int64_t *prefix_tokens, td_search **search)
{
    if (!search)
        return TD_BAD_ARGUMENT;
    *search = NULL;
    if (!config || !is_valid_config(config))
        return TD_BAD_ARGUMENT;
    td_status status =
        check_sentences(num_sentences, max_lengths, prefix_lengths, prefix_tokens);
    if (status != TD_OK)
        return status;
    td_search *new = calloc(1, sizeof *new);
    if (!new)
        return TD_OUT_OF_MEMORY;
    new->num_candidates = 2 * config->beam_size;
    new->group = 1;
    if ((status = copy_config(new, config)) != TD_OK ||
        (status = reserve_live(new, num_sentences)) != TD_OK ||
        (status = reserve_sentences(new, num_sentences)) != TD_OK ||
        (status = add_sentences(new, num_sentences, max_lengths, prefix_lengths,
                                prefix_tokens)) != TD_OK) {
        search_free(new);
        return status;
    }
    *search = new;
    return TD_OK;
}

void search_free(td_search *search)
{
    if (!search)
        return;
    for (int64_t i = 0; i < search->num_sentences; i++)
        free_sentence(search->sentences[i]);
    free(search->sentences);
    free(search->live);
    free(search->log_probs);
    free(search->rows);
    free(search->tokens);
    free(search->forced_tokens);
    free(search->coverage);
    free(search->found_log_probs);
    free(search->found_parents);
    free(search->found_tokens);
    free(search->trace_tokens);
    free(search->trace_log_probs);
    free(search->restricted);
    free((void *)search->config.excluded_tokens);
    free((void *)search->config.bad_word_lengths);
    free((void *)search->config.bad_word_tokens);
    free(search);
}

int64_t search_num_live(const td_search *search)
{
    return search ? search->num_live : 0;
}

/* Copy `count` numbers of 64 bits unless `to` is NULL. */
static void copy_out(void *to, const void *from, int64_t count)
{
    if (to && count)
        memcpy(to, from, (size_t)count * sizeof(int64_t));
}

td_status search_live(const td_search *search, int64_t *numbers, int64_t *rows,
                      int64_t *tokens)
{
    if (!search)
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; numbers && i < search->num_live; i++)
        numbers[i] = search->live[i]->number;
    copy_out(rows, search->rows, search->num_live * search->group);
    copy_out(tokens, search->tokens, search->num_live * search->group);
    return TD_OK;
}

td_status search_query(const td_search *search, double *log_probs,
                       int64_t *forced_tokens)
{
    if (!search)
        return TD_BAD_ARGUMENT;
    copy_out(log_probs, search->log_probs, search->num_live * search->group);
    copy_out(forced_tokens, search->forced_tokens, search->num_live);
    return TD_OK;
}

td_status search_grow_by_candidates(td_search *search, int64_t num_candidates,
                                    const double *log_probs, const int64_t *parents,
                                    const int64_t *tokens, const double *coverage)
{
    if (!search || num_candidates != search->num_candidates)
        return TD_BAD_ARGUMENT;
    const int64_t count = search->num_live * num_candidates;
    if (!count)
        return TD_OK;
    if (!log_probs || !parents || !tokens || (needs_coverage(search) && !coverage))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++) {
        if (parents[i] < 0 || parents[i] >= search->group)
            return TD_BAD_ARGUMENT;
        if (tokens[i] < 0 || tokens[i] > INT32_MAX)
            return TD_BAD_TOKEN;
    }
    if (reserve_step(search) != TD_OK)
        return TD_OUT_OF_MEMORY;
    copy_out(search->found_log_probs, log_probs, count);
    copy_out(search->found_parents, parents, count);
    copy_out(search->found_tokens, tokens, count);
    if (needs_coverage(search))
        copy_out(search->coverage, coverage, search->num_live * search->group);
    grow_live(search);
    return TD_OK;
}

/* Whether two arrays of `count` numbers are equal. */
static int are_equal(const int64_t *a, const int64_t *b, int64_t count)
{
    return !memcmp(a, b, (size_t)count * sizeof *a);
}

static int are_equal_configs(const td_search_config *a, const td_search_config *b)
{
    return a->beam_size == b->beam_size && a->is_greedy == b->is_greedy &&
           a->eos == b->eos && a->min_length == b->min_length &&
           a->num_best == b->num_best && a->end_candidates == b->end_candidates &&
           a->finished_limit == b->finished_limit &&
           a->ranks_truncated == b->ranks_truncated &&
           a->length_penalty == b->length_penalty &&
           a->is_power_penalty == b->is_power_penalty &&
           a->coverage_penalty == b->coverage_penalty && a->diversity == b->diversity &&
           a->num_excluded_tokens == b->num_excluded_tokens &&
           are_equal(a->excluded_tokens, b->excluded_tokens, a->num_excluded_tokens) &&
           a->no_repeat_ngram == b->no_repeat_ngram &&
           a->repetition_penalty == b->repetition_penalty &&
           a->num_bad_words == b->num_bad_words &&
           are_equal(a->bad_word_lengths, b->bad_word_lengths, a->num_bad_words) &&
           are_equal(a->bad_word_tokens, b->bad_word_tokens, count_bad_tokens(a));
}

td_status search_join(td_search *search, td_search *other)
{
    if (!search || !other || search == other ||
        !are_equal_configs(&search->config, &other->config))
        return TD_BAD_ARGUMENT;
    if (search->num_live && other->num_live && search->group != other->group)
        return TD_BAD_ARGUMENT;
    if (reserve_live(search, search->num_live + other->num_live) != TD_OK ||
        reserve_sentences(search, search->num_sentences + other->num_sentences) !=
            TD_OK)
        return TD_OUT_OF_MEMORY;
    if (!search->num_live)
        search->group = other->group;
    for (int64_t i = 0; i < other->num_sentences; i++) {
        other->sentences[i]->number += search->next_number;
        search->sentences[search->num_sentences++] = other->sentences[i];
    }
    const int64_t live = search->num_live, first = live * search->group;
    const int64_t count = other->num_live * other->group;
    for (int64_t i = 0; i < other->num_live; i++)
        search->live[live + i] = other->live[i];
    copy_out(search->forced_tokens + live, other->forced_tokens, other->num_live);
    copy_out(search->log_probs + first, other->log_probs, count);
    copy_out(search->rows + first, other->rows, count);
    copy_out(search->tokens + first, other->tokens, count);
    search->num_live += other->num_live;
    search->next_number += other->next_number;
    other->num_live = other->num_sentences = 0;
    return TD_OK;
}

/* Index in `sentences` of the sentence with this number, or -1. */
static int64_t place_of(const td_search *search, int64_t number)
{
    int64_t low = 0, high = search->num_sentences;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (search->sentences[middle]->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    const int is_there =
        low < search->num_sentences && search->sentences[low]->number == number;
    return is_there ? low : -1;
}

int64_t search_num_hypotheses(const td_search *search, int64_t number)
{
    const int64_t place = search ? place_of(search, number) : -1;
    return place < 0 ? 0 : search->sentences[place]->num_ranked;
}

/* Write tokens and log-probabilities of a hypothesis, from the last token back to the
 * first: each entry has the number of its parent. */
static void backtrack(td_search *search, const Sentence *sentence,
                      const RankedHypothesis *ranked)
{
    double sum = ranked->log_prob; /* of the tokens up to the one after `step` */
    for (int64_t step = ranked->num_steps - 1, k = ranked->entry; step >= 0; step--) {
        const BeamEntry *entry = entries_of_step(&search->config, sentence, step) + k;
        search->trace_tokens[step] = entry->token;
        search->trace_log_probs[step + 1] = sum - entry->log_prob;
        sum = entry->log_prob;
        k = entry->parent;
    }
    search->trace_log_probs[0] = sum;
}

/* The same for greedy search, whose entries have the log-probability of one token. */
static void copy_greedy_tokens(td_search *search, const Sentence *sentence)
{
    for (int64_t step = 0; step < sentence->num_steps; step++) {
        search->trace_tokens[step] = sentence->entries[step].token;
        search->trace_log_probs[step] = sentence->entries[step].log_prob;
    }
}

td_status search_hypothesis(td_search *search, int64_t number, int64_t rank,
                            td_hypothesis *hypothesis)
{
    if (!hypothesis || rank < 0 || rank >= search_num_hypotheses(search, number))
        return TD_BAD_ARGUMENT;
    const Sentence *sentence = search->sentences[place_of(search, number)];
    const RankedHypothesis *ranked = sentence->ranked + rank;
    if (reserve_trace(search, sentence->num_steps) != TD_OK)
        return TD_OUT_OF_MEMORY;
    if (search->config.is_greedy)
        copy_greedy_tokens(search, sentence);
    else
        backtrack(search, sentence, ranked);
    *hypothesis = (td_hypothesis){
        .score = ranked->score,
        .log_prob = ranked->log_prob,
        .is_finished = ranked->is_finished,
        .num_tokens = ranked->num_steps,
        .tokens = search->trace_tokens,
        .token_log_probs = search->trace_log_probs,
    };
    return TD_OK;
}

td_status search_forget(td_search *search, int64_t number)
{
    const int64_t place = search ? place_of(search, number) : -1;
    if (place < 0)
        return TD_BAD_ARGUMENT;
    Sentence *sentence = search->sentences[place];
    for (int64_t i = 0; i < search->num_live; i++)
        if (search->live[i] == sentence)
            return TD_BAD_ARGUMENT;
    free_sentence(sentence);
    search->num_sentences--;
    for (int64_t i = place; i < search->num_sentences; i++)
        search->sentences[i] = search->sentences[i + 1];
    return TD_OK;
}
