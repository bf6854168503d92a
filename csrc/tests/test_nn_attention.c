/* Attention of training against plain loops in double precision. */
#include "tests/arrays.h"

typedef struct {
    int64_t sentences, heads, queries, keys, d_k, d_v;
    int is_mask_shared; /* by all sentences and queries */
    uint32_t num_dropped;
} Case;

static const Case cases[] = {
    {1, 1, 1, 1, 16, 16, 0, 0},      {2, 3, 5, 7, 16, 32, 0, 0},
    {3, 2, 9, 8, 48, 16, 1, 0},      {2, 2, 4, 33, 32, 32, 0, 20000},
    {1, 2, 17, 16, 16, 48, 1, 3000}, {0, 2, 3, 4, 16, 16, 0, 0},
};

static td_attention new_attention(const Case *c, int64_t lanes)
{
    const int64_t rows = c->sentences * c->queries, memory = c->sentences * c->keys;
    const int64_t width = (c->keys + lanes - 1) / lanes * lanes;
    const int64_t key_value = c->heads * (c->d_k + c->d_v);
    td_attention a = {.sentences = c->sentences,
                      .heads = c->heads,
                      .queries = c->queries,
                      .keys = c->keys,
                      .d_k = c->d_k,
                      .d_v = c->d_v,
                      .scale = 0.3f};
    a.mask.data = random_mask(c->is_mask_shared ? c->keys : rows * c->keys);
    if (!c->is_mask_shared) {
        a.mask.sentence_stride = c->queries * c->keys;
        a.mask.query_stride = c->keys;
    }
    a.query = random_floats(rows * c->heads * c->d_k);
    a.key_value = random_floats(memory * key_value);
    a.weights = unset_floats(rows * c->heads * width);
    a.output = unset_floats(rows * c->heads * c->d_v);
    a.grad_output = random_floats(rows * c->heads * c->d_v);
    a.grad_query = unset_floats(rows * c->heads * c->d_k);
    a.grad_key_value = unset_floats(memory * key_value);
    a.dropout.seeds[0] = 5;
    a.dropout.seeds[1] = 6;
    a.dropout.rate.num_dropped = c->num_dropped;
    a.dropout.rate.scale = 65536.0f / (float)(65536 - c->num_dropped);
    return a;
}

static uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    return x ^ x >> 16;
}

/* Factor of an element of row `row` of the weights. */
static double dropout_factor(const td_attention *a, int64_t row, int64_t key)
{
    const int64_t half = (a->keys + 31) / 32 * 16;
    const uint32_t place = (uint32_t)(row * half + key % half);
    const uint32_t random =
        hash(hash(place ^ a->dropout.seeds[0]) + a->dropout.seeds[1]);
    const uint32_t value = key < half ? random & 0xFFFF : random >> 16;
    return value >= a->dropout.rate.num_dropped ? a->dropout.rate.scale : 0.0;
}

typedef struct {
    double *output, *grad_query, *grad_key_value;
} Expected;

/* One query of one head: its weights [keys], its output, and all gradients. */
static void attend_naively(const td_attention *a, int64_t sentence, int64_t head,
                           int64_t query, Expected to)
{
    const int64_t row = sentence * a->queries + query;
    const int64_t key_width = a->heads * a->d_k, value_width = a->heads * a->d_v;
    const int64_t q = row * key_width + head * a->d_k;
    const int64_t o = row * value_width + head * a->d_v;
    const int64_t stride = key_width + value_width;
    const int64_t first_key = sentence * a->keys * stride + head * a->d_k;
    const int64_t first_value = sentence * a->keys * stride + key_width + head * a->d_v;
    const uint8_t *mask = a->mask.data + sentence * a->mask.sentence_stride +
                          query * a->mask.query_stride;
    double *weights = new_doubles(a->keys), *factors = new_doubles(a->keys);
    double *grad_weights = new_doubles(a->keys);
    double total = 0.0, max = -1e30, mean = 0.0;
    for (int64_t key = 0; key < a->keys; key++) {
        for (int64_t i = 0; i < a->d_k; i++)
            weights[key] += (double)a->query[q + i] *
                            (double)a->key_value[first_key + key * stride + i];
        weights[key] = mask[key] ? weights[key] * (double)a->scale : -1e30;
        max = weights[key] > max ? weights[key] : max;
    }
    for (int64_t key = 0; key < a->keys; key++)
        total += weights[key] = exp(weights[key] - max);
    for (int64_t key = 0; key < a->keys; key++) {
        const float *value = a->key_value + first_value + key * stride;
        weights[key] /= total;
        factors[key] =
            dropout_factor(a, (sentence * a->heads + head) * a->queries + query, key);
        for (int64_t i = 0; i < a->d_v; i++) {
            to.output[o + i] += weights[key] * factors[key] * (double)value[i];
            grad_weights[key] +=
                factors[key] * (double)value[i] * (double)a->grad_output[o + i];
            to.grad_key_value[first_value + key * stride + i] +=
                weights[key] * factors[key] * (double)a->grad_output[o + i];
        }
        mean += weights[key] * grad_weights[key];
    }
    for (int64_t key = 0; key < a->keys; key++) {
        const double grad_score =
            weights[key] * (grad_weights[key] - mean) * (double)a->scale;
        const int64_t k = first_key + key * stride;
        for (int64_t i = 0; i < a->d_k; i++) {
            to.grad_query[q + i] += grad_score * (double)a->key_value[k + i];
            to.grad_key_value[k + i] += grad_score * (double)a->query[q + i];
        }
    }
}

