/* Packing of activations, the rows that a packed map multiplies (gemm/tiles.h). */
#include <math.h>
#include <string.h>

#include "gemm/amx_int8.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define MAX_BYTE 255.0f /* the largest number of a row is rounded to it */

TD_INTERNAL int64_t packed_activation_bytes(int64_t inputs)
{
    return round_up_to_lanes(inputs) * (int64_t)sizeof(float);
}

/* Minima, maxima and sums of some lanes of a row. */
typedef struct {
    vec min, max;
    vec sum; /* NaN if the row has NaN */
} Range;

static inline void widen_range(Range *range, vec x)
{
    range->min = vec_min(range->min, x);
    range->max = vec_max(range->max, x);
    range->sum += x;
}

/* Find the minimum of a row, NaN if the row has NaN, and the scale of its bytes: the
 * range divided by 255. Two accumulators halve the time spent waiting for sums. */
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
        /* Lanes past the end repeat the first number. */
        const vec_mask mask = vec_mask_first(inputs - i);
        widen_range(&one,
                    vec_select(mask, vec_load_masked(mask, x + i), vec_set1(x[0])));
    }
    const float lower = vec_reduce_min(vec_min(one.min, other.min));
    const float upper = vec_reduce_max(vec_max(one.max, other.max));
    *scale = upper > lower ? (upper - lower) / MAX_BYTE : 1.0f;
    *min = isnan(vec_reduce_add(one.sum + other.sum)) ? NAN : lower;
}

/* Round a row to bytes; its groups begin `stride` bytes apart. */
static void round_row(const float *x, int64_t inputs, float min, float scale,
                      int64_t stride, uint8_t *numbers)
{
    const vec offset = vec_set1(min), per_step = vec_set1(1.0f / scale);
    const int64_t step = LANES / INT8_GROUP * stride;
    int64_t i = 0;
    for (; stride == INT8_GROUP && i + 4 * LANES <= inputs; i += 4 * LANES) {
        vec some[4];
        for (int k = 0; k < 4; k++)
            some[k] = (vec_load(x + i + k * LANES) - offset) * per_step;
        vec_store_int8_x4(numbers, some);
        numbers += 4 * step;
    }
    for (; i + LANES <= inputs; i += LANES, numbers += step)
        vec_store_int8(numbers, stride, (vec_load(x + i) - offset) * per_step);
    if (i < inputs) {
        /* The weights of bytes past the end are zero. */
        const vec value = vec_load_masked(vec_mask_first(inputs - i), x + i);
        vec_store_int8(numbers, stride, (value - offset) * per_step);
    }
}

static void copy_row(const float *x, int64_t inputs, int64_t stride, uint8_t *numbers)
{
    for (int64_t i = 0; i < inputs; i++, numbers += stride)
        memcpy(numbers, x + i, sizeof *x);
}

typedef struct {
    const Linear *linear;
    const Matrix *x;
    PackedActivations *into;
} ActivationPacking;

/* First group of a row; its groups begin `*stride` bytes apart. */
static uint8_t *first_group(const PackedActivations *into, int is_int8, int64_t row,
                            int64_t *stride)
{
    const int64_t group = group_bytes(is_int8);
    if (into->for_amx) {
        *stride = group;
        return into->data + row * into->stride;
    }
    const int64_t tile = row / LINEAR_TILE_ROWS * LINEAR_TILE_ROWS;
    *stride = tile_rows(row, into->rows) * group;
    return into->data + tile * into->stride + (row - tile) * group;
}

static void pack_part(void *shared, int64_t first, int64_t end, int worker)
{
    const ActivationPacking *packing = shared;
    const PackedActivations *into = packing->into;
    const int64_t inputs = packing->linear->inputs;
    const int is_int8 = packing->linear->scales != NULL;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        const float *x = row_of(packing->x, row);
        int64_t stride;
        uint8_t *numbers = first_group(into, is_int8, row, &stride);
        if (is_int8) {
            measure_row(x, inputs, into->min + row, into->scales + row);
            round_row(x, inputs, into->min[row], into->scales[row], stride, numbers);
            if (INT8_OFFSET) /* `min` becomes the value of the stored byte 0 */
                into->min[row] += INT8_OFFSET * into->scales[row];
        } else {
            copy_row(x, inputs, stride, numbers);
        }
    }
}

TD_INTERNAL void pack_activations(const Linear *linear, const Matrix *x, int64_t rows,
                                  PackedActivations *into, int num_threads)
{
    ActivationPacking packing = {linear, x, into};
    into->rows = rows;
    into->for_amx = suits_amx(linear, rows);
    into->stride = into->for_amx ? amx_row_bytes(linear->inputs)
                                 : packed_activation_bytes(linear->inputs);
    parallel_for(pack_part, &packing, rows, MIN_ROWS, num_threads);
}
