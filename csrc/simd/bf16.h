/* Conversion between floats and bf16, the upper halves of floats. */
#ifndef TRANSDUCE_SIMD_BF16_H
#define TRANSDUCE_SIMD_BF16_H

#include <stdint.h>
#include <string.h>

#include "simd/vec.h"
#include "transduce.h"

/* Convert bf16 to floats. */
static inline void bf16_to_floats(int64_t count, const td_bf16 *from, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* Round floats to the nearest bf16. */
static inline void floats_to_bf16(int64_t count, const float *from, td_bf16 *to)
{
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        vec_store_bf16(to + i, vec_load(from + i));
    if (whole < count) {
        td_bf16 rest[LANES];
        vec_store_bf16(rest,
                       vec_load_masked(vec_mask_first(count - whole), from + whole));
        memcpy(to + whole, rest, (size_t)(count - whole) * sizeof *rest);
    }
}

#endif
