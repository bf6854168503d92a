/* States of decoders: their memory, slots and growth. */
#include "decode/kv_cache.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "simd/vec.h"

/* ---- Capacity ------------------------------------------------------------------ */

#define MIN_STEPS 16 /* steps for which any new capacity suffices */

/* The sentences of a new state share FIRST_SLOTS slots. With few sentences, most
 * translations need no more. */
#define FIRST_SLOTS 2048
#define MAX_FIRST_CAPACITY 128 /* slots of a sentence; more would cost page faults */

/* Limit of the slots in reserve for MIN_STEPS steps. A wide group needs fewer: in each
 * step it drops many hypotheses, whose slots become free. */
#define MAX_RESERVE 64

enum { CACHES = 4 }; /* of a layer: keys and values of self- and of cross-attention */

TD_INTERNAL int64_t first_capacity(int64_t sentences)
{
    const int64_t share = FIRST_SLOTS / max_i64(sentences, 1);
    return max_i64(MIN_STEPS, min_i64(share, MAX_FIRST_CAPACITY));
}

/* Capacity of a larger state, given its slots in use or positions read. */
static int64_t larger_capacity(int64_t needed, int64_t group)
{
    const int64_t reserve = max_i64(min_i64(MIN_STEPS * group, MAX_RESERVE), group);
    /* All slots in use may stay in use while the newest positions are read. */
    return max_i64(max_i64(2 * needed, needed + reserve), needed + 2 * group);
}

/* ---- Memory ------------------------------------------------------------------- */

/* Place the caches of all layers one after another in `data`. `strides` has the strides
 * of a layer's caches. */
static void place_caches(DecoderState *state, const KvCache strides[CACHES],
                         float *data)
{
    for (int64_t layer = 0; layer < state->num_layers; layer++) {
        KvCache *const caches[CACHES] = {
            &state->layers[layer].self_keys, &state->layers[layer].self_values,
            &state->layers[layer].cross_keys, &state->layers[layer].cross_values};
        for (int i = 0; i < CACHES; i++) {
            *caches[i] = strides[i];
            caches[i]->data = data;
            data += state->sentences * strides[i].entry_stride;
        }
    }
}

/* Strides of [entries, slots, heads, width]. */
static KvCache self_strides(int64_t slots, int64_t heads, int64_t width)
{
    return (KvCache){NULL, slots * heads * width, width, heads * width};
}

/* Strides of [entries, heads, positions, width]. */
static KvCache cross_strides(int64_t positions, int64_t heads, int64_t width)
{
    return (KvCache){NULL, heads * positions * width, positions * width, width};
}

/* Shape of the keys and values of self-attention in one slot, or of a recurrent unit's
 * cells. */
typedef struct {
    int64_t heads, key_width, value_width;
} PastShape;

static PastShape past_shape(const Stack *stack)
{
    return stack->is_recurrent ? (PastShape){1, stack->d_model, 0}
                               : (PastShape){stack->num_heads, stack->d_k, stack->d_v};
}

static td_status allocate_caches(DecoderState *state, const Stack *stack)
{
    const int64_t heads = stack->num_heads;
    const PastShape past = past_shape(stack);
    const int64_t key_positions = round_up_to_lanes(state->max_source);
    const double entry_floats =
        (double)past.heads * (double)state->capacity *
            (double)(past.key_width + past.value_width) +
        (double)heads * ((double)key_positions * (double)stack->d_k +
                         (double)state->max_source * (double)stack->d_v);
    state->layers = calloc((size_t)stack->num_layers, sizeof *state->layers);
    state->block = allocate_lines((double)stack->num_layers * (double)state->sentences *
                                  entry_floats * (double)sizeof(float));
    if (!state->layers || !state->block)
        return TD_OUT_OF_MEMORY;
    state->num_layers = stack->num_layers;
    const KvCache strides[CACHES] = {
        self_strides(state->capacity, past.heads, past.key_width),
        self_strides(state->capacity, past.heads, past.value_width),
        cross_strides(key_positions, heads, stack->d_k),
        cross_strides(state->max_source, heads, stack->d_v),
    };
    place_caches(state, strides, state->block);
    return TD_OK;
}

