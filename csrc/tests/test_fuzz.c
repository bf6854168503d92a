/* Calls with invalid arguments: each must return a status, -1 or NULL, and none may
 * crash or overflow. Run with sanitizers. */
#include "tests/check.h"

enum { CALLS = 20000 };

static void odd_statuses_and_names_are_harmless(void)
{
    uint32_t state = 1;
    for (int i = 0; i < CALLS; i++) {
        const td_status status = (td_status)random_u32(&state);
        CHECK(td_status_name(status) && td_status_message(status));
        char name[9] = {0};
        for (int k = 0; k < random_int(&state, 0, 8); k++)
            name[k] = (char)random_int(&state, 1, 255);
        const td_api *api = td_load_isa(name);
        CHECK(!api || strcmp(api->isa, name) == 0);
    }
}

/* A small size, or one near a limit of some integer. */
static int64_t random_size(uint32_t *state)
{
    static const int64_t limits[] = {0, 1 << 16, INT32_MAX, (int64_t)1 << 40,
                                     INT64_MAX};
    if (random_int(state, 0, 3))
        return 16 * random_int(state, 0, 8);
    const int64_t limit = limits[random_int(state, 0, 4)];
    return limit - limit % 32 * random_int(state, 0, 1);
}

static void sizes_of_training_do_not_overflow(const td_api *api)
{
    const td_nn_api *nn = api->nn;
    uint32_t state = 3;
    for (int i = 0; i < CALLS; i++) {
        int64_t n[12];
        for (int k = 0; k < 12; k++)
            n[k] = random_size(&state);
        const int num_threads = (int)random_int(&state, -1, 5000);
        const td_attention attention = {.sentences = n[0],
                                        .heads = n[1],
                                        .queries = n[2],
                                        .keys = n[3],
                                        .d_k = n[4],
                                        .d_v = n[5],
                                        .first_sentence = n[6]};
        const td_layer_norm norm = {.rows = n[0], .width = n[1]};
        const td_output_loss loss = {.rows = n[0], .vocab = n[1], .width = n[2]};
        const td_orthogonalization task = {
            .count = n[0], .rows = n[1], .columns = n[2], .steps = n[3]};
        const td_stack stack = {.layers = 1 + n[0] / 16,
                                .sentences = n[1],
                                .length = n[2],
                                .d_model = n[3],
                                .d_ff = n[4],
                                .heads = n[5],
                                .d_k = n[6],
                                .d_v = n[7],
                                .memory_length = n[8],
                                .kept_layers = 1,
                                .parts = random_int(&state, 1, 3),
                                .first_row = n[9],
                                .is_bf16 = n[10] % 32 == 0,
                                .num_threads = num_threads};
        CHECK(nn->attention_workspace(&attention) >= -1);
        CHECK(nn->layer_norm_workspace(&norm) >= -1);
        CHECK(nn->output_loss_workspace(&loss, num_threads) >= -1);
        CHECK(nn->orthogonalize_workspace(&task) >= -1);
        CHECK(nn->stack_states(&stack) >= -1);
        CHECK(nn->stack_workspace(&stack) >= -1);
        CHECK(nn->attention_forward(&attention, num_threads) != TD_OK ||
              n[0] == 0 || n[2] == 0);
        CHECK(nn->stack_forward(&stack) != TD_OK);
    }
}

int main(void)
{
    RUN(odd_statuses_and_names_are_harmless);
    for_each_isa(sizes_of_training_do_not_overflow);
    return check_result();
}
