/* Large allocations, which the host program may refuse. */
#include "alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sizes.h"
#include "transduce.h"

#define MAX_BYTES 1e18 /* more than any machine has */

typedef int (*MayAllocate)(int64_t bytes);

static _Atomic(MayAllocate) may_allocate;
static _Atomic int64_t min_checked;

void td_use_allocation_check(int (*function)(int64_t bytes), int64_t min_bytes)
{
    atomic_store(&may_allocate, NULL); /* never the new function with the old limit */
    atomic_store(&min_checked, min_bytes);
    atomic_store(&may_allocate, function);
}

void *allocate_lines(double bytes)
{
    if (!(bytes >= 0 && bytes < MAX_BYTES))
        return NULL;
    const size_t lines = (size_t)bytes / CACHE_LINE + 1;
    const MayAllocate check = atomic_load(&may_allocate);
    if (check && bytes >= (double)atomic_load(&min_checked) && !check((int64_t)bytes))
        return NULL;
    return aligned_alloc(CACHE_LINE, lines * CACHE_LINE);
}

void *allocate_zeros(double bytes)
{
    void *block = allocate_lines(bytes);
    if (block)
        memset(block, 0, (size_t)bytes);
    return block;
}
