/* Rows in the order in which products read them. */
#include <math.h>
#include <string.h>

#include "threads.h"
#include "tiles.h"

int64_t row_bytes(int64_t inputs)
{
    return (inputs + LANES - 1) / LANES * LANES * (int64_t)sizeof(float);
}

/* The lowest number of a row, NaN if there is one in it, and the 255th part of its
   range. */
static void measure_row(const float *x, int64_t inputs, float *lowest, float *scale)
{
    Lanes low = lanes_of(INFINITY), high = lanes_of(-INFINITY);
    uint32_t nan = 0;
    for (int64_t i = 0; i < inputs; i += LANES) {
        const Mask there = first_lanes(inputs - i);
        const Lanes value = lanes_load(there, x + i);
        low = lanes_where(there, lanes_min(low, value), low);
        high = lanes_where(there, lanes_max(high, value), high);
        nan |= lanes_nan(value);
    }
    float least = lowest_lane(low), most = highest_lane(high);
    *scale = most > least ? (most - least) / 255.0f : 1.0f;
    *lowest = nan ? NAN : least;
}

static inline void store_group(uint8_t *numbers, __m128i bytes)
{
    int32_t group = _mm_cvtsi128_si32(bytes);
    memcpy(numbers, &group, GROUP_BYTES);
}

/* In 8 bits, a group after one, so far apart. */
static void round_row(const float *x, int64_t inputs, float lowest, float scale,
                      int64_t apart, uint8_t *numbers)
{
    const Lanes offset = lanes_of(lowest), per_step = lanes_of(1.0f / scale);
    for (int64_t i = 0; i < inputs; i += LANES, numbers += 4 * apart) {
        /* What is behind the last is multiplied by weights of zero. */
        const Lanes value = lanes_load(first_lanes(inputs - i), x + i);
        const __m128i bytes = lanes_to_numbers((value - offset) * per_step);
        store_group(numbers, bytes);
        store_group(numbers + apart, _mm_bsrli_si128(bytes, 4));
        store_group(numbers + 2 * apart, _mm_bsrli_si128(bytes, 8));
        store_group(numbers + 3 * apart, _mm_bsrli_si128(bytes, 12));
    }
}

static void copy_row(const float *x, int64_t inputs, int64_t apart, uint8_t *numbers)
{
    for (int64_t i = 0; i < inputs; i++, numbers += apart)
        memcpy(numbers, x + i, sizeof *x);
}

typedef struct {
    const Linear *linear;
    const float *x;
    Rows *into;
} Arrangement;

static void arrange_part(void *shared, int64_t first, int64_t end, int worker)
{
    const Arrangement *asked = shared;
    const Rows *into = asked->into;
    const int64_t inputs = asked->linear->inputs;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        const float *of_row = asked->x + row * inputs;
        const int64_t apart = tile_rows(row, into->rows) * GROUP_BYTES;
        uint8_t *tile = into->numbers + row / ROWS * ROWS * into->stride;
        uint8_t *numbers = tile + row % ROWS * GROUP_BYTES;
        if (asked->linear->scales) {
            measure_row(of_row, inputs, into->lowest + row, into->scales + row);
            round_row(of_row, inputs, into->lowest[row], into->scales[row], apart,
                      numbers);
        } else
            copy_row(of_row, inputs, apart, numbers);
    }
}

void arrange_rows(const Linear *linear, const float *x, int64_t rows, Rows *into,
                  int num_threads)
{
    Arrangement asked = {linear, x, into};
    into->rows = rows;
    into->stride = row_bytes(linear->inputs);
    share_out(arrange_part, &asked, rows, LEAST_ROWS, num_threads);
}
