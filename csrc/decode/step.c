/* The decoder's steps, each all layers in one call (Figure 1, right). */
#include "isa/name.h"
#include <float.h>
#include <math.h>
#include <string.h>

#include "decode/attention.h"
#include "decode/step.h"
#include "parallel.h"
#include "simd/prefetch.h"

TD_INTERNAL void store_row(const Stack *stack, const float *from, int64_t width,
                           const Store *into, int64_t place, int64_t slot)
{
    float *to = into->numbers + place * into->per_sentence + slot * into->per_row;
    const int are_together = into->per_head == width;
    const int64_t heads = are_together ? 1 : stack->num_heads;
    const int64_t count = are_together ? stack->num_heads * width : width;
    for (int64_t head = 0; head < heads; head++, from += count, to += into->per_head)
        memcpy(to, from, (size_t)count * sizeof(float));
}

/* Put the newest keys and values into the slots taken for them. */
static void store_newest(const Work *work, const State *state, const LayerCache *cache)
{
    const Stack *stack = work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    for (int64_t row = 0; row < work->rows; row++) {
        const int64_t sentence = row / state->group, place = state->places[sentence];
        const int64_t slot = past_of(state, row)[state->lengths[sentence]];
        const float *key = row_of(&work->wide, row) + queries;
        store_row(stack, key, stack->d_k, &cache->key, place, slot);
        store_row(stack, key + queries, stack->d_v, &cache->value, place, slot);
    }
}

typedef struct {
    Work *work;
    const State *state;
    const LayerCache *cache;
    int64_t neighbourhood;
    int is_summed; /* whether attention is added to that of earlier steps */
} StepAttention;

/* All heads of a slot, which stand side by side. */
static void ask_for_slot(const Store *store, int64_t place, int64_t slot)
{
    prefetch(store->numbers + place * store->per_sentence + slot * store->per_row,
             store->per_row * (int64_t)sizeof(float));
}

/* Ask for what the rows of the next sentence see, which comes from far away. Each row
   of a group asks for other positions, as the row in its place there sees them; where
   the rows see different slots, one of these is enough. */
static void ask_for_next(const StepAttention *asked, int64_t row)
{
    const State *state = asked->state;
    const int64_t group = state->group, sentence = row / group + 1;
    if (sentence == state->sentences)
        return;
    const int64_t first = first_seen(state, asked->neighbourhood, sentence);
    const int32_t *past = past_of(state, row + group);
    for (int64_t i = first + row % group; i < state->lengths[sentence]; i += group) {
        ask_for_slot(&asked->cache->key, state->places[sentence], past[i]);
        ask_for_slot(&asked->cache->value, state->places[sentence], past[i]);
    }
}

static void past_of_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const StepAttention *asked = shared;
    const State *state = asked->state;
    Work work = of_worker(asked->work, worker);
    for (int64_t row = first; row < end; row++) {
        int64_t count = list_past(state, asked->neighbourhood, row, work.slots);
        ask_for_next(asked, row);
        attend(&work, row, state->places[row / state->group], &asked->cache->key,
               &asked->cache->value, count);
    }
}

/* In how many parts the rows of a sentence attend to its memory. */
static int64_t parts_of_group(const State *state)
{
    return (state->group + TOGETHER - 1) / TOGETHER;
}

static void memory_of_parts(void *shared, int64_t first, int64_t end, int worker)
{
    const StepAttention *asked = shared;
    const State *state = asked->state;
    const int64_t parts = parts_of_group(state);
    Work work = of_worker(asked->work, worker);
    for (int64_t i = first; i < end; i++) {
        const int64_t sentence = i / parts, begin = i % parts * TOGETHER;
        const int64_t place = state->places[sentence], left = state->group - begin;
        const int64_t after = (i + 1) / parts, row = sentence * state->group + begin;
        const Memory memory = {
            .key = &asked->cache->memory_key,
            .value = &asked->cache->memory_value,
            .sentence = place,
            .length = memory_length(state, place),
            .next = after < state->sentences ? state->places[after] : place,
            .attention = asked->is_summed ? attention_of(state, row) : NULL,
            .between_attentions = state->source,
        };
        attend_together(&work, row, left < TOGETHER ? left : TOGETHER, &memory);
    }
}

