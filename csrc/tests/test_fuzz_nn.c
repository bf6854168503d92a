/* Functions of training with random sizes, threads and numbers, some of them invalid:
 * invalid arguments are refused, and all others are accepted. Arrays have exactly the
 * sizes that the header gives. Run with sanitizers. */
#include "tests/arrays.h"
#include "tests/fuzz.h"

enum { CALLS = 300, LONG = 10000, MAX_LAYERS = 2, MAX_PARTS = 3 };
enum { MAX_POINTERS = MAX_LAYERS * 22 };

/* Whether all arguments of the next call are valid so far. */
static int is_valid, is_token;
static int64_t num_accepted;

static void begin_call(void)
{
    release_arrays();
    is_valid = is_token = 1;
}

static void check_call(td_status status)
{
    CHECK_STATUS(status, !is_valid ? TD_BAD_ARGUMENT : is_token ? TD_OK : TD_BAD_TOKEN);
    num_accepted += status == TD_OK;
}

/* A multiple of `factor`, mostly valid. */
static int64_t size(int64_t low, int64_t high, int64_t factor)
{
    static const int64_t far[] = {INT64_MIN, -1, (int64_t)1 << 31, (int64_t)1 << 40,
                                  INT64_MAX};
    if (pick(0, 99))
        return factor * pick(low, high);
    is_valid = 0;
    return factor > 1 && pick(0, 1) ? factor * high + 1 : far[pick(0, 4)];
}

/* A length, now and then a long one. */
static int64_t length(int64_t low, int64_t high)
{
    return pick(0, 49) ? size(low, high, 1) : LONG;
}

static int threads(void)
{
    const int num_threads = odd_threads();
    is_valid &= num_threads >= 1 && num_threads <= 4096;
    return num_threads;
}

/* An array of elements, now and then none where one is needed. Invalid sizes have
 * arrays of one byte, which no function may read. */
static void *array(int64_t count, size_t bytes)
{
    if (!is_valid)
        return new_array(1);
    if (count > 0 && pick(0, 199) == 0) {
        is_valid = 0;
        return NULL;
    }
    return new_array(count * (int64_t)bytes);
}

static float *floats(int64_t count)
{
    float *values = array(count, sizeof *values);
    for (int64_t i = 0; is_valid && values && i < count; i++)
        values[i] = odd_float();
    return values;
}

static uint8_t *bytes_of_mask(int64_t count)
{
    uint8_t *mask = array(count, 1);
    for (int64_t i = 0; is_valid && mask && i < count; i++)
        mask[i] = pick(0, 2) > 0;
    return mask;
}

static int64_t *targets(int64_t count, int64_t vocab)
{
    int64_t *ids = array(count, sizeof *ids);
    for (int64_t i = 0; is_valid && ids && i < count; i++) {
        ids[i] = pick(0, 9) ? pick(0, vocab - 1) : odd(0, vocab - 1);
        is_token &= ids[i] >= 0 && ids[i] < vocab;
    }
    return ids;
}

static td_dropout dropout(void)
{
    const uint32_t dropped = pick(0, 1) ? 0 : (uint32_t)pick(0, 65535);
    return (td_dropout){{random_u32(&fuzz_state), random_u32(&fuzz_state)},
                        {dropped, 65536.0f / (float)(65536 - dropped)}};
}

/* Panels of a matrix, or none. */
static td_panels panels(int64_t rows, int64_t columns)
{
    if (!is_valid || pick(0, 1) || columns % 32)
        return (td_panels){0};
    const td_panels panels = {new_array(rows * columns * 2), rows - (pick(0, 99) == 0)};
    is_valid &= panels.rows == rows;
    return panels;
}

/* A number of elements, or of the first row of a batch, which may be larger than other
 * sizes. */
static int64_t large_size(int64_t high)
{
    static const int64_t far[] = {INT64_MIN, -1, ((int64_t)1 << 48) + 1, INT64_MAX};
    if (pick(0, 99))
        return pick(0, 1) ? 0 : pick(0, high);
    is_valid = 0;
    return far[pick(0, 3)];
}

