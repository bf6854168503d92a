/* Large allocations, which the host program may refuse. */
#include "alloc.h"

#include <stdint.h>
#include <stdlib.h>

#include "transduce.h"

#define CACHE_LINE 64
#define TOO_LARGE 1e18 /* beyond any machine */

static int (*check)(int64_t bytes);
static int64_t min_checked;

void td_use_memory_check(int (*may_allocate)(int64_t bytes), int64_t min_bytes)
{
    check = may_allocate;
    min_checked = min_bytes;
}

void *allocate_lines(double bytes)
{
    if (!(bytes >= 0 && bytes < TOO_LARGE))
        return NULL;
    const size_t lines = (size_t)bytes / CACHE_LINE + 1;
    if (check && bytes >= (double)min_checked && !check((int64_t)bytes))
        return NULL;
    return aligned_alloc(CACHE_LINE, lines * CACHE_LINE);
}
