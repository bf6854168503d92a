/* parallel_for by the threads of an OpenMP runtime or of a pool of this library.
 *
 * The pool starts threads when a call first needs them, and keeps them. After a job
 * they spin for a moment, as the next job often follows at once, and then sleep, so
 * that other programs have their cores. A job does not wait for threads that have not
 * begun it: when no part is left, the caller closes the job and waits only for the
 * threads that are working on it. While it waits, the caller also spins only for a
 * moment and then sleeps, which frees its core: the system can move a thread there
 * whose own core another program uses. */
#include "parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "sizes.h"
#include "transduce.h"

#define PARTS_PER_THREAD 4 /* so that fast threads take over the parts of slow ones */
#define MAX_WORKERS 255    /* threads of the pool; the caller is one more */
#define SPIN_NS 50000      /* about the time to fall asleep and to wake up */
#define PAUSES 32          /* between two looks at the clock */

typedef struct {
    Part part;
    void *shared;
    int64_t items, part_size;
    _Atomic int64_t next;
    _Atomic int num_workers; /* threads that have begun, which numbers them */
} Job;

static void do_parts(void *given)
{
    Job *job = given;
    const int worker = atomic_fetch_add(&job->num_workers, 1);
    for (;;) {
        const int64_t first = atomic_fetch_add(&job->next, job->part_size);
        if (first >= job->items)
            return;
        const int64_t end = min_i64(first + job->part_size, job->items);
        job->part(job->shared, first, end, worker);
    }
}

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t job_opened, job_left;
    Job *job;                /* NULL if none is open */
    int places;              /* further threads that may begin the job */
    int num_workers;         /* threads of the pool */
    _Atomic unsigned inside; /* threads that have begun the job and not left it */
    _Atomic unsigned id;     /* number of jobs so far */
    atomic_flag is_used;     /* set while a caller uses the pool */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER,
          .job_opened = PTHREAD_COND_INITIALIZER,
          .job_left = PTHREAD_COND_INITIALIZER,
          .is_used = ATOMIC_FLAG_INIT};

typedef void (*GompParallel)(void (*)(void *), void *, unsigned, unsigned);

static _Atomic(GompParallel) gomp_parallel;
static atomic_bool is_fork; /* of a process that had loaded this library */

void td_use_openmp(void *function)
{
    GompParallel run;
    *(void **)&run = function; /* as POSIX allows for results of dlsym */
    if (!atomic_load(&is_fork))
        atomic_store(&gomp_parallel, run);
}

static inline void pause_spinning(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

enum Condition { EQUALS, DIFFERS_FROM };

/* Spin until the condition holds between a number and a value, for SPIN_NS at most. The
 * bound is a time, as a pause takes from 1 to 140 cycles. */
static void spin_until(_Atomic unsigned *number, enum Condition condition,
                       unsigned value)
{
    const int64_t end = monotonic_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if ((atomic_load(number) == value) == (condition == EQUALS))
                return;
            pause_spinning();
        }
    } while (monotonic_ns() < end);
}

/* The child of a fork has none of the threads: it begins with an empty pool, and never
 * uses an OpenMP runtime, which would wait for its lost threads for ever. The program
 * may have started the runtime's threads, so this library cannot tell whether there
 * were any. */
static void reset_after_fork(void)
{
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.job_opened, NULL);
    pthread_cond_init(&pool.job_left, NULL);
    pool.job = NULL;
    pool.num_workers = 0;
    atomic_store(&pool.inside, 0);
    atomic_flag_clear(&pool.is_used);
    atomic_store(&is_fork, 1);
    atomic_store(&gomp_parallel, NULL);
}

/* When the library is loaded, as the program may use OpenMP without this library. */
static __attribute__((constructor)) void register_fork_handler(void)
{
    pthread_atfork(NULL, NULL, reset_after_fork);
}

/* Begin the open job; NULL if there is none. The caller holds the mutex. */
static Job *begin_job(void)
{
    if (!pool.job || pool.places == 0)
        return NULL;
    pool.places--;
    atomic_fetch_add(&pool.inside, 1);
    return pool.job;
}

static void leave_job(void)
{
    if (atomic_fetch_sub(&pool.inside, 1) != 1)
        return;
    pthread_mutex_lock(&pool.mutex); /* the caller may be about to sleep */
    pthread_cond_signal(&pool.job_left);
    pthread_mutex_unlock(&pool.mutex);
}

/* Thread of the pool: one job after another. */
static void *run_thread(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        Job *job = begin_job();
        if (!job) {
            pthread_cond_wait(&pool.job_opened, &pool.mutex);
            continue;
        }
        const unsigned id = atomic_load(&pool.id);
        pthread_mutex_unlock(&pool.mutex);
        do_parts(job);
        leave_job();
        spin_until(&pool.id, DIFFERS_FROM, id);
        pthread_mutex_lock(&pool.mutex);
    }
    return NULL;
}

/* Start threads until there are `num_workers` or the system refuses one. The caller
 * holds the mutex. */
static void grow_pool(int num_workers)
{
    sigset_t all, before;
    sigfillset(&all); /* new threads block signals: the program's threads get them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.num_workers < num_workers) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_thread, NULL))
            break;
        pthread_detach(thread);
        pool.num_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void open_job(Job *job, int num_workers)
{
    pthread_mutex_lock(&pool.mutex);
    if (pool.num_workers < num_workers)
        grow_pool(num_workers);
    pool.job = job;
    pool.places = num_workers;
    atomic_fetch_add(&pool.id, 1);
    pthread_cond_broadcast(&pool.job_opened);
    pthread_mutex_unlock(&pool.mutex);
}

/* Close the job to further threads and wait for those in it. */
static void close_job(void)
{
    pthread_mutex_lock(&pool.mutex);
    pool.job = NULL;
    pthread_mutex_unlock(&pool.mutex);
    spin_until(&pool.inside, EQUALS, 0);
    pthread_mutex_lock(&pool.mutex);
    while (atomic_load(&pool.inside))
        pthread_cond_wait(&pool.job_left, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

static void run_by_pool(Job *job, int num_threads)
{
    if (atomic_flag_test_and_set(&pool.is_used)) {
        do_parts(job); /* another caller uses the pool */
        return;
    }
    const int others = num_threads - 1;
    open_job(job, others < MAX_WORKERS ? others : MAX_WORKERS);
    do_parts(job);
    close_job();
    atomic_flag_clear(&pool.is_used);
}

void parallel_for(Part part, void *shared, int64_t items, int64_t min_items,
                  int num_threads)
{
    const int64_t threads = num_threads > 1 ? num_threads : 1;
    const int64_t share = items / (PARTS_PER_THREAD * threads);
    Job job = {.part = part,
               .shared = shared,
               .items = items,
               .part_size = max_i64(max_i64(share, min_items), 1)};
    const GompParallel run = atomic_load(&gomp_parallel);
    if (threads == 1 || job.part_size >= items)
        do_parts(&job);
    else if (run)
        run(do_parts, &job, (unsigned)num_threads, 0);
    else
        run_by_pool(&job, num_threads);
}
