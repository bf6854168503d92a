/* Attention of all heads (section 3.2; equation 1). The scale is in the queries
   already, which stand in `wide`; what is found is put into `heads`. */
#ifndef TRANSDUCE_ATTENTION_H
#define TRANSDUCE_ATTENTION_H

#include "decode/stack.h"
#include "isa/name.h"

#define TOGETHER 4 /* rows at most that attend with what is read once */

/* The first positions of a sentence, so many. Its keys stand in blocks. */
typedef struct {
    const Store *key, *value;
    int64_t sentence, length;
    int64_t next;     /* the sentence that is read after it, or itself */
    float *attention; /* of the first row; the mean of the heads is added to it */
    int64_t between_attentions; /* of one row and the next */
} Memory;

/* That of a row, which sees so many of its sentence's slots, one at least. */
TD_INTERNAL void attend(Work *work, int64_t row, int64_t sentence, const Store *key,
                        const Store *value, int64_t count);

/* That of so many rows, TOGETHER at most, from one on, which all see a memory. */
TD_INTERNAL void attend_together(Work *work, int64_t first, int64_t rows,
                                 const Memory *memory);

/* Softmax of so many scores, in place. There is room for whole registers of them. */
TD_INTERNAL void normalise_scores(float *scores, int64_t count);

#endif
