/* Sentences that are put into stores of their own, without what nobody needs any more.
 */
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "exported.h"
#include "lanes.h"

/* The slots of a sentence that hold the past of any of its hypotheses. */
static int64_t list_used(const State *state, int64_t sentence, int32_t *slots)
{
    const uint8_t *past = state->past + sentence * state->group * state->room;
    int64_t found = 0;
    for (int64_t slot = 0; slot < state->num_slots; slot++) {
        uint8_t is_used = 0;
        for (int64_t k = 0; k < state->group; k++)
            is_used |= past[k * state->room + slot];
        slots[found] = (int32_t)slot;
        found += is_used;
    }
    return found;
}

typedef struct {
    int64_t slots, source, length;
} Needs;

/* Raise needs to those of all sentences: slots in use, positions of the memory,
   positions read. 1 if memory is lacking, otherwise 0. */
EXPORTED int transduce_measure(const State *state, Needs *needs)
{
    int32_t *slots = malloc(((size_t)state->num_slots + 1) * sizeof *slots);
    if (!slots)
        return 1;
    for (int64_t i = 0; i < state->sentences; i++) {
        needs->slots = largest(needs->slots, list_used(state, i, slots));
        needs->source = largest(needs->source, memory_length(state, state->places[i]));
        needs->length = largest(needs->length, state->lengths[i]);
    }
    free(slots);
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
        (size_t)(whole_registers(positions) * move->width) * sizeof(float);
    for (int64_t head = 0; head < move->num_heads; head++)
        memcpy(into->numbers + move->into * into->per_sentence + head * into->per_head,
               from->numbers + move->from * from->per_sentence + head * from->per_head,
               bytes);
}

/* Slots that are moved, in use and of the memory. */
typedef struct {
    int32_t *used, *all;
    int64_t num_used;
} Moved;

static void move_stores(const Stack *stack, const State *from, int64_t sentence,
                        State *into, int64_t place, const Moved *slots)
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

/* Whose past the slots in use are, and the positions of what they hold. */
static void move_past(const State *from, int64_t sentence, State *into, int64_t place,
                      const Moved *slots)
{
    const int64_t group = from->group, num_used = slots->num_used;
    const int32_t *used = slots->used;
    const int64_t *positions =
        from->slot_positions + from->places[sentence] * from->room;
    for (int64_t k = 0; k < group; k++) {
        const uint8_t *old = from->past + (sentence * group + k) * from->room;
        uint8_t *new = into->past + (place * group + k) * into->room;
        for (int64_t i = 0; i < into->room; i++)
            new[i] = i < num_used ? old[used[i]] : 0;
    }
    for (int64_t i = 0; i < into->room; i++)
        into->slot_positions[place * into->room + i] =
            i < num_used ? positions[used[i]] : 0;
    into->lengths[place] = from->lengths[sentence];
}

/* Put all sentences of a state into another, whose sentences are in order, from its
   `first` on. It has what they need. 1 if memory is lacking, otherwise 0. */
EXPORTED int transduce_gather(const Decoder *decoder, const State *from, State *into,
                              int64_t first)
{
    const size_t most = (size_t)largest(from->num_slots, from->source) + 1;
    int32_t *used = malloc(2 * most * sizeof *used);
    if (!used)
        return 1;
    Moved slots = {used, used + most, 0};
    for (size_t i = 0; i < most; i++)
        slots.all[i] = (int32_t)i;
    for (int64_t i = 0; i < from->sentences; i++) {
        slots.num_used = list_used(from, i, used);
        move_stores(&decoder->stack, from, i, into, first + i, &slots);
        move_past(from, i, into, first + i, &slots);
    }
    free(used);
    return 0;
}
