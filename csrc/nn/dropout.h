/* Dropout (section 5.4): masks depend on the place alone, so that they are the same
   whichever thread draws them, and the backward pass can draw them again. */
#ifndef TRANSDUCE_DROPOUT_H
#define TRANSDUCE_DROPOUT_H

#include <stdint.h>

#include "simd/vec.h"
#include "transduce.h"

#define WHOLE_MASKS 32 /* the masks of a row are rounded up to a multiple of this */
#define DRAW_BITS 16   /* of a mask; one random number gives two */

/* Hash in which each bit of x flips each bit of the result with a probability of about
   one half (`lowbias32` of Wellons, 2018). */
static inline uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}


static inline vec_u32 mixed_lanes(vec_u32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

/* Masks of some columns: the lower half of a row takes them from the lower bits of the
   random numbers, the upper half from the upper bits. */
typedef struct {
    vec_i32 lower, upper; /* all bits, or none */
} KeptMasks;

static inline int64_t half_of_masks(int64_t width)
{
    return (width + WHOLE_MASKS - 1) / WHOLE_MASKS * (WHOLE_MASKS / 2);
}

static inline KeptMasks draw_lanes(const td_dropout *draw, uint32_t first)
{
    vec_u32 random;
    for (uint32_t i = 0; i < LANES; i++)
        random[i] = first + i;
    random = mixed_lanes(mixed_lanes(random ^ draw->seeds[0]) + draw->seeds[1]);
    /* Values are below 2^16, so that signed comparison is correct. */
    const vec_i32 lower = (vec_i32)(random & ((1U << DRAW_BITS) - 1U));
    const vec_i32 upper = (vec_i32)(random >> DRAW_BITS);
    const int32_t num_dropped = (int32_t)draw->rate.num_dropped;
    return (KeptMasks){lower >= num_dropped, upper >= num_dropped};
}

/* Factors: the scale for kept numbers, otherwise zero; NaN times zero stays NaN. */
static inline vec factors_of(vec_i32 kept, float scale)
{
    return (vec)((vec_i32)vec_set1(scale) & kept);
}

/* Draw the masks of a row of `width` numbers and apply them. x and y, which may be the
   same, have space for whole lanes. */
static inline void drop_row(const td_dropout *draw, int64_t row, int64_t width,
                            const float *x, float *y)
{
    const int64_t half = half_of_masks(width);
    const uint32_t first = (uint32_t)row * (uint32_t)half;
    const float scale = draw->rate.scale;
    for (int64_t i = 0; i < half && i < width; i += LANES) {
        const KeptMasks kept = draw_lanes(draw, first + (uint32_t)i);
        vec_store_first(y + i, LANES, vec_load(x + i) * factors_of(kept.lower, scale));
        if (half + i < width)
            vec_store_first(y + half + i, LANES,
                            vec_load(x + half + i) * factors_of(kept.upper, scale));
    }
}

/* Rows of whole masks, stored as one bit each. */
typedef struct {
    const td_dropout *draw;
    int64_t first_row; /* its number in the tensor, of which these may be a part */
    int64_t width;
    uint8_t *bits; /* [rows, width / 8] */
} MaskBits;

/* Draw the masks of some rows. */
static void draw_bits(void *masks, int64_t first, int64_t end, int worker);

/* Draw the masks of some blocks, and apply them. */
static void drop_blocks(void *masking, int64_t first, int64_t end, int worker);

/* Apply those that were drawn. */
static void mask_blocks(void *masking, int64_t first, int64_t end, int worker);

#endif
