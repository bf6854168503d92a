/* Positional encodings (section 3.5): sinusoids, or rows of a learned table.
 *
 * Compiled once, not for each instruction set, and without reordering of sums: all
 * instruction sets use the same numbers.
 */
#ifndef TRANSDUCE_DECODE_POSITIONS_H
#define TRANSDUCE_DECODE_POSITIONS_H

#include <stdint.h>

typedef struct Positions Positions;

#define MAX_POSITION_BASE 1e12

/* Create encodings [positions, d_model]. `learned` [num_learned, d_model] is copied;
 * NULL for sinusoids with this base of their wavelengths, or 10,000 if it is 0. Returns
 * NULL if allocation fails. */
Positions *positions_new(int64_t d_model, double base, const float *learned,
                         int64_t num_learned);

/* Encodings [at least count, d_model] of positions 0, 1, ..., valid until
 * positions_free(). Returns NULL if allocation fails. Several threads may call this at
 * the same time. */
const float *position_rows(Positions *positions, int64_t count);

void positions_free(Positions *positions);

#endif
