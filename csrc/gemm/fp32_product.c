/* Products of large matrices in fp32.
 *
 * Blocks of both factors are copied into panels (Goto and van de Geijn, 2008), so that
 * the innermost loop reads one number after another from the caches:
 *
 *   block of b [INNER_BLOCK, COLUMN_BLOCK]: last-level cache, read once per block of a;
 *   block of a [ROW_BLOCK, INNER_BLOCK]: second-level cache, read once per panel of b;
 *   panel of b [INNER_BLOCK, TILE_WIDTH]: second-level cache, read once per panel of a;
 *   tile of c [TILE_HEIGHT, TILE_WIDTH]: registers.
 *
 * A panel of a has TILE_HEIGHT rows, column by column; a panel of b has TILE_WIDTH
 * columns, row by row. Panels at the edges of a matrix are filled up with zeros. */
#include "gemm/fp32_product.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "arena.h"
#include "checks.h"
#include "parallel.h"
#include "simd/prefetch.h"
#include "simd/vec.h"
#include "sizes.h"

#define TILE_HEIGHT (LANES == 16 ? 12 : 6) /* 24 or 12 registers of sums */
#define TILE_WIDTH (2 * LANES)
#define INNER_BLOCK (4096 / LANES)
#define ROW_BLOCK 96 /* whole panels of a */
#define COLUMN_BLOCK 512
#define COPIED_ROWS 16    /* rows copied at a time, so that they stay in the cache */
#define PACKING_COST 16.0 /* cost of packing a number, in multiply-adds */

_Static_assert(ROW_BLOCK % TILE_HEIGHT == 0, "a block has whole panels of a");
_Static_assert(COLUMN_BLOCK % TILE_WIDTH == 0, "a block has whole panels of b");

/* Workspace of a thread. */
typedef struct {
    float *a; /* [ROW_BLOCK, INNER_BLOCK], and space past the last panel, where
                 transpose_rows writes too */
    float *b; /* [INNER_BLOCK, COLUMN_BLOCK] */
} ProductWorkspace;

static ProductWorkspace take_product_workspace(Arena *arena)
{
    ProductWorkspace work;
    work.a = take_floats(arena, ROW_BLOCK * INNER_BLOCK + TRANSPOSE_SIDE);
    work.b = take_floats(arena, INNER_BLOCK * COLUMN_BLOCK);
    return work;
}

/* Part of a dimension. */
typedef struct {
    int64_t first, count;
} Span;

static Span next_span(int64_t first, int64_t end, int64_t block)
{
    return (Span){first, min_i64(end - first, block)};
}

static const float *element(td_factor factor, int64_t row, int64_t column)
{
    return factor.data + row * factor.row_stride + column * factor.column_stride;
}

/* Copy rows into panels of `width` columns each. `width` is a literal at each call. */
static inline __attribute__((always_inline)) void
copy_rows(const float *rows, int64_t stride, int64_t count, int64_t panels,
          const int64_t width, float *to)
{
    /* Some rows at a time: a cache line has elements of several panels. */
    for (int64_t first = 0; first < count; first += COPIED_ROWS)
        for (int64_t panel = 0; panel < panels; panel++) {
            float *into = to + panel * width * count;
            const float *from = rows + panel * width;
            const int64_t end = min_i64(first + COPIED_ROWS, count);
            for (int64_t row = first; row < end; row++)
                memcpy(into + row * width, from + row * stride,
                       (size_t)width * sizeof *to);
        }
}

/* Transpose rows into a panel of `width` rows, square by square of TRANSPOSE_SIDE rows
 * and columns. Returns the number of columns done, a multiple of TRANSPOSE_SIDE.
 *
 * If `width` is not a multiple of TRANSPOSE_SIDE, the last square has rows beyond the
 * panel, whose numbers land in the first rows of the panel's next column. The right
 * numbers overwrite them, because squares with the last rows are stored first, and a
 * square is stored column by column. After the last column they land in the next panel,
 * which is packed later. */
static int64_t transpose_rows(const float *rows, int64_t stride, int64_t columns,
                              int64_t width, float *panel)
{
    const int64_t whole = columns / TRANSPOSE_SIDE * TRANSPOSE_SIDE;
    const int64_t last = (width - 1) / TRANSPOSE_SIDE * TRANSPOSE_SIDE;
    for (int64_t k = 0; k < whole; k += TRANSPOSE_SIDE)
        for (int64_t i = last; i >= 0; i -= TRANSPOSE_SIDE)
            transpose_8x8(rows + i * stride + k, stride, panel + k * width + i, width);
    return whole;
}

/* Fill the columns of a panel from column `first` on, one number after another:
 * element i of column k is from[i * stride + k * step], and zero from `count` on. */
static void fill_panel(const float *from, int64_t stride, int64_t step, int64_t count,
                       int64_t width, int64_t first, int64_t columns, float *panel)
{
    for (int64_t k = first; k < columns; k++)
        for (int64_t i = 0; i < width; i++)
            panel[k * width + i] = i < count ? from[i * stride + k * step] : 0.0f;
}

