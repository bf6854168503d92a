/* Attention of all heads (section 3.2). Queries are in `wide`, already scaled; averages
 * of the values are written to `heads`. */
#ifndef TRANSDUCE_DECODE_ATTENTION_H
#define TRANSDUCE_DECODE_ATTENTION_H

#include "decode/kv_cache.h"
#include "decode/stack.h"
#include "isa/name.h"
#include "simd/vec.h"

/* Attention of one row to the first `count` slots in work->slots, at least one, of an
 * entry of the caches. `additive` [num_heads, d_k] is NULL unless scores are additive.
 */
TD_INTERNAL void attend(Workspace *work, int64_t row, int64_t entry,
                        const KvCache *keys, const KvCache *values,
                        const float *additive, int64_t count);

/* Source of a sentence, to which several rows attend together. */
typedef struct {
    const KvCache *keys, *values;
    const float *additive;
    int64_t entry, length;
    int64_t next_entry;       /* that is read afterwards: it is prefetched */
    float *attention;         /* of the first row: the mean of the heads is added, or
                                 NULL */
    int64_t attention_stride; /* floats */
} Source;

/* Attention of `rows` rows, CROSS_ROWS at most, from `first` on. */
TD_INTERNAL void cross_attend(Workspace *work, int64_t first, int64_t rows,
                              const Source *source);

/* Softmax of scores in place; the buffer is padded to whole vectors. */
TD_INTERNAL void softmax(float *scores, int64_t count);

/* tanh, which additive scores sum up (Bahdanau et al., 2015). */
static inline vec vec_tanh(vec x)
{
    /* 1 - 2 / (e^2x + 1), which goes to -1 and 1 where e^2x underflows or overflows.
     * Absolute error below 2e-7. */
    const vec one = vec_set1(1.0f);
    const vec limit = vec_set1(20.0f); /* beyond it, tanh is 1 in fp32 */
    /* In this order of operands, NaN stays NaN. */
    x = vec_max(vec_set1(-20.0f), vec_min(limit, x));
    return one - vec_set1(2.0f) / (vec_exp(x + x) + one);
}

#endif
