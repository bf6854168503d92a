/* parallel_for by the library's own threads. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parallel.h"
#include "tests/check.h"

enum { ITEMS = 1000, THREADS = 4, JOBS = 500 };

typedef struct {
    _Atomic int times[ITEMS]; /* times that an item was processed */
    _Atomic int in_use[64];   /* whether a worker number is in use */
    _Atomic int errors;
    int num_threads, min_items;
    int64_t items;
} Work;

static void count_items(void *shared, int64_t first, int64_t end, int worker)
{
    Work *work = shared;
    const int is_last = end == work->items;
    if (worker < 0 || worker >= work->num_threads || first >= end ||
        end > work->items || (end - first < work->min_items && !is_last) ||
        atomic_fetch_add(&work->in_use[worker], 1) != 0) {
        atomic_fetch_add(&work->errors, 1);
        return;
    }
    for (int64_t i = first; i < end; i++)
        atomic_fetch_add(&work->times[i], 1);
    atomic_fetch_sub(&work->in_use[worker], 1);
}

/* Number of errors: items not processed exactly once, and worker numbers in use twice.
 */
static int errors_of(int64_t items, int min_items, int num_threads)
{
    Work *work = calloc(1, sizeof *work);
    work->items = items;
    work->num_threads = num_threads > 1 ? num_threads : 1;
    work->min_items = min_items;
    parallel_for(count_items, work, items, min_items, num_threads);
    int errors = work->errors;
    for (int64_t i = 0; i < ITEMS; i++)
        errors += work->times[i] != (i < items);
    free(work);
    return errors;
}

static void each_item_is_processed_once(void)
{
    const int64_t items[] = {0, 1, 2, 7, 64, 999, ITEMS};
    const int min_items[] = {0, 1, 5, 2000};
    const int threads[] = {-1, 0, 1, 2, 3, THREADS, 40};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        for (size_t k = 0; k < sizeof min_items / sizeof *min_items; k++)
            for (size_t l = 0; l < sizeof threads / sizeof *threads; l++)
                CHECK_INT(errors_of(items[i], min_items[k], threads[l]), 0);
}

static void many_jobs_follow_each_other(void)
{
    for (int i = 0; i < JOBS; i++)
        CHECK_INT(errors_of(1 + i, 1, 1 + i % THREADS), 0);
}

static double process_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void idle_threads_sleep(void)
{
    CHECK_INT(errors_of(ITEMS, 1, THREADS), 0);
    const double before = process_seconds();
    const struct timespec idle = {0, 300000000};
    nanosleep(&idle, NULL);
    CHECK(process_seconds() - before < 0.05);
}

static void *call_often(void *errors)
{
    for (int i = 0; i < JOBS / 5; i++)
        *(int *)errors += errors_of(ITEMS, 1, THREADS);
    return NULL;
}

static void threads_may_call_at_the_same_time(void)
{
    pthread_t threads[THREADS];
    int errors[THREADS] = {0};
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(threads + i, NULL, call_often, errors + i), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(errors[i], 0);
    }
}

static void call_within(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t i = first; i < end; i++)
        atomic_fetch_add((_Atomic int *)shared, errors_of(100, 1, THREADS));
}

static void parts_may_share_work_themselves(void)
{
    _Atomic int errors = 0;
    parallel_for(call_within, (void *)&errors, 50, 1, THREADS);
    CHECK_INT(errors, 0);
}

static _Atomic int gomp_calls;

static void fake_gomp_parallel(void (*run)(void *), void *data, unsigned num_threads,
                               unsigned flags)
{
    (void)flags;
    atomic_fetch_add(&gomp_calls, 1);
    for (unsigned i = 0; i < num_threads; i++)
        run(data);
}

static void use_fake_openmp(void)
{
    void (*function)(void (*)(void *), void *, unsigned, unsigned) = fake_gomp_parallel;
    void *address;
    memcpy(&address, &function, sizeof address);
    td_use_openmp(address);
}

/* Number of errors in a child process, such as calls of OpenMP; -1 if a signal ended
 * it. */
static int errors_of_child(void)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        const int calls = gomp_calls;
        int errors = errors_of(ITEMS, 1, THREADS) + errors_of(ITEMS, 1, 2);
        use_fake_openmp();
        errors += errors_of(ITEMS, 1, THREADS);
        _exit(errors > 0 || gomp_calls != calls);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* qemu does not emulate forks of programs with threads. */
static int can_fork(void)
{
    if (!getenv("TRANSDUCE_TESTS_EMULATED"))
        return 1;
    printf("Forks are not tested under emulation.\n");
    return 0;
}

static void forked_children_have_threads_of_their_own(void)
{
    if (!can_fork())
        return;
    CHECK_INT(errors_of(ITEMS, 1, THREADS), 0);
    for (int i = 0; i < 5; i++)
        CHECK_INT(errors_of_child(), 0);
    CHECK_INT(errors_of(ITEMS, 1, THREADS), 0);
}

static void given_openmp_is_used_until_a_fork(void)
{
    use_fake_openmp();
    /* The program may have used it already, also if the library has not. */
    const int has_forks = can_fork();
    if (has_forks)
        CHECK_INT(errors_of_child(), 0);
    CHECK_INT(errors_of(ITEMS, 1, THREADS), 0);
    CHECK_INT(gomp_calls, 1);
    if (has_forks)
        CHECK_INT(errors_of_child(), 0);
    CHECK_INT(errors_of(ITEMS, 1, 1), 0);
    CHECK_INT(gomp_calls, 1);
    td_use_openmp(NULL);
    CHECK_INT(errors_of(ITEMS, 1, THREADS), 0);
    CHECK_INT(gomp_calls, 1);
}

int main(void)
{
    RUN(given_openmp_is_used_until_a_fork); /* before the pool has threads */
    RUN(each_item_is_processed_once);
    RUN(many_jobs_follow_each_other);
    RUN(idle_threads_sleep);
    RUN(threads_may_call_at_the_same_time);
    RUN(parts_may_share_work_themselves);
    RUN(forked_children_have_threads_of_their_own);
    return check_result();
}
