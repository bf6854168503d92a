/* Work that threads share. */
#ifndef TRANSDUCE_THREADS_H
#define TRANSDUCE_THREADS_H

#include <stdint.h>

/* Do the items from the first to before the end; workers are numbered from 0. */
typedef void (*Part)(void *shared, int64_t first, int64_t end, int worker);

/* Do all of so many items, in parts of `least` or more. */
void parallel_for(Part part, void *shared, int64_t items, int64_t least,
                  int num_threads);

#endif
