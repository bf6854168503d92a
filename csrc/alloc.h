/* Large allocations. */
#ifndef TRANSDUCE_ALLOC_H
#define TRANSDUCE_ALLOC_H

/* Allocate `bytes` uninitialised bytes, aligned to a cache line, for free(). NULL if
 * the system or td_use_allocation_check() refuses them. The size is a double so that
 * products of sizes cannot overflow. */
void *allocate_lines(double bytes);

/* The same, filled with zeros. */
void *allocate_zeros(double bytes);

#endif
