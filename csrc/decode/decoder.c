/* Functions of decoder handles, with checks of their arguments. */
#include "decode/decoder.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "checks.h"
#include "decode/encoder.h"
#include "decode/step.h"

static td_status decoder_new(const td_model *model, const float *states,
                             const int64_t *lengths, int64_t sentences,
                             int64_t summed_layers, int num_threads,
                             td_decoder **decoder)
{
    if (!decoder)
        return TD_BAD_ARGUMENT;
    *decoder = NULL;
    int64_t tokens, longest;
    if (!model || !model->is_finished || !states || !is_thread_count(num_threads) ||
        !is_between(summed_layers, 0, model->decoder.num_layers) ||
        check_lengths(lengths, sentences, &tokens, &longest))
        return TD_BAD_ARGUMENT;
    td_decoder *made = calloc(1, sizeof *made);
    if (!made)
        return TD_OUT_OF_MEMORY;
    made->model = model;
    made->state = (DecoderState){
        .sentences = sentences,
        .group = 1,
        .capacity = first_capacity(sentences),
        .positions = first_capacity(sentences),
        .max_source = longest,
        .summed_layers = summed_layers,
    };
    td_status status = begin_state(&made->state, &model->decoder);
    if (status == TD_OK) {
        memcpy(made->state.source_lengths, lengths,
               (size_t)sentences * sizeof *lengths);
        status = fill_cross_caches(made, states, num_threads);
    }
    if (status != TD_OK) {
        end_state(&made->state);
        free(made);
        return status;
    }
    *decoder = made;
    return TD_OK;
}

static void decoder_free(td_decoder *decoder)
{
    if (decoder) {
        end_state(&decoder->state);
        free_shortlists(decoder->shortlists);
    }
    free(decoder);
}

static td_status decoder_set_shortlists(td_decoder *decoder, const int64_t *counts,
                                        const int32_t *tokens)
{
    if (!decoder || is_missing(counts, decoder->state.sentences))
        return TD_BAD_ARGUMENT;
    Shortlists *made;
    const td_status status =
        new_shortlists(decoder->model, counts, tokens, decoder->state.sentences, &made);
    if (status != TD_OK)
        return status;
    free_shortlists(decoder->shortlists);
    decoder->shortlists = made;
    return TD_OK;
}

/* Write the logits [rows, vocab] of shortlists, and minus infinity elsewhere. `found`
 * has the logits of the longest list for a group. */
static void write_listed_logits(const td_decoder *decoder, Workspace *work,
                                const Matrix *found, float *logits)
{
    const Shortlists *shortlists = decoder->shortlists;
    const int64_t vocab = target_vocab_size(decoder->model);
    const int64_t group = decoder->state.group;
    const Matrix *x = sublayer_input(work, &decoder->model->decoder.final_norm);
    for (int64_t row = 0; row < work->rows; row++, logits += vocab) {
        const TokenList *list = shortlists->lists[row / group];
        const float *from = row_of(found, row % group);
        if (row % group == 0)
            multiply_listed(work, decoder->model, list, x, row, group, found);
        if (!list->count)
            memcpy(logits, from, (size_t)vocab * sizeof *logits);
        for (int64_t token = 0; list->count && token < vocab; token++)
            logits[token] = -INFINITY;
        for (int64_t i = 0; i < list->count; i++)
            logits[list->tokens[i]] = from[i];
    }
}

/* Allocate the logits for write_listed_logits(), if there are shortlists. */
static td_status allocate_listed_logits(const td_decoder *decoder, Matrix *found)
{
    *found = (Matrix){NULL, 0};
    if (!decoder->shortlists)
        return TD_OK;
    found->stride = max_listed(decoder->shortlists, decoder->model);
    const double floats = (double)decoder->state.group * (double)found->stride;
    found->data = allocate_lines(floats * (double)sizeof(float));
    return found->data ? TD_OK : TD_OUT_OF_MEMORY;
}