/* A factor of a product, with contiguous rows or columns. */
static td_factor factor(int64_t rows, int64_t columns)
{
    const int is_transposed = (int)pick(0, 1);
    const int64_t width = !is_valid ? 1 : is_transposed ? rows : columns;
    const int64_t count = is_transposed ? columns : rows;
    const int64_t stride = pick(0, 99) || !is_valid ? width + pick(0, 3) : -1;
    is_valid &= stride >= 0;
    const float *data =
        floats(is_valid && width * count > 0 ? (count - 1) * stride + width : 0);
    return is_transposed ? (td_factor){data, 1, stride} : (td_factor){data, stride, 1};
}

static void multiply(const td_nn_api *nn)
{
    td_product p = {.rows = size(0, 40, 1),
                    .columns = size(0, 50, 1),
                    .inner = size(0, 30, 1),
                    .relu = pick(0, 1),
                    .accumulates = pick(0, 1)};
    const int num_threads = threads();
    p.a = factor(p.rows, p.inner);
    p.b = factor(p.inner, p.columns);
    p.bias = is_valid && pick(0, 1) ? random_floats(p.columns) : NULL;
    p.c = floats(is_valid ? p.rows * p.columns : 0);
    p.workspace = floats(is_valid ? num_threads * nn->product_workspace() : 1);
    check_call(nn->product(&p, num_threads));
}

static void attend(const td_nn_api *nn)
{
    td_attention a = {.sentences = size(0, 3, 1),
                      .heads = size(1, 3, 1),
                      .queries = length(0, 9),
                      .d_k = size(1, 3, 16),
                      .d_v = size(1, 3, 16),
                      .scale = odd_float(),
                      .first_sentence = large_size(1 << 30),
                      .dropout = dropout()};
    a.keys = a.queries == LONG ? size(1, 3, 1) : length(1, 20);
    const int num_threads = threads();
    const int64_t lanes = nn->lanes, workspace = nn->attention_workspace(&a);
    if (is_valid)
        CHECK(workspace > 0);
    const td_attention sizes = is_valid ? a : (td_attention){0};
    const int64_t rows = sizes.sentences * sizes.queries;
    const int64_t keys = sizes.sentences * sizes.keys;
    const int64_t query_width = sizes.heads * sizes.d_k;
    const int64_t value_width = sizes.heads * sizes.d_v;
    const int64_t key_width = query_width + value_width;
    const int64_t stride = (sizes.keys + lanes - 1) / lanes * lanes;
    a.mask = (td_mask){bytes_of_mask(rows * sizes.keys), sizes.queries * sizes.keys,
                       sizes.keys};
    a.query = floats(rows * query_width);
    a.key_value = floats(keys * key_width);
    a.bf16_output = panels(rows, value_width);
    a.output = a.bf16_output.data ? NULL : floats(rows * value_width);
    a.weights = floats(rows * sizes.heads * stride);
    a.workspace = floats(sizes.sentences ? num_threads * workspace : 0);
    check_call(nn->attention_forward(&a, num_threads));
    if (!is_valid)
        return;
    a.grad_output = floats(rows * value_width);
    a.bf16_grad_query = panels(rows, query_width);
    a.bf16_grad_key_value = panels(keys, key_width);
    a.grad_query = a.bf16_grad_query.data ? NULL : floats(rows * query_width);
    a.grad_key_value = a.bf16_grad_key_value.data ? NULL : floats(keys * key_width);
    check_call(nn->attention_backward(&a, num_threads));
}

static void compute_recurrence(const td_nn_api *nn)
{
    td_recurrence r = {
        .sentences = size(0, 3, 1), .length = length(1, 20), .width = size(1, 4, 16)};
    const int num_threads = threads();
    const int64_t count = is_valid ? r.sentences * r.length * r.width : 0;
    r.gate = floats(count);
    r.candidate = floats(count);
    r.forget = pick(0, 1) ? (float *)r.gate : floats(count);
    r.cells = floats(count);
    r.output = floats(count);
    check_call(nn->recurrence_forward(&r, num_threads));
    if (!is_valid)
        return;
    r.grad_output = floats(count);
    r.grad_gate = floats(count);
    r.grad_candidate = floats(count);
    check_call(nn->recurrence_backward(&r, num_threads));
}

