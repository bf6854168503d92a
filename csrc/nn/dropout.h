/* Dropout (section 5.4; Srivastava et al., 2014).
 *
 * Whether an element is kept depends on the seeds and on the element's index only. So
 * masks do not depend on threads, and the backward pass can draw them again. */
#ifndef TRANSDUCE_NN_DROPOUT_H
#define TRANSDUCE_NN_DROPOUT_H

#include <stdint.h>

#include "isa/name.h"
#include "simd/vec.h"
#include "sizes.h"
#include "transduce.h"

#define MASK_MULTIPLE 32 /* masks of a row are drawn in multiples of this */
#define DRAW_BITS 16     /* random bits of a mask: a 32-bit number gives two masks */

/* Hash in which each bit of x flips each bit of the result with a probability of about
 * one half (`lowbias32` of Wellons, 2018). */
#define LOWBIAS32(x)                                                                   \
    do {                                                                               \
        (x) ^= (x) >> 16;                                                              \
        (x) *= 0x7feb352dU;                                                            \
        (x) ^= (x) >> 15;                                                              \
        (x) *= 0x846ca68bU;                                                            \
        (x) ^= (x) >> 16;                                                              \
    } while (0)

static inline uint32_t hash_u32(uint32_t x)
{
    LOWBIAS32(x);
    return x;
}

static inline vec_u32 hash_lanes(vec_u32 x)
{
    LOWBIAS32(x);
    return x;
}

/* Masks of 2 LANES elements from LANES random numbers. Number i of a row, counted from
 * 0, has the mask of element i in its lower bits, and the mask of element
 * half_of_masks() + i, in the second half of the row, in its upper bits. */
typedef struct {
    vec_i32 lower, upper; /* -1 for kept elements, else 0 */
} KeptMasks;

/* Half the number of masks of a row of `width` elements. */
static inline int64_t half_of_masks(int64_t width)
{
    return round_up(width, MASK_MULTIPLE) / 2;
}

/* Draw the masks of random numbers `first` to `first` + LANES - 1 of the tensor, each
 * of which is a hash of its own index. */
static inline KeptMasks draw_lanes(const td_dropout *dropout, uint32_t first)
{
    vec_u32 random;
    for (uint32_t i = 0; i < LANES; i++)
        random[i] = first + i;
    random = hash_lanes(hash_lanes(random ^ dropout->seeds[0]) + dropout->seeds[1]);
    /* Values are below 2^16, so that signed comparison is correct. */
    const vec_i32 lower = (vec_i32)(random & ((1U << DRAW_BITS) - 1U));
    const vec_i32 upper = (vec_i32)(random >> DRAW_BITS);
    const int32_t num_dropped = (int32_t)dropout->rate.num_dropped;
    return (KeptMasks){lower >= num_dropped, upper >= num_dropped};
}

/* Factors of elements: the scale for kept ones, zero for the others. */
static inline vec dropout_factors(vec_i32 kept, float scale)
{
    return (vec)((vec_i32)vec_set1(scale) & kept);
}

/* y [width] = Dropout(x [width]) for row number `row` of a tensor. x and y may be the
 * same; both are padded to whole vectors. */
static inline void drop_row(const td_dropout *dropout, int64_t row, int64_t width,
                            const float *x, float *y)
{
    const int64_t half = half_of_masks(width);
    const uint32_t first = (uint32_t)row * (uint32_t)half;
    const float scale = dropout->rate.scale;
    for (int64_t i = 0; i < half && i < width; i += LANES) {
        const KeptMasks kept = draw_lanes(dropout, first + (uint32_t)i);
        vec_store(y + i, vec_load(x + i) * dropout_factors(kept.lower, scale));
        if (half + i < width)
            vec_store(y + half + i,
                      vec_load(x + half + i) * dropout_factors(kept.upper, scale));
    }
}

/* Arguments of draw_mask_bits: rows whose width is a multiple of MASK_MULTIPLE. */
typedef struct {
    const td_dropout *dropout;
    int64_t first_row; /* number of the first row in the whole tensor */
    int64_t width;
    uint8_t *bits; /* [rows, width / 8]: 1 for kept elements */
} MaskBits;

/* Draw the masks of rows `first` to `end` - 1; a Part of parallel_for. */
TD_INTERNAL void draw_mask_bits(void *masks, int64_t first, int64_t end, int worker);

/* Draw and apply the masks of blocks `first` to `end` - 1 of a td_masking. */
TD_INTERNAL void dropout_blocks_forward(void *masking, int64_t first, int64_t end,
                                        int worker);

/* Apply the masks that dropout_blocks_forward has drawn. */
TD_INTERNAL void dropout_blocks_backward(void *masking, int64_t first, int64_t end,
                                         int worker);

TD_INTERNAL td_status td_dropout_forward(const td_masking *masking, int num_threads);
TD_INTERNAL td_status td_dropout_backward(const td_masking *masking, int num_threads);

#endif
