/* Random arguments, a few of them invalid, for tests in which no call may crash. */
#ifndef TRANSDUCE_TESTS_FUZZ_H
#define TRANSDUCE_TESTS_FUZZ_H

#include "tests/check.h"

static uint32_t fuzz_state = 17;

static inline int64_t pick(int64_t low, int64_t high)
{
    return random_int(&fuzz_state, low, high);
}

/* A number from a range, now and then one far outside. */
static inline int64_t odd(int64_t low, int64_t high)
{
    static const int64_t far[] = {INT64_MIN, -1, 0, 10000, INT32_MAX, INT64_MAX};
    return pick(0, 39) ? pick(low, high) : far[pick(0, 5)];
}

static inline int odd_threads(void)
{
    static const int far[] = {INT32_MIN, -1, 0, INT32_MAX};
    return pick(0, 39) ? (int)pick(1, 3) : far[pick(0, 3)];
}

/* A random number, now and then NaN, infinite or near the largest. */
static inline float odd_float(void)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, 3e38f, -3e38f};
    return pick(0, 199) ? random_float(&fuzz_state) : special[pick(0, 5)];
}

#endif