static void attention_is_that_of_plain_loops(const td_api *api)
{
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int threads = 1; threads <= 3; threads += 2) {
            const Case *c = &cases[n];
            td_attention a = new_attention(c, api->nn->lanes);
            a.workspace = unset_floats(threads * api->nn->attention_workspace(&a));
            const int64_t rows = c->sentences * c->queries;
            const int64_t outputs = rows * c->heads * c->d_v;
            const int64_t queries = rows * c->heads * c->d_k;
            const int64_t memory =
                c->sentences * c->keys * c->heads * (c->d_k + c->d_v);
            const Expected expected = {new_doubles(outputs), new_doubles(queries),
                                       new_doubles(memory)};
            for (int64_t sentence = 0; sentence < c->sentences; sentence++)
                for (int64_t head = 0; head < c->heads; head++)
                    for (int64_t query = 0; query < c->queries; query++)
                        attend_naively(&a, sentence, head, query, expected);
            CHECK_STATUS(api->nn->attention_forward(&a, threads), TD_OK);
            CHECK_STATUS(api->nn->attention_backward(&a, threads), TD_OK);
            check_near("output", a.output, expected.output, outputs, 1e-5);
            check_near("grad_query", a.grad_query, expected.grad_query, queries, 1e-4);
            check_near("grad_key_value", a.grad_key_value, expected.grad_key_value,
                       memory, 1e-4);
            release_arrays();
        }
}

/* A query whose mask allows no key averages the values. */
static void an_empty_mask_attends_to_all(const td_api *api)
{
    const Case c = {1, 1, 1, 5, 16, 16, 0, 0};
    td_attention a = new_attention(&c, api->nn->lanes);
    memset((void *)a.mask.data, 0, 5);
    a.workspace = unset_floats(api->nn->attention_workspace(&a));
    CHECK_STATUS(api->nn->attention_forward(&a, 1), TD_OK);
    for (int64_t i = 0; i < 16; i++) {
        double mean = 0.0;
        for (int64_t key = 0; key < 5; key++)
            mean += (double)a.key_value[key * 32 + 16 + i] / 5;
        CHECK_NEAR(a.output[i], mean, 1e-6);
    }
    release_arrays();
}

static void bad_arguments_are_refused(const td_api *api)
{
    const Case c = {2, 3, 5, 7, 16, 32, 0, 0};
    const td_attention good = new_attention(&c, api->nn->lanes);
    enum { COUNT = 11 };
    td_attention bad[COUNT];
    for (int i = 0; i < COUNT; i++) {
        bad[i] = good;
        bad[i].workspace = unset_floats(api->nn->attention_workspace(&good));
    }
    bad[0].sentences = -1;
    bad[1].d_k = 24;
    bad[2].d_v = 0;
    bad[3].keys = 0;
    bad[4].query = NULL;
    bad[5].workspace = NULL;
    bad[6].heads = INT64_MAX;
    bad[7].weights = NULL;
    bad[8].bf16_output = (td_panels){new_array(64), 9};      /* too few rows */
    bad[9].bf16_grad_query = (td_panels){new_array(64), 10}; /* 48 columns */
    bad[10].dropout.rate.num_dropped = 65536;                /* all elements */
    for (int i = 0; i < COUNT; i++) {
        CHECK_STATUS(api->nn->attention_forward(&bad[i], 1), TD_BAD_ARGUMENT);
        CHECK_STATUS(api->nn->attention_backward(&bad[i], 1), TD_BAD_ARGUMENT);
    }
    CHECK_STATUS(api->nn->attention_forward(NULL, 1), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->attention_forward(&good, 0), TD_BAD_ARGUMENT);
    CHECK_INT(api->nn->attention_workspace(&bad[0]), -1);
    release_arrays();
}

int main(void)
{
    for_each_isa(attention_is_that_of_plain_loops);
    for_each_isa(an_empty_mask_attends_to_all);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
