/* Sizes, and arithmetic with them. */
#ifndef TRANSDUCE_SIZES_H
#define TRANSDUCE_SIZES_H

#include <stdint.h>

#define CACHE_LINE 64 /* bytes */
#define CACHE_LINE_FLOATS (CACHE_LINE / (int64_t)sizeof(float))

/* Widths of training are multiples of ROW_MULTIPLE elements, which fill the vectors of
 * every instruction set. Widths of bf16 matrices are multiples of PANEL_WIDTH
 * (td_panels). Python has the same constants. */
#define ROW_MULTIPLE 16
#define PANEL_WIDTH 32

#define BF16_NAN 0x7FC0 /* bits of a quiet NaN */

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

/* Smallest multiple of `size` that is at least `count`. */
static inline int64_t round_up(int64_t count, int64_t size)
{
    return ceil_div(count, size) * size;
}

#endif
