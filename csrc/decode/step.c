/* A step of the decoder: all layers in one call. */
#include "decode/step.h"

#include <string.h>

#include "decode/attention.h"
#include "parallel.h"
#include "simd/prefetch.h"
#include "simd/vec.h"

#define MIN_ATTENDING_ROWS 16 /* of a part of parallel_for */

/* Store the newest keys and values in the slots that were taken for them. */
static void store_newest(const Workspace *work, const DecoderState *state,
                         const LayerCache *cache)
{
    const Stack *stack = work->stack;
    const int64_t queries = stack->num_heads * stack->d_k;
    for (int64_t row = 0; row < work->rows; row++) {
        const int64_t sentence = row / state->group, entry = state->entries[sentence];
        const int64_t slot = past_of(state, row)[state->lengths[sentence]];
        const float *key = row_of(&work->wide, row) + queries;
        store_row(stack, key, stack->d_k, &cache->self_keys, entry, slot);
        store_row(stack, key + queries, stack->d_v, &cache->self_values, entry, slot);
    }
}

/* One layer in a step. */
typedef struct {
    Workspace *work;
    const Layer *layer;
    const DecoderState *state;
    const LayerCache *cache;
    int64_t summed_layer; /* number among the layers whose cross-attention is summed;
                             negative: it is not summed */
} LayerStep;

/* Prefetch all heads of a slot. */
static void prefetch_slot(const KvCache *cache, int64_t entry, int64_t slot)
{
    prefetch(cache->data + entry * cache->entry_stride + slot * cache->row_stride,
             cache->row_stride * (int64_t)sizeof(float));
}

/* Prefetch the keys and values that the next sentence will read. Each row of the
 * present group prefetches every group-th position of the row that takes its place in
 * the next one: with all rows, one slot for each position. */
static void prefetch_next(const LayerStep *step, int64_t row)
{
    const DecoderState *state = step->state;
    const int64_t group = state->group, sentence = row / group + 1;
    if (sentence == state->sentences)
        return;
    const int64_t first = first_attended(state, step->work->stack, sentence);
    const int32_t *past = past_of(state, row + group);
    for (int64_t i = first + row % group; i < state->lengths[sentence]; i += group) {
        prefetch_slot(&step->cache->self_keys, state->entries[sentence], past[i]);
        prefetch_slot(&step->cache->self_values, state->entries[sentence], past[i]);
    }
}

static void self_attend_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const LayerStep *step = shared;
    const DecoderState *state = step->state;
    Workspace work = worker_view(step->work, worker);
    for (int64_t row = first; row < end; row++) {
        const int64_t count = list_past(state, work.stack, row, work.slots);
        prefetch_next(step, row);
        attend(&work, row, state->entries[row / state->group], &step->cache->self_keys,
               &step->cache->self_values, step->layer->self_additive, count);
    }
}

/* Parts of up to CROSS_ROWS rows in which a group attends to its source. */
static int64_t parts_of_group(const DecoderState *state)
{
    return ceil_div(state->group, CROSS_ROWS);
}

static void cross_attend_parts(void *shared, int64_t first, int64_t end, int worker)
{
    const LayerStep *step = shared;
    const DecoderState *state = step->state;
    const int64_t parts = parts_of_group(state);
    Workspace work = worker_view(step->work, worker);
    for (int64_t i = first; i < end; i++) {
        const int64_t sentence = i / parts, begin = i % parts * CROSS_ROWS;
        const int64_t row = sentence * state->group + begin;
        const int64_t next = min_i64((i + 1) / parts, state->sentences - 1);
        const Source source = {
            .keys = &step->cache->cross_keys,
            .values = &step->cache->cross_values,
            .additive = step->layer->cross_additive,
            .entry = state->entries[sentence],
            .length = source_length(state, sentence),
            .next_entry = state->entries[next],
            .attention =
                step->summed_layer < 0
                    ? NULL
                    : attention_of(state, row) + step->summed_layer * state->max_source,
            .attention_stride = state->summed_layers * state->max_source,
        };
        cross_attend(&work, row, min_i64(state->group - begin, CROSS_ROWS), &source);
    }
}

/* Self-attention sub-layer (section 3.2.3): the newest positions attend to the cached
 * keys of the earlier ones and to themselves. */
static void decoder_self_attention(const LayerStep *step)
{
    Workspace *work = step->work;
    const Layer *layer = step->layer;
    apply_linear(work, &layer->query_key_value, sublayer_input(work, &layer->self_norm),
                 &work->wide, 0);
    store_newest(work, step->state, step->cache);
    parallel_for(self_attend_rows, (void *)step, work->rows, MIN_ATTENDING_ROWS,
                 work->num_threads);
    apply_linear(work, &layer->self_output, &work->heads, &work->sublayer, 0);
    add_and_norm(work, &layer->self_norm);
}

/* Compute a cell and its output. `before` is the cell of the position before, or NULL
 * at the first position:
 *
 *   cell = forget * before + (1 - forget) * candidate,  forget = sigmoid(gate)
 *   output = max(0, cell) */
