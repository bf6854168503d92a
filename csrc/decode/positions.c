/* Tables of positional encodings, which grow on demand. */
#include "decode/positions.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "sizes.h"

#define MIN_COUNT 128        /* encodings of a table */
#define DEFAULT_BASE 10000.0 /* the paper's */

/* Older tables are kept, as another thread may still read them. */
typedef struct Table {
    struct Table *previous;
    int64_t count;
    float *rows; /* [count, d_model] */
} Table;

struct Positions {
    int64_t d_model, num_learned;
    double base;
    float *learned; /* [num_learned, d_model], or NULL */
    _Atomic(Table *) newest;
};

/* Dimension 2i is sin(position / base^(2i / d_model)); dimension 2i + 1 the cosine. */
static void write_sinusoids(double base, float *rows, int64_t count, int64_t d_model)
{
    for (int64_t i = 0; i < d_model; i += 2) {
        const double divisor = pow(base, (double)i / (double)d_model);
        for (int64_t position = 0; position < count; position++) {
            const double angle = (double)position / divisor;
            float *pair = rows + position * d_model + i;
            pair[0] = (float)sin(angle);
            if (i + 1 < d_model)
                pair[1] = (float)cos(angle);
        }
    }
}

/* Learned encodings are scaled by sqrt(d_model), like embeddings of tokens. Positions
 * past the end of the table have its last row. */
static void write_learned(const Positions *positions, float *rows, int64_t count)
{
    const int64_t width = positions->d_model;
    const float scale = (float)sqrt((double)width);
    for (int64_t position = 0; position < count; position++) {
        const int64_t row = min_i64(position, positions->num_learned - 1);
        const float *from = positions->learned + row * width;
        for (int64_t i = 0; i < width; i++)
            rows[position * width + i] = from[i] * scale;
    }
}

static Table *table_new(const Positions *positions, int64_t count)
{
    Table *table = malloc(sizeof *table);
    if (!table)
        return NULL;
    table->count = count;
    table->rows = allocate_lines((double)count * (double)positions->d_model *
                                 (double)sizeof(float));
    if (!table->rows) {
        free(table);
        return NULL;
    }
    if (positions->learned)
        write_learned(positions, table->rows, count);
    else
        write_sinusoids(positions->base, table->rows, count, positions->d_model);
    return table;
}

static void table_free(Table *table)
{
    free(table->rows);
    free(table);
}

Positions *positions_new(int64_t d_model, double base, const float *learned,
                         int64_t num_learned)
{
    Positions *positions = calloc(1, sizeof *positions);
    if (!positions)
        return NULL;
    positions->d_model = d_model;
    positions->base = base > 0 ? base : DEFAULT_BASE;
    if (!learned)
        return positions;
    const double bytes = (double)num_learned * (double)d_model * (double)sizeof(float);
    positions->learned = allocate_lines(bytes);
    if (!positions->learned) {
        free(positions);
        return NULL;
    }
    memcpy(positions->learned, learned, (size_t)bytes);
    positions->num_learned = num_learned;
    return positions;
}

const float *position_rows(Positions *positions, int64_t count)
{
    for (;;) {
        Table *newest = atomic_load(&positions->newest);
        const int64_t before = newest ? newest->count : 0;
        if (count <= before)
            return newest->rows;
        Table *table =
            table_new(positions, max_i64(count, max_i64(2 * before, MIN_COUNT)));
        if (!table)
            return NULL;
        table->previous = newest;
        if (atomic_compare_exchange_strong(&positions->newest, &newest, table))
            return table->rows;
        table_free(table); /* another thread has added one */
    }
}

void positions_free(Positions *positions)
{
    if (!positions)
        return;
    Table *table = atomic_load(&positions->newest);
    while (table) {
        Table *previous = table->previous;
        table_free(table);
        table = previous;
    }
    free(positions->learned);
    free(positions);
}
