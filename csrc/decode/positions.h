/* Encodings of positions (section 3.5): sinusoids, or rows of a learned table.
 *
 * Compiled once, without the reordering of sums and products that kernels allow: all
 * instruction sets have the same numbers.
 */
#ifndef TRANSDUCE_DECODE_POSITIONS_H
#define TRANSDUCE_DECODE_POSITIONS_H

#include <stdint.h>

typedef struct Positions Positions;

/* Encodings of width d_model; `learned` [num_learned, d_model] is copied, or NULL for
 * sinusoids. NULL if memory is lacking. */
Positions *positions_new(int64_t d_model, const float *learned, int64_t num_learned);

/* Encodings [count or more, d_model] of the positions from 0 on, which stay until the
 * end of `positions`. NULL if memory is lacking. Threads may call this at a time. */
const float *position_rows(Positions *positions, int64_t count);

void positions_free(Positions *positions);

#endif
