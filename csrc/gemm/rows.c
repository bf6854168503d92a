/* Rows in the order in which products read them (gemm/tiles.h). */
#include <math.h>
#include <string.h>

#include "gemm/amx_int8.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define BYTE_STEPS 255.0f /* of a row's range */

TD_INTERNAL int64_t quantized_row_bytes(int64_t inputs)
{
    return round_up_to_lanes(inputs) * (int64_t)sizeof(float);
}

/* Range of a row, in several accumulators so that none waits for another. */
typedef struct {
    vec low, high;
    vec sum; /* NaN if the row has NaN */
} Range;

static inline void widen_range(Range *range, vec x)
{
    range->low = vec_min(range->low, x);
    range->high = vec_max(range->high, x);
    range->sum += x;
}

/* Smallest number of a row, NaN if the row has one, and the 255th part of its range. */
static void measure_row(const float *x, int64_t inputs, float *min, float *scale)
{
    const Range none = {vec_set1(INFINITY), vec_set1(-INFINITY), vec_set1(0.0f)};
    Range one = none, other = none;
    int64_t i = 0;
    for (; i + 2 * LANES <= inputs; i += 2 * LANES) {
        widen_range(&one, vec_load(x + i));
        widen_range(&other, vec_load(x + i + LANES));
    }
    for (; i < inputs; i += LANES) {
        /* Lanes behind the end count as the first number. */
        const vec_mask there = vec_first(inputs - i);
        widen_range(&one,
                    vec_select(there, vec_load_masked(there, x + i), vec_set1(x[0])));
    }
    const float least = vec_reduce_min(vec_min(one.low, other.low));
    const float most = vec_reduce_max(vec_max(one.high, other.high));
    *scale = most > least ? (most - least) / BYTE_STEPS : 1.0f;
    *min = isnan(vec_reduce_add(one.sum + other.sum)) ? NAN : least;
}

/* Round a row to bytes; its groups are `apart` bytes apart. */
static void round_row(const float *x, int64_t inputs, float min, float scale,
                      int64_t apart, uint8_t *numbers)
{
    const vec offset = vec_set1(min), per_step = vec_set1(1.0f / scale);
    const int64_t step = LANES / INT8_GROUP * apart;
    int64_t i = 0;
    for (; apart == INT8_GROUP && i + 4 * LANES <= inputs; i += 4 * LANES) {
        vec some[4];
        for (int k = 0; k < 4; k++)
            some[k] = (vec_load(x + i + k * LANES) - offset) * per_step;
        vec_store_int8_x4(numbers, some);
        numbers += 4 * step;
    }
    for (; i + LANES <= inputs; i += LANES, numbers += step)
        vec_store_int8(numbers, apart, (vec_load(x + i) - offset) * per_step);
    if (i < inputs) {
        /* Bytes behind the end are multiplied by weights of zero. */
        const vec value = vec_load_masked(vec_first(inputs - i), x + i);
        vec_store_int8(numbers, apart, (value - offset) * per_step);
    }
}

static void copy_row(const float *x, int64_t inputs, int64_t apart, uint8_t *numbers)
{
    for (int64_t i = 0; i < inputs; i++, numbers += apart)
        memcpy(numbers, x + i, sizeof *x);
}

typedef struct {
    const Linear *linear;
    const Matrix *x;
    QuantizedRows *into;
} Quantization;

/* Place of the first group of a row, and the distance of its groups in bytes. */
static uint8_t *first_group(const QuantizedRows *into, int is_int8, int64_t row,
                            int64_t *apart)
{
    const int64_t group = group_bytes(is_int8);
    if (into->for_amx) {
        *apart = group;
        return into->numbers + row * into->stride;
    }
    const int64_t tile = row / LINEAR_TILE_ROWS * LINEAR_TILE_ROWS;
    *apart = tile_rows(row, into->rows) * group;
    return into->numbers + tile * into->stride + (row - tile) * group;
}

static void quantize_part(void *shared, int64_t first, int64_t end, int worker)
{
    const Quantization *q = shared;
    const QuantizedRows *into = q->into;
    const int64_t inputs = q->linear->inputs;
    const int is_int8 = q->linear->scales != NULL;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        const float *x = row_of(q->x, row);
        int64_t apart;
        uint8_t *numbers = first_group(into, is_int8, row, &apart);
        if (is_int8) {
            measure_row(x, inputs, into->min + row, into->scales + row);
            round_row(x, inputs, into->min[row], into->scales[row], apart, numbers);
            if (INT8_OFFSET)
                into->min[row] += INT8_OFFSET * into->scales[row];
        } else {
            copy_row(x, inputs, apart, numbers);
        }
    }
}

TD_INTERNAL void quantize_rows(const Linear *linear, const Matrix *x, int64_t rows,
                               QuantizedRows *into, int num_threads)
{
    Quantization quantization = {linear, x, into};
    into->rows = rows;
    into->for_amx = suits_amx(linear, rows);
    into->stride = into->for_amx ? amx_row_bytes(linear->inputs)
                                 : quantized_row_bytes(linear->inputs);
    parallel_for(quantize_part, &quantization, rows, MIN_ROWS, num_threads);
}