/* Allocate the arrays that reordering replaces. */
static td_status allocate_rows(DecoderState *state)
{
    const int64_t sentences = state->sentences;
    const double rows = (double)sentences * (double)state->group;
    const size_t bytes = (size_t)max_i64(sentences, 1) * sizeof(int64_t);
    state->attention = NULL;
    state->past =
        allocate_lines(rows * (double)state->positions * (double)sizeof *state->past);
    state->lengths = calloc(1, bytes);
    state->entries = malloc(bytes);
    if (!state->past || !state->lengths || !state->entries)
        return TD_OUT_OF_MEMORY;
    for (int64_t i = 0; i < sentences; i++)
        state->entries[i] = i;
    if (!state->summed_layers)
        return TD_OK;
    const double floats =
        rows * (double)state->summed_layers * (double)state->max_source;
    state->attention = allocate_zeros(floats * (double)sizeof(float));
    return state->attention ? TD_OK : TD_OUT_OF_MEMORY;
}

TD_INTERNAL td_status begin_state(DecoderState *state, const Stack *stack)
{
    td_status status = TD_OUT_OF_MEMORY;
    if (state->positions <= INT32_MAX)
        status = allocate_caches(state, stack);
    if (status == TD_OK)
        status = allocate_rows(state);
    if (status == TD_OK) {
        const size_t bytes = (size_t)max_i64(state->sentences, 1) * sizeof(int64_t);
        state->source_lengths = calloc(1, bytes);
        status = state->source_lengths ? TD_OK : TD_OUT_OF_MEMORY;
    }
    if (status != TD_OK)
        end_state(state);
    return status;
}

static void free_rows(DecoderState *state)
{
    free(state->past);
    free(state->lengths);
    free(state->entries);
    free(state->attention);
}

TD_INTERNAL void end_state(DecoderState *state)
{
    free_rows(state);
    free(state->source_lengths);
    free(state->layers);
    free(state->block);
    *state = (DecoderState){0};
}

/* ---- Slots -------------------------------------------------------------------- */

TD_INTERNAL int64_t longest_past(const DecoderState *state)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < state->sentences; i++)
        longest = max_i64(longest, state->lengths[i] + 1);
    return longest;
}

TD_INTERNAL int64_t first_attended(const DecoderState *state, const Stack *stack,
                                   int64_t sentence)
{
    return max_i64(state->lengths[sentence] - stack->neighbourhood, 0);
}

/* Mark the slots to which the newest positions of a sentence's hypotheses attend. */
static void mark_slots(const DecoderState *state, const Stack *stack, int64_t sentence,
                       uint8_t *is_used)
{
    const int64_t first = first_attended(state, stack, sentence);
    memset(is_used, 0, (size_t)state->capacity);
    for (int64_t k = 0; k < state->group; k++) {
        const int32_t *past = past_of(state, sentence * state->group + k);
        for (int64_t i = first; i < state->lengths[sentence]; i++)
            is_used[past[i]] = 1;
    }
}

/* Take slots for the newest position of a sentence's hypotheses. Returns whether there
 * are enough. */
static int take_slots_of(DecoderState *state, int64_t sentence, const uint8_t *is_used)
{
    const int64_t newest = state->lengths[sentence];
    if (newest == state->positions)
        return 0;
    int64_t slot = 0;
    for (int64_t k = 0; k < state->group; k++, slot++) {
        while (slot < state->capacity && is_used[slot])
            slot++;
        if (slot >= state->capacity)
            return 0;
        past_of(state, sentence * state->group + k)[newest] = (int32_t)slot;
    }
    return 1;
}

/* Take slots for all sentences. `*are_enough` is set to whether there are enough. */
static td_status try_to_take_slots(DecoderState *state, const Stack *stack,
                                   int *are_enough)
{
    uint8_t *is_used = malloc((size_t)state->capacity);
    if (!is_used)
        return TD_OUT_OF_MEMORY;
    *are_enough = 1;
    for (int64_t i = 0; *are_enough && i < state->sentences; i++) {
        mark_slots(state, stack, i, is_used);
        *are_enough = take_slots_of(state, i, is_used);
    }
    free(is_used);
    return TD_OK;
}

TD_INTERNAL td_status take_slots(DecoderState *state, const Stack *stack)
{
    int are_enough;
    td_status status = try_to_take_slots(state, stack, &are_enough);
    if (status != TD_OK || are_enough)
        return status;
    status = enlarge_state(state, NULL, stack);
    return status != TD_OK ? status : try_to_take_slots(state, stack, &are_enough);
}

