/* All of decoding for one instruction set. */
/* clang-format off */
#include "isa/name.h"
#include "transduce.h"
#include "gemm/linear.c"
#include "gemm/amx_int8.c"
#include "gemm/pack.c"
#include "gemm/rows.c"
#include "decode/attention.c"
#include "decode/cross_attention.c"
#include "decode/top_k.c"
#include "decode/step.c"
#include "decode/encoder.c"
#include "decode/gather.c"
#include "decode/start.c"
#include "decode/kv_cache.c"
#include "decode/run.c"
#include "decode/stack.c"
/* clang-format on */

extern const td_decode_api TD_NAME(td_decode);
const td_decode_api TD_NAME(td_decode) = {
    .lanes = LANES,
    .find_candidates = find_candidates,
    .search_new = search_new,
    .search_free = search_free,
    .search_num_live = search_num_live,
    .search_live = search_live,
    .search_next = search_next,
    .search_advance = search_advance,
    .search_grow = search_grow,
    .search_join = search_join,
    .search_num_hypotheses = search_num_hypotheses,
    .search_hypothesis = search_hypothesis,
    .search_forget = search_forget,
};
