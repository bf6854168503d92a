/* A stack of layers (section 3.1; Figure 1): what it reads, what it leaves for its way
   back, and what it needs on the way only. */
#include "gemm/small_fp32.h"
#include "nn/dropout.h"

/* The weights of a sub-layer, or the places of their gradients; in that order. */
typedef struct {
    MapWeights query, key_value, output;
    float *gain, *bias;
} AttentionWeights;

typedef struct {
    MapWeights inner, outer;
    float *gain, *bias;
} FeedForwardWeights;

/* The weights of a layer, or the places of their gradients. */
typedef struct {
    const AttentionWeights *self, *memory;
    const FeedForwardWeights *feed_forward;
} LayerWeights;

/* What a normalised sum leaves for its way back. */
typedef struct {
    float *normalized, *inverse_deviation;
    Numbers y;
    uint8_t *kept;
} SumStates;

typedef struct {
    float *query, *key_value, *weights;
    Numbers heads;
    SumStates sum;
} AttentionStates;

typedef struct {
    Numbers hidden;
    SumStates sum;
} FeedForwardStates;

typedef struct {
    AttentionStates self, memory;
    FeedForwardStates feed_forward;
} LayerStates;

/* What is read from without, as products have it. */
typedef struct {
    Numbers x, memory;
} Inputs;

/* What is needed on the way only. */
typedef struct {
    float *addend, *of_y[2], *of_heads;
    Numbers of_addend, of_query, of_key_value, of_hidden;
    float *attention, *of_groups;
    Bf16 *turned, *paired; /* what products in bf16 have */
    uint8_t *bits;         /* and masks of hidden numbers */
} Work;

/* Room that is given away from its beginning on; only counted, if it is nowhere. */
typedef struct {
    float *at;
    int64_t taken;
} Room;

static float *take(Room *room, int64_t count)
{
    float *from = room->at ? room->at + room->taken : 0;
    room->taken += (count + LINE - 1) / LINE * LINE;
    return from;
}

/* Nowhere, if products are in fp32. */
static Bf16 *take_bf16(const td_stack *s, Room *room, int64_t count)
{
    return s->is_bf16 ? (Bf16 *)take(room, (count + 1) / 2) : 0;
}

static td_panels take_panels(const td_stack *s, Room *room, int64_t rows, int64_t width)
{
    return (td_panels){take_bf16(s, room, rows * width), rows};
}

/* In bf16 alone, if products are in it. */
static Numbers take_numbers(const td_stack *s, Room *room, int64_t rows, int64_t width)
{
    Numbers numbers = {0, take_panels(s, room, rows, width)};
    if (!s->is_bf16)
        numbers.fp32 = take(room, rows * width);
    return numbers;
}

static int64_t sublayers_of(const td_stack *s) { return s->memory_length > 0 ? 3 : 2; }

static int64_t rows_of(const td_stack *s) { return s->sentences * s->length; }

#define BITS_OF_FLOAT 32
#define OF_ATTENTION ((int64_t)(sizeof(AttentionWeights) / sizeof(void *)))
#define OF_FEED_FORWARD ((int64_t)(sizeof(FeedForwardWeights) / sizeof(void *)))

static int64_t weights_of_layer(const td_stack *s)
{
    return (sublayers_of(s) - 1) * OF_ATTENTION + OF_FEED_FORWARD;
}

static LayerWeights weights_of(const td_stack *s, void **all, int64_t layer)
{
    void **own = all + layer * weights_of_layer(s);
    return (LayerWeights){
        (const AttentionWeights *)own,
        (const AttentionWeights *)(own + OF_ATTENTION),
        (const FeedForwardWeights *)(own + (sublayers_of(s) - 1) * OF_ATTENTION),
    };
}

/* Further on, if it is anywhere. */
static float *further(const float *at, int64_t count)
{
    return at ? (float *)at + count : 0;
}

static td_mask further_seen(td_mask mask, int64_t sentences)
{
    if (mask.data)
        mask.data += sentences * mask.sentence_stride;
    return mask;
}

/* Some of the sentences, with what is theirs alone; the last has the most. */
static td_stack part_of(const td_stack *s, int64_t part)
{
    td_stack own = *s;
    const int64_t before = s->sentences * part / s->parts;
    own.sentences = s->sentences * (part + 1) / s->parts - before;
    own.parts = 1;
    own.num_threads = s->parts > 1 ? 1 : s->num_threads;
    own.first_row = before * s->length;
    const int64_t rows = own.first_row * s->d_model;
    const int64_t memory_rows = before * s->memory_length * s->d_model;
    own.self_mask = further_seen(s->self_mask, before);
    own.cross_mask = further_seen(s->cross_mask, before);
    if (s->grad_weights)
        own.grad_weights += part * s->layers * weights_of_layer(s);
    own.x = further(s->x, rows);
    own.memory = further(s->memory, memory_rows);
    own.y = further(s->y, rows);
    own.grad_y = further(s->grad_y, rows);
    own.grad_x = further(s->grad_x, rows);
    own.grad_memory = further(s->grad_memory, memory_rows);
    return own;
}

