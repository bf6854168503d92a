/* A stack of layers: gradients against finite differences, bf16 against fp32, and one
 * part of the batch against several. */
#include "tests/arrays.h"

enum {
    LAYERS = 2,
    D_MODEL = 32,
    D_FF = 64,
    HEADS = 2,
    D_K = 16,
    D_V = 32,
    MAX_WEIGHTS = LAYERS * 22,
    MAX_PARTS = 3
};

/* A stack with all its arrays. */
typedef struct {
    td_stack stack;
    int64_t num_weights; /* parameters */
    int64_t sizes[MAX_WEIGHTS];
    float *weights[MAX_WEIGHTS], *grads[MAX_PARTS];
    int64_t size; /* elements of all parameters */
    int64_t x_size, memory_size;
} TestStack;

static float *add_vector(TestStack *t, int64_t size)
{
    const int64_t n = t->num_weights++;
    t->sizes[n] = size;
    t->size += size;
    t->weights[n] = random_floats(size);
    return t->weights[n];
}

static void add_matrix(TestStack *t, int64_t outputs, int64_t inputs)
{
    float *matrix = add_vector(t, outputs * inputs);
    for (int64_t i = 0; i < outputs * inputs; i++)
        matrix[i] *= 0.3f;
}

static void add_linear(TestStack *t, int64_t outputs, int64_t inputs)
{
    add_matrix(t, outputs, inputs);
    add_vector(t, outputs);
}

static void add_norm(TestStack *t)
{
    add_vector(t, D_MODEL);
    add_vector(t, D_MODEL);
}

static void add_attention(TestStack *t)
{
    add_linear(t, HEADS * D_K, D_MODEL);
    add_linear(t, HEADS * (D_K + D_V), D_MODEL);
    add_linear(t, D_MODEL, HEADS * D_V);
    add_norm(t);
}

static void add_recurrence(TestStack *t)
{
    add_linear(t, D_MODEL, D_MODEL);
    add_matrix(t, D_MODEL, D_MODEL);
    add_norm(t);
}

static uint32_t seeds[4 * 3 * LAYERS];

static void allocate(const td_api *api, TestStack *t)
{
    td_stack *s = &t->stack;
    s->states = unset_floats(s->parts * api->nn->stack_states(s));
    s->workspace = unset_floats(s->parts * api->nn->stack_workspace(s));
    s->y = unset_floats(t->x_size);
    s->grad_x = unset_floats(t->x_size);
    s->grad_memory = unset_floats(t->memory_size);
    for (int64_t part = 0; part < s->parts; part++)
        t->grads[part] = unset_floats(t->size);
    s->weights = t->weights;
    s->grad_weights = t->grads;
}

static void make_stack(const td_api *api, TestStack *t, int64_t sentences,
                       int64_t memory_length, uint32_t num_dropped, int parts,
                       int is_recurrent)
{
    const td_dropout_rate rate = {num_dropped, 65536.0f / (float)(65536 - num_dropped)};
    memset(t, 0, sizeof *t);
    array_state = 17; /* the same numbers in each stack */
    t->stack = (td_stack){.layers = LAYERS,
                          .sentences = sentences,
                          .length = 5,
                          .d_model = D_MODEL,
                          .d_ff = D_FF,
                          .heads = HEADS,
                          .d_k = D_K,
                          .d_v = D_V,
                          .memory_length = memory_length,
                          .kept_layers = LAYERS,
                          .is_recurrent = is_recurrent,
                          .parts = parts,
                          .epsilon = 1e-5f,
                          .scale = 0.25f,
                          .dropout = rate,
                          .attention_dropout = rate,
                          .relu_dropout = rate,
                          .seeds = seeds,
                          .num_threads = parts};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        seeds[i] = (uint32_t)(1000 + i);
    td_stack *s = &t->stack;
    t->x_size = sentences * s->length * D_MODEL;
    t->memory_size = sentences * memory_length * D_MODEL;
    for (int layer = 0; layer < LAYERS; layer++) {
        if (is_recurrent)
            add_recurrence(t);
        else
            add_attention(t);
        if (memory_length > 0)
            add_attention(t);
        add_linear(t, D_FF, D_MODEL);
        add_linear(t, D_MODEL, D_FF);
        add_norm(t);
    }
    s->x = random_floats(t->x_size);
    s->memory = random_floats(t->memory_size);
    s->grad_y = random_floats(t->x_size);
    if (!is_recurrent)
        s->self_mask = (td_mask){random_mask(sentences * 25), 25, 5};
    s->cross_mask = (td_mask){random_mask(sentences * memory_length), memory_length, 0};
    allocate(api, t);
}

static void run(const td_api *api, TestStack *t)
{
    CHECK_STATUS(api->nn->stack_forward(&t->stack), TD_OK);
    CHECK_STATUS(api->nn->stack_backward(&t->stack), TD_OK);
}