/* Masks of a tensor, whose elements are not set yet. */
static td_masking masking(int64_t count, int64_t width)
{
    td_masking m = {.count = count,
                    .block_width = width,
                    .block_masks = width,
                    .first_block = large_size(1 << 30),
                    .dropout = dropout()};
    if (is_valid)
        m.block_masks += width % 2 + 2 * pick(0, 9);
    if (is_valid && pick(0, 49) == 0) {
        m.block_masks = pick(0, 1) ? 2 * (width / 2) - 2 : width + (width + 1) % 2;
        is_valid = 0; /* too few, or an odd number */
    }
    const int64_t blocks = is_valid ? (count + width - 1) / width : 0;
    m.kept = array(blocks * m.block_masks, 1);
    return m;
}

static void apply_dropout(const td_nn_api *nn)
{
    const int64_t count = large_size(3 * LONG), width = size(1, 90, 1);
    const int num_threads = threads();
    td_masking m = masking(count, width);
    m.x = floats(count);
    m.y = floats(count);
    check_call(nn->dropout_forward(&m, num_threads));
    check_call(nn->dropout_backward(&m, num_threads));
}

static void apply_layer_norm(const td_nn_api *nn)
{
    td_layer_norm n = {
        .rows = length(0, 40), .width = size(1, 5, 16), .epsilon = 1e-6f};
    const int num_threads = threads();
    const int64_t workspace = nn->layer_norm_workspace(&n);
    const int64_t count = is_valid ? n.rows * n.width : 0;
    const int64_t width = is_valid ? n.width : 0;
    n.masking = masking(count, n.width);
    n.masking.x = floats(count);
    n.x = floats(count);
    n.gain = floats(width);
    n.bias = floats(width);
    n.normalized = floats(count);
    n.inverse_deviation = floats(is_valid ? n.rows : 0);
    n.y = floats(count);
    n.bf16_y = panels(n.rows, n.width);
    check_call(nn->layer_norm_forward(&n, num_threads));
    if (!is_valid)
        return;
    n.grad_y = floats(count);
    n.grad_x = floats(count);
    n.grad_gain = floats(width);
    n.grad_bias = floats(width);
    n.workspace = floats(n.rows ? workspace : 0);
    if (n.masking.block_masks == n.width)
        n.bf16_grad_addend = panels(n.rows, n.width);
    n.masking.y = n.bf16_grad_addend.data ? NULL : floats(count);
    check_call(nn->layer_norm_backward(&n, num_threads));
}

static void compute_loss(const td_nn_api *nn)
{
    td_cross_entropy c = {.rows = length(0, 20), .smoothing = odd_float()};
    c.vocab = c.rows == LONG ? size(1, 9, 1) : length(1, 90);
    if (pick(0, 1) == 0)
        c.consistency = pick(0, 9) ? 3.0f : odd_float();
    is_valid &= c.consistency >= 0 && (c.consistency == 0 || c.rows % 2 == 0);
    const int num_threads = threads(), is_rounded = pick(0, 1) == 0;
    const int64_t rows = is_valid ? c.rows : 0, count = is_valid ? rows * c.vocab : 0;
    if (is_rounded) {
        c.bf16_logits = array(count, sizeof *c.bf16_logits);
        c.workspace = floats(rows ? 2 * num_threads * c.vocab : 0);
    } else {
        c.logits = floats(count); /* without any, there are none in bf16 either */
    }
    c.smoothed = floats(rows);
    c.negative_log_likelihood = floats(rows);
    c.targets = targets(rows, c.vocab);
    check_call(nn->cross_entropy(&c, num_threads));
}

static void compute_output_loss(const td_nn_api *nn)
{
    td_output_loss l = {.rows = size(0, 90, 1),
                        .vocab = size(1, 200, 1),
                        .width = size(1, 3, 32),
                        .smoothing = odd_float(),
                        .accumulates = pick(0, 1)};
    const int num_threads = threads();
    const int64_t workspace = nn->output_loss_workspace(&l, num_threads);
    CHECK(is_valid == (workspace >= 0));
    const int64_t rows = is_valid ? l.rows : 0, vocab = is_valid ? l.vocab : 0;
    const int64_t packed = is_valid ? (vocab + 31) / 32 * 32 * l.width : 0;
    l.weight = floats(is_valid ? vocab * l.width : 0);
    l.packed_forward = array(packed, sizeof *l.packed_forward);
    l.packed_backward = array(packed, sizeof *l.packed_backward);
    check_call(nn->output_loss_pack(&l, num_threads));
    if (!is_valid)
        return;
    l.states = floats(rows * l.width);
    l.grad_states = floats(rows * l.width);
    l.grad_weight = floats(vocab * l.width);
    l.smoothed = floats(rows);
    l.negative_log_likelihood = floats(rows);
    l.workspace = floats(workspace);
    l.targets = targets(rows, vocab);
    check_call(nn->output_loss(&l, num_threads));
}

