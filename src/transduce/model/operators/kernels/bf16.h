/* Numbers in bf16: the upper halves of floats. */
#ifndef TRANSDUCE_BF16_H
#define TRANSDUCE_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t Bf16;

static inline void widen(int64_t count, const Bf16 *from, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* To the nearest number in bf16, of two as near the even one; NaN stays NaN. */
static inline void narrow(int64_t count, const float *from, Bf16 *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        const uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        const int is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        to[i] = (Bf16)(is_nan ? 0x7FC0 : nearest);
    }
}

#endif
