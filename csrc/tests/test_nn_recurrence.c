/* Cells of a recurrent unit against loops in double precision. */
#include "tests/arrays.h"

static td_recurrence new_recurrence(int64_t sentences, int64_t length, int64_t width)
{
    const int64_t count = sentences * length * width;
    td_recurrence r = {.sentences = sentences, .length = length, .width = width};
    float *gate = random_floats(count);
    for (int64_t i = 0; i < count; i++)
        gate[i] *= 8.0f; /* some gates are nearly open or closed */
    r.gate = gate;
    r.candidate = random_floats(count);
    r.forget = unset_floats(count);
    r.cells = unset_floats(count);
    r.output = unset_floats(count);
    r.grad_output = random_floats(count);
    r.grad_gate = unset_floats(count);
    r.grad_candidate = unset_floats(count);
    return r;
}

/* Check the column of one sentence whose first element has this index. */
static void check_column(const td_recurrence *r, int64_t at)
{
    double *forget = new_doubles(r->length), *cells = new_doubles(r->length);
    double before = 0.0, from_next = 0.0;
    for (int64_t t = 0; t < r->length; t++) {
        const int64_t i = at + t * r->width;
        forget[t] = 1.0 / (1.0 + exp(-(double)r->gate[i]));
        cells[t] = forget[t] * before + (1.0 - forget[t]) * (double)r->candidate[i];
        before = cells[t];
        CHECK_NEAR(r->output[i], fmax(cells[t], 0.0), 1e-6);
    }
    for (int64_t t = r->length - 1; t >= 0; t--) {
        const int64_t i = at + t * r->width;
        const double own = r->cells[i] > 0.0f ? (double)r->grad_output[i] : 0.0;
        const double grad = own + from_next, rest = 1.0 - forget[t];
        const double change = (t ? cells[t - 1] : 0.0) - (double)r->candidate[i];
        CHECK_NEAR(r->grad_candidate[i], rest * grad, 1e-5);
        CHECK_NEAR(r->grad_gate[i], grad * change * forget[t] * rest, 1e-5);
        from_next = forget[t] * grad;
    }
}

static void check_recurrence(const td_recurrence *r)
{
    for (int64_t sentence = 0; sentence < r->sentences; sentence++)
        for (int64_t i = 0; i < r->width; i++)
            check_column(r, sentence * r->length * r->width + i);
}

static void cells_are_those_of_plain_loops(const td_api *api)
{
    const int64_t sizes[][3] = {{1, 1, 16}, {3, 7, 48}, {5, 40, 32}, {0, 3, 16}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        td_recurrence r = new_recurrence(sizes[s][0], sizes[s][1], sizes[s][2]);
        CHECK_STATUS(api->nn->recurrence_forward(&r, 2), TD_OK);
        CHECK_STATUS(api->nn->recurrence_backward(&r, 2), TD_OK);
        check_recurrence(&r);
        release_arrays();
    }
}

static void gates_may_be_replaced_by_their_sigmoids(const td_api *api)
{
    const td_recurrence apart = new_recurrence(2, 9, 32);
    td_recurrence within = apart;
    within.forget = random_floats(2 * 9 * 32);
    memcpy(within.forget, apart.gate, 2 * 9 * 32 * sizeof(float));
    within.gate = within.forget;
    within.output = unset_floats(2 * 9 * 32);
    CHECK_STATUS(api->nn->recurrence_forward(&apart, 1), TD_OK);
    CHECK_STATUS(api->nn->recurrence_forward(&within, 1), TD_OK);
    check_equal("output", within.output, apart.output, 2 * 9 * 32);
    check_equal("forget", within.forget, apart.forget, 2 * 9 * 32);
    release_arrays();
}

static void huge_gates_keep_or_replace_the_cell(const td_api *api)
{
    td_recurrence r = new_recurrence(1, 2, 16);
    float *gate = random_floats(32);
    for (int64_t i = 0; i < 32; i++)
        gate[i] = i < 16 ? -1e30f : 1e30f;
    r.gate = gate;
    CHECK_STATUS(api->nn->recurrence_forward(&r, 1), TD_OK);
    check_equal("cells", r.cells, r.candidate, 16);
    check_equal("later cells", r.cells + 16, r.candidate, 16);
    gate[3] = NAN;
    CHECK_STATUS(api->nn->recurrence_forward(&r, 1), TD_OK);
    CHECK(isnan(r.output[3]) && isnan(r.output[19]) && !isnan(r.output[4]));
    release_arrays();
}

static void bad_arguments_are_refused(const td_api *api)
{
    const td_recurrence good = new_recurrence(2, 3, 16);
    enum { COUNT = 6 };
    td_recurrence bad[COUNT];
    for (int i = 0; i < COUNT; i++)
        bad[i] = good;
    bad[0].sentences = -1;
    bad[1].length = 0;
    bad[2].width = 24;
    bad[3].candidate = NULL;
    bad[4].cells = NULL;
    bad[5].sentences = bad[5].length = (int64_t)1 << 40;
    for (int i = 0; i < COUNT; i++) {
        CHECK_STATUS(api->nn->recurrence_forward(&bad[i], 1), TD_BAD_ARGUMENT);
        CHECK_STATUS(api->nn->recurrence_backward(&bad[i], 1), TD_BAD_ARGUMENT);
    }
    CHECK_STATUS(api->nn->recurrence_forward(&good, 0), TD_BAD_ARGUMENT);
    CHECK_STATUS(api->nn->recurrence_forward(NULL, 1), TD_BAD_ARGUMENT);
    release_arrays();
}

int main(void)
{
    for_each_isa(cells_are_those_of_plain_loops);
    for_each_isa(gates_may_be_replaced_by_their_sigmoids);
    for_each_isa(huge_gates_keep_or_replace_the_cell);
    for_each_isa(bad_arguments_are_refused);
    return check_result();
}
