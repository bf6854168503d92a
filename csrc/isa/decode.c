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
#include "decode/beam_search.c"
#include "decode/top_k.c"
#include "decode/step.c"
#include "decode/encoder.c"
#include "decode/gather.c"
#include "decode/start.c"
#include "decode/kv_cache.c"
#include "decode/search_steps.c"
#include "decode/stack.c"
/* clang-format on */

extern const td_decode_api TD_NAME(td_decode);
const td_decode_api TD_NAME(td_decode) = {
    .lanes = LANES,
};
