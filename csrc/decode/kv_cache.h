/* Keys and values of a decoder, and the slots in which hypotheses find theirs.
 *
 * A sentence has `capacity` slots. A slot holds the keys and values of one position in
 * all layers. `past` lists the slots of each hypothesis, position by position: the
 * block table of PagedAttention (Kwon et al., 2023) with blocks of one position.
 * Hypotheses with a common beginning share slots; these two have the first two tokens
 * in common:
 *
 *   past[0] = 0 1 2 4
 *   past[1] = 0 1 3 5
 *
 * If beam search now extends hypothesis 0 twice, past[0] is copied to past[1]. Slots 3
 * and 5, which no hypothesis lists any more, are free for the next position. Reordering
 * moves lists and no keys, and slots in use are few and close together. With
 * restricted attention, a long translation needs no more slots than a neighbourhood;
 * only the lists grow.
 *
 * A recurrent unit has cells in place of keys: a slot holds the cells of one position
 * in all layers. A hypothesis reads the cells of the position before and writes the
 * cells of the newest one, so a cell is never copied, and only the newest positions
 * need slots.
 */
#ifndef TRANSDUCE_DECODE_KV_CACHE_H
#define TRANSDUCE_DECODE_KV_CACHE_H

#include <stdint.h>

#include "decode/stack.h"
#include "isa/name.h"

/* Keys or values of a layer. Self-attention has [entries, slots, heads, width], a
 * recurrent unit [entries, slots, d_model] in place of keys, and no values;
 * cross-attention has [entries, heads, positions, width], and its keys are in blocks of
 * LANES positions, dimension by dimension:
 *
 *   dimension 0 of positions 0 .. LANES-1 | dimension 1 of 0 .. LANES-1 | ...
 */
typedef struct {
    float *data;
    int64_t entry_stride, head_stride, row_stride; /* floats; a row: slot or position */
} KvCache;

typedef struct {
    union {
        KvCache self_keys;
        KvCache cells; /* of a recurrent unit, which leaves self_values empty */
    };
    KvCache self_values, cross_keys, cross_values;
} LayerCache;

/* Hypotheses of a batch of sentences. When sentences leave, the caches of the others
 * are not moved: `entries` has the entry of each sentence in the caches. */
typedef struct {
    int64_t sentences, group;
    int64_t capacity;   /* slots of a sentence */
    int64_t positions;  /* limit on the positions of a sentence; at least `capacity` */
    int64_t max_source; /* longest source that fits */
    int64_t num_layers;
    int32_t *past;           /* [sentences, group, positions]: slots */
    int64_t *lengths;        /* [sentences]: positions read */
    int64_t *entries;        /* [sentences] */
    int64_t *source_lengths; /* [entries] */
    int64_t summed_layers;   /* last layers whose attention is summed over steps */
    float *attention;        /* [sentences, group, summed_layers, max_source]; NULL if
                              * no layer's is summed */
    LayerCache *layers;      /* [num_layers] */
    float *block;            /* in which all caches are */
} DecoderState;

/* Allocate a state that has read nothing, given its sentences, group, capacity,
 * positions, max_source and summed_layers. Entries are 0, 1, 2, ...; callers set
 * source_lengths. */
TD_INTERNAL td_status begin_state(DecoderState *state, const Stack *stack);
TD_INTERNAL void end_state(DecoderState *state);

static inline int32_t *past_of(const DecoderState *state, int64_t row)
{
    return state->past + row * state->positions;
}

static inline float *attention_of(const DecoderState *state, int64_t row)
{
    return state->attention + row * state->summed_layers * state->max_source;
}

static inline int64_t source_length(const DecoderState *state, int64_t sentence)
{
    return state->source_lengths[state->entries[sentence]];
}

/* Capacity of a new state for `sentences` sentences. */
TD_INTERNAL int64_t first_capacity(int64_t sentences);

/* Positions of the longest hypothesis, the newest one included. */
TD_INTERNAL int64_t longest_past(const DecoderState *state);

/* First position to which the newest position of a sentence attends. */
TD_INTERNAL int64_t first_attended(const DecoderState *state, const Stack *stack,
                                   int64_t sentence);

/* Take a slot for the newest position of each hypothesis; enlarge the state if it is
 * full. The position counts as read when the caller raises the sentence's length. */
TD_INTERNAL td_status take_slots(DecoderState *state, const Stack *stack);

/* Write the slots to which a hypothesis's newest position attends; its own is the last.
 * Returns their number. */
TD_INTERNAL int64_t list_past(const DecoderState *state, const Stack *stack,
                              int64_t row, int32_t *slots);

/* Copy keys or values [heads, width] to a slot or position of an entry. */
TD_INTERNAL void store_row(const Stack *stack, const float *from, int64_t width,
                           const KvCache *into, int64_t entry, int64_t slot);

/* Keep the hypotheses `rows` [sentences, group], as td_decode_api.decoder_reorder. */
TD_INTERNAL td_status reorder_state(DecoderState *state, const int64_t *rows,
                                    int64_t sentences, int64_t group);

/* Replace a state by one with more capacity, which also has the sentences of `other`
 * after its own unless that is NULL. Only slots in use are copied. */
TD_INTERNAL td_status enlarge_state(DecoderState *state, const DecoderState *other,
                                    const Stack *stack);

#endif
