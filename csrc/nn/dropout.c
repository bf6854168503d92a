/* Dropout with stored masks, and masks as bits. */
#include "nn/dropout.h"

#include <limits.h>
#include <string.h>

#include "checks.h"
#include "parallel.h"
#include "sizes.h"

#define MIN_ELEMENTS 16384 /* of a part of parallel_for */

/* Draw the masks of a block. They equal the masks of draw_lanes(), which draws by
 * vectors where masks are not stored: both functions must change together. */
static void draw_block(const td_masking *m, int64_t block)
{
    const uint32_t seed = m->dropout.seeds[0], other = m->dropout.seeds[1];
    const uint32_t num_dropped = m->dropout.rate.num_dropped;
    const uint32_t half = (uint32_t)(m->block_masks / 2);
    const uint32_t first = (uint32_t)(m->first_block + block) * half;
    uint8_t *restrict lower = m->kept + block * m->block_masks;
    uint8_t *restrict upper = lower + half;
    if (num_dropped == 0) {
        memset(lower, 1, (size_t)m->block_masks);
        return;
    }
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t random = hash_u32(hash_u32((first + i) ^ seed) + other);
        lower[i] = (random & ((1U << DRAW_BITS) - 1U)) >= num_dropped;
        upper[i] = random >> DRAW_BITS >= num_dropped;
    }
}

static void apply_block(const td_masking *m, int64_t block)
{
    const int64_t first = block * m->block_width;
    const int64_t count = min_i64(m->count - first, m->block_width);
    const float *restrict x = m->x + first;
    float *restrict y = m->y + first;
    const uint8_t *restrict kept = m->kept + block * m->block_masks;
    const float scale = m->dropout.rate.scale;
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] * (kept[i] ? scale : 0.0f); /* keeps NaN */
}

TD_INTERNAL void dropout_blocks_forward(void *masking, int64_t first, int64_t end,
                                        int worker)
{
    (void)worker;
    const td_masking *m = masking;
    for (int64_t block = first; block < end; block++) {
        draw_block(m, block);
        apply_block(m, block);
    }
}

TD_INTERNAL void dropout_blocks_backward(void *masking, int64_t first, int64_t end,
                                         int worker)
{
    (void)worker;
    const td_masking *m = masking;
    for (int64_t block = first; block < end; block++)
        apply_block(m, block);
}

static void store_bits(uint8_t *to, vec_i32 kept)
{
    const uint32_t bits = vec_sign_bits((vec)kept);
    for (int i = 0; i < LANES / CHAR_BIT; i++)
        to[i] = (uint8_t)(bits >> i * CHAR_BIT);
}

TD_INTERNAL void draw_mask_bits(void *masks, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const MaskBits *m = masks;
    const int64_t half = half_of_masks(m->width);
    for (int64_t row = first; row < end; row++) {
        uint8_t *lower = m->bits + row * m->width / CHAR_BIT;
        uint8_t *upper = lower + half / CHAR_BIT;
        const uint32_t place = (uint32_t)(m->first_row + row) * (uint32_t)half;
        for (int64_t i = 0; i < half; i += LANES) {
            const KeptMasks kept = draw_lanes(m->dropout, place + (uint32_t)i);
            store_bits(lower + i / CHAR_BIT, kept.lower);
            store_bits(upper + i / CHAR_BIT, kept.upper);
        }
    }
}

static td_status check_masking(const td_masking *m, int num_threads)
{
    if (!m || !is_thread_count(num_threads) || !is_between(m->count, 0, MAX_ELEMENTS) ||
        !is_size(m->block_width, 1) || !is_size(m->block_masks, m->block_width) ||
        m->block_masks % 2 || !is_between(m->first_block, 0, MAX_ELEMENTS) ||
        !is_dropout_rate(m->dropout.rate))
        return TD_BAD_ARGUMENT;
    if (is_missing(m->x, m->count) || is_missing(m->y, m->count) ||
        is_missing(m->kept, m->count))
        return TD_BAD_ARGUMENT;
    return TD_OK;
}

/* Call dropout_blocks_forward or dropout_blocks_backward on all blocks. */
static td_status process_blocks(Part process, const td_masking *m, int num_threads)
{
    const td_status status = check_masking(m, num_threads);
    if (status != TD_OK)
        return status;
    td_masking own = *m;
    parallel_for(process, &own, ceil_div(m->count, m->block_width),
                 ceil_div(MIN_ELEMENTS, m->block_width), num_threads);
    return TD_OK;
}

TD_INTERNAL td_status td_dropout_forward(const td_masking *masking, int num_threads)
{
    return process_blocks(dropout_blocks_forward, masking, num_threads);
}

TD_INTERNAL td_status td_dropout_backward(const td_masking *masking, int num_threads)
{
    return process_blocks(dropout_blocks_backward, masking, num_threads);
}