static td_status decoder_step(td_decoder *decoder, const int64_t *ids, float *logits,
                              int num_threads)
{
    if (!decoder || !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    if (decoder->state.sentences == 0)
        return TD_OK;
    if (!ids || !logits)
        return TD_BAD_ARGUMENT;
    Workspace work;
    Matrix found;
    /* Before the tokens are read, as a step that fails must not have read them. */
    td_status status = allocate_listed_logits(decoder, &found);
    if (status != TD_OK)
        return status;
    status = read_tokens(&work, decoder, ids, num_threads);
    if (status == TD_OK) {
        const int64_t vocab = target_vocab_size(decoder->model);
        if (decoder->shortlists)
            write_listed_logits(decoder, &work, &found, logits);
        else
            multiply_for_logits(&work, decoder->model, 0, vocab,
                                &(Matrix){logits, vocab});
        end_workspace(&work);
    }
    free(found.data);
    return status;
}

TD_INTERNAL td_status decoder_reorder(td_decoder *decoder, const int64_t *rows,
                                      int64_t sentences, int64_t group)
{
    if (!decoder || !is_between(sentences, 0, decoder->state.sentences) ||
        !is_between(group, 1, MAX_ROWS) || is_missing(rows, sentences) ||
        sentences > MAX_ROWS / group)
        return TD_BAD_ARGUMENT;
    const int64_t old_group = decoder->state.group;
    const td_status status = reorder_state(&decoder->state, rows, sentences, group);
    if (status == TD_OK && decoder->shortlists)
        keep_shortlists(decoder->shortlists, rows, sentences, group, old_group);
    return status;
}

static td_status decoder_join(td_decoder *decoder, const td_decoder *other)
{
    if (!decoder || !other || decoder == other || decoder->model != other->model ||
        decoder->state.group != other->state.group ||
        decoder->state.summed_layers != other->state.summed_layers)
        return TD_BAD_ARGUMENT;
    const int64_t sentences = decoder->state.sentences + other->state.sentences;
    if (sentences > MAX_ROWS / decoder->state.group)
        return TD_BAD_ARGUMENT;
    Shortlists *joined = NULL;
    td_status status = TD_OK;
    if (decoder->shortlists || other->shortlists)
        status = join_shortlists(decoder->shortlists, decoder->state.sentences,
                                 other->shortlists, other->state.sentences, &joined);
    if (status == TD_OK)
        status =
            enlarge_state(&decoder->state, &other->state, &decoder->model->decoder);
    if (status != TD_OK) {
        free_shortlists(joined);
        return status;
    }
    free_shortlists(decoder->shortlists);
    decoder->shortlists = joined;
    return TD_OK;
}

/* log(min(attention, 1)). Weights may underflow, and log(0) is -inf: clamp to the
 * smallest normal number. */
static double log_of_attention(float attention)
{
    if (attention < FLT_MIN)
        return log(FLT_MIN);
    return attention > 1.0f ? 0.0 : log(attention);
}

TD_INTERNAL void sum_coverage(const td_decoder *decoder, double *coverage)
{
    const DecoderState *state = &decoder->state;
    for (int64_t row = 0; row < state->sentences * state->group; row++) {
        const float *attention = attention_of(state, row);
        const int64_t length = source_length(state, row / state->group);
        double sum = 0.0;
        for (int64_t i = 0; i < length; i++)
            sum += log_of_attention(attention[i]);
        coverage[row] = sum;
    }
}

static td_status decoder_coverage(const td_decoder *decoder, double *coverage)
{
    if (!decoder || !coverage || decoder->state.summed_layers != 1)
        return TD_BAD_ARGUMENT;
    sum_coverage(decoder, coverage);
    return TD_OK;
}

static td_status decoder_take_attention(td_decoder *decoder, float *attention,
                                        int64_t positions)
{
    if (!decoder || !decoder->state.summed_layers)
        return TD_BAD_ARGUMENT;
    const DecoderState *state = &decoder->state;
    if (!is_between(positions, 0, INT32_MAX) || is_missing(attention, state->sentences))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < state->sentences; i++)
        if (source_length(state, i) > positions)
            return TD_BAD_ARGUMENT;
    const int64_t layers = state->summed_layers;
    const int64_t rows = state->sentences * state->group * layers;
    if (!rows)
        return TD_OK; /* `attention` may be NULL */
    memset(attention, 0, (size_t)(rows * positions) * sizeof *attention);
    for (int64_t row = 0; row < rows; row++) {
        float *summed = state->attention + row * state->max_source;
        const int64_t sentence = row / (state->group * layers);
        const size_t bytes = (size_t)source_length(state, sentence) * sizeof *summed;
        memcpy(attention + row * positions, summed, bytes);
        memset(summed, 0, bytes);
    }
    return TD_OK;
}

static int64_t decoder_sentences(const td_decoder *decoder)
{
    return decoder ? decoder->state.sentences : 0;
}

static int64_t decoder_group(const td_decoder *decoder)
{
    return decoder ? decoder->state.group : 0;
}

static int64_t decoder_capacity(const td_decoder *decoder)
{
    return decoder ? decoder->state.capacity : 0;
}
