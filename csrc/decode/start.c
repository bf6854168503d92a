/* What the decoder attends to: keys and values of what the encoder has read. */
#include "isa/name.h"
#include <string.h>

#include "decode/step.h"
#include "simd/vec.h"

TD_INTERNAL int64_t memory_length(const State *state, int64_t place)
{
    const uint8_t *is_there = state->memory_mask + place * state->source;
    int64_t length = 0;
    for (int64_t i = 0; i < state->source; i++)
        length += is_there[i];
    return length;
}

/* Put the keys of a head at so many positions, a row for each and as many at most as
   there are lanes, down as columns. */
static void turn(const float *from, int64_t stride, int64_t width, int64_t positions,
                 float *to)
{
    /* What stands behind them is multiplied too, slowly if it is no usual number. */
    for (int64_t i = 0; positions < LANES && i < width * LANES; i += LANES)
        vec_store_first(to + i, LANES, vec_set1(0.0f));
    int64_t i = 0;
    for (; i + 8 <= positions; i += 8, from += 8 * stride, to += 8) {
        int64_t k = 0;
        for (; k + 8 <= width; k += 8)
            transpose_8x8(from + k, stride, to + k * LANES, LANES);
        for (; k < width; k++)
            for (int64_t n = 0; n < 8; n++)
                to[k * LANES + n] = from[n * stride + k];
    }
    for (; i < positions; i++, from += stride, to++)
        for (int64_t k = 0; k < width; k++)
            to[k * LANES] = from[k];
}

/* Put down the keys of a sentence's memory, so many rows from one on. */
static void turn_keys(const Stack *stack, const Matrix *rows, int64_t begin,
                      int64_t length, const Store *into, int64_t sentence)
{
    for (int64_t head = 0; head < stack->num_heads; head++) {
        const float *keys = row_of(rows, begin) + head * stack->d_k;
        float *to =
            into->numbers + sentence * into->per_sentence + head * into->per_head;
        for (int64_t first = 0; first < length; first += LANES) {
            const int64_t left = length - first;
            turn(keys + first * rows->stride, rows->stride, stack->d_k,
                 left < LANES ? left : LANES, to + first * into->per_row);
        }
    }
}

static void store_memory(const Work *work, const State *state, const LayerCache *cache)
{
    const Stack *stack = work->stack;
    const int64_t keys = stack->num_heads * stack->d_k;
    for (int64_t sentence = 0, begin = 0; sentence < state->sentences; sentence++) {
        const int64_t length = memory_length(state, sentence);
        turn_keys(stack, &work->wide, begin, length, &cache->memory_key, sentence);
        for (int64_t i = 0; i < length; i++)
            store_row(stack, row_of(&work->wide, begin + i) + keys, stack->d_v,
                      &cache->memory_value, sentence, i);
        begin += length;
    }
}

static int64_t length_of_all(const State *state)
{
    int64_t length = 0;
    for (int64_t sentence = 0; sentence < state->sentences; sentence++)
        length += memory_length(state, sentence);
    return length;
}

/* Keys and values of the memory, of which there is a row for each position of a
   sentence, for all layers. Padding is left out. 1 if memory is lacking, otherwise 0.
 */
static int transduce_start(const Decoder *decoder, const float *memory,
                           const State *state, int num_threads)
{
    const Stack *stack = &decoder->stack;
    const int64_t width = stack->d_model, padded = state->sentences * state->source;
    Work work;
    if (begin_work(&work, stack, length_of_all(state), 0, num_threads))
        return 1;
    for (int64_t i = 0, row = 0; i < padded; i++)
        if (state->memory_mask[i])
            memcpy(row_of(&work.x, row++), memory + i * width,
                   (size_t)width * sizeof(float));
    /* Once, as all layers read the same, and their weights are of one kind. */
    arrange_rows(&stack->layers->memory_key_value, &work.x, work.rows, &work.arranged,
                 num_threads);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        multiply(&stack->layers[i].memory_key_value, &work.arranged, &work.wide, 0,
                 num_threads);
        store_memory(&work, state, state->layers + i);
    }
    end_work(&work);
    return 0;
}