TD_INTERNAL int64_t list_past(const DecoderState *state, const Stack *stack,
                              int64_t row, int32_t *slots)
{
    const int64_t sentence = row / state->group;
    const int64_t first = first_attended(state, stack, sentence);
    const int64_t count = state->lengths[sentence] + 1 - first;
    memcpy(slots, past_of(state, row) + first, (size_t)count * sizeof *slots);
    return count;
}

TD_INTERNAL void store_row(const Stack *stack, const float *from, int64_t width,
                           const KvCache *into, int64_t entry, int64_t slot)
{
    float *to = into->data + entry * into->entry_stride + slot * into->row_stride;
    /* Heads side by side are copied together. */
    const int are_adjacent = into->head_stride == width;
    const int64_t heads = are_adjacent ? 1 : stack->num_heads;
    const int64_t count = are_adjacent ? stack->num_heads * width : width;
    for (int64_t head = 0; head < heads; head++, from += count, to += into->head_stride)
        memcpy(to, from, (size_t)count * sizeof(float));
}

/* ---- Reordering --------------------------------------------------------------- */

/* Check that each new group is of one sentence, and no sentence in two groups.
 * `*are_in_order` is set to whether the sentences keep their order. */
static td_status check_rows(const DecoderState *state, const int64_t *rows,
                            int64_t sentences, int64_t group, int *are_in_order)
{
    uint8_t *is_taken = calloc(1, (size_t)max_i64(state->sentences, 1));
    if (!is_taken)
        return TD_OUT_OF_MEMORY;
    td_status status = TD_OK;
    int64_t last = -1;
    *are_in_order = 1;
    for (int64_t i = 0; status == TD_OK && i < sentences; i++) {
        const int64_t *of_group = rows + i * group;
        const int64_t sentence = *of_group < 0 ? -1 : *of_group / state->group;
        if (sentence < 0 || sentence >= state->sentences || is_taken[sentence]) {
            status = TD_BAD_ARGUMENT;
            break;
        }
        for (int64_t k = 0; k < group; k++)
            if (of_group[k] < 0 || of_group[k] / state->group != sentence)
                status = TD_BAD_ARGUMENT;
        is_taken[sentence] = 1;
        *are_in_order &= sentence > last;
        last = sentence;
    }
    free(is_taken);
    return status;
}

/* Reorder the attention in place: no sentence moves to a later place. */
static td_status reorder_attention(DecoderState *state, const int64_t *rows,
                                   int64_t sentences)
{
    const int64_t group = state->group;
    const size_t width = (size_t)(state->summed_layers * state->max_source);
    const size_t bytes = width * sizeof(float);
    float *before = malloc((size_t)group * bytes);
    if (!before)
        return TD_OUT_OF_MEMORY;
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t first = rows[i * group] / group * group;
        memcpy(before, attention_of(state, first), (size_t)group * bytes);
        for (int64_t k = 0; k < group; k++)
            memcpy(attention_of(state, i * group + k),
                   before + (size_t)(rows[i * group + k] - first) * width, bytes);
    }
    free(before);
    return TD_OK;
}

/* Reorder in place: groups keep their size and sentences their order. */
static td_status reorder_in_place(DecoderState *state, const int64_t *rows,
                                  int64_t sentences)
{
    const int64_t group = state->group;
    const int64_t longest = max_i64(longest_past(state), 1);
    int32_t *before = malloc((size_t)(group * longest) * sizeof *before);
    if (!before)
        return TD_OUT_OF_MEMORY;
    if (state->attention && reorder_attention(state, rows, sentences)) {
        free(before);
        return TD_OUT_OF_MEMORY;
    }
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t sentence = rows[i * group] / group; /* not before i */
        const int64_t length = state->lengths[sentence];
        const size_t bytes = (size_t)length * sizeof *before;
        for (int64_t k = 0; k < group; k++)
            memcpy(before + k * length, past_of(state, sentence * group + k), bytes);
        for (int64_t k = 0; k < group; k++)
            memcpy(past_of(state, i * group + k),
                   before + rows[i * group + k] % group * length, bytes);
        state->lengths[i] = length;
        state->entries[i] = state->entries[sentence];
    }
    state->sentences = sentences;
    free(before);
    return TD_OK;
}

