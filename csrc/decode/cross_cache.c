/* Keys and values of cross-attention, computed once for each sentence. */
#include <string.h>

#include "decode/decoder.h"
#include "simd/vec.h"

/* Transpose the keys of up to LANES positions, one row each, into one block. */
static void transpose_keys(const float *from, int64_t stride, int64_t width,
                           int64_t positions, float *to)
{
    /* Lanes past the last position are multiplied too, and denormals would be slow. */
    for (int64_t i = 0; positions < LANES && i < width * LANES; i += LANES)
        vec_store(to + i, vec_set1(0.0f));
    int64_t i = 0;
    for (; i + TRANSPOSE_SIDE <= positions;
         i += TRANSPOSE_SIDE, from += TRANSPOSE_SIDE * stride, to += TRANSPOSE_SIDE) {
        int64_t k = 0;
        for (; k + TRANSPOSE_SIDE <= width; k += TRANSPOSE_SIDE)
            transpose_8x8(from + k, stride, to + k * LANES, LANES);
        for (; k < width; k++)
            for (int64_t n = 0; n < TRANSPOSE_SIDE; n++)
                to[k * LANES + n] = from[n * stride + k];
    }
    for (; i < positions; i++, from += stride, to++)
        for (int64_t k = 0; k < width; k++)
            to[k * LANES] = from[k];
}

/* Store the keys of a sentence, rows `begin` to `begin` + `length` - 1, as blocks of
 * positions. */
static void store_keys(const Stack *stack, const Matrix *rows, int64_t begin,
                       int64_t length, const KvCache *into, int64_t entry)
{
    for (int64_t head = 0; head < stack->num_heads; head++) {
        const float *keys = row_of(rows, begin) + head * stack->d_k;
        float *to = into->data + entry * into->entry_stride + head * into->head_stride;
        for (int64_t first = 0; first < length; first += LANES)
            transpose_keys(keys + first * rows->stride, rows->stride, stack->d_k,
                           min_i64(length - first, LANES),
                           to + first * into->row_stride);
    }
}

static void store_source(const Workspace *work, const DecoderState *state,
                         const LayerCache *cache)
{
    const Stack *stack = work->stack;
    const int64_t keys = stack->num_heads * stack->d_k;
    for (int64_t sentence = 0, begin = 0; sentence < state->sentences; sentence++) {
        const int64_t length = source_length(state, sentence);
        store_keys(stack, &work->wide, begin, length, &cache->cross_keys, sentence);
        for (int64_t i = 0; i < length; i++)
            store_row(stack, row_of(&work->wide, begin + i) + keys, stack->d_v,
                      &cache->cross_values, sentence, i);
        begin += length;
    }
}

TD_INTERNAL td_status fill_cross_caches(td_decoder *decoder, const float *states,
                                        int num_threads)
{
    const Stack *stack = &decoder->model->decoder;
    const DecoderState *state = &decoder->state;
    int64_t tokens = 0;
    for (int64_t sentence = 0; sentence < state->sentences; sentence++)
        tokens += source_length(state, sentence);
    Workspace work;
    if (begin_workspace(&work, stack, tokens, 0, num_threads))
        return TD_OUT_OF_MEMORY;
    for (int64_t row = 0; row < tokens; row++)
        memcpy(row_of(&work.x, row), states + row * stack->d_model,
               (size_t)stack->d_model * sizeof *states);
    /* Once for all layers, which have the same input and precision. */
    pack_activations(&stack->layers->cross_key_value, &work.x, work.rows, &work.packed,
                     num_threads);
    for (int64_t i = 0; i < stack->num_layers; i++) {
        multiply(&stack->layers[i].cross_key_value, &work.packed, &work.wide, 0,
                 num_threads);
        store_source(&work, state, state->layers + i);
    }
    end_workspace(&work);
    return TD_OK;
}
