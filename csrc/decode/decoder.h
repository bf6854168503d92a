/* The handle of a decoder. */
#ifndef TRANSDUCE_DECODE_DECODER_H
#define TRANSDUCE_DECODE_DECODER_H

#include "decode/kv_cache.h"
#include "decode/model.h"
#include "decode/shortlist.h"
#include "isa/name.h"
#include "transduce.h"

struct td_decoder {
    const td_model *model;
    DecoderState state;
    Shortlists *shortlists; /* NULL: all tokens may come next */
};

/* Compute keys and values of cross-attention for all layers from the encoder's states
 * [tokens, d_model]. */
TD_INTERNAL td_status fill_cross_caches(td_decoder *decoder, const float *states,
                                        int num_threads);

/* Implementation of td_decode_api.decoder_reorder. */
TD_INTERNAL td_status decoder_reorder(td_decoder *decoder, const int64_t *rows,
                                      int64_t sentences, int64_t group);

/* td_decode_api.decoder_coverage without checks: the decoder must sum attention. */
TD_INTERNAL void sum_coverage(const td_decoder *decoder, double *coverage);

#endif
