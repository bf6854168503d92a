/* Checks for C tests. A test program calls RUN for each test and returns
 * `check_result()`. A failed check prints its place, and the test goes on.
 *
 * Programs in tests/ are built once and use the public interface. Those in tests/isa/
 * are built for each instruction set with its flags and TD_ISA, and begin with
 * SKIP_IF_UNSUPPORTED. */
#ifndef TRANSDUCE_TESTS_CHECK_H
#define TRANSDUCE_TESTS_CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "transduce.h"

enum { MAX_REPORTS = 20, EXIT_SKIPPED = 77 };

static int check_failures;

#define FAIL(...)                                                                      \
    do {                                                                               \
        if (check_failures++ < MAX_REPORTS) {                                          \
            fprintf(stderr, "%s:%d: in %s: ", __FILE__, __LINE__, __func__);           \
            fprintf(stderr, __VA_ARGS__);                                              \
            fputc('\n', stderr);                                                       \
        }                                                                              \
    } while (0)

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition))                                                              \
            FAIL("not true: %s", #condition);                                          \
    } while (0)

#define CHECK_INT(value, expected)                                                     \
    do {                                                                               \
        const int64_t value_ = (value), expected_ = (expected);                        \
        if (value_ != expected_)                                                       \
            FAIL("%s is %lld instead of %lld", #value, (long long)value_,              \
                 (long long)expected_);                                                \
    } while (0)

/* Check that two numbers are near each other, or both NaN. */
#define CHECK_NEAR(value, expected, tolerance)                                         \
    do {                                                                               \
        const double value_ = (value), expected_ = (expected);                         \
        const int are_nan_ = isnan(value_) && isnan(expected_);                        \
        const int is_near_ =                                                           \
            value_ == expected_ || fabs(value_ - expected_) <= (tolerance);            \
        if (!are_nan_ && !is_near_)                                                    \
            FAIL("%s is %.9g instead of %.9g", #value, value_, expected_);             \
    } while (0)

#define CHECK_STATUS(call, expected)                                                   \
    do {                                                                               \
        const td_status status_ = (call);                                              \
        if (status_ != (expected))                                                     \
            FAIL("%s returns %s instead of %s", #call, td_status_name(status_),        \
                 td_status_name(expected));                                            \
    } while (0)

#define RUN(test)                                                                      \
    do {                                                                               \
        const int before_ = check_failures;                                            \
        test();                                                                        \
        if (check_failures > before_)                                                  \
            fprintf(stderr, "FAILED: %s\n", #test);                                    \
    } while (0)

#define SKIP_IF_UNSUPPORTED()                                                          \
    do {                                                                               \
        if (!td_load_isa(TD_ISA_STRING)) {                                             \
            printf("This processor does not run %s.\n", TD_ISA_STRING);                \
            return EXIT_SKIPPED;                                                       \
        }                                                                              \
    } while (0)

static inline int check_result(void) { return check_failures > 0; }

/* Pseudo-random numbers, the same in each run (xorshift; Marsaglia, 2003). */
static inline uint32_t random_u32(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Random integer from `low` to `high`, both included. */
static inline int64_t random_int(uint32_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(random_u32(state) % (uint64_t)(high - low + 1));
}

/* Random number from -1 to 1. */
static inline float random_float(uint32_t *state)
{
    return (float)((double)random_u32(state) / 2147483648.0 - 1.0);
}

/* Whether two arrays of numbers have the same bits. */
static inline int are_same_bits(const float *one, const float *other, int64_t count)
{
    return memcmp((const char *)one, (const char *)other,
                  (size_t)count * sizeof *one) == 0;
}

/* Call `test` with each instruction set that this processor can run. */
static inline void for_each_isa(void (*test)(const td_api *api))
{
    char names[256];
    snprintf(names, sizeof names, "%s", td_isa_names());
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
        const td_api *api = td_load_isa(name);
        const int before = check_failures;
        if (api)
            test(api);
        if (check_failures > before)
            fprintf(stderr, "FAILED with the instruction set %s\n", name);
    }
}

#endif
