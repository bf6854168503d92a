/* The layers of a stack, forwards and backwards (sections 3.1 to 3.3).

   Called one by one from Python, the operators of a small model wait for Python, and
   threads for each other (benchmarks/results/training_speed.md). */

/* What an attention reads, and its index among all sub-layers of the stack. */
typedef struct {
    Numbers x, memory;
    int64_t keys, index;
    td_mask mask;
} Input;

static Input to_itself(const td_stack *s, Numbers x, int64_t layer)
{
    return (Input){x, x, s->length, layer * sublayers_of(s), s->self_mask};
}

static Input to_memory(const td_stack *s, Numbers x, int64_t layer)
{
    return (Input){x, inputs_of(s).memory, s->memory_length,
                   layer * sublayers_of(s) + 1, s->cross_mask};
}

/* Parameters of the masks within a sub-layer, or of its output. */
static td_dropout draw_of(const td_stack *s, int64_t index, int is_within, td_dropout_rate rate)
{
    const uint32_t *seeds = s->seeds + 4 * index + (is_within ? 0 : 2);
    return (td_dropout){{seeds[0], seeds[1]}, rate};
}

/* LayerNorm(x + Dropout(addend)), but for what it reads and writes. */
static td_layer_norm residual(const td_stack *s, SumStates states, const float *gain)
{
    td_layer_norm r = {.rows = rows_of(s),
                  .width = s->d_model,
                  .epsilon = s->epsilon,
                  .gain = gain,
                  .normalized = states.normalized,
                  .inverse_deviation = states.inverse_deviation};
    r.masking = (td_masking){.kept = states.kept,
                          .count = rows_of(s) * s->d_model,
                          .block_width = s->d_model,
                          .block_masks = s->d_model,
                          .dropout.rate = s->dropout};
    return r;
}

/* Of x and the addend in `work`. */
static void form_sum(const td_stack *s, int64_t index, Numbers x, const float *gain,
                     const float *bias, SumStates states, Numbers y, const Work *work)
{
    td_layer_norm r = residual(s, states, gain);
    r.x = x.fp32;
    r.bias = bias;
    r.masking.dropout = draw_of(s, index, 0, s->dropout);
    r.masking.first_block = s->first_row;
    r.masking.x = work->addend;
    r.y = y.fp32;
    r.bf16_y = y.bf16;
    layer_norm_forward(&r, s->num_threads);
}

/* To the gradients of x and, in `work`, of the addend. */
static void differentiate_sum(const td_stack *s, SumStates states, const float *gain,
                              const float *of_y, float *of_x, float *of_gain,
                              float *of_bias, const Work *work)
{
    td_layer_norm r = residual(s, states, gain);
    r.grad_y = of_y;
    r.grad_x = of_x;
    r.grad_gain = of_gain;
    r.grad_bias = of_bias;
    r.workspace = work->of_groups;
    r.masking.y = work->of_addend.fp32;
    r.bf16_grad_addend = work->of_addend.bf16;
    layer_norm_backward(&r, s->num_threads);
}

static LinearMap query_map(const td_stack *s, const AttentionWeights *w)
{
    return (LinearMap){w->query, s->d_model, s->heads * s->d_k};
}

static LinearMap key_value_map(const td_stack *s, const AttentionWeights *w)
{
    return (LinearMap){w->key_value, s->d_model, s->heads * (s->d_k + s->d_v)};
}

static LinearMap output_map(const td_stack *s, const AttentionWeights *w)
{
    return (LinearMap){w->output, s->heads * s->d_v, s->d_model};
}

static LinearMap inner_map(const td_stack *s, const FeedForwardWeights *w)
{
    return (LinearMap){w->inner, s->d_model, s->d_ff};
}

static LinearMap outer_map(const td_stack *s, const FeedForwardWeights *w)
{
    return (LinearMap){w->outer, s->d_ff, s->d_model};
}

static td_attention attention(const td_stack *s, Input in, AttentionStates states,
                           const Work *work)
{
    return (td_attention){.sentences = s->sentences,
                       .heads = s->heads,
                       .queries = s->length,
                       .keys = in.keys,
                       .d_k = s->d_k,
                       .d_v = s->d_v,
                       .scale = s->scale,
                       .mask = in.mask,
                       .query = states.query,
                       .key_value = states.key_value,
                       .weights = states.weights,
                       .output = states.heads.fp32,
                       .bf16_output = states.heads.bf16,
                       .first_sentence = s->first_row / s->length,
                       .dropout = draw_of(s, in.index, 1, s->attention_dropout),
                       .workspace = work->attention};
}