static SumStates take_sum_states(const td_stack *s, Room *room)
{
    const int64_t count = rows_of(s) * s->d_model;
    SumStates states;
    states.normalized = take(room, count);
    states.inverse_deviation = take(room, rows_of(s));
    states.y.fp32 = take(room, count);
    states.y.bf16 = take_panels(s, room, rows_of(s), s->d_model);
    states.kept = (uint8_t *)take(room, count / (int64_t)sizeof(float));
    return states;
}

static AttentionStates take_attention_states(const td_stack *s, int64_t keys, Room *room)
{
    const int64_t rows = rows_of(s);
    AttentionStates states;
    states.query = take(room, rows * s->heads * s->d_k);
    states.key_value = take(room, s->sentences * keys * s->heads * (s->d_k + s->d_v));
    states.weights = take(room, rows * s->heads * round_up_to_lanes(keys));
    states.heads = take_numbers(s, room, rows, s->heads * s->d_v);
    states.sum = take_sum_states(s, room);
    return states;
}

static LayerStates take_layer_states(const td_stack *s, Room *room)
{
    LayerStates states = {0};
    states.self = take_attention_states(s, s->length, room);
    if (s->memory_length > 0)
        states.memory = take_attention_states(s, s->memory_length, room);
    states.feed_forward.hidden = take_numbers(s, room, rows_of(s), s->d_ff);
    states.feed_forward.sum = take_sum_states(s, room);
    return states;
}

static int64_t size_of_states(const td_stack *s)
{
    Room room = {0, 0};
    take_layer_states(s, &room);
    return room.taken;
}

static Inputs take_inputs(const td_stack *s, Room *room)
{
    const int64_t memory_rows = s->sentences * s->memory_length;
    return (Inputs){
        {(float *)s->x, take_panels(s, room, rows_of(s), s->d_model)},
        {(float *)s->memory, take_panels(s, room, memory_rows, s->d_model)},
    };
}

/* Behind the states of all layers. */
static Inputs inputs_of(const td_stack *s)
{
    Room room = {s->states + s->kept_layers * size_of_states(s), 0};
    return take_inputs(s, &room);
}

static LayerStates states_of(const td_stack *s, int64_t layer)
{
    Room room = {s->states + layer % s->kept_layers * size_of_states(s), 0};
    return take_layer_states(s, &room);
}

/* For the largest of the parts. */
static int64_t stack_states(const td_stack *s)
{
    const td_stack last = part_of(s, s->parts - 1);
    Room room = {0, 0};
    take_inputs(&last, &room);
    return s->kept_layers * size_of_states(&last) + room.taken;
}

static int64_t at_least(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static Work take_work(const td_stack *s, Room *room)
{
    const int64_t rows = rows_of(s);
    const int64_t keys = at_least(s->length, s->memory_length);
    const td_attention a = {
        .queries = s->length, .keys = keys, .d_k = s->d_k, .d_v = s->d_v};
    const td_layer_norm r = {.rows = rows};
    Work work;
    work.addend = take(room, rows * s->d_model);
    work.of_y[0] = take(room, rows * s->d_model);
    work.of_y[1] = take(room, rows * s->d_model);
    work.of_heads = take(room, rows * s->heads * s->d_v);
    work.of_addend = take_numbers(s, room, rows, s->d_model);
    work.of_query = take_numbers(s, room, rows, s->heads * s->d_k);
    work.of_key_value =
        take_numbers(s, room, s->sentences * keys, s->heads * (s->d_k + s->d_v));
    work.of_hidden = take_numbers(s, room, rows, s->d_ff);
    work.attention = take(room, attention_workspace(&a) * s->num_threads);
    work.of_groups = take(room, layer_norm_groups(&r) * 2 * s->d_model);
    const int64_t widest = at_least(s->d_ff, at_least(s->d_model, s->heads * s->d_v));
    const int64_t most_rows = s->sentences * keys;
    work.paired = take_bf16(s, room, in_whole(most_rows) * widest);
    work.turned = take_bf16(s, room, s->num_threads * turned_numbers(most_rows));
    work.bits = 0;
    if (s->is_bf16 && s->relu_dropout.num_dropped > 0)
        work.bits = (uint8_t *)take(room, rows * s->d_ff / BITS_OF_FLOAT);
    return work;
}

/* For the largest of the parts. */
static int64_t stack_workspace(const td_stack *s)
{
    const td_stack last = part_of(s, s->parts - 1);
    Room room = {0, 0};
    take_work(&last, &room);
    return room.taken;
}

/* Of the two buffers, one that does not hold this gradient. */
static float *elsewhere(const Work *work, const float *of_y)
{
    return work->of_y[of_y == work->of_y[0]];
}