static void attend_to_past(Work *work, const Decoder *decoder, const Layer *layer,
                           const State *state, const LayerCache *cache)
{
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->after_own),
                 &work->wide, 0);
    store_newest(work, state, cache);
    StepAttention asked = {work, state, cache, decoder->neighbourhood, 0};
    parallel_for(past_of_rows, &asked, work->rows, LEAST_ATTENDING, work->num_threads);
    apply_linear(work, &layer->own_output, &work->heads, &work->read, 0);
    add_and_norm(work, &layer->after_own);
}

static void attend_to_memory(Work *work, const Layer *layer, const State *state,
                             const LayerCache *cache, int is_summed)
{
    apply_linear(work, &layer->memory_query, sublayer_input(work, &layer->after_memory),
                 &work->wide, 0);
    StepAttention asked = {work, state, cache, 0, is_summed};
    parallel_for(memory_of_parts, &asked, state->sentences * parts_of_group(state),
                 LEAST_ATTENDING / TOGETHER, work->num_threads);
    apply_linear(work, &layer->memory_output, &work->heads, &work->read, 0);
    add_and_norm(work, &layer->after_memory);
}

TD_INTERNAL int read_tokens(Work *work, const Decoder *decoder, State *state,
                            const int64_t *last_ids, const float *positions,
                            int num_threads)
{
    const Stack *stack = &decoder->stack;
    const int64_t rows = state->sentences * state->group;
    if (!are_tokens(&decoder->embedding, last_ids, rows))
        return 2;
    const int failure = take_slots(state, decoder->neighbourhood);
    if (failure)
        return failure;
    if (begin_work(work, stack, rows, largest(longest_past(state), state->source),
                   num_threads))
        return 1;
    for (int64_t row = 0; row < rows; row++)
        embed_row(work, &decoder->embedding, last_ids[row],
                  positions + state->lengths[row / state->group] * stack->d_model, row);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        const Layer *layer = stack->layers + i;
        attend_to_past(work, decoder, layer, state, state->layers + i);
        attend_to_memory(work, layer, state, state->layers + i,
                         state->attention && i == stack->num_layers - 1);
        feed_forward(work, layer);
    }
    for (int64_t i = 0; i < state->sentences; i++)
        state->lengths[i]++;
    arrange_rows(&decoder->output, sublayer_input(work, &stack->final), rows,
                 &work->arranged, num_threads);
    return 0;
}

TD_INTERNAL void multiply_for_logits(const Work *work, const Decoder *decoder,
                                     int64_t first, int64_t count, const Matrix *logits)
{
    const Linear some = some_outputs(&decoder->output, first, count);
    multiply(&some, &work->arranged, logits, 0, work->num_threads);
}

static int transduce_step(const Decoder *decoder, State *state, const int64_t *last_ids,
                          const float *positions, float *logits, int num_threads)
{
    Work work;
    const int failure =
        read_tokens(&work, decoder, state, last_ids, positions, num_threads);
    if (failure)
        return failure;
    const int64_t vocab = decoder->output.outputs;
    multiply_for_logits(&work, decoder, 0, vocab, &(Matrix){logits, vocab});
    end_work(&work);
    return 0;
}

/* Weights may underflow, and log(0) is -inf: clamp to the smallest normal number. */
static double log_of_attention(float attention)
{
    if (attention < FLT_MIN)
        return log(FLT_MIN);
    return attention > 1.0f ? 0.0 : log(attention);
}

static void transduce_coverage(const State *state, double *coverages)
{
    for (int64_t row = 0; row < state->sentences * state->group; row++) {
        const float *attention = attention_of(state, row);
        const int64_t place = state->places[row / state->group];
        const int64_t length = memory_length(state, place);
        double sum = 0.0;
        for (int64_t i = 0; i < length; i++)
            sum += log_of_attention(attention[i]);
        coverages[row] = sum;
    }
}
