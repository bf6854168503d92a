/* Prefetching into the processor's caches. */
#ifndef TRANSDUCE_SIMD_PREFETCH_H
#define TRANSDUCE_SIMD_PREFETCH_H

#include <stdint.h>

#define LINE 64 /* bytes of a cache line */

/* Prefetch into the second-level cache. The memory may be beyond any allocation. */
static inline void prefetch(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE) {
        /* An address, not a pointer: it may be behind the end of an array. */
        __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at), 0, 2);
        /* Otherwise GCC takes a function that only prefetches for one without effect
         * and drops calls of it. */
        __asm__ volatile("");
    }
}

#endif