static Numbers in_fp32(float *numbers) { return (Numbers){numbers, {0, 0}}; }

static void form_attention(const td_stack *s, const AttentionWeights *w, Input in,
                           AttentionStates states, Numbers y, const Work *work)
{
    const int threads = s->num_threads;
    map_rows(query_map(s, w), in.x, rows_of(s), 0, in_fp32(states.query), threads);
    map_rows(key_value_map(s, w), in.memory, s->sentences * in.keys, 0,
             in_fp32(states.key_value), threads);
    td_attention a = attention(s, in, states, work);
    attention_forward(&a, threads);
    map_rows(output_map(s, w), states.heads, rows_of(s), 0, in_fp32(work->addend),
             threads);
    form_sum(s, in.index, in.x, w->gain, w->bias, states.sum, y, work);
}

/* The gradient of the memory may be added to what is there. */
static void differentiate_attention(const td_stack *s, const AttentionWeights *w,
                                    const AttentionWeights *of, Input in,
                                    AttentionStates states, const float *of_y,
                                    float *of_x, float *of_memory, int is_added,
                                    const Work *work)
{
    const int threads = s->num_threads;
    const int64_t memory_rows = s->sentences * in.keys;
    Numbers of_key_value = work->of_key_value;
    of_key_value.bf16.rows = memory_rows;
    differentiate_sum(s, states.sum, w->gain, of_y, of_x, of->gain, of->bias, work);
    differentiate_map((WayBack){.map = output_map(s, w),
                                .of_map = output_map(s, of),
                                .x = states.heads,
                                .of_y = work->of_addend,
                                .of_x = in_fp32(work->of_heads),
                                .turned = work->turned,
                                .paired = work->paired,
                                .rows = rows_of(s)},
                      threads);
    td_attention a = attention(s, in, states, work);
    a.grad_output = work->of_heads;
    a.grad_query = work->of_query.fp32;
    a.bf16_grad_query = work->of_query.bf16;
    a.grad_key_value = of_key_value.fp32;
    a.bf16_grad_key_value = of_key_value.bf16;
    attention_backward(&a, threads);
    differentiate_map((WayBack){.map = query_map(s, w),
                                .of_map = query_map(s, of),
                                .x = in.x,
                                .of_y = work->of_query,
                                .of_x = in_fp32(of_x),
                                .turned = work->turned,
                                .paired = work->paired,
                                .rows = rows_of(s),
                                .is_added = 1},
                      threads);
    differentiate_map((WayBack){.map = key_value_map(s, w),
                                .of_map = key_value_map(s, of),
                                .x = in.memory,
                                .of_y = of_key_value,
                                .of_x = in_fp32(of_memory),
                                .turned = work->turned,
                                .paired = work->paired,
                                .is_paired = in.memory.fp32 == in.x.fp32,
                                .rows = memory_rows,
                                .is_added = is_added},
                      threads);
}

static void form_feed_forward(const td_stack *s, const FeedForwardWeights *w, Numbers x,
                              int64_t index, FeedForwardStates states, Numbers y,
                              const Work *work)
{
    const int threads = s->num_threads;
    const Relu relu = {draw_of(s, index, 1, s->relu_dropout), s->first_row, work->bits};
    map_rows(inner_map(s, w), x, rows_of(s), &relu, states.hidden, threads);
    map_rows(outer_map(s, w), states.hidden, rows_of(s), 0, in_fp32(work->addend),
             threads);
    form_sum(s, index, x, w->gain, w->bias, states.sum, y, work);
}

static void differentiate_feed_forward(const td_stack *s, const FeedForwardWeights *w,
                                       const FeedForwardWeights *of, Numbers x,
                                       FeedForwardStates states, const float *of_y,
                                       float *of_x, const Work *work)
{
    const int threads = s->num_threads;
    differentiate_sum(s, states.sum, w->gain, of_y, of_x, of->gain, of->bias, work);
    differentiate_map((WayBack){.map = outer_map(s, w),
                                .of_map = outer_map(s, of),
                                .x = states.hidden,
                                .of_y = work->of_addend,
                                .of_x = work->of_hidden,
                                .rectified_x = states.hidden.bf16,
                                .dropout_scale = s->relu_dropout.scale,
                                .turned = work->turned,
                                .paired = work->paired,
                                .rows = rows_of(s)},
                      threads);
    differentiate_map((WayBack){.map = inner_map(s, w),
                                .of_map = inner_map(s, of),
                                .x = x,
                                .rectified = states.hidden.fp32,
                                .dropout_scale = s->relu_dropout.scale,
                                .of_y = work->of_hidden,
                                .of_x = in_fp32(of_x),
                                .turned = work->turned,
                                .paired = work->paired,
                                .rows = rows_of(s),
                                .is_added = 1},
                      threads);
}

