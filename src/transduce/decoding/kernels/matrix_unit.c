/* What Intel's AMX does: sixteen rows times sixteen outputs, 64 inputs at once. */
#include "matrix_unit.h"

#include "exported.h"
#include "tiles.h"

#define UNIT_ROWS 16
#define UNIT_INPUTS 64
#define LEAST_UNIT_ROWS 8 /* below which filling its tiles costs what it gains */

static int has_unit;

int is_for_unit(const Linear *linear, int64_t rows)
{
    return has_unit && linear->scales && rows >= LEAST_UNIT_ROWS &&
           linear->inputs % UNIT_INPUTS == 0;
}

int64_t unit_stride(int64_t inputs)
{
    /* A line more, as a power of two would leave most of a cache unused. With so many
       rows and inputs, whole tiles need no more bytes than rows in fp32. */
    return inputs + UNIT_INPUTS;
}

#if defined(__AVX512VNNI__) && defined(__has_include)
/* As GCC and clang name it. */
#if __has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_INTRINSICS
#endif
#endif

#ifdef HAS_INTRINSICS

#define IN_UNIT __attribute__((target("amx-tile,amx-int8")))

/* Sums of two tiles of rows times two halves of a block of outputs. */
typedef struct {
    int32_t numbers[2 * UNIT_ROWS][COLUMNS];
} __attribute__((aligned(64))) Sums;

/* All eight tiles are full: 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, rest[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) full_tiles = {
    1, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* As the compiler does not know what the unit reads. */
static inline void write_all(void) { __asm__ volatile("" ::: "memory"); }

/* What the next block has in the place of so many weights. */
static inline void fetch(const uint8_t *weights, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        _mm_prefetch((const char *)weights + at, _MM_HINT_T1);
}

/* Tiles 0 and 1 have the sums, 2 the rows, 3 and 4 the weights. */
static IN_UNIT void sum_up_one(const Product *product, const uint8_t *numbers,
                               const uint8_t *weights, Sums *sums)
{
    const int64_t stride = product->x->stride, step = step_bytes(1);
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < product->linear->inputs; i += UNIT_INPUTS) {
        _tile_loadd(2, numbers + i, stride);
        _tile_loadd(3, weights, step);
        _tile_loadd(4, weights + step / 2, step);
        _tile_dpbusd(0, 2, 3);
        _tile_dpbusd(1, 2, 4);
        weights += UNIT_INPUTS / INT8_GROUP * step;
    }
    _tile_stored(0, sums->numbers[0], sizeof sums->numbers[0]);
    _tile_stored(1, sums->numbers[0] + LANES, sizeof sums->numbers[0]);
}

/* Tiles 0 to 3 have the sums, 4 and 5 the rows, 6 and 7 the weights. */
static IN_UNIT void sum_up_two(const Product *product, const uint8_t *numbers,
                               const uint8_t *weights, int64_t ahead, Sums *sums)
{
    const int64_t stride = product->x->stride, step = step_bytes(1);
    const int64_t bytes = UNIT_INPUTS / INT8_GROUP * step;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < product->linear->inputs; i += UNIT_INPUTS) {
        _tile_loadd(6, weights, step);
        _tile_loadd(7, weights + step / 2, step);
        _tile_loadd(4, numbers + i, stride);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(5, numbers + UNIT_ROWS * stride + i, stride);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
        if (ahead)
            fetch(weights + ahead, bytes);
        weights += bytes;
    }
    _tile_stored(0, sums->numbers[0], sizeof sums->numbers[0]);
    _tile_stored(1, sums->numbers[0] + LANES, sizeof sums->numbers[0]);
    _tile_stored(2, sums->numbers[UNIT_ROWS], sizeof sums->numbers[0]);
    _tile_stored(3, sums->numbers[UNIT_ROWS] + LANES, sizeof sums->numbers[0]);
}

/* Rows from one on, of two tiles at most, times a block. */
static void multiply_tiles(const Product *product, int64_t row, int64_t block)
{
    const Linear *linear = product->linear;
    const int64_t ahead = num_groups(linear->inputs, 1) * step_bytes(1);
    const uint8_t *weights = (const uint8_t *)linear->packed + block * ahead;
    const uint8_t *numbers = product->x->numbers + row * product->x->stride;
    const int64_t output = block * COLUMNS, left = product->x->rows - row;
    const int64_t count = left < 2 * UNIT_ROWS ? left : 2 * UNIT_ROWS;
    Sums sums;
    if (count > UNIT_ROWS)
        sum_up_two(product, numbers, weights, row ? 0 : ahead, &sums);
    else
        sum_up_one(product, numbers, weights, &sums);
    const Lanes *of_rows = (const Lanes *)&sums;
    finish(product, 1, of_rows, row, count, output);
    if (linear->outputs > output + LANES)
        finish(product, 1, of_rows + 1, row, count, output + LANES);
}

IN_UNIT void multiply_in_unit(const Product *product, int64_t first, int64_t end)
{
    write_all();
    _tile_loadconfig(&full_tiles);
    for (int64_t block = first; block < end; block++)
        for (int64_t row = 0; row < product->x->rows; row += 2 * UNIT_ROWS)
            multiply_tiles(product, row, block);
    _tile_release();
}

/* Whether it is used from now on. */
EXPORTED int transduce_use_matrix_unit(int is_there)
{
    has_unit = is_there;
    return has_unit;
}

#else

void multiply_in_unit(const Product *product, int64_t first, int64_t end)
{
    (void)product, (void)first, (void)end;
}

EXPORTED int transduce_use_matrix_unit(int is_there)
{
    (void)is_there;
    return 0;
}

#endif
