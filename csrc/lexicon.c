/* IBM model 1 (Brown et al., 1993), learned by expectation maximisation.
 *
 * Each iteration goes through the corpus source id by source id, so that the
 * probabilities of one source id lie in one array that is indexed by target id. For
 * each target word e of a sentence pair, where f runs over the source words and the
 * NULL word:
 *
 *   1. sum(e) = sum over f of t(e | f)                                  (sum_targets)
 *   2. count(e, f) += t(e | f) / sum(e); then t(e | f) becomes the share of
 *      count(e, f) in the counts of all targets of f                     (learn_rows)
 *
 * Sums run in the order of ids and sentences, so that results do not depend on the
 * number of threads.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "checks.h"
#include "parallel.h"
#include "sizes.h"
#include "transduce.h"

/* Probabilities below it are dropped: the rows of frequent words stay short. */
#define MIN_PROBABILITY 1e-5
#define SORTED_SHARE 32 /* fewer ids than vocab / SORTED_SHARE are sorted by qsort */
#define MAX_ITERATIONS 1000

/* Targets of one source id with their probabilities, by ascending id. */
typedef struct {
    int64_t count;
    int32_t *tokens;
    float *probs;
} Row;

typedef struct {
    const td_sentence_pairs *pairs;
    int64_t num_rows;    /* source ids, and one row for the NULL word */
    int64_t *first;      /* [num_rows + 1]: where a row's sentences begin */
    int32_t *sentences;  /* with each id, one entry for each time that it occurs */
    float *inverse_sums; /* of each target word: 1 / sum(e) */
    Row *rows;           /* NULL tokens: all probabilities are equal */
    /* A thread's row of one source id, indexed by target; zeros between rows. */
    float *probs;                /* [threads, target_vocab] */
    double *counts;              /* [threads, target_vocab] */
    int32_t *seen;               /* [threads, target_vocab]: targets with a count */
    atomic_int is_out_of_memory; /* whether any thread lacked memory */
} Learning;

static int64_t begin_of(const int64_t *ends, int64_t sentence)
{
    return sentence ? ends[sentence - 1] : 0;
}

