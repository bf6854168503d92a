/* Work that threads share, part by part as each has time. */
#include "parallel.h"

#include <stdatomic.h>

#include "transduce.h"

#define PARTS 4 /* of a thread's share, as some threads may be slower */

typedef struct {
    Part part;
    void *shared;
    int64_t items, size; /* in all, and of a part */
    _Atomic int64_t next;
    _Atomic int workers;
} Job;

/* Of the OpenMP that PyTorch has, so that both use the same threads; NULL if it is not
 * GCC's. */
static void (*gomp_run)(void (*)(void *), void *, unsigned, unsigned);

void td_use_openmp(void *gomp_parallel) { *(void **)&gomp_run = gomp_parallel; }

static void do_parts(void *given)
{
    Job *job = given;
    const int worker = atomic_fetch_add(&job->workers, 1);
    for (;;) {
        const int64_t first = atomic_fetch_add(&job->next, job->size);
        if (first >= job->items)
            return;
        const int64_t left = job->items - first;
        job->part(job->shared, first, first + (left < job->size ? left : job->size),
                  worker);
    }
}

void parallel_for(Part part, void *shared, int64_t items, int64_t least,
                  int num_threads)
{
    const int64_t size = items / (PARTS * (int64_t)num_threads);
    Job job = {part, shared, items, size < least ? least : size, 0, 0};
    if (num_threads > 1 && job.size < items && gomp_run)
        gomp_run(do_parts, &job, (unsigned)num_threads, 0);
    else
        do_parts(&job);
}
