/* Checks of the sizes and pointers that callers pass. The limits keep products of sizes
 * within int64_t, and sizes of matrices within 32 bits. */
#ifndef TRANSDUCE_CHECKS_H
#define TRANSDUCE_CHECKS_H

#include <stdint.h>

#include "sizes.h"
#include "transduce.h"

#define MAX_WIDTH ((int64_t)1 << 28) /* inputs or outputs of a linear map */
#define MAX_ROWS ((int64_t)1 << 30)  /* tokens or hypotheses read by one call */
#define MAX_THREADS 4096
#define MAX_ELEMENTS ((int64_t)1 << 48) /* of one tensor of training */

/* Limits of td_model_config. */
#define MAX_VOCAB ((int64_t)1 << 24)
#define MAX_LAYERS 1000
#define MAX_D_MODEL ((int64_t)1 << 16) /* also d_k and d_v */
#define MAX_D_FF ((int64_t)1 << 18)
#define MAX_HEADS 1024
#define MAX_POSITIONS ((int64_t)1 << 20)

static inline int is_between(int64_t number, int64_t low, int64_t high)
{
    return number >= low && number <= high;
}

static inline int is_precision(td_precision precision)
{
    return precision == TD_FP32 || precision == TD_INT8;
}

static inline int is_thread_count(int num_threads)
{
    return is_between(num_threads, 1, MAX_THREADS);
}

/* Whether a dimension is at least `min` and fits in 32 bits. */
static inline int is_size(int64_t size, int64_t min)
{
    return is_between(size, min, INT32_MAX);
}

/* Whether a dimension is such a size and a multiple of `factor`. */
static inline int is_multiple(int64_t size, int64_t factor)
{
    return is_size(size, factor) && size % factor == 0;
}

/* Whether a tensor of three valid sizes has at most MAX_ELEMENTS elements. */
static inline int is_tensor(int64_t one, int64_t two, int64_t three)
{
    return (double)one * (double)two * (double)three <= (double)MAX_ELEMENTS;
}

/* Whether panels have `rows` rows and whole columns, if there are any. */
static inline int are_panels(td_panels panels, int64_t rows, int64_t columns)
{
    return !panels.data || (panels.rows >= rows && columns % PANEL_WIDTH == 0);
}

/* Whether a rate of dropout keeps some elements. */
static inline int is_dropout_rate(td_dropout_rate rate)
{
    return rate.num_dropped <= UINT16_MAX;
}

/* Whether a pointer is NULL although it should point to `count` elements. */
static inline int is_missing(const void *pointer, int64_t count)
{
    return !pointer && count > 0;
}

#endif
