/* Keys and values of a decoder, and which of them each hypothesis attends to.
 *
 * A sentence has `capacity` slots. A slot holds the keys and values of one position of
 * one or more hypotheses in all layers; `past` lists the slots of each hypothesis.
 * Slots that no past lists any more are taken again, so that those in use are few and
 * lie close together.
 */
#ifndef TRANSDUCE_DECODE_KV_CACHE_H
#define TRANSDUCE_DECODE_KV_CACHE_H

#include <stdint.h>

#include "decode/stack.h"
#include "isa/name.h"

/* Keys or values of a layer. Strides are in floats. Self-attention's have the heads of
 * a slot side by side: [sentences, slots, heads, width]. Cross-attention's have the
 * positions of a head side by side, [sentences, heads, positions, width], and its keys
 * are in blocks of LANES positions, dimension by dimension:
 *
 *   dimension 0 of positions 0 .. LANES-1 | dimension 1 of 0 .. LANES-1 | ...
 */
typedef struct {
    float *numbers;
    int64_t per_sentence, per_head, per_row;
} KvCache;

typedef struct {
    KvCache self_keys, self_values, cross_keys, cross_values;
} LayerCache;

/* Hypotheses of a batch of sentences. Caches stay where they are when sentences leave;
 * `entries` says which entry of the caches each sentence has. */
typedef struct {
    int64_t sentences, group;
    int64_t capacity;   /* slots of a sentence, and positions that it can read */
    int64_t max_source; /* longest source that fits */
    int64_t num_layers;
    int32_t *past;           /* [sentences, group, capacity]: slots by position */
    int64_t *lengths;        /* [sentences]: positions read */
    int64_t *entries;        /* [sentences] */
    int64_t *source_lengths; /* [entries] */
    float *attention;   /* [sentences, group, max_source]: sum over steps, or NULL */
    LayerCache *layers; /* [num_layers] */
    void *caches;       /* memory of their numbers */
} DecoderState;

/* Allocate an empty state for sizes that are set: sentences, group, capacity and
 * max_source. Entries are 0, 1, 2 ...; the rest is for the caller to fill. */
TD_INTERNAL td_status begin_state(DecoderState *state, const Stack *stack,
                                  int has_attention);
TD_INTERNAL void end_state(DecoderState *state);

static inline int32_t *past_of(const DecoderState *state, int64_t row)
{
    return state->past + row * state->capacity;
}

static inline float *attention_of(const DecoderState *state, int64_t row)
{
    return state->attention + row * state->max_source;
}

/* Source length of a sentence. */
static inline int64_t source_length(const DecoderState *state, int64_t sentence)
{
    return state->source_lengths[state->entries[sentence]];
}

/* Capacity of a new state for `sentences` sentences. */
TD_INTERNAL int64_t first_capacity(int64_t sentences);

/* Positions of the longest past, the newest included. */
TD_INTERNAL int64_t longest_past(const DecoderState *state);

/* First position that the newest one of a sentence attends to. */
TD_INTERNAL int64_t first_seen(const DecoderState *state, const Stack *stack,
                               int64_t sentence);

/* Take a slot for the newest position of each hypothesis, enlarging the state if it is
 * full. The position counts as read once the sentence's length is raised. */
TD_INTERNAL td_status take_slots(DecoderState *state, const Stack *stack);

/* Write the slots that a hypothesis's newest position attends to, its own the last.
 * Returns their number. */
TD_INTERNAL int64_t list_past(const DecoderState *state, const Stack *stack,
                              int64_t row, int32_t *slots);

/* Copy keys or values of a row, head after head, to a slot of an entry. */
TD_INTERNAL void store_row(const Stack *stack, const float *from, int64_t width,
                           const KvCache *into, int64_t entry, int64_t slot);

/* Keep hypotheses `rows` [sentences, group], numbered through all groups. */
TD_INTERNAL td_status reorder_state(DecoderState *state, const int64_t *rows,
                                    int64_t sentences, int64_t group);

/* Replace a state by a larger one: with the sentences of `other` behind its own, or if
 * that is NULL with more capacity. Unused slots and padding are left behind. */
TD_INTERNAL td_status enlarge_state(DecoderState *state, const DecoderState *other,
                                    const Stack *stack);

#endif
