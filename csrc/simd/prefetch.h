/* Lines of the processor's caches. */
#ifndef TRANSDUCE_LINES_H
#define TRANSDUCE_LINES_H

#include <immintrin.h>
#include <stdint.h>

#define LINE 64 /* bytes */

/* Ask for what stands from here on, so that it is in the second-level cache by the time
   it is read. */
static inline void prefetch(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE) {
        _mm_prefetch((const char *)from + at, _MM_HINT_T1);
        /* Else GCC takes a function that does nothing else for one without effect, and
           leaves out its calls. */
        __asm__ volatile("");
    }
}

#endif
