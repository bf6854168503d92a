/* Arena from which pieces of a caller's memory are taken. An arena without memory only
 * counts, so that the same function tells how much memory is needed. */
#ifndef TRANSDUCE_NN_ARENA_H
#define TRANSDUCE_NN_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "gemm/pack_bf16.h"
#include "transduce.h"

#define ARENA_ALIGNMENT                                                                \
    16 /* floats: pieces begin a cache line apart from each other                      \
        */

typedef struct {
    float *memory; /* or NULL */
    int64_t used;  /* floats */
} Arena;

static inline float *take_floats(Arena *arena, int64_t count)
{
    float *piece = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (count + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return piece;
}

static inline uint8_t *take_bytes(Arena *arena, int64_t count)
{
    const int64_t size = sizeof(float);
    return (uint8_t *)take_floats(arena, (count + size - 1) / size);
}

static inline td_bf16 *take_bf16(Arena *arena, int64_t count)
{
    return (td_bf16 *)take_bytes(arena, count * (int64_t)sizeof(td_bf16));
}

/* Panels for a matrix [rows, columns]. */
static inline td_panels take_panels(Arena *arena, int64_t rows, int64_t columns)
{
    return (td_panels){take_bf16(arena, rows * columns), rows};
}

#endif