static Numbers form_layer(const td_stack *s, int64_t layer, Numbers x, const Work *work)
{
    const LayerWeights w = weights_of(s, s->weights, layer);
    const LayerStates states = states_of(s, layer);
    Numbers y = states.self.sum.y;
    form_attention(s, w.self, to_itself(s, x, layer), states.self, y, work);
    if (s->memory_length > 0) {
        x = y;
        y = states.memory.sum.y;
        form_attention(s, w.memory, to_memory(s, x, layer), states.memory, y, work);
    }
    x = y;
    y = layer + 1 < s->layers ? states.feed_forward.sum.y : in_fp32(s->y);
    form_feed_forward(s, w.feed_forward, x, (layer + 1) * sublayers_of(s) - 1,
                      states.feed_forward, y, work);
    return y;
}

/* To the gradient of what the layer read. */
static const float *differentiate_layer(const td_stack *s, int64_t layer,
                                        const float *of_y, const Work *work)
{
    const LayerWeights w = weights_of(s, s->weights, layer);
    const LayerWeights of = weights_of(s, s->grad_weights, layer);
    const LayerStates states = states_of(s, layer);
    const int is_first = layer == 0, is_last = layer + 1 == s->layers;
    const int has_memory = s->memory_length > 0;
    const Numbers x =
        is_first ? inputs_of(s).x : states_of(s, layer - 1).feed_forward.sum.y;
    const Numbers attended = has_memory ? states.memory.sum.y : states.self.sum.y;
    float *of_x = elsewhere(work, of_y);
    differentiate_feed_forward(s, w.feed_forward, of.feed_forward, attended,
                               states.feed_forward, of_y, of_x, work);
    if (has_memory) {
        of_y = of_x;
        of_x = elsewhere(work, of_y);
        differentiate_attention(s, w.memory, of.memory,
                                to_memory(s, states.self.sum.y, layer), states.memory,
                                of_y, of_x, s->grad_memory, !is_last, work);
    }
    of_y = of_x;
    of_x = is_first ? s->grad_x : elsewhere(work, of_y);
    differentiate_attention(s, w.self, of.self, to_itself(s, x, layer), states.self,
                            of_y, of_x, of_x, 1, work);
    return of_x;
}

/* A part with its own states, and its own room. */
static td_stack placed_part(const td_stack *s, int64_t part, Work *work)
{
    td_stack own = part_of(s, part);
    own.states += part * stack_states(s);
    Room room = {s->workspace + part * stack_workspace(s), 0};
    *work = take_work(&own, &room);
    return own;
}

static void form_parts(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t part = first; part < end; part++) {
        Work work;
        const td_stack own = placed_part(shared, part, &work);
        const Inputs in = inputs_of(&own);
        round_rows(in.x, own.d_model, own.num_threads);
        round_rows(in.memory, own.d_model, own.num_threads);
        Numbers x = in.x;
        for (int64_t layer = 0; layer < own.layers; layer++)
            x = form_layer(&own, layer, x, &work);
    }
}

static void differentiate_parts(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t part = first; part < end; part++) {
        Work work;
        const td_stack own = placed_part(shared, part, &work);
        const float *of_y = own.grad_y;
        for (int64_t layer = own.layers - 1; layer >= 0; layer--)
            of_y = differentiate_layer(&own, layer, of_y, &work);
    }
}

static void pack_attention(const td_stack *s, const AttentionWeights *w, int num_threads)
{
    pack_map(query_map(s, w), num_threads);
    pack_map(key_value_map(s, w), num_threads);
    pack_map(output_map(s, w), num_threads);
}

/* What products in bf16 read in the place of matrices. */
static td_status stack_pack(const td_stack *s)
{
    const int num_threads = s->num_threads;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        const LayerWeights w = weights_of(s, s->weights, layer);
        pack_attention(s, w.self, num_threads);
        if (s->memory_length > 0)
            pack_attention(s, w.memory, num_threads);
        pack_map(inner_map(s, w.feed_forward), num_threads);
        pack_map(outer_map(s, w.feed_forward), num_threads);
    }
    return TD_OK;
}

/* With all matrices packed, if products are in bf16. */
static td_status stack_forward(const td_stack *s)
{
    parallel_for(form_parts, (void *)s, s->parts, 1, s->num_threads);
    return TD_OK;
}

static td_status stack_backward(const td_stack *s)
{
    parallel_for(differentiate_parts, (void *)s, s->parts, 1, s->num_threads);
    return TD_OK;
}
