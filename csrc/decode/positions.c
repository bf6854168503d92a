/* Encodings of positions. */
#include "decode/positions.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"

#define MIN_COUNT 128 /* encodings that are made at once, at least */
#define WAVELENGTH 10000.0

/* Tables only grow: a reader may still use those that were the newest before. */
typedef struct Table {
    struct Table *previous;
    int64_t count;
    float *rows; /* [count, d_model] */
} Table;

struct Positions {
    int64_t d_model, num_learned;
    float *learned; /* [num_learned, d_model], or NULL */
    _Atomic(Table *) newest;
};

/* The even dimension 2i holds sin(position / 10000^(2i / d_model)), the odd one after
 * it the cosine. */
static void write_sinusoids(float *rows, int64_t count, int64_t d_model)
{
    for (int64_t i = 0; i < d_model; i += 2) {
        const double wavelength = pow(WAVELENGTH, (double)i / (double)d_model);
        for (int64_t position = 0; position < count; position++) {
            const double angle = (double)position / wavelength;
            float *pair = rows + position * d_model + i;
            pair[0] = (float)sin(angle);
            if (i + 1 < d_model)
                pair[1] = (float)cos(angle);
        }
    }
}

/* Learned encodings are scaled like tokens. Positions beyond the table have its last
 * row, as in `LearnedPositions`. */
static void write_learned(const Positions *positions, float *rows, int64_t count)
{
    const int64_t width = positions->d_model;
    const float scale = (float)sqrt((double)width);
    for (int64_t position = 0; position < count; position++) {
        const int64_t last = positions->num_learned - 1;
        const float *from =
            positions->learned + (position < last ? position : last) * width;
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
        write_sinusoids(table->rows, count, positions->d_model);
    return table;
}

static void table_free(Table *table)
{
    free(table->rows);
    free(table);
}

Positions *positions_new(int64_t d_model, const float *learned, int64_t num_learned)
{
    Positions *positions = calloc(1, sizeof *positions);
    if (!positions)
        return NULL;
    positions->d_model = d_model;
    if (!learned)
        return positions;
    const double bytes = (double)num_learned * (double)d_model * sizeof(float);
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
        int64_t wanted = 2 * before > MIN_COUNT ? 2 * before : MIN_COUNT;
        if (wanted < count)
            wanted = count;
        Table *table = table_new(positions, wanted);
        if (!table)
            return NULL;
        table->previous = newest;
        if (atomic_compare_exchange_strong(&positions->newest, &newest, table))
            return table->rows;
        table_free(table); /* another thread was faster */
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