/* Reorder into new arrays; the caches are not moved. */
static td_status regroup(DecoderState *state, const int64_t *rows, int64_t sentences,
                         int64_t group)
{
    DecoderState new = *state;
    new.sentences = sentences;
    new.group = group;
    const td_status status = allocate_rows(&new);
    if (status != TD_OK) {
        free_rows(&new);
        return status;
    }
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t sentence = rows[i * group] / state->group;
        const int64_t length = state->lengths[sentence];
        new.lengths[i] = length;
        new.entries[i] = state->entries[sentence];
        for (int64_t k = i * group; k < (i + 1) * group; k++) {
            memcpy(past_of(&new, k), past_of(state, rows[k]),
                   (size_t)length * sizeof *new.past);
            if (state->attention)
                memcpy(attention_of(&new, k), attention_of(state, rows[k]),
                       (size_t)(state->summed_layers * state->max_source) *
                           sizeof(float));
        }
    }
    free_rows(state);
    *state = new;
    return TD_OK;
}

TD_INTERNAL td_status reorder_state(DecoderState *state, const int64_t *rows,
                                    int64_t sentences, int64_t group)
{
    int are_in_order;
    const td_status status = check_rows(state, rows, sentences, group, &are_in_order);
    if (status != TD_OK)
        return status;
    return group == state->group && are_in_order
               ? reorder_in_place(state, rows, sentences)
               : regroup(state, rows, sentences, group);
}

/* ---- Growth ------------------------------------------------------------------- */

/* Slots of a sentence that are in use. */
typedef struct {
    int32_t *used;      /* [num_used] */
    int32_t *new_slots; /* [capacity]: index in `used` of each slot in use */
    uint8_t *is_used;   /* [capacity] */
    int64_t num_used;
} UsedSlots;

static td_status begin_slots(UsedSlots *slots, const DecoderState *state)
{
    const size_t capacity = (size_t)state->capacity;
    slots->used = malloc(2 * capacity * sizeof *slots->used + capacity);
    if (!slots->used)
        return TD_OUT_OF_MEMORY;
    slots->new_slots = slots->used + capacity;
    slots->is_used = (uint8_t *)(slots->new_slots + capacity);
    return TD_OK;
}

static void end_slots(const UsedSlots *slots) { free(slots->used); }

static void list_used(UsedSlots *slots, const DecoderState *state, const Stack *stack,
                      int64_t sentence)
{
    mark_slots(state, stack, sentence, slots->is_used);
    slots->num_used = 0;
    for (int64_t slot = 0; slot < state->capacity; slot++)
        if (slots->is_used[slot]) {
            slots->new_slots[slot] = (int32_t)slots->num_used;
            slots->used[slots->num_used++] = (int32_t)slot;
        }
}

/* Largest numbers over all sentences. */
typedef struct {
    int64_t slots;  /* in use */
    int64_t length; /* positions read */
    int64_t source; /* positions of the source */
} Needs;

/* Raise needs to the numbers of a state. */
static td_status raise_needs(Needs *needs, const DecoderState *state,
                             const Stack *stack)
{
    UsedSlots slots;
    const td_status status = begin_slots(&slots, state);
    if (status != TD_OK)
        return status;
    for (int64_t i = 0; i < state->sentences; i++) {
        list_used(&slots, state, stack, i);
        needs->slots = max_i64(needs->slots, slots.num_used);
        needs->length = max_i64(needs->length, state->lengths[i]);
        needs->source = max_i64(needs->source, source_length(state, i));
    }
    end_slots(&slots);
    return TD_OK;
}

/* Entries of the old and the new caches, and the shape of their keys or values. */
typedef struct {
    int64_t from, into;
    int64_t num_heads, width;
} EntryCopy;

/* Copy `count` rows of each head to the first rows of the new entry: the listed rows,
 * or the first ones if `rows` is NULL. */
static void copy_rows(const EntryCopy *copy, const KvCache *from, const KvCache *into,
                      const int32_t *rows, int64_t count)
{
    const size_t bytes = (size_t)copy->width * sizeof(float);
    for (int64_t head = 0; head < copy->num_heads; head++) {
        const float *source =
            from->data + copy->from * from->entry_stride + head * from->head_stride;
        float *to =
            into->data + copy->into * into->entry_stride + head * into->head_stride;
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * into->row_stride,
                   source + (rows ? rows[i] : i) * from->row_stride, bytes);
    }
}

/* Copy the blocks of keys of `positions` source positions. */
static void copy_blocks(const EntryCopy *copy, const KvCache *from, const KvCache *into,
                        int64_t positions)
{
    const size_t bytes =
        (size_t)(round_up_to_lanes(positions) * copy->width) * sizeof(float);
    for (int64_t head = 0; head < copy->num_heads; head++)
        memcpy(into->data + copy->into * into->entry_stride + head * into->head_stride,
               from->data + copy->from * from->entry_stride + head * from->head_stride,
               bytes);
}

