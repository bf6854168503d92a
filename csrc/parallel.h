/* Loops whose iterations are shared by threads. */
#ifndef TRANSDUCE_PARALLEL_H
#define TRANSDUCE_PARALLEL_H

#include <stdint.h>

/* Process the items from `first` to before `end`. No two calls at the same time have
 * the same worker, which is at least 0 and below the number of threads. */
typedef void (*Part)(void *shared, int64_t first, int64_t end, int worker);

/* Process `items` items in parts of at least `min_items`, by at most `num_threads`
 * threads of which the caller is one. Returns when all items are done.
 *
 * A call from within a part, or while another thread's call is running, may be computed
 * by the caller alone. */
void parallel_for(Part part, void *shared, int64_t items, int64_t min_items,
                  int num_threads);

#endif
