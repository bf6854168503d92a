/* Shortlists of a decoder. */
#include "decode/shortlist.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "gemm/gather.h"
#include "gemm/pack.h"

/* Share of the vocabulary, in quarters, above which all logits are computed. */
#define MAX_QUARTERS 3

static void free_list(TokenList *list)
{
    if (list)
        free(list->tokens);
    free(list);
}

static TokenList *new_list(const int32_t *tokens, int64_t count)
{
    TokenList *list = calloc(1, sizeof *list);
    if (!list)
        return NULL;
    list->count = count;
    list->tokens = allocate_lines(2.0 * (double)count * sizeof *tokens);
    if (!list->tokens) {
        free(list);
        return NULL;
    }
    list->places = list->tokens + count;
    if (count)
        memcpy(list->tokens, tokens, (size_t)count * sizeof *tokens);
    return list;
}

static Shortlists *new_lists(int64_t sentences)
{
    Shortlists *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->lists = calloc((size_t)(2 * sentences + 1), sizeof *made->lists);
    if (!made->lists) {
        free(made);
        return NULL;
    }
    made->sentences = sentences;
    made->spare = made->lists + sentences;
    return made;
}

TD_INTERNAL void free_shortlists(Shortlists *shortlists)
{
    if (!shortlists)
        return;
    for (int64_t i = 0; i < shortlists->sentences; i++)
        free_list(shortlists->lists[i]);
    free(shortlists->lists);
    free_linear(&shortlists->output);
    free(shortlists);
}

/* Whether tokens rise and are in the vocabulary. */
static td_status check_list(const int32_t *tokens, int64_t count, int64_t vocab)
{
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return TD_BAD_TOKEN;
        if (i && tokens[i] <= tokens[i - 1])
            return TD_BAD_ARGUMENT;
    }
    return TD_OK;
}

TD_INTERNAL td_status new_shortlists(const int64_t *counts, const int32_t *tokens,
                                     int64_t sentences, int64_t vocab,
                                     Shortlists **shortlists)
{
    Shortlists *made = new_lists(sentences);
    td_status status = made ? TD_OK : TD_OUT_OF_MEMORY;
    for (int64_t i = 0; status == TD_OK && i < sentences; i++) {
        if (counts[i] < 0 || counts[i] > vocab || (counts[i] && !tokens)) {
            status = TD_BAD_ARGUMENT;
            break;
        }
        status = check_list(tokens, counts[i], vocab);
        if (status == TD_OK && !(made->lists[i] = new_list(tokens, counts[i])))
            status = TD_OUT_OF_MEMORY;
        if (counts[i])
            tokens += counts[i];
    }
    if (status != TD_OK) {
        free_shortlists(made);
        made = NULL;
    }
    *shortlists = made;
    return status;
}

/* Copy the lists of some sentences; return 0 if there is no memory. */
static int copy_lists(const Shortlists *from, int64_t sentences, TokenList **to)
{
    for (int64_t i = 0; i < sentences; i++) {
        const TokenList *list = from ? from->lists[i] : NULL;
        to[i] = new_list(list ? list->tokens : NULL, list ? list->count : 0);
        if (!to[i])
            return 0;
    }
    return 1;
}

TD_INTERNAL td_status join_shortlists(const Shortlists *one, int64_t num_one,
                                      const Shortlists *other, int64_t num_other,
                                      Shortlists **joined)
{
    Shortlists *made = new_lists(num_one + num_other);
    if (made && copy_lists(one, num_one, made->lists) &&
        copy_lists(other, num_other, made->lists + num_one)) {
        *joined = made;
        return TD_OK;
    }
    free_shortlists(made);
    *joined = NULL;
    return TD_OUT_OF_MEMORY;
}

TD_INTERNAL void keep_shortlists(Shortlists *shortlists, const int64_t *rows,
                                 int64_t sentences, int64_t group, int64_t old_group)
{
    TokenList **lists = shortlists->lists;
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t kept = rows[i * group] / old_group;
        shortlists->spare[i] = lists[kept];
        lists[kept] = NULL;
    }
    for (int64_t i = 0; i < shortlists->sentences; i++)
        free_list(lists[i]);
    memcpy(lists, shortlists->spare, (size_t)sentences * sizeof *lists);
    shortlists->sentences = sentences;
}

/* Number the tokens that any list has in rising order, and write the places of each
 * list's tokens. `places` [vocab] is overwritten, `tokens` [vocab] gets the tokens.
 * Returns their number. */
static int64_t number_tokens(Shortlists *shortlists, int64_t vocab, int32_t *places,
                             int32_t *tokens)
{
    int64_t count = 0;
    memset(places, 0, (size_t)vocab * sizeof *places);
    shortlists->has_all = 0;
    for (int64_t i = 0; i < shortlists->sentences; i++) {
        const TokenList *list = shortlists->lists[i];
        shortlists->has_all |= !list->count;
        for (int64_t k = 0; k < list->count; k++)
            places[list->tokens[k]] = 1;
    }
    for (int64_t token = 0; token < vocab; token++)
        if (places[token]) {
            places[token] = (int32_t)count;
            tokens[count++] = (int32_t)token;
        }
    shortlists->has_all |= count > vocab / 4 * MAX_QUARTERS;
    for (int64_t i = 0; i < shortlists->sentences; i++) {
        TokenList *list = shortlists->lists[i];
        for (int64_t k = 0; k < list->count; k++)
            list->places[k] =
                shortlists->has_all ? list->tokens[k] : places[list->tokens[k]];
    }
    return count;
}

TD_INTERNAL td_status prepare_shortlists(Shortlists *shortlists, const Linear *output,
                                         int num_threads)
{
    if (shortlists->gathered && 2 * shortlists->sentences > shortlists->gathered)
        return TD_OK;
    const int64_t vocab = output->outputs;
    int32_t *places = allocate_lines(2.0 * (double)vocab * sizeof *places);
    if (!places)
        return TD_OUT_OF_MEMORY;
    int32_t *tokens = places + vocab;
    const int64_t count = number_tokens(shortlists, vocab, places, tokens);
    td_status status = TD_OK;
    free_linear(&shortlists->output);
    if (!shortlists->has_all)
        status =
            gather_outputs(output, tokens, count, num_threads, &shortlists->output);
    shortlists->gathered = status == TD_OK ? shortlists->sentences : 0;
    free(places);
    return status;
}
