/* Loops whose iterations are shared by threads. */
#ifndef TRANSDUCE_PARALLEL_H
#define TRANSDUCE_PARALLEL_H

#include <stdint.h>

/* Process items `first` to `end` - 1. `worker` is below the number of threads, and
 * differs between calls that run at the same time. */
typedef void (*Part)(void *shared, int64_t first, int64_t end, int worker);

/* Call `part` on items 0 to `items` - 1 in parts of at least `min_items`, by at most
 * `num_threads` threads, the caller among them. Returns when all items are done.
 *
 * A call from within a part, or while the call of another thread runs, may use the
 * caller's thread alone. */
void parallel_for(Part part, void *shared, int64_t items, int64_t min_items,
                  int num_threads);

#endif
