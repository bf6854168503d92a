/* Dropout (section 5.4). */
#ifndef TRANSDUCE_DROPOUT_H
#define TRANSDUCE_DROPOUT_H

#include <stdint.h>

#include "exported.h"

typedef struct {
    const float *x; /* or the gradient of y */
    float *y;       /* or that of x */
    uint8_t *kept;  /* a whole number of blocks */
    int64_t count;
    uint32_t seeds[2];
    uint32_t num_dropped; /* of 65,536 */
    float scale;
} Masking;

/* Draw the masks, and apply them. */
EXPORTED void transduce_drop(Masking *m, int num_threads);

/* Apply the masks that were drawn. */
EXPORTED void transduce_mask(Masking *m, int num_threads);

#endif
