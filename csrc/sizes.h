/* Arithmetic with sizes, and checks of sizes and pointers that callers pass. */
#ifndef TRANSDUCE_SIZES_H
#define TRANSDUCE_SIZES_H

#include <stdint.h>

static inline int64_t max_i64(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static inline int64_t min_i64(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* count / size, rounded up. */
static inline int64_t ceil_div(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Whether a dimension is at least `min` and so small that BLAS can take it. */
static inline int is_size(int64_t size, int64_t min)
{
    return size >= min && size <= INT32_MAX;
}

/* Whether a dimension is such a size and a multiple of `factor`. */
static inline int is_multiple(int64_t size, int64_t factor)
{
    return is_size(size, factor) && size % factor == 0;
}

/* Whether a pointer is NULL though it should point to `count` elements. */
static inline int is_missing(const void *pointer, int64_t count)
{
    return !pointer && count > 0;
}

#endif
