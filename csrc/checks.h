/* Largest sizes that the interface accepts. Products of a few of them fit in int64_t.
 */
#ifndef TRANSDUCE_CHECKS_H
#define TRANSDUCE_CHECKS_H

#include "transduce.h"

#define MAX_WIDTH ((int64_t)1 << 28) /* inputs or outputs of a linear map */
#define MAX_ROWS ((int64_t)1 << 30)  /* tokens or hypotheses read at once */
#define MAX_THREADS 4096

/* Of a model. */
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

#endif
