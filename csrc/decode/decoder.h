/* State of a decoder, as a handle. */
#ifndef TRANSDUCE_DECODE_DECODER_H
#define TRANSDUCE_DECODE_DECODER_H

#include "decode/kv_cache.h"
#include "decode/model.h"
#include "isa/name.h"
#include "transduce.h"

struct td_decoder {
    const td_model *model;
    DecoderState state;
};

/* Compute the cross-attention's keys and values of all layers from the encoder's states
 * [tokens, d_model]. */
TD_INTERNAL td_status fill_cross_caches(td_decoder *decoder, const float *states,
                                        int num_threads);

/* Keep hypotheses, as td_decode_api.decoder_reorder says. */
TD_INTERNAL td_status reorder_hypotheses(td_decoder *decoder, const int64_t *rows,
                                         int64_t sentences, int64_t group);

/* Coverage of all hypotheses, as td_decode_api.decoder_coverage says; the state has
 * attention. */
TD_INTERNAL void sum_coverage(const td_decoder *decoder, double *coverage);

#endif
