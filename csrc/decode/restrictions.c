/* Restrictions of the next token: n-grams that would occur again, bad words, and tokens
 * with a repetition penalty. */
#include "decode/restrictions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sizes.h"

/* Tokens of a hypothesis, and the arrays to which its restrictions are appended. */
typedef struct {
    int64_t *tokens; /* [2, length]: the tokens, and space for a sorted copy */
    int64_t length;
    int64_t *banned, num_banned;
    int64_t *repeated, num_repeated;
} Writer;

/* Write the tokens of live hypothesis `k`. */
static void read_history(const td_search *search, const Sentence *sentence, int64_t k,
                         Writer *writer)
{
    writer->length = sentence->num_steps;
    for (int64_t step = sentence->num_steps - 1; step >= 0; step--) {
        const BeamEntry *entry = entries_of_step(&search->config, sentence, step) + k;
        writer->tokens[step] = entry->token;
        k = entry->parent;
    }
}

/* Whether a hypothesis ends with these tokens. */
static int ends_with(const Writer *writer, const int64_t *tokens, int64_t count)
{
    return count <= writer->length && !memcmp(writer->tokens + writer->length - count,
                                              tokens, (size_t)count * sizeof *tokens);
}

/* Ban each token that would end an n-gram for the second time. */
static void ban_repeated_ngrams(Writer *writer, int64_t n)
{
    for (int64_t last = n - 1; last < writer->length; last++)
        if (ends_with(writer, writer->tokens + last - (n - 1), n - 1))
            writer->banned[writer->num_banned++] = writer->tokens[last];
}

/* Ban each token that would end a bad word. */
static void ban_bad_words(const td_search_config *config, Writer *writer)
{
    const int64_t *word = config->bad_word_tokens;
    for (int64_t i = 0; i < config->num_bad_words; i++) {
        const int64_t length = config->bad_word_lengths[i];
        if (ends_with(writer, word, length - 1))
            writer->banned[writer->num_banned++] = word[length - 1];
        word += length;
    }
}

static int compare(const void *a, const void *b)
{
    const int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
    return (one > other) - (one < other);
}

/* Append the different tokens of a hypothesis in ascending order. */
static void list_repeated(Writer *writer)
{
    int64_t *sorted = writer->tokens + writer->length;
    memcpy(sorted, writer->tokens, (size_t)writer->length * sizeof *sorted);
    qsort(sorted, (size_t)writer->length, sizeof *sorted, compare);
    for (int64_t i = 0; i < writer->length; i++)
        if (!i || sorted[i] != sorted[i - 1])
            writer->repeated[writer->num_repeated++] = sorted[i];
}

static void restrict_hypothesis(const td_search *search, const Sentence *sentence,
                                int64_t k, Writer *writer)
{
    read_history(search, sentence, k, writer);
    if (search->config.no_repeat_ngram)
        ban_repeated_ngrams(writer, search->config.no_repeat_ngram);
    ban_bad_words(&search->config, writer);
    if (has_repetition_penalty(search))
        list_repeated(writer);
}

/* Place the arrays of restrictions in one block: offsets of all rows, the tokens of one
 * hypothesis twice, and as many tokens as the rows may have at most. */
static td_status reserve_restrictions(td_search *search, Writer *writer)
{
    const int64_t rows = search->num_live * search->group;
    int64_t longest = 0, most, count;
    for (int64_t i = 0; i < search->num_live; i++)
        longest = max_i64(longest, search->live[i]->num_steps);
    /* For each row, at most `longest` tokens of n-grams, bad words, repeated tokens. */
    if (__builtin_add_overflow(2 * longest, search->config.num_bad_words, &most) ||
        __builtin_mul_overflow(rows, most, &most) ||
        __builtin_add_overflow(most, 2 * (rows + 1) + 2 * longest, &count) ||
        count > INT64_MAX / 2 / (int64_t)sizeof *search->restricted) /* doubled below */
        return TD_OUT_OF_MEMORY;
    if (count > search->restricted_capacity) {
        int64_t *block = malloc(2 * (size_t)count * sizeof *block);
        if (!block)
            return TD_OUT_OF_MEMORY;
        free(search->restricted);
        search->restricted = block;
        search->restricted_capacity = 2 * count;
    }
    int64_t *offsets = search->restricted;
    *writer = (Writer){.tokens = offsets + 2 * (rows + 1)};
    writer->repeated = writer->tokens + 2 * longest;
    writer->banned = writer->repeated + rows * longest;
    search->restrictions = (td_restrictions){
        .banned_offsets = offsets,
        .banned_tokens = writer->banned,
        .repeated_offsets = offsets + rows + 1,
        .repeated_tokens = writer->repeated,
        .repetition_penalty =
            has_repetition_penalty(search) ? search->config.repetition_penalty : 1.0,
    };
    return TD_OK;
}

td_status find_restrictions(td_search *search)
{
    Writer writer;
    if (!has_restrictions(search))
        return TD_OK;
    if (reserve_restrictions(search, &writer) != TD_OK)
        return TD_OUT_OF_MEMORY;
    const int64_t rows = search->num_live * search->group;
    int64_t *banned_ends = search->restricted, *repeated_ends = banned_ends + rows + 1;
    *banned_ends++ = *repeated_ends++ = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t i = row / search->group;
        /* Hypotheses of probability 0 fill a beam, and have tokens without meaning. */
        if (search->forced_tokens[i] == NO_TOKEN &&
            (search->config.is_greedy || !search->live[i]->num_steps ||
             search->log_probs[row] > -INFINITY))
            restrict_hypothesis(search, search->live[i], row % search->group, &writer);
        *banned_ends++ = writer.num_banned;
        *repeated_ends++ = writer.num_repeated;
    }
    return TD_OK;
}

td_status search_restrictions(td_search *search, td_restrictions *restrictions)
{
    if (!search || !restrictions)
        return TD_BAD_ARGUMENT;
    const td_status status = find_restrictions(search);
    if (status == TD_OK)
        *restrictions = search->restrictions;
    return status;
}
