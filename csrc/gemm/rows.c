/* Rows in the order in which products read them. */
#include "isa/name.h"
#include <math.h>
#include <string.h>

#include "gemm/amx_int8.h"
#include "gemm/tiles.h"
#include "parallel.h"

TD_INTERNAL int64_t row_bytes(int64_t inputs)
{
    return round_up_to_lanes(inputs) * (int64_t)sizeof(float);
}

/* What a row is measured by: some at a time, so that none waits for another. */
typedef struct {
    vec low, high;
    vec sum; /* NaN, if there is NaN in the row */
} Measure;

static inline void measure(Measure *of, vec x)
{
    of->low = vec_min(of->low, x);
    of->high = vec_max(of->high, x);
    of->sum += x;
}

/* The lowest number of a row, NaN if there is one in it, and the 255th part of its
   range. */
static void measure_row(const float *x, int64_t inputs, float *lowest, float *scale)
{
    const Measure none = {vec_set1(INFINITY), vec_set1(-INFINITY), vec_set1(0.0f)};
    Measure one = none, other = none;
    int64_t i = 0;
    for (; i + 2 * LANES <= inputs; i += 2 * LANES) {
        measure(&one, vec_load(x + i));
        measure(&other, vec_load(x + i + LANES));
    }
    for (; i < inputs; i += LANES) {
        /* What is not there counts as the first. */
        const vec_mask there = vec_first(inputs - i);
        measure(&one, vec_select(there, vec_load_masked(there, x + i), vec_set1(x[0])));
    }
    const float least = vec_reduce_min(vec_min(one.low, other.low));
    const float most = vec_reduce_max(vec_max(one.high, other.high));
    *scale = most > least ? (most - least) / 255.0f : 1.0f;
    *lowest = isnan(vec_reduce_add(one.sum + other.sum)) ? NAN : least;
}

/* In 8 bits, a group after one, so far apart. */
static void round_row(const float *x, int64_t inputs, float lowest, float scale,
                      int64_t apart, uint8_t *numbers)
{
    const vec offset = vec_set1(lowest), per_step = vec_set1(1.0f / scale);
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
        /* What is behind the last is multiplied by weights of zero. */
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
    Rows *into;
} Arrangement;

/* Where the first group of a row stands, and how far apart its groups are. */
static uint8_t *place_of_row(const Rows *into, int is_int8, int64_t row, int64_t *apart)
{
    const int64_t group = group_bytes(is_int8);
    if (into->are_for_unit) {
        *apart = group;
        return into->numbers + row * into->stride;
    }
    *apart = tile_rows(row, into->rows) * group;
    return into->numbers + row / ROWS * ROWS * into->stride + row % ROWS * group;
}

static void arrange_part(void *shared, int64_t first, int64_t end, int worker)
{
    const Arrangement *asked = shared;
    const Rows *into = asked->into;
    const int64_t inputs = asked->linear->inputs;
    (void)worker;
    for (int64_t row = first; row < end; row++) {
        const float *of_row = row_of(asked->x, row);
        const int is_int8 = asked->linear->scales != NULL;
        int64_t apart;
        uint8_t *numbers = place_of_row(into, is_int8, row, &apart);
        if (is_int8) {
            measure_row(of_row, inputs, into->lowest + row, into->scales + row);
            round_row(of_row, inputs, into->lowest[row], into->scales[row], apart,
                      numbers);
            into->lowest[row] += INT8_OFFSET * into->scales[row];
        } else
            copy_row(of_row, inputs, apart, numbers);
    }
}

TD_INTERNAL void arrange_rows(const Linear *linear, const Matrix *x, int64_t rows,
                              Rows *into, int num_threads)
{
    Arrangement asked = {linear, x, into};
    into->rows = rows;
    into->are_for_unit = is_for_unit(linear, rows);
    into->stride =
        into->are_for_unit ? unit_stride(linear->inputs) : row_bytes(linear->inputs);
    parallel_for(arrange_part, &asked, rows, LEAST_ROWS, num_threads);
}
