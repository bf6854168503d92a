/* All units of decoding as one translation unit, for one instruction set. */
/* clang-format off */
#include "isa/name.h"
#include "transduce.h"
#include "gemm/linear.c"
#include "gemm/amx_int8.c"
#include "gemm/gather.c"
#include "gemm/pack.c"
#include "gemm/activations.c"
#include "decode/stack.c"
#include "decode/attention.c"
#include "decode/cross_attention.c"
#include "decode/kv_cache.c"
#include "decode/cross_cache.c"
#include "decode/model.c"
#include "decode/encoder.c"
#include "decode/shortlist.c"
#include "decode/step.c"
#include "decode/decoder.c"
#include "decode/top_k.c"
#include "decode/run.c"
/* clang-format on */

extern const td_decode_api TD_NAME(td_decode);
const td_decode_api TD_NAME(td_decode) = {
    .linear_new = linear_new,
    .linear_apply = linear_apply,
    .linear_scales = linear_scales,
    .linear_free = linear_free,
    .model_new = model_new,
    .model_set = model_set,
    .model_set_int8 = model_set_int8,
    .model_finish = model_finish,
    .model_free = model_free,
    .encode = encode,
    .decoder_new = decoder_new,
    .decoder_set_shortlists = decoder_set_shortlists,
    .decoder_step = decoder_step,
    .decoder_reorder = decoder_reorder,
    .decoder_join = decoder_join,
    .decoder_coverage = decoder_coverage,
    .decoder_take_attention = decoder_take_attention,
    .decoder_sentences = decoder_sentences,
    .decoder_group = decoder_group,
    .decoder_capacity = decoder_capacity,
    .decoder_free = decoder_free,
    .find_candidates = find_candidates,
    .search_new = search_new,
    .search_free = search_free,
    .search_num_live = search_num_live,
    .search_live = search_live,
    .search_query = search_query,
    .search_restrictions = search_restrictions,
    .search_grow_by_logits = search_grow_by_logits,
    .search_grow_by_candidates = search_grow_by_candidates,
    .search_run = search_run,
    .search_join = search_join,
    .search_num_hypotheses = search_num_hypotheses,
    .search_hypothesis = search_hypothesis,
    .search_forget = search_forget,
};
