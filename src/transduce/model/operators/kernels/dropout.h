/* Dropout (section 5.4). */
#ifndef TRANSDUCE_DROPOUT_H
#define TRANSDUCE_DROPOUT_H

#include <stdint.h>

typedef struct {
    const float *x; /* or the gradient of y */
    float *y;       /* or that of x */
    uint8_t *kept;  /* a whole number of blocks */
    int64_t count;
    int64_t block;       /* numbers whose masks are drawn together: an even number */
    int64_t first_block; /* of these numbers, which may be a part of more */
    uint32_t seeds[2];
    uint32_t num_dropped; /* of 65,536 */
    float scale;
} Masking;

/* Draw the masks of some blocks, and apply them. */
static void drop_blocks(void *masking, int64_t first, int64_t end, int worker);

/* Apply those that were drawn. */
static void mask_blocks(void *masking, int64_t first, int64_t end, int worker);

#endif