static double loss_of(const td_api *api, TestStack *t)
{
    double loss = 0.0;
    CHECK_STATUS(api->nn->stack_forward(&t->stack), TD_OK);
    for (int64_t i = 0; i < t->x_size; i++)
        loss += (double)t->stack.y[i] * (double)t->stack.grad_y[i];
    return loss;
}

/* Compare the change of the loss along a direction with the gradient. */
static void check_direction(const td_api *api, TestStack *t, const char *name,
                            float *values, const float *grad, int64_t count)
{
    const float step = 1e-3f;
    float *direction = random_floats(count), *before = random_floats(count);
    double by_gradient = 0.0, length = 0.0;
    memcpy(before, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        length += (double)direction[i] * (double)direction[i];
    for (int64_t i = 0; i < count; i++) {
        direction[i] /= (float)sqrt(length);
        by_gradient += (double)direction[i] * (double)grad[i];
        values[i] = before[i] + step * direction[i];
    }
    const double above = loss_of(api, t);
    for (int64_t i = 0; i < count; i++)
        values[i] = before[i] - step * direction[i];
    const double below = loss_of(api, t);
    memcpy(values, before, (size_t)count * sizeof *values);
    const double found = (above - below) / (2.0 * (double)step);
    if (!(fabs(found - by_gradient) < 0.04 + 0.04 * fabs(by_gradient)))
        FAIL("the derivative of %s is %g instead of %g", name, by_gradient, found);
}

static void gradients_are_near_differences(const td_api *api, int is_recurrent)
{
    for (int64_t memory_length = 0; memory_length <= 7; memory_length += 7)
        for (uint32_t num_dropped = 0; num_dropped <= 9000; num_dropped += 9000) {
            TestStack t;
            make_stack(api, &t, 3, memory_length, num_dropped, 1, is_recurrent);
            run(api, &t);
            check_direction(api, &t, "x", (float *)t.stack.x, t.stack.grad_x, t.x_size);
            if (memory_length > 0)
                check_direction(api, &t, "memory", (float *)t.stack.memory,
                                t.stack.grad_memory, t.memory_size);
            const float *grad = t.grads[0];
            for (int64_t i = 0; i < t.num_weights; i++) {
                check_direction(api, &t, "a weight", t.weights[i], grad, t.sizes[i]);
                grad += t.sizes[i];
            }
            release_arrays();
        }
}

static void gradients_are_those_of_differences(const td_api *api)
{
    gradients_are_near_differences(api, 0);
}

static void gradients_of_recurrences_are_those_of_differences(const td_api *api)
{
    gradients_are_near_differences(api, 1);
}

static void parts_give_the_same_stack(const td_api *api, int is_recurrent)
{
    TestStack one, several;
    make_stack(api, &one, 7, 4, 5000, 1, is_recurrent);
    make_stack(api, &several, 7, 4, 5000, MAX_PARTS, is_recurrent);
    run(api, &one);
    run(api, &several);
    check_equal("y", several.stack.y, one.stack.y, one.x_size);
    check_equal("grad_x", several.stack.grad_x, one.stack.grad_x, one.x_size);
    double *sum = new_doubles(one.size);
    for (int64_t part = 0; part < MAX_PARTS; part++)
        for (int64_t i = 0; i < one.size; i++)
            sum[i] += several.grads[part][i];
    check_near("grad_weights", one.grads[0], sum, one.size, 1e-3);
    release_arrays();
}

static void parts_give_the_same(const td_api *api)
{
    parts_give_the_same_stack(api, 0);
    parts_give_the_same_stack(api, 1);
}

/* The last sentences of a stack alone are computed as in the whole batch. */
static void the_rest_of_a_batch_is_computed_alike(const td_api *api)
{
    enum { SENTENCES = 7, FIRST = 3 };
    TestStack all, rest;
    make_stack(api, &all, SENTENCES, 4, 5000, 1, 0);
    make_stack(api, &rest, SENTENCES, 4, 5000, 1, 0);
    td_stack *s = &rest.stack;
    const int64_t skipped = FIRST * s->length * D_MODEL;
    s->sentences -= FIRST;
    s->first_sentence = FIRST;
    s->x += skipped;
    s->memory += FIRST * s->memory_length * D_MODEL;
    s->grad_y += skipped;
    s->self_mask.data += FIRST * s->self_mask.sentence_stride;
    s->cross_mask.data += FIRST * s->cross_mask.sentence_stride;
    run(api, &all);
    run(api, &rest);
    const int64_t count = all.x_size - skipped;
    check_equal("y", s->y, all.stack.y + skipped, count);
    check_equal("grad_x", s->grad_x, all.stack.grad_x + skipped, count);
    release_arrays();
}

static double relative_error(const float *one, const float *other, int64_t count)
{
    double difference = 0.0, length = 1e-9;
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)one[i] - (double)other[i], 2);
        length += pow((double)other[i], 2);
    }
    return sqrt(difference / length);
}

