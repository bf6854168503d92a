/* Shortlists of a decoder. */
#include "decode/shortlist.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "checks.h"
#include "gemm/gather.h"
#include "gemm/pack.h"

static void free_list(TokenList *list)
{
    if (!list || atomic_fetch_sub(&list->users, 1) > 1)
        return;
    free(list->tokens);
    free_linear(&list->output);
    free(list);
}

/* Make a list without its map. */
static TokenList *new_list(const int32_t *tokens, int64_t count)
{
    TokenList *list = calloc(1, sizeof *list);
    if (!list)
        return NULL;
    atomic_init(&list->users, 1);
    list->count = count;
    list->tokens = allocate_lines((double)count * sizeof *tokens);
    if (!list->tokens) {
        free(list);
        return NULL;
    }
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
    free(shortlists);
}

/* Whether tokens are in ascending order and in the vocabulary. */
static td_status check_list(const int32_t *tokens, int64_t count, int64_t vocab)
{
    if (!is_between(count, 0, vocab) || is_missing(tokens, count))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return TD_BAD_TOKEN;
        if (i && tokens[i] <= tokens[i - 1])
            return TD_BAD_ARGUMENT;
    }
    return TD_OK;
}

/* Make a list and its map. */
static td_status make_list(const td_model *model, const int32_t *tokens, int64_t count,
                           TokenList **list)
{
    td_status status = check_list(tokens, count, target_vocab_size(model));
    if (status != TD_OK)
        return status;
    *list = new_list(tokens, count);
    if (!*list)
        return TD_OUT_OF_MEMORY;
    return count ? gather_outputs(&model->output, tokens, count, &(*list)->output)
                 : TD_OK;
}

TD_INTERNAL td_status new_shortlists(const td_model *model, const int64_t *counts,
                                     const int32_t *tokens, int64_t sentences,
                                     Shortlists **shortlists)
{
    Shortlists *made = new_lists(sentences);
    td_status status = made ? TD_OK : TD_OUT_OF_MEMORY;
    for (int64_t i = 0; status == TD_OK && i < sentences; i++) {
        status = make_list(model, tokens, counts[i], made->lists + i);
        if (status == TD_OK && counts[i])
            tokens += counts[i];
    }
    if (status != TD_OK) {
        free_shortlists(made);
        made = NULL;
    }
    *shortlists = made;
    return status;
}

/* Share the lists of some sentences, or make empty ones; return 0 if there is no
 * memory. */
static int share_lists(const Shortlists *from, int64_t sentences, TokenList **to)
{
    for (int64_t i = 0; i < sentences; i++) {
        to[i] = from ? from->lists[i] : new_list(NULL, 0);
        if (!to[i])
            return 0;
        if (from)
            atomic_fetch_add(&to[i]->users, 1);
    }
    return 1;
}

TD_INTERNAL td_status join_shortlists(const Shortlists *one, int64_t num_one,
                                      const Shortlists *other, int64_t num_other,
                                      Shortlists **joined)
{
    Shortlists *made = new_lists(num_one + num_other);
    if (made && share_lists(one, num_one, made->lists) &&
        share_lists(other, num_other, made->lists + num_one)) {
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

static const Linear *output_of(const td_model *model, const TokenList *list)
{
    return list->count ? &list->output : &model->output;
}

TD_INTERNAL int64_t max_listed(const Shortlists *shortlists, const td_model *model)
{
    int64_t max = 1;
    for (int64_t i = 0; i < shortlists->sentences; i++)
        max = max_i64(max, output_of(model, shortlists->lists[i])->outputs);
    return max;
}

TD_INTERNAL void multiply_listed(const Workspace *work, const td_model *model,
                                 const TokenList *list, const Matrix *x,
                                 int64_t first_row, int64_t group, const Matrix *logits)
{
    const Linear *output = output_of(model, list);
    const Matrix own = {row_of(x, first_row), x->stride};
    PackedActivations rows = work->packed;
    rows.data += first_row * packed_activation_bytes(output->inputs);
    rows.scales += first_row;
    rows.min += first_row;
    pack_activations(output, &own, group, &rows, 1);
    multiply(output, &rows, logits, 0, 1);
}