/* First entry of a row's sentences that is at least `sentence`. */
static int64_t find_sentence(const Learning *learning, int64_t row, int64_t sentence)
{
    int64_t low = learning->first[row], high = learning->first[row + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (learning->sentences[middle] < sentence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Write a row's probabilities to their places in an array [vocab]. */
static void scatter_row(const Row *row, int64_t vocab, float *probs)
{
    if (!row->tokens) {
        for (int64_t i = 0; i < vocab; i++)
            probs[i] = 1.0f;
        return;
    }
    for (int64_t i = 0; i < row->count; i++)
        probs[row->tokens[i]] = row->probs[i];
}

/* Set the places of a row's targets to zero. */
static void clear_row(const Row *row, int64_t vocab, float *probs)
{
    if (!row->tokens) {
        memset(probs, 0, (size_t)vocab * sizeof *probs);
        return;
    }
    for (int64_t i = 0; i < row->count; i++)
        probs[row->tokens[i]] = 0.0f;
}

/* Step 1 for some sentences: the inverse sums of their target words. */
static void sum_targets(void *shared, int64_t begin, int64_t end, int worker)
{
    const Learning *learning = shared;
    const td_sentence_pairs *pairs = learning->pairs;
    const int64_t vocab = pairs->target_vocab;
    const int64_t first = begin_of(pairs->target_ends, begin);
    const int64_t last = begin_of(pairs->target_ends, end);
    float *probs = learning->probs + worker * vocab;
    float *inverse_sums = learning->inverse_sums;
    memset(inverse_sums + first, 0, (size_t)(last - first) * sizeof *inverse_sums);
    for (int64_t row = 0; row < learning->num_rows; row++) {
        int64_t i = find_sentence(learning, row, begin);
        if (i == learning->first[row + 1] || learning->sentences[i] >= end)
            continue;
        scatter_row(learning->rows + row, vocab, probs);
        for (; i < learning->first[row + 1] && learning->sentences[i] < end; i++) {
            const int64_t sentence = learning->sentences[i];
            const int64_t stop = pairs->target_ends[sentence];
            for (int64_t k = begin_of(pairs->target_ends, sentence); k < stop; k++)
                inverse_sums[k] += probs[pairs->targets[k]];
        }
        clear_row(learning->rows + row, vocab, probs);
    }
    for (int64_t k = first; k < last; k++)
        inverse_sums[k] = inverse_sums[k] > 0.0f ? 1.0f / inverse_sums[k] : 0.0f;
}

static int compare_tokens(const void *one, const void *other)
{
    const int32_t a = *(const int32_t *)one, b = *(const int32_t *)other;
    return (a > b) - (a < b);
}

/* Sort the ids with a count; many are faster to list anew. */
static void sort_seen(int32_t *seen, int64_t num_seen, const double *counts,
                      int64_t vocab)
{
    if (num_seen < vocab / SORTED_SHARE) {
        qsort(seen, (size_t)num_seen, sizeof *seen, compare_tokens);
        return;
    }
    for (int64_t id = 0, n = 0; n < num_seen && id < vocab; id++)
        if (counts[id] > 0.0)
            seen[n++] = (int32_t)id;
}

/* Replace a row by the shares of its counts, which are cleared. Returns 0, and keeps
 * the row, if there is no memory. */
static int replace_row(Row *row, int32_t *seen, int64_t num_seen, double *counts,
                       int64_t vocab)
{
    double total = 0.0;
    sort_seen(seen, num_seen, counts, vocab);
    for (int64_t i = 0; i < num_seen; i++)
        total += counts[seen[i]];
    int64_t kept = 0;
    for (int64_t i = 0; i < num_seen; i++)
        kept += counts[seen[i]] >= MIN_PROBABILITY * total;
    Row made = {0, malloc((size_t)(kept + 1) * sizeof(int32_t)),
                malloc((size_t)(kept + 1) * sizeof(float))};
    const int is_made = made.tokens && made.probs;
    for (int64_t i = 0; i < num_seen; i++) {
        const double count = counts[seen[i]];
        counts[seen[i]] = 0.0;
        if (!is_made || count < MIN_PROBABILITY * total)
            continue;
        made.tokens[made.count] = seen[i];
        made.probs[made.count++] = (float)(count / total);
    }
    if (!is_made) {
        free(made.tokens);
        free(made.probs);
        return 0;
    }
    free(row->tokens);
    free(row->probs);
    *row = made;
    return 1;
}

/* Step 2 for some source ids: their counts and new probabilities. */
static void learn_rows(void *shared, int64_t begin, int64_t end, int worker)
{
    Learning *learning = shared;
    const td_sentence_pairs *pairs = learning->pairs;
    const int64_t vocab = pairs->target_vocab;
    float *probs = learning->probs + worker * vocab;
    double *counts = learning->counts + worker * vocab;
    int32_t *seen = learning->seen + worker * vocab;
    for (int64_t row = begin; row < end; row++) {
        int64_t num_seen = 0;
        if (learning->first[row] == learning->first[row + 1])
            continue;
        scatter_row(learning->rows + row, vocab, probs);
        for (int64_t i = learning->first[row]; i < learning->first[row + 1]; i++) {
            const int64_t sentence = learning->sentences[i];
            const int64_t stop = pairs->target_ends[sentence];
            for (int64_t k = begin_of(pairs->target_ends, sentence); k < stop; k++) {
                const int32_t token = pairs->targets[k];
                const float share = probs[token] * learning->inverse_sums[k];
                if (share > 0.0f && counts[token] == 0.0)
                    seen[num_seen++] = token;
                counts[token] += (double)share;
            }
        }
        clear_row(learning->rows + row, vocab, probs);
        if (!replace_row(learning->rows + row, seen, num_seen, counts, vocab))
            learning->is_out_of_memory = 1; /* the others go on */
    }
}

/* List the sentences of each source id, by counting sort. */
static void list_sentences(Learning *learning)
{
    const td_sentence_pairs *pairs = learning->pairs;
    int64_t *first = learning->first;
    const int64_t words = begin_of(pairs->source_ends, pairs->pairs);
    const int64_t null_word = pairs->source_vocab;
    memset(first, 0, (size_t)(null_word + 2) * sizeof *first);
    for (int64_t i = 0; i < words; i++)
        first[pairs->sources[i] + 1]++;
    for (int64_t id = 0; id < null_word; id++)
        first[id + 1] += first[id];
    first[null_word + 1] = first[null_word] + pairs->pairs;
    /* While sentences are listed, first[id] is the place of the next sentence in row
     * `id`. In the end it is the end of the row, where the next row begins. */
    for (int64_t n = 0, i = 0; n < pairs->pairs; n++) {
        for (; i < pairs->source_ends[n]; i++)
            learning->sentences[first[pairs->sources[i]]++] = (int32_t)n;
        learning->sentences[first[null_word]++] = (int32_t)n;
    }
    for (int64_t id = null_word; id > 0; id--)
        first[id] = first[id - 1];
    first[0] = 0;
}

/* Whether all ids are below `vocab`, and sentences end one after another. */
static td_status check_side(const int32_t *ids, const int64_t *ends, int64_t sentences,
                            int64_t vocab)
{
    int64_t before = 0;
    for (int64_t i = 0; i < sentences; before = ends[i++])
        if (ends[i] < before)
            return TD_BAD_ARGUMENT;
    if (is_missing(ids, before))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < before; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return TD_BAD_TOKEN;
    return TD_OK;
}

static td_status begin_learning(Learning *learning, int num_threads)
{
    const td_sentence_pairs *pairs = learning->pairs;
    const double targets = (double)begin_of(pairs->target_ends, pairs->pairs);
    const double sources = (double)begin_of(pairs->source_ends, pairs->pairs);
    const double elements = (double)pairs->target_vocab * num_threads;
    learning->num_rows = pairs->source_vocab + 1;
    learning->first =
        allocate_lines((double)(learning->num_rows + 1) * sizeof(int64_t));
    learning->sentences =
        allocate_lines((sources + (double)pairs->pairs) * sizeof(int32_t));
    learning->inverse_sums = allocate_lines(targets * sizeof(float));
    learning->rows = allocate_zeros((double)learning->num_rows * sizeof(Row));
    learning->probs = allocate_zeros(elements * sizeof(float));
    learning->counts = allocate_zeros(elements * sizeof(double));
    learning->seen = allocate_lines(elements * sizeof(int32_t));
    if (!learning->first || !learning->sentences || !learning->inverse_sums ||
        !learning->rows || !learning->probs || !learning->counts || !learning->seen)
        return TD_OUT_OF_MEMORY;
    list_sentences(learning);
    return TD_OK;
}

static void end_learning(Learning *learning)
{
    for (int64_t row = 0; learning->rows && row < learning->num_rows; row++) {
        free(learning->rows[row].tokens);
        free(learning->rows[row].probs);
    }
    free(learning->rows);
    free(learning->first);
    free(learning->sentences);
    free(learning->inverse_sums);
    free(learning->probs);
    free(learning->counts);
    free(learning->seen);
}

typedef struct {
    float prob;
    int32_t token;
} Entry;

static int compare_entries(const void *one, const void *other)
{
    const Entry *a = one, *b = other;
    if (a->prob != b->prob)
        return a->prob < b->prob ? 1 : -1;
    return (a->token > b->token) - (a->token < b->token);
}

/* Write the likeliest targets of each row, likeliest first. */
static td_status write_best(const Learning *learning, int64_t best, int32_t *tokens,
                            float *probs)
{
    Entry *entries = malloc((size_t)learning->pairs->target_vocab * sizeof *entries);
    if (!entries)
        return TD_OUT_OF_MEMORY;
    for (int64_t n = 0; n < learning->num_rows; n++) {
        const Row *row = learning->rows + n;
        for (int64_t i = 0; i < row->count; i++)
            entries[i] = (Entry){row->probs[i], row->tokens[i]};
        qsort(entries, (size_t)row->count, sizeof *entries, compare_entries);
        for (int64_t i = 0; i < best; i++) {
            const int is_there = i < row->count;
            tokens[n * best + i] = is_there ? entries[i].token : -1;
            probs[n * best + i] = is_there ? entries[i].prob : 0.0f;
        }
    }
    free(entries);
    return TD_OK;
}

td_status td_learn_lexicon(const td_sentence_pairs *pairs, int64_t iterations,
                           int64_t best, int num_threads, int32_t *tokens, float *probs)
{
    if (!pairs || !tokens || !probs || !is_thread_count(num_threads) ||
        !is_between(pairs->pairs, 0, INT32_MAX) ||
        !is_between(pairs->source_vocab, 1, MAX_VOCAB) ||
        !is_between(pairs->target_vocab, 1, MAX_VOCAB) ||
        !is_between(iterations, 1, MAX_ITERATIONS) ||
        !is_between(best, 1, pairs->target_vocab) ||
        is_missing(pairs->source_ends, pairs->pairs) ||
        is_missing(pairs->target_ends, pairs->pairs))
        return TD_BAD_ARGUMENT;
    td_status status = check_side(pairs->sources, pairs->source_ends, pairs->pairs,
                                  pairs->source_vocab);
    if (status == TD_OK)
        status = check_side(pairs->targets, pairs->target_ends, pairs->pairs,
                            pairs->target_vocab);
    if (status != TD_OK)
        return status;
    Learning learning = {.pairs = pairs};
    status = begin_learning(&learning, num_threads);
    for (int64_t i = 0; status == TD_OK && i < iterations; i++) {
        /* Few parts, as each goes through all rows. */
        parallel_for(sum_targets, &learning, pairs->pairs,
                     ceil_div(pairs->pairs, 2 * (int64_t)num_threads), num_threads);
        parallel_for(learn_rows, &learning, learning.num_rows, 1, num_threads);
        if (learning.is_out_of_memory)
            status = TD_OUT_OF_MEMORY;
    }
    if (status == TD_OK)
        status = write_best(&learning, best, tokens, probs);
    end_learning(&learning);
    return status;
}
