/* Large allocations. */
#ifndef TRANSDUCE_ALLOC_H
#define TRANSDUCE_ALLOC_H

#include <stddef.h>

/* Uninitialised memory for `bytes` bytes, aligned to a cache line, for free(); NULL if
 * there is none, or if so much may not be allocated. A double, so that products of
 * sizes cannot overflow. */
void *allocate_lines(double bytes);

#endif