static void copy_caches(const Stack *stack, const DecoderState *from, int64_t sentence,
                        DecoderState *into, int64_t entry, const UsedSlots *slots)
{
    const int64_t before = from->entries[sentence];
    const int64_t length = source_length(from, sentence);
    const PastShape past = past_shape(stack);
    const EntryCopy self_keys = {before, entry, past.heads, past.key_width};
    const EntryCopy self_values = {before, entry, past.heads, past.value_width};
    const EntryCopy keys = {before, entry, stack->num_heads, stack->d_k};
    const EntryCopy values = {before, entry, stack->num_heads, stack->d_v};
    for (int64_t i = 0; i < stack->num_layers; i++) {
        const LayerCache *old = from->layers + i, *new = into->layers + i;
        copy_rows(&self_keys, &old->self_keys, &new->self_keys, slots->used,
                  slots->num_used);
        copy_rows(&self_values, &old->self_values, &new->self_values, slots->used,
                  slots->num_used);
        copy_blocks(&keys, &old->cross_keys, &new->cross_keys, length);
        copy_rows(&values, &old->cross_values, &new->cross_values, NULL, length);
    }
    into->source_lengths[entry] = length;
}

/* Copy the part of the lists of slots to which the newest positions attend. */
static void copy_past(const Stack *stack, const DecoderState *from, int64_t sentence,
                      DecoderState *into, int64_t entry, const UsedSlots *slots)
{
    const int64_t first = first_attended(from, stack, sentence);
    for (int64_t k = 0; k < from->group; k++) {
        const int32_t *old = past_of(from, sentence * from->group + k);
        int32_t *new = past_of(into, entry * from->group + k);
        /* Earlier positions are never read again; slot 0 is a valid one for them. */
        memset(new, 0, (size_t)first * sizeof *new);
        for (int64_t i = first; i < from->lengths[sentence]; i++)
            new[i] = slots->new_slots[old[i]];
    }
    into->lengths[entry] = from->lengths[sentence];
}

static void copy_attention(const DecoderState *from, int64_t sentence,
                           DecoderState *into, int64_t entry)
{
    const int64_t group = from->group;
    const size_t bytes = (size_t)source_length(from, sentence) * sizeof(float);
    for (int64_t k = 0; k < group; k++)
        for (int64_t layer = 0; layer < from->summed_layers; layer++)
            memcpy(attention_of(into, entry * group + k) + layer * into->max_source,
                   attention_of(from, sentence * group + k) + layer * from->max_source,
                   bytes);
}

/* Copy all sentences of a state into a larger one, from entry `first` on. */
static td_status copy_state(const Stack *stack, const DecoderState *from,
                            DecoderState *into, int64_t first)
{
    UsedSlots slots;
    const td_status status = begin_slots(&slots, from);
    if (status != TD_OK)
        return status;
    for (int64_t i = 0; i < from->sentences; i++) {
        list_used(&slots, from, stack, i);
        copy_caches(stack, from, i, into, first + i, &slots);
        copy_past(stack, from, i, into, first + i, &slots);
        if (from->attention)
            copy_attention(from, i, into, first + i);
    }
    end_slots(&slots);
    return TD_OK;
}

TD_INTERNAL td_status enlarge_state(DecoderState *state, const DecoderState *other,
                                    const Stack *stack)
{
    Needs needs = {0};
    td_status status = raise_needs(&needs, state, stack);
    if (status == TD_OK && other)
        status = raise_needs(&needs, other, stack);
    if (status != TD_OK)
        return status;
    const int64_t capacity = larger_capacity(needs.slots, state->group);
    const int64_t positions = larger_capacity(needs.length, state->group);
    DecoderState new = {
        .sentences = state->sentences + (other ? other->sentences : 0),
        .group = state->group,
        .capacity = capacity,
        .positions = max_i64(capacity, positions),
        .max_source = max_i64(needs.source, 1),
        .summed_layers = state->summed_layers,
    };
    status = begin_state(&new, stack);
    if (status != TD_OK)
        return status;
    status = copy_state(stack, state, &new, 0);
    if (status == TD_OK && other)
        status = copy_state(stack, other, &new, state->sentences);
    if (status != TD_OK) {
        end_state(&new);
        return status;
    }
    DecoderState old = *state;
    *state = new;
    end_state(&old);
    return TD_OK;
}