static void bf16_stack_differs_by_rounding(const td_api *api, int is_recurrent)
{
    TestStack exact, rounded;
    make_stack(api, &exact, 7, 4, 5000, 1, is_recurrent);
    make_stack(api, &rounded, 7, 4, 5000, 1, is_recurrent);
    rounded.stack.is_bf16 = 1;
    /* As large as all parameters, which is more than the matrices need. */
    rounded.stack.packed_forward = new_array(2 * rounded.size);
    rounded.stack.packed_backward = new_array(2 * rounded.size);
    allocate(api, &rounded);
    CHECK_STATUS(api->nn->stack_pack(&rounded.stack), TD_OK);
    run(api, &exact);
    run(api, &rounded);
    CHECK(relative_error(rounded.stack.y, exact.stack.y, exact.x_size) < 0.03);
    CHECK(relative_error(rounded.stack.grad_x, exact.stack.grad_x, exact.x_size) < 0.1);
    CHECK(relative_error(rounded.stack.grad_memory, exact.stack.grad_memory,
                         exact.memory_size) < 0.1);
    for (int64_t n = 0, at = 0; n < exact.num_weights; at += exact.sizes[n++])
        CHECK(relative_error(rounded.grads[0] + at, exact.grads[0] + at,
                             exact.sizes[n]) < 0.3);
    release_arrays();
}

static void bf16_differs_by_rounding(const td_api *api)
{
    bf16_stack_differs_by_rounding(api, 0);
    bf16_stack_differs_by_rounding(api, 1);
}

static void no_sentences_have_no_gradients(const td_api *api)
{
    TestStack t;
    make_stack(api, &t, 0, 4, 0, 1, 0);
    run(api, &t);
    for (int64_t i = 0; i < t.size; i++)
        CHECK(t.grads[0][i] == 0.0f);
    release_arrays();
}

static void bad_arguments_are_refused(const td_api *api)
{
    TestStack t;
    make_stack(api, &t, 3, 4, 0, 1, 0);
    enum { COUNT = 21 };
    td_stack bad[COUNT];
    for (int i = 0; i < COUNT; i++)
        bad[i] = t.stack;
    bad[0].layers = 0;
    bad[1].sentences = -1;
    bad[2].d_model = 48;
    bad[3].d_ff = 17;
    bad[4].parts = 4;
    bad[5].parts = 0;
    bad[6].kept_layers = 3;
    bad[7].num_threads = 0;
    bad[8].sentences = bad[8].length = 1 << 16; /* more than 32 bits */
    bad[9].heads = bad[9].d_k = 1 << 16;
    bad[10].first_sentence = INT64_MAX;
    bad[11].num_threads = 4097;
    bad[12].x = NULL;
    bad[13].memory = NULL;
    bad[14].states = NULL;
    bad[15].weights = NULL;
    bad[16].seeds = NULL;
    bad[17].is_bf16 = 1; /* nothing is packed */
    bad[18].dropout.num_dropped = 65536;
    bad[19].attention_dropout.num_dropped = 65536;
    bad[20].relu_dropout.num_dropped = UINT32_MAX;
    for (int i = 0; i < COUNT; i++) {
        CHECK_STATUS(api->nn->stack_forward(&bad[i]), TD_BAD_ARGUMENT);
        CHECK_STATUS(api->nn->stack_backward(&bad[i]), TD_BAD_ARGUMENT);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_INT(api->nn->stack_states(&bad[i]), -1);
        CHECK_INT(api->nn->stack_workspace(&bad[i]), -1);
    }
    td_stack packed_once = t.stack;
    packed_once.is_bf16 = 1;
    packed_once.packed_forward = new_array(2 * t.size);
    CHECK_STATUS(api->nn->stack_pack(&packed_once), TD_OK);
    CHECK_STATUS(api->nn->stack_forward(&packed_once), TD_OK);
    CHECK_STATUS(api->nn->stack_backward(&packed_once), TD_BAD_ARGUMENT);
    float *weight = t.weights[0];
    t.weights[0] = NULL;
    CHECK_STATUS(api->nn->stack_forward(&t.stack), TD_BAD_ARGUMENT);
    t.weights[0] = weight;
    t.grads[0] = NULL;
    CHECK_STATUS(api->nn->stack_backward(&t.stack), TD_BAD_ARGUMENT);
    make_stack(api, &t, 3, 4, 0, 1, 1);
    CHECK_STATUS(api->nn->stack_forward(&t.stack), TD_OK);
    t.weights[2] = NULL; /* of the candidate */
    CHECK_STATUS(api->nn->stack_forward(&t.stack), TD_BAD_ARGUMENT);
    release_arrays();
}

int main(void)
{
    for_each_isa(gradients_are_those_of_differences);
    for_each_isa(gradients_of_recurrences_are_those_of_differences);
    for_each_isa(parts_give_the_same);
    for_each_isa(the_rest_of_a_batch_is_computed_alike);
    for_each_isa(bf16_differs_by_rounding);
    for_each_isa(no_sentences_have_no_gradients);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
