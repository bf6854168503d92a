/* Arena: a block of floats from which pieces are taken one after another. An arena
 * without a block only counts, so that the function that lays out a workspace also
 * returns its size. */
#ifndef TRANSDUCE_ARENA_H
#define TRANSDUCE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "sizes.h"

typedef struct {
    float *block; /* or NULL */
    int64_t used; /* floats */
} Arena;

/* Take `count` floats, rounded up to whole cache lines. */
static inline float *take_floats(Arena *arena, int64_t count)
{
    float *piece = arena->block ? arena->block + arena->used : NULL;
    arena->used += round_up(count, CACHE_LINE_FLOATS);
    return piece;
}

static inline uint8_t *take_bytes(Arena *arena, int64_t count)
{
    return (uint8_t *)take_floats(arena, ceil_div(count, (int64_t)sizeof(float)));
}

#endif
