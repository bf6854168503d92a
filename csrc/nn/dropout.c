/* Dropout (section 5.4): masks, and what they leave. */
#include "nn/dropout.h"

#include <string.h>

#include "parallel.h"

#define BITS_OF_BYTE 8
#define LEAST_NUMBERS 16384 /* fewer are not worth a thread */

/* The same for each block, whichever thread it falls to. */
static void draw_block(const td_masking *m, int64_t block)
{
    const uint32_t seed = m->dropout.seeds[0], other = m->dropout.seeds[1];
    const uint32_t num_dropped = m->dropout.rate.num_dropped;
    /* Masks of the lower, and of the upper bits of the draws. */
    const uint32_t half = (uint32_t)(m->block_masks / 2);
    const uint32_t first = (uint32_t)(m->first_block + block) * half;
    uint8_t *restrict lower = m->kept + block * m->block_masks;
    uint8_t *restrict upper = lower + half;
    if (num_dropped == 0) {
        memset(lower, 1, (size_t)m->block_masks);
        return;
    }
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t random = mixed(mixed((first + i) ^ seed) + other);
        lower[i] = (random & ((1U << DRAW_BITS) - 1U)) >= num_dropped;
        upper[i] = random >> DRAW_BITS >= num_dropped;
    }
}

static void apply_block(const td_masking *m, int64_t block)
{
    const int64_t first = block * m->block_width, left = m->count - first;
    const int64_t count = left < m->block_width ? left : m->block_width;
    const float *restrict x = m->x + first;
    float *restrict y = m->y + first;
    const uint8_t *restrict kept = m->kept + block * m->block_masks;
    const float scale = m->dropout.rate.scale;
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] * (kept[i] ? scale : 0.0f); /* NaN stays NaN */
}

static void drop_blocks(void *masking, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const td_masking *m = masking;
    for (int64_t block = first; block < end; block++) {
        draw_block(m, block);
        apply_block(m, block);
    }
}

static void mask_blocks(void *masking, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const td_masking *m = masking;
    for (int64_t block = first; block < end; block++)
        apply_block(m, block);
}

static void put_bits(uint8_t *to, vec_i32 kept)
{
    const uint32_t bits = vec_sign_bits((vec)kept);
    memcpy(to, &bits, LANES / BITS_OF_BYTE);
}

static void draw_bits(void *masks, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const MaskBits *m = masks;
    const int64_t half = half_of_masks(m->width);
    for (int64_t row = first; row < end; row++) {
        uint8_t *lower = m->bits + row * m->width / BITS_OF_BYTE;
        uint8_t *upper = lower + half / BITS_OF_BYTE;
        const uint32_t place = (uint32_t)(m->first_row + row) * (uint32_t)half;
        for (int64_t i = 0; i < half; i += LANES) {
            const KeptMasks kept = draw_lanes(m->draw, place + (uint32_t)i);
            put_bits(lower + i / BITS_OF_BYTE, kept.lower);
            put_bits(upper + i / BITS_OF_BYTE, kept.upper);
        }
    }
}

static int64_t least_blocks(const td_masking *m)
{
    return (LEAST_NUMBERS + m->block_width - 1) / m->block_width;
}

static int64_t blocks_of(const td_masking *m)
{
    return (m->count + m->block_width - 1) / m->block_width;
}

static td_status dropout_forward(const td_masking *m, int num_threads)
{
    parallel_for(drop_blocks, (void *)m, blocks_of(m), least_blocks(m), num_threads);
    return TD_OK;
}

static td_status dropout_backward(const td_masking *m, int num_threads)
{
    parallel_for(mask_blocks, (void *)m, blocks_of(m), least_blocks(m), num_threads);
    return TD_OK;
}
