/* Large allocations, which the host program may refuse. */
#include "alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "sizes.h"
#include "transduce.h"

#define MAX_BYTES 1e18 /* more than any machine has */

enum { HUGE_PAGE = 1 << 21, MIN_HUGE = 2 * HUGE_PAGE }; /* bytes */

typedef int (*MayAllocate)(int64_t bytes);

static _Atomic(MayAllocate) may_allocate;
static _Atomic int64_t min_checked;

void td_use_allocation_check(int (*function)(int64_t bytes), int64_t min_bytes)
{
    atomic_store(&may_allocate, NULL); /* never the new function with the old limit */
    atomic_store(&min_checked, min_bytes);
    atomic_store(&may_allocate, function);
}

/* Allocate a block in huge pages as far as it fills them: reading weights that are
 * larger than the caches would otherwise wait for addresses to be translated. */
static void *allocate_pages(size_t size)
{
    const size_t pages = (size + HUGE_PAGE - 1) / HUGE_PAGE;
    void *block = aligned_alloc(HUGE_PAGE, pages * HUGE_PAGE);
#ifdef MADV_HUGEPAGE
    if (block) /* only advice: its failure changes nothing */
        (void)madvise(block, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return block;
}

void *allocate_lines(double bytes)
{
    if (!(bytes >= 0 && bytes < MAX_BYTES))
        return NULL;
    const size_t lines = (size_t)bytes / CACHE_LINE + 1;
    const MayAllocate check = atomic_load(&may_allocate);
    if (check && bytes >= (double)atomic_load(&min_checked) && !check((int64_t)bytes))
        return NULL;
    const size_t size = lines * CACHE_LINE;
    return size < MIN_HUGE ? aligned_alloc(CACHE_LINE, size) : allocate_pages(size);
}

void *allocate_zeros(double bytes)
{
    void *block = allocate_lines(bytes);
    if (block)
        memset(block, 0, (size_t)bytes);
    return block;
}
