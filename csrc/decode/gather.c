/* Sentences that are put into stores of their own, without what nobody needs any more.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/step.h"
#include "simd/vec.h"

/* Slots of a sentence that are in use, and positions of its memory. */
typedef struct {
    int32_t *used, *all;
    int32_t *numbers; /* among those in use */
    uint8_t *is_used;
    int64_t num_used;
} Slots;

/* Room for those of any sentence. Whether there is memory. */
static int begin_slots(Slots *slots, const State *state)
{
    const size_t room = (size_t)state->room, source = (size_t)state->source;
    slots->used = malloc((2 * room + source) * sizeof *slots->used + room);
    if (!slots->used)
        return 0;
    slots->numbers = slots->used + room;
    slots->all = slots->numbers + room;
    slots->is_used = (uint8_t *)(slots->all + source);
    for (int64_t i = 0; i < state->source; i++)
        slots->all[i] = (int32_t)i;
    return 1;
}

static void end_slots(const Slots *slots) { free(slots->used); }

static void list_used(Slots *slots, const Decoder *decoder, const State *state,
                      int64_t sentence)
{
    mark_slots(state, decoder->neighbourhood, sentence, slots->is_used);
    slots->num_used = 0;
    for (int64_t slot = 0; slot < state->room; slot++)
        if (slots->is_used[slot]) {
            slots->numbers[slot] = (int32_t)slots->num_used;
            slots->used[slots->num_used++] = (int32_t)slot;
        }
}

typedef struct {
    int64_t slots, source, length;
} Needs;

/* Raise needs to those of all sentences: slots in use, positions of the memory,
   positions read. 1 if memory is lacking, otherwise 0. */
static int transduce_measure(const Decoder *decoder, const State *state, Needs *needs)
{
    Slots slots;
    if (!begin_slots(&slots, state))
        return 1;
    for (int64_t i = 0; i < state->sentences; i++) {
        list_used(&slots, decoder, state, i);
        needs->slots = largest(needs->slots, slots.num_used);
        needs->source = largest(needs->source, memory_length(state, state->places[i]));
        needs->length = largest(needs->length, state->lengths[i]);
    }
    end_slots(&slots);
    return 0;
}

/* Whose stores they are, and how wide their numbers are. */
typedef struct {
    int64_t from, into;
    int64_t num_heads, width;
} Move;

/* Put rows of one place, head by head, into the first of another. What stands behind
   them, nobody sees. */
static void move_rows(const Move *move, const Store *from, const Store *into,
                      const int32_t *rows, int64_t count)
{
    const size_t bytes = (size_t)move->width * sizeof(float);
    for (int64_t head = 0; head < move->num_heads; head++) {
        const float *source =
            from->numbers + move->from * from->per_sentence + head * from->per_head;
        float *to =
            into->numbers + move->into * into->per_sentence + head * into->per_head;
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * into->per_row, source + rows[i] * from->per_row, bytes);
    }
}

/* The same of the memory's keys at so many positions, which stand in blocks. */
static void move_blocks(const Move *move, const Store *from, const Store *into,
                        int64_t positions)
{
    const size_t bytes =
        (size_t)(round_up_to_lanes(positions) * move->width) * sizeof(float);
    for (int64_t head = 0; head < move->num_heads; head++)
        memcpy(into->numbers + move->into * into->per_sentence + head * into->per_head,
               from->numbers + move->from * from->per_sentence + head * from->per_head,
               bytes);
}

static void move_stores(const Stack *stack, const State *from, int64_t sentence,
                        State *into, int64_t place, const Slots *slots)
{
    const int64_t before = from->places[sentence];
    const int64_t length = memory_length(from, before);
    const Move keys = {before, place, stack->num_heads, stack->d_k};
    const Move values = {before, place, stack->num_heads, stack->d_v};
    for (int64_t i = 0; i < stack->num_layers; i++) {
        const LayerCache *old = from->layers + i, *new = into->layers + i;
        move_rows(&keys, &old->key, &new->key, slots->used, slots->num_used);
        move_rows(&values, &old->value, &new->value, slots->used, slots->num_used);
        move_blocks(&keys, &old->memory_key, &new->memory_key, length);
        move_rows(&values, &old->memory_value, &new->memory_value, slots->all, length);
    }
    uint8_t *mask = into->memory_mask + place * into->source;
    for (int64_t i = 0; i < into->source; i++)
        mask[i] = i < length;
}

/* What hypotheses have read, as far as their newest positions see it. */
static void move_past(const Decoder *decoder, const State *from, int64_t sentence,
                      State *into, int64_t place, const Slots *slots)
{
    const int64_t first = first_seen(from, decoder->neighbourhood, sentence);
    for (int64_t k = 0; k < from->group; k++) {
        const int32_t *old = past_of(from, sentence * from->group + k);
        int32_t *new = past_of(into, place * from->group + k);
        for (int64_t i = first; i < from->lengths[sentence]; i++)
            new[i] = slots->numbers[old[i]];
    }
    into->lengths[place] = from->lengths[sentence];
}

static void move_attention(const State *from, int64_t sentence, State *into,
                           int64_t place)
{
    const int64_t group = from->group;
    const int64_t length = memory_length(from, from->places[sentence]);
    for (int64_t k = 0; k < group; k++)
        memcpy(attention_of(into, place * group + k),
               attention_of(from, sentence * group + k),
               (size_t)length * sizeof(float));
}

/* Put all sentences of a state into another, whose sentences are in order, from its
   `first` on. It has what they need. 1 if memory is lacking, otherwise 0. */
static int transduce_gather(const Decoder *decoder, const State *from, State *into,
                            int64_t first)
{
    Slots slots;
    if (!begin_slots(&slots, from))
        return 1;
    for (int64_t i = 0; i < from->sentences; i++) {
        list_used(&slots, decoder, from, i);
        move_stores(&decoder->stack, from, i, into, first + i, &slots);
        move_past(decoder, from, i, into, first + i, &slots);
        if (from->attention)
            move_attention(from, i, into, first + i);
    }
    end_slots(&slots);
    return 0;
}
