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

/* Where a query may attend to a key. */
typedef struct {
    const uint8_t *at;
    /* Bytes from one to the next; none, if all have the same mask. */
    int64_t by_sentence, by_query;
} Seen;

typedef struct {
    int64_t layers, sentences, length, d_model, d_ff, heads, d_k, d_v;
    int64_t memory_length; /* zero: these layers attend to no memory */
    int64_t kept_layers;   /* all, or one, if there is no way back */
    int64_t parts;     /* of the sentences; each goes through all layers by itself */
    int64_t first_row; /* of these sentences, which may be a part of a batch */
    int64_t is_bf16;   /* products are of numbers in bf16 */
    float epsilon, scale;
    DropoutRate dropout, attention_dropout, relu_dropout;
    Seen self_mask, memory_mask;
    const uint32_t *seeds; /* of each sub-layer: two for dropout within it, two for
                              dropout of its output */
    void **weights;
    void **gradients;    /* of each part, as many as there are weights */
    const float *x;      /* [sentences, length, d_model] */
    const float *memory; /* [sentences, memory_length, d_model] */
    float *y;
    float *states;     /* of each part, as `transduce_stack_states` says */
    const float *of_y; /* gradients, as what they are of */
    float *of_x, *of_memory;
    float *room;     /* of each part, as `transduce_stack_room` says */
    int num_threads; /* of each operator, if there is but one part */
} Stack;

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
static Bf16 *take_bf16(const Stack *s, Room *room, int64_t count)
{
    return s->is_bf16 ? (Bf16 *)take(room, (count + 1) / 2) : 0;
}

static Panels take_panels(const Stack *s, Room *room, int64_t rows, int64_t width)
{
    return (Panels){take_bf16(s, room, rows * width), rows};
}

/* In bf16 alone, if products are in it. */
static Numbers take_numbers(const Stack *s, Room *room, int64_t rows, int64_t width)
{
    Numbers numbers = {0, take_panels(s, room, rows, width)};
    if (!s->is_bf16)
        numbers.fp32 = take(room, rows * width);
    return numbers;
}

static int64_t sublayers_of(const Stack *s) { return s->memory_length > 0 ? 3 : 2; }

static int64_t rows_of(const Stack *s) { return s->sentences * s->length; }

#define BITS_OF_FLOAT 32
#define OF_ATTENTION ((int64_t)(sizeof(AttentionWeights) / sizeof(void *)))
#define OF_FEED_FORWARD ((int64_t)(sizeof(FeedForwardWeights) / sizeof(void *)))

static int64_t weights_of_layer(const Stack *s)
{
    return (sublayers_of(s) - 1) * OF_ATTENTION + OF_FEED_FORWARD;
}

static LayerWeights weights_of(const Stack *s, void **all, int64_t layer)
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

static Seen further_seen(Seen mask, int64_t sentences)
{
    if (mask.at)
        mask.at += sentences * mask.by_sentence;
    return mask;
}

/* Some of the sentences, with what is theirs alone; the last has the most. */
static Stack part_of(const Stack *s, int64_t part)
{
    Stack own = *s;
    const int64_t before = s->sentences * part / s->parts;
    own.sentences = s->sentences * (part + 1) / s->parts - before;
    own.parts = 1;
    own.num_threads = s->parts > 1 ? 1 : s->num_threads;
    own.first_row = before * s->length;
    const int64_t rows = own.first_row * s->d_model;
    const int64_t memory_rows = before * s->memory_length * s->d_model;
    own.self_mask = further_seen(s->self_mask, before);
    own.memory_mask = further_seen(s->memory_mask, before);
    if (s->gradients)
        own.gradients += part * s->layers * weights_of_layer(s);
    own.x = further(s->x, rows);
    own.memory = further(s->memory, memory_rows);
    own.y = further(s->y, rows);
    own.of_y = further(s->of_y, rows);
    own.of_x = further(s->of_x, rows);
    own.of_memory = further(s->of_memory, memory_rows);
    return own;
}

static SumStates take_sum_states(const Stack *s, Room *room)
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

static AttentionStates take_attention_states(const Stack *s, int64_t keys, Room *room)
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

static LayerStates take_layer_states(const Stack *s, Room *room)
{
    LayerStates states = {0};
    states.self = take_attention_states(s, s->length, room);
    if (s->memory_length > 0)
        states.memory = take_attention_states(s, s->memory_length, room);
    states.feed_forward.hidden = take_numbers(s, room, rows_of(s), s->d_ff);
    states.feed_forward.sum = take_sum_states(s, room);
    return states;
}

static int64_t size_of_states(const Stack *s)
{
    Room room = {0, 0};
    take_layer_states(s, &room);
    return room.taken;
}

static Inputs take_inputs(const Stack *s, Room *room)
{
    const int64_t memory_rows = s->sentences * s->memory_length;
    return (Inputs){
        {(float *)s->x, take_panels(s, room, rows_of(s), s->d_model)},
        {(float *)s->memory, take_panels(s, room, memory_rows, s->d_model)},
    };
}

/* Behind the states of all layers. */
static Inputs inputs_of(const Stack *s)
{
    Room room = {s->states + s->kept_layers * size_of_states(s), 0};
    return take_inputs(s, &room);
}

static LayerStates states_of(const Stack *s, int64_t layer)
{
    Room room = {s->states + layer % s->kept_layers * size_of_states(s), 0};
    return take_layer_states(s, &room);
}

/* For the largest of the parts. */
static int64_t transduce_stack_states(const Stack *s)
{
    const Stack last = part_of(s, s->parts - 1);
    Room room = {0, 0};
    take_inputs(&last, &room);
    return s->kept_layers * size_of_states(&last) + room.taken;
}

static int64_t at_least(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static Work take_work(const Stack *s, Room *room)
{
    const int64_t rows = rows_of(s);
    const int64_t keys = at_least(s->length, s->memory_length);
    const Attention a = {
        .queries = s->length, .keys = keys, .d_k = s->d_k, .d_v = s->d_v};
    const Residual r = {.rows = rows};
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
    work.attention = take(room, transduce_attention_room(&a) * s->num_threads);
    work.of_groups = take(room, transduce_residual_groups(&r) * 2 * s->d_model);
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
static int64_t transduce_stack_room(const Stack *s)
{
    const Stack last = part_of(s, s->parts - 1);
    Room room = {0, 0};
    take_work(&last, &room);
    return room.taken;
}

/* Of the two buffers, one that does not hold this gradient. */
static float *elsewhere(const Work *work, const float *of_y)
{
    return work->of_y[of_y == work->of_y[0]];
}
