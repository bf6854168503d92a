/* The encoder, all layers in one call (Figure 1, left). Padding is left out. */
#include <string.h>

#include "decode/attention.h"
#include "parallel.h"

typedef struct {
    Stack stack;
    Embedding embedding;
    int64_t neighbourhood; /* how far a position sees */
} Encoder;

typedef struct {
    int64_t sentences, source;
    const int64_t *ids;
    const uint8_t *mask; /* positions of each sentence that are no padding */
} Sources;

/* Which positions near a row's own it sees, of a sentence of so many. */
static int64_t list_near(int64_t neighbourhood, int64_t own, int64_t length,
                         int32_t *slots)
{
    int64_t found = 0;
    for (int64_t i = 0; i < length; i++) {
        slots[found] = (int32_t)i;
        int64_t distance = i > own ? i - own : own - i;
        found += distance <= neighbourhood;
    }
    return found;
}

/* Positions that are no padding, of the sentences from the first to before the end. */
static int64_t num_rows(const Sources *sources, int64_t first, int64_t end)
{
    int64_t rows = 0;
    for (int64_t i = first * sources->source; i < end * sources->source; i++)
        rows += sources->mask[i];
    return rows;
}

typedef struct {
    Work *work;
    const Sources *sources;
    int64_t neighbourhood;
} SentenceAttention;

static void attend_in_sentences(void *shared, int64_t first, int64_t end, int worker)
{
    const SentenceAttention *asked = shared;
    const Stack *stack = asked->work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    Work work = of_worker(asked->work, worker);
    const int64_t stride = work.wide.stride;
    int64_t begin = num_rows(asked->sources, 0, first);
    for (int64_t sentence = first; sentence < end; sentence++) {
        const int64_t length = num_rows(asked->sources, sentence, sentence + 1);
        float *keys = row_of(&work.wide, begin) + queries;
        const Store key = {keys, 0, stack->d_k, stride};
        const Store value = {keys + queries, 0, stack->d_v, stride};
        for (int64_t own = 0; own < length; own++) {
            int64_t count = list_near(asked->neighbourhood, own, length, work.slots);
            attend(&work, begin + own, 0, &key, &value, count);
        }
        begin += length;
    }
}

static void attend_to_sentences(Work *work, const Layer *layer, const Sources *sources,
                                int64_t neighbourhood)
{
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->after_own),
                 &work->wide, 0);
    SentenceAttention asked = {work, sources, neighbourhood};
    parallel_for(attend_in_sentences, &asked, sources->sentences, 1, work->num_threads);
    apply_linear(work, &layer->own_output, &work->heads, &work->read, 0);
    add_and_norm(work, &layer->after_own);
}

/* From sources to the memory. There is a row of `positions` for each; padding, which
   stands behind a sentence, becomes zero. 1 if memory is lacking, 2 if one is no token,
   otherwise 0. */
static int transduce_encode(const Encoder *encoder, const Sources *sources,
                            const float *positions, float *memory, int num_threads)
{
    const Stack *stack = &encoder->stack;
    const int64_t width = stack->d_model;
    const int64_t source = sources->source, padded = sources->sentences * source;
    const size_t bytes = (size_t)width * sizeof(float);
    Work work;
    if (!are_tokens(&encoder->embedding, sources->ids, padded))
        return 2;
    if (begin_work(&work, stack, num_rows(sources, 0, sources->sentences), source,
                   num_threads))
        return 1;
    for (int64_t i = 0, row = 0; i < padded; i++)
        if (sources->mask[i])
            embed_row(&work, &encoder->embedding, sources->ids[i],
                      positions + i % source * width, row++);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        attend_to_sentences(&work, stack->layers + i, sources, encoder->neighbourhood);
        feed_forward(&work, stack->layers + i);
    }
    const Matrix *states = sublayer_input(&work, &stack->final);
    for (int64_t i = 0, row = 0; i < padded; i++, memory += width)
        if (sources->mask[i])
            memcpy(memory, row_of(states, row++), bytes);
        else
            memset(memory, 0, bytes);
    end_work(&work);
    return 0;
}
