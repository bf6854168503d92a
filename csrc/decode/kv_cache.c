/* What hypotheses have read: of each position, the slot that holds its keys and values.
   Slots that nobody sees any more are taken again, so that those in use are few and lie
   close together. */
#include "isa/name.h"
#include <stdlib.h>
#include <string.h>

#include "decode/step.h"

TD_INTERNAL int64_t longest_past(const State *state)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < state->sentences; i++)
        longest = largest(longest, state->lengths[i] + 1);
    return longest;
}

TD_INTERNAL int64_t first_seen(const State *state, int64_t neighbourhood,
                               int64_t sentence)
{
    return largest(state->lengths[sentence] - neighbourhood, 0);
}

TD_INTERNAL void mark_slots(const State *state, int64_t neighbourhood, int64_t sentence,
                            uint8_t *is_used)
{
    const int64_t first = first_seen(state, neighbourhood, sentence);
    memset(is_used, 0, (size_t)state->room);
    for (int64_t k = 0; k < state->group; k++) {
        const int32_t *past = past_of(state, sentence * state->group + k);
        for (int64_t i = first; i < state->lengths[sentence]; i++)
            is_used[past[i]] = 1;
    }
}

/* Slots for the newest position of a sentence's hypotheses. Whether there is room. */
static int take_slots_of(State *state, int64_t sentence, const uint8_t *is_used)
{
    const int64_t newest = state->lengths[sentence];
    if (newest == state->room)
        return 0;
    int64_t slot = 0;
    for (int64_t k = 0; k < state->group; k++, slot++) {
        while (slot < state->room && is_used[slot])
            slot++;
        if (slot >= state->room)
            return 0;
        past_of(state, sentence * state->group + k)[newest] = (int32_t)slot;
    }
    return 1;
}

TD_INTERNAL int take_slots(State *state, int64_t neighbourhood)
{
    uint8_t *is_used = malloc((size_t)state->room);
    if (!is_used)
        return 1;
    int have_room = 1;
    for (int64_t i = 0; have_room && i < state->sentences; i++) {
        mark_slots(state, neighbourhood, i, is_used);
        have_room = take_slots_of(state, i, is_used);
    }
    free(is_used);
    return have_room ? 0 : 4;
}

TD_INTERNAL int64_t list_past(const State *state, int64_t neighbourhood, int64_t row,
                              int32_t *slots)
{
    const int64_t sentence = row / state->group;
    const int64_t first = first_seen(state, neighbourhood, sentence);
    const int64_t count = state->lengths[sentence] + 1 - first;
    memcpy(slots, past_of(state, row) + first, (size_t)count * sizeof *slots);
    return count;
}

/* Whether each of so many groups is of one sentence, and these stand in order. */
static int are_in_order(const State *state, const int64_t *rows, int64_t sentences)
{
    int64_t last = -1;
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t *group = rows + i * state->group,
                      sentence = *group / state->group;
        if (sentence <= last || sentence >= state->sentences)
            return 0;
        for (int64_t k = 0; k < state->group; k++)
            if (group[k] < 0 || group[k] / state->group != sentence)
                return 0;
        last = sentence;
    }
    return 1;
}

/* Move the attention of the sentences that are kept; none moves to a later place.
   Returns 1 if memory is lacking, otherwise 0. */
static int reorder_attention(State *state, const int64_t *rows, int64_t sentences)
{
    const int64_t group = state->group;
    const size_t source = (size_t)state->source, bytes = source * sizeof(float);
    float *before = malloc((size_t)group * bytes);
    if (!before)
        return 1;
    for (int64_t i = 0; i < sentences; i++) {
        const int64_t first = rows[i * group] / group * group;
        memcpy(before, attention_of(state, first), (size_t)group * bytes);
        for (int64_t k = 0; k < group; k++)
            memcpy(attention_of(state, i * group + k),
                   before + (size_t)(rows[i * group + k] - first) * source, bytes);
    }
    free(before);
    return 0;
}

static int transduce_reorder(State *state, const int64_t *rows, int64_t sentences)
{
    const int64_t group = state->group;
    if (!are_in_order(state, rows, sentences))
        return 3;
    int32_t *before = malloc((size_t)(group * longest_past(state)) * sizeof *before);
    if (!before)
        return 1;
    if (state->attention && reorder_attention(state, rows, sentences)) {
        free(before);
        return 1;
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
        state->places[i] = state->places[sentence];
    }
    state->sentences = sentences;
    free(before);
    return 0;
}
