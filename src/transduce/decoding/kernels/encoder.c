/* The encoder, all layers in one call (Figure 1, left). Padding is left out. */
#include <string.h>

#include "exported.h"
#include "transformer.h"

typedef struct {
    int64_t sentences, source, neighbourhood;
    const uint8_t *mask; /* positions of each sentence that are no padding */
} Sources;

/* Positions that are no padding. */
static int64_t num_rows(const Sources *sources)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < sources->sentences * sources->source; i++)
        rows += sources->mask[i];
    return rows;
}

/* Which positions near a row's own it sees, of a sentence of so many. */
static int64_t list_near(const Sources *sources, int64_t own, int64_t length,
                         int32_t *slots)
{
    int64_t found = 0;
    for (int64_t i = 0; i < length; i++) {
        slots[found] = (int32_t)i;
        int64_t distance = i > own ? i - own : own - i;
        found += distance <= sources->neighbourhood;
    }
    return found;
}

static void attend_to_sentences(Work *work, const Layer *layer, const Sources *sources)
{
    const Stack *stack = work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    const int64_t stride = layer->query_key_value.outputs;
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->after_own),
                 work->wide, 0);
    int64_t first = 0;
    for (int64_t sentence = 0; sentence < sources->sentences; sentence++) {
        int64_t length = 0;
        for (int64_t i = 0; i < sources->source; i++)
            length += sources->mask[sentence * sources->source + i];
        float *keys = work->wide + first * stride + queries;
        Store key = {keys, 0, stack->d_k, stride};
        Store value = {keys + queries, 0, stack->d_v, stride};
        for (int64_t own = 0; own < length; own++) {
            int64_t count = list_near(sources, own, length, work->slots);
            attend(work, first + own, stride, 0, &key, &value, count);
        }
        first += length;
    }
    apply_linear(work, &layer->own_output, work->heads, work->read, 0);
    add_and_norm(work, &layer->after_own);
}

/* From embedded sources to the memory, in place; padding becomes zero. It stands behind
   each sentence. 1 if room is lacking, otherwise 0. */
EXPORTED int transduce_encode(const Stack *stack, const Sources *sources, float *x,
                              int num_threads)
{
    const int64_t width = stack->d_model;
    const int64_t padded = sources->sentences * sources->source;
    Work work;
    if (begin_work(&work, stack, num_rows(sources), sources->source, num_threads))
        return 1;
    float *row = work.x;
    for (int64_t i = 0; i < padded; i++)
        if (sources->mask[i]) {
            memcpy(row, x + i * width, (size_t)width * sizeof(float));
            row += width;
        }
    for (int64_t i = 0; i < stack->num_layers; i++) {
        attend_to_sentences(&work, stack->layers + i, sources);
        feed_forward(&work, stack->layers + i);
    }
    const float *memory = sublayer_input(&work, &stack->final);
    for (int64_t i = 0; i < padded; i++) {
        if (sources->mask[i]) {
            memcpy(x + i * width, memory, (size_t)width * sizeof(float));
            memory += width;
        } else
            memset(x + i * width, 0, (size_t)width * sizeof(float));
    }
    end_work(&work);
    return 0;
}
