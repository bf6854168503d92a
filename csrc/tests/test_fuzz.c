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
        const td_muon muon = {.count = n[0],
                              .rows = n[1],
                              .columns = n[2],
                              .steps = n[3],
                              .is_bf16 = n[10] % 2 == 0};
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
                                .first_sentence = n[9],
                                .is_bf16 = n[10] % 32 == 0,
                                .is_recurrent = random_int(&state, -1, 2),
                                .num_threads = num_threads};
        const td_recurrence recurrence = {
            .sentences = n[0], .length = n[1], .width = n[2]};
        CHECK(nn->attention_workspace(&attention) >= -1);
        CHECK(nn->layer_norm_workspace(&norm) >= -1);
        CHECK(nn->output_loss_workspace(&loss, num_threads) >= -1);
        CHECK(nn->muon_workspace(&muon) >= -1);
        CHECK(nn->muon(&muon, num_threads) != TD_OK || n[0] == 0);
        CHECK(nn->stack_states(&stack) >= -1);
        CHECK(nn->stack_workspace(&stack) >= -1);
        CHECK(nn->attention_forward(&attention, num_threads) != TD_OK || n[0] == 0 ||
              n[2] == 0);
        CHECK(nn->stack_forward(&stack) != TD_OK);
        CHECK(nn->stack_backward(&stack) != TD_OK);
        const int is_empty = !n[0] || !n[1] || !n[2];
        CHECK(nn->recurrence_forward(&recurrence, num_threads) != TD_OK || is_empty);
        CHECK(nn->recurrence_backward(&recurrence, num_threads) != TD_OK || is_empty);
    }
}

enum { MAX_PAIRS = 9, MAX_PAIR_TOKENS = 4 * MAX_PAIRS, LEXICON_VOCAB = 10 };

/* Arguments of td_learn_lexicon. */
typedef struct {
    int32_t ids[2][MAX_PAIR_TOKENS]; /* of sources and targets */
    int64_t ends[2][MAX_PAIRS];
    td_sentence_pairs pairs;
    int64_t iterations, best;
    int num_threads;
} LexiconCall;

static void fill_lexicon_call(LexiconCall *call, uint32_t *state)
{
    for (int side = 0; side < 2; side++) {
        int64_t end = 0;
        for (int i = 0; i < MAX_PAIR_TOKENS; i++)
            call->ids[side][i] = (int32_t)random_int(state, 0, LEXICON_VOCAB - 1);
        for (int i = 0; i < MAX_PAIRS; i++)
            call->ends[side][i] = end += random_int(state, 0, 4);
    }
    call->pairs = (td_sentence_pairs){
        .pairs = random_int(state, 0, MAX_PAIRS),
        .source_vocab = LEXICON_VOCAB,
        .target_vocab = LEXICON_VOCAB,
        .sources = call->ids[0],
        .targets = call->ids[1],
        .source_ends = call->ends[0],
        .target_ends = call->ends[1],
    };
    call->iterations = random_int(state, 1, 3);
    call->best = random_int(state, 1, LEXICON_VOCAB);
    call->num_threads = (int)random_int(state, 1, 3);
}

/* Number of tokens that the pairs of a call have on a side. */
static int64_t tokens_of_side(const LexiconCall *call, int side)
{
    return call->pairs.pairs ? call->ends[side][call->pairs.pairs - 1] : 0;
}

/* Make one argument invalid now and then. Returns whether the call must fail. */
static int spoil_lexicon_call(LexiconCall *call, uint32_t *state)
{
    static const int64_t below[] = {INT64_MIN, -1, 0};
    static const int64_t outside[] = {INT64_MIN,         -1,        0,
                                      LEXICON_VOCAB + 1, INT32_MAX, INT64_MAX};
    const int64_t low = below[random_int(state, 0, 2)];
    const int side = (int)random_int(state, 0, 1);
    td_sentence_pairs *pairs = &call->pairs;
    switch (random_int(state, 0, 19)) {
    case 0:
        call->ids[side][0] = random_int(state, 0, 1) ? LEXICON_VOCAB + 1 : INT32_MAX;
        return tokens_of_side(call, side) > 0;
    case 1:
        call->ids[side][0] = -1;
        return tokens_of_side(call, side) > 0;
    case 2:
        call->ends[side][0] = -1;
        return pairs->pairs > 0;
    case 3:
        call->ends[side][4] = call->ends[side][3] - 1;
        return pairs->pairs > 4;
    case 4:
        pairs->pairs = random_int(state, 0, 1) ? -1 : INT64_MAX;
        return 1;
    case 5:
        pairs->source_vocab = low;
        return 1;
    case 6:
        pairs->target_vocab = low;
        return 1;
    case 7:
        call->best = outside[random_int(state, 0, 5)];
        return 1;
    case 8:
        call->iterations = low;
        return 1;
    case 9:
        call->num_threads = random_int(state, 0, 1) ? 0 : INT32_MAX;
        return 1;
    case 10:
        *(side ? &pairs->targets : &pairs->sources) = NULL;
        return tokens_of_side(call, side) > 0;
    case 11:
        *(side ? &pairs->target_ends : &pairs->source_ends) = NULL;
        return pairs->pairs > 0;
    default:
        return 0;
    }
}

static void lexicons_of_odd_pairs_are_refused(void)
{
    uint32_t state = 7;
    int64_t num_learned = 0;
    for (int i = 0; i < CALLS; i++) {
        int32_t tokens[(LEXICON_VOCAB + 1) * LEXICON_VOCAB];
        float probs[(LEXICON_VOCAB + 1) * LEXICON_VOCAB];
        LexiconCall call;
        fill_lexicon_call(&call, &state);
        const int is_odd = spoil_lexicon_call(&call, &state);
        const td_status status = td_learn_lexicon(
            &call.pairs, call.iterations, call.best, call.num_threads, tokens, probs);
        CHECK((status != TD_OK) == is_odd);
        num_learned += status == TD_OK;
    }
    CHECK(num_learned > CALLS / 3);
    CHECK_STATUS(td_learn_lexicon(NULL, 1, 1, 1, (int32_t[]){0}, (float[]){0}),
                 TD_BAD_ARGUMENT);
}

int main(void)
{
    RUN(odd_statuses_and_names_are_harmless);
    RUN(lexicons_of_odd_pairs_are_refused);
    for_each_isa(sizes_of_training_do_not_overflow);
    return check_result();
}