static void update_cell(const float *gate, const float *candidate, const float *before,
                        int64_t width, float *cell, float *output)
{
    const vec zero = vec_set1(0.0f), one = vec_set1(1.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        const vec_mask mask = vec_mask_first(width - i);
        const vec forget = vec_sigmoid(vec_load_masked(mask, gate + i));
        const vec new = (one - forget) * vec_load_masked(mask, candidate + i);
        const vec old = before ? vec_load_masked(mask, before + i) : zero;
        const vec sum = vec_fma(forget, old, new);
        vec_store_first(cell + i, width - i, sum);
        /* vec_max returns its second argument if that is NaN. */
        vec_store_first(output + i, width - i, vec_max(zero, sum));
    }
}

static float *cell_at(const LayerStep *step, int64_t sentence, int64_t slot)
{
    const KvCache *cells = &step->cache->cells;
    return cells->data + step->state->entries[sentence] * cells->entry_stride +
           slot * cells->row_stride;
}

static void update_cell_rows(void *shared, int64_t first, int64_t end, int worker)
{
    const LayerStep *step = shared;
    const DecoderState *state = step->state;
    const Workspace *work = step->work;
    const int64_t width = work->stack->d_model;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        const int64_t sentence = row / state->group;
        const int64_t position = state->lengths[sentence];
        const int32_t *slots = past_of(state, row);
        const float *gate = row_of(&work->wide, row);
        const float *before =
            position ? cell_at(step, sentence, slots[position - 1]) : NULL;
        update_cell(gate, gate + width, before, width,
                    cell_at(step, sentence, slots[position]),
                    row_of(&work->sublayer, row));
    }
}

/* Recurrent sub-layer in place of self-attention (SSRU; Kim et al., 2019). */
static void decoder_recurrence(const LayerStep *step)
{
    Workspace *work = step->work;
    const Layer *layer = step->layer;
    apply_linear(work, &layer->gate_candidate, sublayer_input(work, &layer->self_norm),
                 &work->wide, 0);
    parallel_for(update_cell_rows, (void *)step, work->rows, MIN_ATTENDING_ROWS,
                 work->num_threads);
    add_and_norm(work, &layer->self_norm);
}

/* Cross-attention sub-layer (section 3.2.3): to the encoder's output, whose keys and
 * values fill_cross_caches() has computed. */
static void cross_attention(const LayerStep *step)
{
    Workspace *work = step->work;
    const Layer *layer = step->layer;
    const DecoderState *state = step->state;
    apply_linear(work, &layer->cross_query, sublayer_input(work, &layer->cross_norm),
                 &work->wide, 0);
    parallel_for(cross_attend_parts, (void *)step,
                 state->sentences * parts_of_group(state),
                 MIN_ATTENDING_ROWS / CROSS_ROWS, work->num_threads);
    apply_linear(work, &layer->cross_output, &work->heads, &work->sublayer, 0);
    add_and_norm(work, &layer->cross_norm);
}

/* Pass the newest positions, whose embeddings are in work->x, through all layers. */
static void apply_layers(Workspace *work, const DecoderState *state)
{
    const Stack *stack = work->stack;
    for (int64_t i = 0; i < stack->num_layers; i++) {
        const LayerStep step = {
            .work = work,
            .layer = stack->layers + i,
            .state = state,
            .cache = state->layers + i,
            .summed_layer = i - (stack->num_layers - state->summed_layers),
        };
        if (stack->is_recurrent)
            decoder_recurrence(&step);
        else
            decoder_self_attention(&step);
        cross_attention(&step);
        feed_forward(work, step.layer);
    }
}

TD_INTERNAL td_status read_tokens(Workspace *work, td_decoder *decoder,
                                  const int64_t *ids, int num_threads)
{
    const td_model *model = decoder->model;
    const Stack *stack = &model->decoder;
    DecoderState *state = &decoder->state;
    const int64_t rows = state->sentences * state->group;
    if (!are_tokens(&model->target_embedding, ids, rows))
        return TD_BAD_TOKEN;
    const float *positions = position_rows(model->positions, longest_past(state));
    if (!positions)
        return TD_OUT_OF_MEMORY;
    td_status status = take_slots(state, stack);
    const int64_t past = stack->is_recurrent ? 0 : longest_past(state);
    if (status == TD_OK)
        status = begin_workspace(work, stack, rows, max_i64(past, state->max_source),
                                 num_threads);
    if (status != TD_OK)
        return status;
    for (int64_t row = 0; row < rows; row++)
        embed_row(work, &model->target_embedding, ids[row],
                  positions + state->lengths[row / state->group] * stack->d_model, row);
    apply_layers(work, state);
    for (int64_t i = 0; i < state->sentences; i++)
        state->lengths[i]++;
    pack_activations(&model->output, sublayer_input(work, &stack->final_norm), rows,
                     &work->packed, num_threads);
    return TD_OK;
}

TD_INTERNAL void multiply_for_logits(const Workspace *work, const td_model *model,
                                     int64_t first, int64_t count, const Matrix *logits)
{
    const Linear slice = slice_outputs(&model->output, first, count);
    multiply(&slice, &work->packed, logits, 0, work->num_threads);
}
