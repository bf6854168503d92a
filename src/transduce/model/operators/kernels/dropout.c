/* Dropout (section 5.4): masks, and what they leave. */
#include "dropout.h"

#include <string.h>

#include "exported.h"
#include "threads.h"

#define LEAST_NUMBERS 16384 /* fewer are not worth a thread */
#define BITS 16          /* of a mask's draw */

/* Every bit of x changes each of the result with a chance of about a half (the
   function `lowbias32` of Wellons, 2018). */
static inline uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

/* The same for each block, whichever thread it falls to. */
static void draw(const Masking *m, int64_t block)
{
    const uint32_t seed = m->seeds[0], other = m->seeds[1];
    const uint32_t num_dropped = m->num_dropped;
    /* Masks of the lower, and of the upper bits of the draws. */
    const uint32_t half = (uint32_t)(m->block / 2);
    const uint32_t first = (uint32_t)(m->first_block + block) * half;
    uint8_t *restrict lower = m->kept + block * m->block;
    uint8_t *restrict upper = lower + half;
    if (num_dropped == 0) {
        memset(lower, 1, (size_t)m->block);
        return;
    }
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t random = mixed(mixed((first + i) ^ seed) + other);
        lower[i] = (random & 0xFFFFU) >= num_dropped;
        upper[i] = random >> BITS >= num_dropped;
    }
}

static void apply(const Masking *m, int64_t first, int64_t end)
{
    const float *restrict x = m->x;
    float *restrict y = m->y;
    const uint8_t *restrict kept = m->kept;
    const float scale = m->scale;
    for (int64_t i = first; i < end; i++)
        y[i] = x[i] * (kept[i] ? scale : 0.0f); /* NaN stays NaN */
}

static int64_t end_of(const Masking *m, int64_t block)
{
    const int64_t end = block * m->block;
    return end < m->count ? end : m->count;
}

static void drop_blocks(void *masking, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Masking *m = masking;
    for (int64_t block = first; block < end; block++) {
        draw(m, block);
        apply(m, block * m->block, end_of(m, block + 1));
    }
}

static void mask_blocks(void *masking, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Masking *m = masking;
    apply(m, first * m->block, end_of(m, end));
}

static int64_t least_blocks(const Masking *m)
{
    return (LEAST_NUMBERS + m->block - 1) / m->block;
}

static int64_t blocks_of(const Masking *m)
{
    return (m->count + m->block - 1) / m->block;
}

EXPORTED void transduce_drop(Masking *m, int num_threads)
{
    share_out(drop_blocks, m, blocks_of(m), least_blocks(m), num_threads);
}

EXPORTED void transduce_mask(Masking *m, int num_threads)
{
    share_out(mask_blocks, m, blocks_of(m), least_blocks(m), num_threads);
}
