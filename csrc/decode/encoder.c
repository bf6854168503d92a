/* The encoder: all layers in one call. */
#include <string.h>

#include "checks.h"
#include "decode/attention.h"
#include "decode/encoder.h"
#include "parallel.h"

/* Largest number of rows per thread that pass through all layers together, unless one
 * sentence is longer. The activations of many more would not stay in the second-level
 * cache from one product to the next. */
#define ROWS_AT_ONCE 256

TD_INTERNAL td_status check_lengths(const int64_t *lengths, int64_t sentences,
                                    int64_t *tokens, int64_t *longest)
{
    *tokens = *longest = 0;
    if (!lengths || !is_between(sentences, 1, MAX_ROWS))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < sentences; i++) {
        if (!is_between(lengths[i], 1, MAX_ROWS))
            return TD_BAD_ARGUMENT;
        *tokens += lengths[i];
        *longest = max_i64(*longest, lengths[i]);
        if (*tokens > MAX_ROWS)
            return TD_BAD_ARGUMENT;
    }
    return TD_OK;
}

/* List the positions, as slots, to which `position` attends; returns their number. */
static int64_t list_neighbours(int64_t neighbourhood, int64_t position, int64_t length,
                               int32_t *slots)
{
    const int64_t first = max_i64(position - neighbourhood, 0);
    /* The neighbourhood may be unlimited, so it is not added to the position. */
    const int64_t end =
        length - position > neighbourhood ? position + neighbourhood + 1 : length;
    for (int64_t i = first; i < end; i++)
        slots[i - first] = (int32_t)i;
    return end - first;
}

typedef struct {
    Workspace *work;
    const Layer *layer;
    const int64_t *lengths;
} SelfAttention;

/* Let all positions of sentences `first` to `end` - 1 attend to their sentence. */
static void self_attend_sentences(void *shared, int64_t first, int64_t end, int worker)
{
    const SelfAttention *attention = shared;
    const Stack *stack = attention->work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    Workspace work = worker_view(attention->work, worker);
    int64_t begin = 0;
    for (int64_t i = 0; i < first; i++)
        begin += attention->lengths[i];
    for (int64_t sentence = first; sentence < end; sentence++) {
        const int64_t length = attention->lengths[sentence];
        /* A row of `wide` has the queries, keys and values of all heads. */
        float *key = row_of(&work.wide, begin) + queries;
        const KvCache keys = {key, 0, stack->d_k, work.wide.stride};
        const KvCache values = {key + queries, 0, stack->d_v, work.wide.stride};
        for (int64_t position = 0; position < length; position++) {
            const int64_t count =
                list_neighbours(stack->neighbourhood, position, length, work.slots);
            attend(&work, begin + position, 0, &keys, &values,
                   attention->layer->self_additive, count);
        }
        begin += length;
    }
}

/* Self-attention sub-layer (section 3.2.3). */
static void encoder_self_attention(Workspace *work, const Layer *layer,
                                   const int64_t *lengths, int64_t sentences)
{
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->self_norm),
                 &work->wide, 0);
    SelfAttention attention = {work, layer, lengths};
    parallel_for(self_attend_sentences, &attention, sentences, 1, work->num_threads);
    apply_linear(work, &layer->self_output, &work->heads, &work->sublayer, 0);
    add_and_norm(work, &layer->self_norm);
}

/* Sentences that pass through all layers together, and the sum of their lengths. */
typedef struct {
    int64_t sentences, rows;
} Chunk;

/* The chunk that begins with the first of these sentences: at least one sentence, and
 * as many more as fit into `max_rows`. */
static Chunk next_chunk(const int64_t *lengths, int64_t sentences, int64_t max_rows)
{
    Chunk chunk = {1, lengths[0]};
    while (chunk.sentences < sentences &&
           chunk.rows + lengths[chunk.sentences] <= max_rows)
        chunk.rows += lengths[chunk.sentences++];
    return chunk;
}

/* Compute the states of the sentences of a chunk. */
static void encode_chunk(Workspace *work, const td_model *model, const int64_t *ids,
                         const int64_t *lengths, const float *positions, Chunk chunk,
                         float *states)
{
    const Stack *stack = work->stack;
    const size_t row_bytes = (size_t)stack->d_model * sizeof *states;
    work->rows = chunk.rows;
    for (int64_t i = 0, row = 0; i < chunk.sentences; i++)
        for (int64_t position = 0; position < lengths[i]; position++, row++)
            embed_row(work, &model->source_embedding, ids[row],
                      positions + position * stack->d_model, row);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        encoder_self_attention(work, stack->layers + i, lengths, chunk.sentences);
        feed_forward(work, stack->layers + i);
    }
    const Matrix *output = sublayer_input(work, &stack->final_norm);
    for (int64_t row = 0; row < chunk.rows; row++)
        memcpy(states + row * stack->d_model, row_of(output, row), row_bytes);
}

TD_INTERNAL td_status encode(const td_model *model, const int64_t *ids,
                             const int64_t *lengths, int64_t sentences, float *states,
                             int num_threads)
{
    int64_t tokens, longest;
    if (!model || !model->is_finished || !ids || !states ||
        !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    td_status status = check_lengths(lengths, sentences, &tokens, &longest);
    if (status != TD_OK)
        return status;
    if (!are_tokens(&model->source_embedding, ids, tokens))
        return TD_BAD_TOKEN;
    const Stack *stack = &model->encoder;
    const float *positions = position_rows(model->positions, longest);
    const int64_t max_rows = max_i64(ROWS_AT_ONCE * num_threads, longest);
    Workspace work;
    if (!positions ||
        begin_workspace(&work, stack, min_i64(tokens, max_rows), longest, num_threads))
        return TD_OUT_OF_MEMORY;
    for (int64_t i = 0, row = 0; i < sentences;) {
        const Chunk chunk = next_chunk(lengths + i, sentences - i, max_rows);
        encode_chunk(&work, model, ids + row, lengths + i, positions, chunk,
                     states + row * stack->d_model);
        i += chunk.sentences;
        row += chunk.rows;
    }
    end_workspace(&work);
    return TD_OK;
}
