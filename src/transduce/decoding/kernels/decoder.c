/* A step of the decoder, all layers in one call (Figure 1, right). */
#include <string.h>

#include "exported.h"
#include "transformer.h"

typedef struct {
    Stack stack;
    const float *embedding; /* a row for each token */
    float embedding_scale;
    Linear output;
} Decoder;

typedef struct {
    Store key, value, memory_key, memory_value;
} LayerCache;

typedef struct {
    int64_t sentences, group, num_slots, source;
    const int64_t *last_ids;
    const float *positions;     /* a row for each sentence */
    const uint8_t *seen;        /* slots of each hypothesis */
    const uint8_t *memory_mask; /* positions of each sentence */
    const LayerCache *layers;
} State;

static void embed(const Work *work, const Decoder *decoder, const State *state)
{
    const int64_t width = work->stack->d_model;
    for (int64_t row = 0; row < work->rows; row++) {
        const float *token = decoder->embedding + state->last_ids[row] * width;
        const float *position = state->positions + row / state->group * width;
        float *x = work->x + row * width;
        for (int64_t i = 0; i < width; i++)
            x[i] = token[i] * decoder->embedding_scale + position[i];
    }
}

/* Put the newest keys or values, which stand in columns from `first` on, into the last
   slots of their sentences. */
static void store(const Work *work, const State *state, const Store *into,
                  int64_t first, int64_t width, int64_t stride)
{
    for (int64_t row = 0; row < work->rows; row++) {
        int64_t slot = state->num_slots - state->group + row % state->group;
        float *to = into->numbers + row / state->group * into->per_sentence +
                    slot * into->per_slot;
        const float *from = work->wide + row * stride + first;
        for (int64_t head = 0; head < work->stack->num_heads; head++)
            memcpy(to + head * into->per_head, from + head * width,
                   (size_t)width * sizeof(float));
    }
}

/* The numbers of those that are seen. */
static int64_t list_seen(const uint8_t *is_seen, int64_t count, int32_t *numbers)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        numbers[found] = (int32_t)i;
        found += is_seen[i];
    }
    return found;
}

static void attend_to_past(Work *work, const Layer *layer, const State *state,
                           const LayerCache *cache)
{
    const Stack *stack = work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t stride = layer->query_key_value.outputs;
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->after_own),
                 work->wide, 0);
    store(work, state, &cache->key, queries, stack->d_k, stride);
    store(work, state, &cache->value, 2 * queries, stack->d_v, stride);
    for (int64_t row = 0; row < work->rows; row++) {
        const uint8_t *seen = state->seen + row * state->num_slots;
        int64_t count = list_seen(seen, state->num_slots, work->slots);
        attend(work, row, stride, row / state->group, &cache->key, &cache->value,
               count);
    }
    apply_linear(work, &layer->own_output, work->heads, work->read, 0);
    add_and_norm(work, &layer->after_own);
}

static void attend_to_memory(Work *work, const Layer *layer, const State *state,
                             const LayerCache *cache)
{
    const int64_t stride = layer->memory_query.outputs;
    apply_linear(work, &layer->memory_query, sublayer_input(work, &layer->after_memory),
                 work->wide, 0);
    for (int64_t row = 0; row < work->rows; row++) {
        const int64_t sentence = row / state->group;
        const uint8_t *mask = state->memory_mask + sentence * state->source;
        int64_t count = list_seen(mask, state->source, work->slots);
        attend(work, row, stride, sentence, &cache->memory_key, &cache->memory_value,
               count);
    }
    apply_linear(work, &layer->memory_output, work->heads, work->read, 0);
    add_and_norm(work, &layer->after_memory);
}

/* Sizes of what is read here, so that others can see whether they mean the same. */
EXPORTED void transduce_sizes(int64_t sizes[4])
{
    sizes[0] = sizeof(Linear);
    sizes[1] = sizeof(Layer);
    sizes[2] = sizeof(Decoder);
    sizes[3] = sizeof(State);
}

static int are_tokens(const int64_t *ids, int64_t count, int64_t vocab)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return 0;
    return 1;
}

/* The logits after one more token of each hypothesis. 1 if memory is lacking, 2 if one
   is no token, otherwise 0. */
EXPORTED int transduce_step(const Decoder *decoder, const State *state, float *logits,
                            int num_threads)
{
    const Stack *stack = &decoder->stack;
    const int64_t rows = state->sentences * state->group;
    const int64_t slots =
        state->num_slots > state->source ? state->num_slots : state->source;
    Work work;
    if (!are_tokens(state->last_ids, rows, decoder->output.outputs))
        return 2;
    if (begin_work(&work, stack, rows, slots, num_threads))
        return 1;
    embed(&work, decoder, state);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        attend_to_past(&work, stack->layers + i, state, state->layers + i);
        attend_to_memory(&work, stack->layers + i, state, state->layers + i);
        feed_forward(&work, stack->layers + i);
    }
    apply_linear(&work, &decoder->output, sublayer_input(&work, &stack->final), logits,
                 0);
    end_work(&work);
    return 0;
}