/* Copy a block of a matrix of `all_rows` rows into panels of `width` rows each. `width`
 * is a literal at each call. */
static inline __attribute__((always_inline)) void pack(td_factor matrix,
                                                       int64_t all_rows, Span rows,
                                                       Span inner, const int64_t width,
                                                       float *to)
{
    const int64_t whole = rows.count / width;
    int64_t row = 0;
    if (matrix.row_stride == 1) {
        copy_rows(element(matrix, rows.first, inner.first), matrix.column_stride,
                  inner.count, whole, width, to);
        row = whole * width;
    }
    for (; row < rows.count; row += width) {
        const float *from = element(matrix, rows.first + row, inner.first);
        float *panel = to + row * inner.count;
        const int64_t left = rows.count - row;
        const int64_t readable = all_rows - rows.first - row;
        int64_t done = 0;
        if (matrix.column_stride == 1 && left >= width &&
            readable >= round_up(width, TRANSPOSE_SIDE))
            done = transpose_rows(from, matrix.row_stride, inner.count, width, panel);
        fill_panel(from, matrix.row_stride, matrix.column_stride, left, width, done,
                   inner.count, panel);
    }
}

static void pack_a(const td_product *p, Span rows, Span inner, float *to)
{
    pack(p->a, p->rows, rows, inner, TILE_HEIGHT, to);
}

/* The columns of b are the rows of its transpose. */
static void pack_b(const td_product *p, Span inner, Span columns, float *to)
{
    const td_factor transpose = {p->b.data, p->b.column_stride, p->b.row_stride};
    pack(transpose, p->columns, columns, inner, TILE_WIDTH, to);
}

/* Epilogue of a block: numbers that are added to its sums, and the bound for ReLU. */
typedef struct {
    int accumulates;
    const float *bias; /* or NULL */
    vec min;           /* 0 for ReLU, else -infinity */
} Epilogue;

/* Finish LANES sums of a row, of which `left` are in the matrix, and store them. */
static inline void store_sums(const Epilogue *epilogue, vec sums, int64_t column,
                              int64_t left, float *to)
{
    const vec_mask mask = vec_mask_first(left);
    if (epilogue->accumulates)
        sums += left >= LANES ? vec_load(to) : vec_load_masked(mask, to);
    if (epilogue->bias) {
        const float *bias = epilogue->bias + column;
        sums += left >= LANES ? vec_load(bias) : vec_load_masked(mask, bias);
    }
    /* vec_max returns its second argument if that is NaN. */
    vec_store_first(to, left, vec_max(epilogue->min, sums));
}

/* Each row has the sums of the first and of the last LANES columns of a tile. */
#define START_SUMS(i) vec left##i = vec_set1(0.0f), right##i = vec_set1(0.0f);
#define ADD_PRODUCTS(i)                                                                \
    if (i < TILE_HEIGHT) {                                                             \
        const vec factor = vec_set1(a[i]);                                             \
        left##i = vec_fma(factor, first, left##i);                                     \
        right##i = vec_fma(factor, last, right##i);                                    \
    }
