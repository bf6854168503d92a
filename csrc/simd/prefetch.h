/* Prefetching into the processor's caches. */
#ifndef TRANSDUCE_SIMD_PREFETCH_H
#define TRANSDUCE_SIMD_PREFETCH_H

#include <stdint.h>

#include "sizes.h"

/* Prefetch into the second-level cache. The address may be outside any array: a
 * prefetch never faults, and the cast to an integer keeps the arithmetic defined. */
static inline void prefetch(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += CACHE_LINE) {
        __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at), 0, 2);
        /* Without this, GCC drops calls of functions that only prefetch. */
        __asm__ volatile("");
    }
}

#endif