/* Pointers to matrices, now and then without one of them. All pointers are set even if
 * another argument is NULL, as they may be read before that is found. */
static float **matrices(int64_t count, int64_t elements)
{
    if (count > 0 && pick(0, 199) == 0) {
        is_valid = 0;
        return NULL;
    }
    float **pointers = new_array(count * (int64_t)sizeof *pointers);
    for (int64_t i = 0; i < count; i++)
        pointers[i] = floats(elements);
    return pointers;
}

static void run_muon(const td_nn_api *nn)
{
    const int is_bf16 = (int)pick(0, 1), factor = is_bf16 ? 32 : 16;
    td_muon m = {.count = size(0, 3, 1),
                 .rows = size(1, 3, factor),
                 .columns = size(1, 3, factor),
                 .steps = size(0, 3, 1),
                 .epsilon = 1e-7f,
                 .gradient_weight = 0.05f,
                 .rate = 0.1f,
                 .is_bf16 = is_bf16};
    const int num_threads = threads();
    const int64_t workspace = nn->muon_workspace(&m);
    m.factors = floats(is_valid ? 3 * m.steps : 0);
    const int64_t count = is_valid ? m.count : 0;
    const int64_t elements = is_valid ? m.rows * m.columns : 0;
    m.gradients = (const float *const *)matrices(count, elements);
    m.momenta = matrices(count, elements);
    m.weights = matrices(count, elements);
    m.workspace = floats(is_valid && m.count ? num_threads * workspace : 0);
    check_call(nn->muon(&m, num_threads));
}

/* ---- Stacks ------------------------------------------------------------------- */

/* Parameters of a stack. */
typedef struct {
    float *pointers[MAX_POINTERS];
    int64_t count;
    int64_t size;        /* elements of all */
    int64_t matrix_size; /* elements of all weights of linear maps */
} Weights;

static void add_vector(Weights *w, int64_t size)
{
    w->pointers[w->count++] = floats(size);
    w->size += size;
}

static void add_map(Weights *w, int64_t outputs, int64_t inputs, int has_bias)
{
    add_vector(w, outputs * inputs);
    w->matrix_size += outputs * inputs;
    if (has_bias)
        add_vector(w, outputs);
}

static void add_norm(Weights *w, int64_t width)
{
    add_vector(w, width);
    add_vector(w, width);
}

static void add_attention(Weights *w, const td_stack *s)
{
    add_map(w, s->heads * s->d_k, s->d_model, 1);
    add_map(w, s->heads * (s->d_k + s->d_v), s->d_model, 1);
    add_map(w, s->d_model, s->heads * s->d_v, 1);
    add_norm(w, s->d_model);
}

static void add_weights(Weights *w, const td_stack *s)
{
    for (int64_t layer = 0; layer < s->layers; layer++) {
        if (s->is_recurrent) {
            add_map(w, s->d_model, s->d_model, 1);
            add_map(w, s->d_model, s->d_model, 0);
            add_norm(w, s->d_model);
        } else {
            add_attention(w, s);
        }
        if (s->memory_length)
            add_attention(w, s);
        add_map(w, s->d_ff, s->d_model, 1);
        add_map(w, s->d_model, s->d_ff, 1);
        add_norm(w, s->d_model);
    }
}

/* Give a stack of valid sizes its arrays for the forward pass. */
static void fill_stack(const td_nn_api *nn, td_stack *s)
{
    const int64_t rows = s->sentences * s->length;
    const int64_t memory_rows = s->sentences * s->memory_length;
    s->x = floats(rows * s->d_model);
    s->memory = floats(memory_rows * s->d_model);
    s->y = floats(rows * s->d_model);
    s->states = floats(s->sentences ? s->parts * nn->stack_states(s) : 0);
    s->workspace = floats(s->parts * nn->stack_workspace(s));
    if (!s->is_recurrent)
        s->self_mask = (td_mask){bytes_of_mask(rows * s->length), s->length * s->length,
                                 s->length};
    s->cross_mask = (td_mask){bytes_of_mask(memory_rows), s->memory_length, 0};
}