#define STORE_SUMS(i)                                                                  \
    if (i < TILE_HEIGHT && i < rows) {                                                 \
        float *to = c + i * stride;                                                    \
        store_sums(epilogue, left##i, column, columns, to);                            \
        if (columns > LANES)                                                           \
            store_sums(epilogue, right##i, column + LANES, columns - LANES,            \
                       to + LANES);                                                    \
    }
_Static_assert(TILE_HEIGHT <= 12, "EACH_ROW has enough rows");

/* Multiply a panel of a by a panel of b. The panels have `rows` rows and `columns`
 * columns that are not padding; the first column is `column`. */
static void multiply_panels(const Epilogue *epilogue, const float *a, int64_t rows,
                            const float *b, int64_t column, int64_t columns,
                            int64_t inner, float *c, int64_t stride)
{
    EACH_ROW(START_SUMS)
    for (int64_t i = 0; i < rows; i++)
        prefetch(c + i * stride, TILE_WIDTH * (int64_t)sizeof *c);
#pragma GCC unroll 4
    for (int64_t k = 0; k < inner; k++, a += TILE_HEIGHT, b += TILE_WIDTH) {
        const vec first = vec_load(b), last = vec_load(b + LANES);
        EACH_ROW(ADD_PRODUCTS)
    }
    EACH_ROW(STORE_SUMS)
}

static void multiply_block(const td_product *p, const Epilogue *epilogue, Span rows,
                           Span columns, int64_t inner, ProductWorkspace work)
{
    for (int64_t j = 0; j < columns.count; j += TILE_WIDTH)
        for (int64_t i = 0; i < rows.count; i += TILE_HEIGHT) {
            const int64_t column = columns.first + j;
            multiply_panels(epilogue, work.a + i * inner,
                            min_i64(rows.count - i, TILE_HEIGHT), work.b + j * inner,
                            column, min_i64(columns.count - j, TILE_WIDTH), inner,
                            p->c + (rows.first + i) * p->columns + column, p->columns);
        }
}

/* Compute some rows and columns of c. */
static void multiply_spans(const td_product *p, Span all_rows, Span all_columns,
                           ProductWorkspace work)
{
    const int64_t last_row = all_rows.first + all_rows.count;
    const int64_t last_column = all_columns.first + all_columns.count;
    const vec none = vec_set1(-INFINITY);
    for (int64_t j = all_columns.first; j < last_column; j += COLUMN_BLOCK)
        /* One block even without inner rows, whose products are zeros. */
        for (int64_t k = 0; k == 0 || k < p->inner; k += INNER_BLOCK) {
            const Span columns = next_span(j, last_column, COLUMN_BLOCK);
            const Span inner = next_span(k, p->inner, INNER_BLOCK);
            const int is_last = k + inner.count == p->inner;
            const Epilogue epilogue = {.accumulates = p->accumulates || k > 0,
                                       .bias = is_last ? p->bias : NULL,
                                       .min =
                                           is_last && p->relu ? vec_set1(0.0f) : none};
            if (inner.count > 0)
                pack_b(p, inner, columns, work.b);
            for (int64_t i = all_rows.first; i < last_row; i += ROW_BLOCK) {
                const Span rows = next_span(i, last_row, ROW_BLOCK);
                if (inner.count > 0)
                    pack_a(p, rows, inner, work.a);
                multiply_block(p, &epilogue, rows, columns, inner.count, work);
            }
        }
}

/* A product whose result is cut into a grid of cells, one for a thread. */
typedef struct {
    const td_product *product;
    int64_t cells_down, cells_across;
} Grid;

static int64_t tiles_down(const td_product *p)
{
    return ceil_div(p->rows, TILE_HEIGHT);
}

static int64_t tiles_across(const td_product *p)
{
    return ceil_div(p->columns, TILE_WIDTH);
}

/* Cut the result so that the threads need the least time: each packs the rows and the
 * columns of its cell. */
static Grid choose_grid(const td_product *p, int num_threads)
{
    Grid best = {p, 1, 1};
    double least = INFINITY;
    for (int64_t across = 1; across <= num_threads; across++) {
        const int64_t down = num_threads / across;
        const double height = (double)(ceil_div(tiles_down(p), down) * TILE_HEIGHT);
        const double width = (double)(ceil_div(tiles_across(p), across) * TILE_WIDTH);
        const double cost = height * width + PACKING_COST * (height + width);
        if (cost < least) {
            least = cost;
            best = (Grid){p, down, across};
        }
    }
    return best;
}

/* Rows or columns of one of several cells. */
static Span span_of_cell(int64_t cell, int64_t cells, int64_t tiles, int64_t size,
                         int64_t all)
{
    const int64_t first = tiles * cell / cells * size;
    return (Span){first, min_i64(tiles * (cell + 1) / cells * size, all) - first};
}

static void multiply_cells(void *shared, int64_t first, int64_t end, int worker)
{
    const Grid *g = shared;
    const td_product *p = g->product;
    Arena arena = {p->workspace + worker * td_product_workspace(), 0};
    assert(arena.block); /* one without a block only counts */
    const ProductWorkspace work = take_product_workspace(&arena);
    for (int64_t cell = first; cell < end; cell++) {
        const int64_t down = cell / g->cells_across, across = cell % g->cells_across;
        multiply_spans(
            p, span_of_cell(down, g->cells_down, tiles_down(p), TILE_HEIGHT, p->rows),
            span_of_cell(across, g->cells_across, tiles_across(p), TILE_WIDTH,
                         p->columns),
            work);
    }
}

TD_INTERNAL int64_t td_product_workspace(void)
{
    Arena arena = {NULL, 0};
    take_product_workspace(&arena);
    return arena.used;
}

TD_INTERNAL void multiply_fp32(const td_product *product, int num_threads)
{
    Grid grid = choose_grid(product, num_threads);
    parallel_for(multiply_cells, &grid, grid.cells_down * grid.cells_across, 1,
                 num_threads);
}

/* Whether a factor's rows or columns are contiguous, and its strides valid. */
static int is_factor(td_factor factor, int64_t rows, int64_t columns)
{
    const int64_t stride =
        factor.column_stride == 1 ? factor.row_stride : factor.column_stride;
    return (factor.row_stride == 1 || factor.column_stride == 1) &&
           is_between(stride, 0, MAX_ELEMENTS) &&
           is_tensor(max_i64(rows, columns), max_i64(stride, 1), 1) &&
           !is_missing(factor.data, rows * columns);
}

TD_INTERNAL td_status td_product_run(const td_product *p, int num_threads)
{
    if (!p || !is_thread_count(num_threads) || !is_size(p->rows, 0) ||
        !is_size(p->columns, 0) || !is_size(p->inner, 0) ||
        !is_factor(p->a, p->rows, p->inner) || !is_factor(p->b, p->inner, p->columns) ||
        is_missing(p->c, p->rows * p->columns) || !p->workspace)
        return TD_BAD_ARGUMENT;
    multiply_fp32(p, num_threads);
    return TD_OK;
}
