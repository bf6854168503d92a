/* Multi-head attention of decoding (section 3.2; equation 1). Queries are read from
 * work->wide; their packed weights include the factor 1 / sqrt(d_k). Averages of the
 * values are written to work->heads. */
#ifndef TRANSDUCE_DECODE_ATTENTION_H
#define TRANSDUCE_DECODE_ATTENTION_H

#include "decode/kv_cache.h"
#include "decode/stack.h"
#include "isa/name.h"
#include "simd/vec.h"

/* Compute softmax(q K^T / sqrt(d_k)) V for one row and all heads. K and V are in an
 * entry of the caches, in the first `count` slots that work->slots lists, at least one.
 * `additive` [num_heads, d_k] is NULL unless scores are additive. */
TD_INTERNAL void attend(Workspace *work, int64_t row, int64_t entry,
                        const KvCache *keys, const KvCache *values,
                        const float *additive, int64_t count);

/* Source sentence to which several rows attend together, for cross_attend(). */
typedef struct {
    const KvCache *keys, *values;
    const float *additive; /* as for attend() */
    int64_t entry, length;
    int64_t next_entry; /* of the caches, to be prefetched */
    float *attention;   /* [rows, length] to which the mean of the heads is added, or
                           NULL */
    int64_t attention_stride; /* floats from row to row */
} Source;

/* Let rows `first` to `first` + `rows` - 1, CROSS_ROWS at most, attend to a source. */
TD_INTERNAL void cross_attend(Workspace *work, int64_t first, int64_t rows,
                              const Source *source);

/* Softmax of scores in place. The buffer is padded to whole vectors. */
TD_INTERNAL void softmax(float *scores, int64_t count);

/* tanh, for additive scores (Bahdanau et al., 2015): 1 - 2 / (e^2x + 1), with an
 * absolute error below 2e-7. NaN stays NaN. */
static inline vec vec_tanh(vec x)
{
    const vec one = vec_set1(1.0f);
    const vec limit = vec_set1(20.0f); /* tanh(20) is 1 in fp32 */
    x = vec_max(vec_set1(-20.0f), vec_min(limit, x));
    return one - vec_set1(2.0f) / (vec_exp(x + x) + one);
}

#endif