static void run_stack(const td_nn_api *nn)
{
    const td_dropout_rate rate = dropout().rate;
    td_stack s = {.layers = size(1, MAX_LAYERS, 1),
                  .sentences = size(0, 4, 1),
                  .length = size(1, 9, 1),
                  .d_model = size(1, 2, 32),
                  .d_ff = size(1, 2, 32),
                  .d_k = size(1, 2, 16),
                  .d_v = size(1, 2, 16),
                  .heads = pick(0, 99) ? 2 * pick(1, 2) : pick(-1, 0),
                  .memory_length = pick(0, 1) ? 0 : size(1, 9, 1),
                  .first_sentence = large_size(1 << 30),
                  .is_bf16 = pick(0, 1),
                  .is_recurrent = pick(0, 1),
                  .epsilon = 1e-6f,
                  .scale = 0.25f,
                  .dropout = rate,
                  .attention_dropout = rate,
                  .relu_dropout = rate};
    static uint32_t seeds[MAX_LAYERS * 3 * 4];
    Weights weights = {0};
    is_valid &= s.heads > 0;
    s.num_threads = threads();
    s.seeds = seeds;
    s.kept_layers = pick(0, 19) ? s.layers : size(3, 9, 1);
    s.parts = is_valid && s.sentences
                  ? pick(1, s.sentences > MAX_PARTS ? MAX_PARTS : s.sentences)
                  : 1;
    is_valid &= s.kept_layers == s.layers;
    if (is_valid)
        add_weights(&weights, &s);
    s.weights = weights.pointers;
    if (s.is_bf16) {
        s.packed_forward = array(weights.matrix_size, 2);
        s.packed_backward = new_array(weights.matrix_size * 2);
        check_call(nn->stack_pack(&s));
    }
    if (is_valid)
        fill_stack(nn, &s);
    check_call(nn->stack_forward(&s));
    if (!is_valid)
        return;
    float *grads[MAX_PARTS];
    for (int64_t part = 0; part < s.parts; part++)
        grads[part] = floats(weights.size);
    s.grad_weights = grads;
    s.grad_y = floats(s.sentences * s.length * s.d_model);
    s.grad_x = floats(s.sentences * s.length * s.d_model);
    s.grad_memory = floats(s.sentences * s.memory_length * s.d_model);
    check_call(nn->stack_backward(&s));
}

static void only_valid_arguments_are_accepted(const td_api *api)
{
    static void (*const calls[])(const td_nn_api *) = {
        multiply,         attend,       compute_recurrence,  apply_dropout,
        apply_layer_norm, compute_loss, compute_output_loss, run_muon,
        run_stack,
    };
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        num_accepted = 0;
        for (int i = 0; i < CALLS; i++) {
            begin_call();
            calls[c](api->nn);
        }
        if (num_accepted < CALLS / 2)
            FAIL("only %lld calls of function %d are valid", (long long)num_accepted,
                 (int)c);
    }
    release_arrays();
}

static void nothing_is_refused(const td_api *api)
{
    const td_nn_api *nn = api->nn;
    CHECK_STATUS(nn->attention_forward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->attention_backward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->recurrence_forward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->recurrence_backward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->dropout_forward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->dropout_backward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->layer_norm_forward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->layer_norm_backward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->cross_entropy(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->output_loss_pack(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->output_loss(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->stack_pack(NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->stack_forward(NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->stack_backward(NULL), TD_BAD_ARGUMENT);
    CHECK_STATUS(nn->muon(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_INT(nn->attention_workspace(NULL), -1);
    CHECK_INT(nn->layer_norm_workspace(NULL), -1);
    CHECK_INT(nn->output_loss_workspace(NULL, 1), -1);
    CHECK_INT(nn->stack_states(NULL), -1);
    CHECK_INT(nn->stack_workspace(NULL), -1);
    CHECK_INT(nn->muon_workspace(NULL), -1);
}

int main(void)
{
    for_each_isa(nothing_is_refused);
    for_each_isa(only_valid_arguments_are_accepted);
    return check_result();
}
