/* Arrays for tests. Each is an allocation of its own, so that sanitizers detect
 * accesses outside; release_arrays frees all. */
#ifndef TRANSDUCE_TESTS_ARRAYS_H
#define TRANSDUCE_TESTS_ARRAYS_H

#include <stdlib.h>

#include "tests/check.h"

enum { MAX_ARRAYS = 4096 };

static void *arrays[MAX_ARRAYS];
static int num_arrays;
static uint32_t array_state = 1;

static inline void *new_array(int64_t bytes)
{
    void *array = calloc(1, bytes > 0 ? (size_t)bytes : 1);
    if (!array || num_arrays == MAX_ARRAYS)
        abort();
    arrays[num_arrays++] = array;
    return array;
}

static inline void release_arrays(void)
{
    while (num_arrays > 0)
        free(arrays[--num_arrays]);
}

/* Floats that are NaN, so that elements that are never written are found. */
static inline float *unset_floats(int64_t count)
{
    float *array = new_array(count * (int64_t)sizeof *array);
    for (int64_t i = 0; i < count; i++)
        array[i] = NAN;
    return array;
}

/* Random floats from -1 to 1. */
static inline float *random_floats(int64_t count)
{
    float *array = new_array(count * (int64_t)sizeof *array);
    for (int64_t i = 0; i < count; i++)
        array[i] = random_float(&array_state);
    return array;
}

/* Random ids below `limit`. */
static inline int64_t *random_ids(int64_t count, int64_t limit)
{
    int64_t *array = new_array(count * (int64_t)sizeof *array);
    for (int64_t i = 0; i < count; i++)
        array[i] = random_int(&array_state, 0, limit - 1);
    return array;
}

/* Random mask in which three of four elements are 1. */
static inline uint8_t *random_mask(int64_t count)
{
    uint8_t *array = new_array(count);
    for (int64_t i = 0; i < count; i++)
        array[i] = random_int(&array_state, 0, 3) > 0;
    return array;
}

static inline double *new_doubles(int64_t count)
{
    double *array = new_array(count * (int64_t)sizeof *array);
    for (int64_t i = 0; i < count; i++)
        array[i] = 0.0;
    return array;
}

static inline void check_near(const char *name, const float *values,
                              const double *expected, int64_t count, double tolerance)
{
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs((double)values[i] - expected[i]);
        if (!(error <= tolerance)) {
            FAIL("%s[%lld] is %.9g instead of %.9g", name, (long long)i,
                 (double)values[i], expected[i]);
            return;
        }
    }
}

static inline void check_equal(const char *name, const float *values,
                               const float *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] != expected[i]) {
            FAIL("%s[%lld] is %.9g instead of %.9g", name, (long long)i,
                 (double)values[i], (double)expected[i]);
            return;
        }
}

#endif
