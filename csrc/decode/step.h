/* The decoder, and where it stands between steps. */
#ifndef TRANSDUCE_DECODER_H
#define TRANSDUCE_DECODER_H

#include "decode/stack.h"
#include "isa/name.h"

typedef struct {
    Stack stack;
    Embedding embedding;
    int64_t neighbourhood; /* how far back a position sees */
    Linear output;
} Decoder;

typedef struct {
    Store key, value, memory_key, memory_value;
} LayerCache;

/* Where the decoder stands: a group of hypotheses for each sentence. What is large has
   places of its own, so that it need not be moved when sentences leave. */
typedef struct {
    int64_t sentences, group;
    int64_t room; /* of a sentence: slots, and positions that can be read */
    int64_t source;
    int32_t *past;    /* of each hypothesis, the slot of each position that is seen */
    int64_t *lengths; /* positions read of each sentence */
    int64_t *places;  /* of each sentence in what follows */
    uint8_t *memory_mask; /* positions of each place */
    /* Attention of each hypothesis to each position of the memory, summed over its
       steps: the mean of the last layer's heads. NULL if coverage is not needed. */
    float *attention;
    const LayerCache *layers;
} State;

static inline int32_t *past_of(const State *state, int64_t row)
{
    return state->past + row * state->room;
}

static inline float *attention_of(const State *state, int64_t row)
{
    return state->attention + row * state->source;
}

/* Positions that the longest past has, the newest included. */
TD_INTERNAL int64_t longest_past(const State *state);

/* The first position that the newest of a sentence sees, so far back at most. */
TD_INTERNAL int64_t first_seen(const State *state, int64_t neighbourhood,
                               int64_t sentence);

/* Which slots hold something that the newest positions of a sentence's hypotheses see.
 */
TD_INTERNAL void mark_slots(const State *state, int64_t neighbourhood, int64_t sentence,
                            uint8_t *is_used);

/* Slots for the newest position of each hypothesis, which counts as read once its
   sentence's length is raised. 1 if memory is lacking, 4 if there is no room, otherwise
   0. */
TD_INTERNAL int take_slots(State *state, int64_t neighbourhood);

/* The slots that a hypothesis's newest position sees, its own the last; how many. */
TD_INTERNAL int64_t list_past(const State *state, int64_t neighbourhood, int64_t row,
                              int32_t *slots);

/* Put keys or values of a row, head after head, into a slot of a place. */
TD_INTERNAL void store_row(const Stack *stack, const float *from, int64_t width,
                           const Store *into, int64_t place, int64_t slot);

/* Positions of a place that are no padding, which stands behind them. */
TD_INTERNAL int64_t memory_length(const State *state, int64_t place);

/* Read one more token of each hypothesis, for the logits of what comes next;
   `positions` has a row for each position up to the newest. 1 if memory is lacking, 2
   if one is no token, 4 if there is no room for it, and nothing has changed; otherwise
   0, and then the work must end. */
TD_INTERNAL int read_tokens(Work *work, const Decoder *decoder, State *state,
                            const int64_t *last_ids, const float *positions,
                            int num_threads);

/* The logits of so many tokens, from one on with which a block of outputs begins. */
TD_INTERNAL void multiply_for_logits(const Work *work, const Decoder *decoder,
                                     int64_t first, int64_t count,
                                     const Matrix *logits);

/* A step by itself: read the tokens, and put out all logits. */
static int transduce_step(const Decoder *decoder, State *state, const int64_t *last_ids,
                          const float *positions, float *logits, int num_threads);

/* Sum of log(min(attention, 1)) over the positions of the memory for each hypothesis
   (Wu et al., 2016, equation 14). The state's attention must not be NULL. */
static void transduce_coverage(const State *state, double *coverages);

/* Keep so many sentences, each with these of its hypotheses, numbered through all
   groups. 1 if memory is lacking, 3 if they are not of one sentence each, or these in
   another order, otherwise 0. */
static int transduce_reorder(State *state, const int64_t *rows, int64_t sentences);

#endif
