/* Linear maps of many rows, forwards and backwards, by the products of the library that
   PyTorch has. */
#include <math.h>

#include "bf16.h"
#include "exported.h"
#include "lanes.h"
#include "threads.h"

#define LEAST_BIASED_ROWS 16 /* fewer are not worth a thread */
#define LINE 16              /* numbers in a cache line: columns of a part of a sum */
#define BLOCK_ROWS 192       /* that go through a map in bf16 one after another */

/* BLAS: with columns that follow each other, all by address. */
typedef void (*Sgemm)(const char *of_one, const char *of_other, const int *rows,
                      const int *columns, const int *inner, const float *factor,
                      const float *one, const int *by_one, const float *other,
                      const int *by_other, const float *beta, float *to,
                      const int *by_to);

static Sgemm sgemm;

EXPORTED void transduce_use_products(void *address) { *(void **)&sgemm = address; }

/* Numbers, and the same in bf16, if products are of such: then the former need not be
   kept. */
typedef struct {
    float *fp32;
    Bf16 *bf16;
} Numbers;

/* [outputs, inputs] and [outputs], or their gradients. */
typedef struct {
    float *weight;
    Bf16 *packed, *packed_back; /* the weight for both ways, or nowhere, if products
                                   are in fp32, or if there is no way back */
    float *bias;
} MapWeights;

typedef struct {
    MapWeights weights;
    int64_t inputs, outputs; /* whole lines */
} LinearMap;

static const char AS_IT_IS[] = "N", TRANSPOSED[] = "T";

/* one [rows, inner] times other [inner, columns], to which beta times what is there
   is added. Each is read as it is, or with its rows as columns. */
static void form_product(const char *of_one, const float *one, int64_t by_one,
                         const char *of_other, const float *other, int64_t by_other,
                         int64_t rows, int64_t columns, int64_t inner, float beta,
                         float *to)
{
    const int m = (int)columns, n = (int)rows, k = (int)inner;
    const int lda = (int)by_other, ldb = (int)by_one;
    const float factor = 1.0f;
    /* With columns that follow each other, all is the other way round. */
    sgemm(of_other, of_one, &m, &n, &k, &factor, other, &lda, one, &ldb, &beta, to, &m);
}

/* Rows to which a bias is added, and whose negative numbers may become zero. */
typedef struct {
    Numbers rows;
    const float *bias;
    int64_t width;
    int is_rectified;
} Biased;

static void add_bias(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Biased *b = shared;
    const Lanes least = lanes_of(b->is_rectified ? 0.0f : -INFINITY);
    for (int64_t row = first; row < end; row++) {
        float *numbers = b->rows.fp32 + row * b->width;
        for (int64_t i = 0; i < b->width; i += LANES) {
            const Lanes sum = lanes_at(numbers + i) + lanes_at(b->bias + i);
            /* NaN stays NaN. */
            lanes_store(numbers + i, LANES, lanes_max(least, sum));
        }
        if (b->rows.bf16)
            narrow(b->width, numbers, b->rows.bf16 + row * b->width);
    }
}

static void map_in_fp32(LinearMap map, const float *x, int64_t rows, int is_rectified,
                        float *y, int num_threads)
{
    form_product(AS_IT_IS, x, map.inputs, TRANSPOSED, map.weights.weight, map.inputs,
                 rows, map.outputs, map.inputs, 0.0f, y);
    Biased biased = {{y, 0}, map.weights.bias, map.outputs, is_rectified};
    share_out(add_bias, &biased, rows, LEAST_BIASED_ROWS, num_threads);
}

/* Rows that go through a map, block by block, as a block stays in the cache. */
typedef struct {
    LinearMap map;
    const Bf16 *x;
    int64_t rows;
    int is_rectified;
    Numbers y;     /* in fp32 or in bf16 */
    float *blocks; /* one for each thread, where sums are if y is in bf16 */
} MappedBlocks;

static void map_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    const MappedBlocks *m = shared;
    const int64_t inputs = m->map.inputs, outputs = m->map.outputs;
    const UnitMatrix matrix = {m->map.weights.packed, inputs, outputs};
    for (int64_t block = first; block < end; block++) {
        const int64_t row = block * BLOCK_ROWS, left = m->rows - row;
        const int64_t count = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        Numbers y = {m->blocks + worker * BLOCK_ROWS * outputs, 0};
        if (m->y.bf16)
            y.bf16 = m->y.bf16 + row * outputs;
        else
            y.fp32 = m->y.fp32 + row * outputs;
        multiply_packed(m->x + row * inputs, count, matrix, 0, y.fp32);
        Biased biased = {y, m->map.weights.bias, outputs, m->is_rectified};
        add_bias(&biased, 0, count, worker);
    }
}

static int64_t row_blocks(int64_t rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

/* y = x W^T + b, and the positive part of it, if it is to be rectified. */
static void map_rows(LinearMap map, Numbers x, int64_t rows, int is_rectified,
                     Numbers y, float *blocks, int num_threads)
{
    if (!map.weights.packed) {
        map_in_fp32(map, x.fp32, rows, is_rectified, y.fp32, num_threads);
        return;
    }
    MappedBlocks mapped = {map, x.bf16, rows, is_rectified, y, blocks};
    share_out(map_blocks, &mapped, row_blocks(rows), 1, num_threads);
}

typedef struct {
    const float *from;
    Bf16 *to;
    int64_t width;
} Narrowed;

static void narrow_rows(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Narrowed *n = shared;
    narrow((end - first) * n->width, n->from + first * n->width,
           n->to + first * n->width);
}

/* In bf16 too, if they are wanted so. */
static void round_rows(Numbers rows, int64_t count, int64_t width, int num_threads)
{
    Narrowed narrowed = {rows.fp32, rows.bf16, width};
    if (rows.bf16)
        share_out(narrow_rows, &narrowed, count, LEAST_BIASED_ROWS, num_threads);
}

/* Columns that are summed up, once they are zero where others are not positive. */
typedef struct {
    Numbers rows;
    Numbers rectified; /* or nowhere */
    float *sums;
    int64_t count, width;
} Columns;

static void sum_columns(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Columns *c = shared;
    const Lanes zero = lanes_of(0.0f);
    for (int64_t at = first * LINE; at < end * LINE; at += LINE) {
        Lanes sums[LINE / LANES];
        for (int l = 0; l < LINE / LANES; l++)
            sums[l] = zero;
        for (int64_t row = 0; row < c->count; row++) {
            float *numbers = c->rows.fp32 + row * c->width + at;
            for (int l = 0; l < LINE / LANES; l++) {
                Lanes number = lanes_at(numbers + l * LANES);
                if (c->rectified.fp32) {
                    const float *from = c->rectified.fp32 + row * c->width + at;
                    const Mask is_on = lanes_positive(lanes_at(from + l * LANES));
                    number = lanes_where(is_on, number, zero);
                    lanes_store(numbers + l * LANES, LANES, number);
                }
                sums[l] += number;
            }
        }
        for (int l = 0; l < LINE / LANES; l++)
            lanes_store(c->sums + at + l * LANES, LANES, sums[l]);
    }
}

/* The same, row by row; in bf16 alone numbers then are zero where they are to be. */
static void sum_and_round_columns(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Columns *c = shared;
    const int64_t start = first * LINE, width = (end - first) * LINE;
    const Lanes zero = lanes_of(0.0f);
    float *sums = c->sums + start;
    for (int64_t i = 0; i < width; i += LANES)
        lanes_store(sums + i, LANES, zero);
    for (int64_t row = 0; row < c->count; row++) {
        const int64_t at = row * c->width + start;
        for (int64_t i = 0; i < width; i += LANES) {
            Lanes number = lanes_at(c->rows.fp32 + at + i);
            if (c->rectified.bf16) {
                const Lanes rectified = lanes_of_bf16(c->rectified.bf16 + at + i);
                number = lanes_where(lanes_positive(rectified), number, zero);
            }
            lanes_store(sums + i, LANES, lanes_at(sums + i) + number);
            store_bf16(c->rows.bf16 + at + i, number);
        }
    }
}

/* A way back through a map. The gradients of y become zero where it was rectified. */
typedef struct {
    LinearMap map, of_map;
    Numbers x;
    Numbers rectified; /* y, or nowhere */
    Numbers of_y;
    float *of_x;
    int64_t rows;
    int is_added;          /* x's gradient, to what is in its place */
    Bf16 *turned, *paired; /* where y's gradient and x are packed */
} WayBack;

static void multiply_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const WayBack *w = shared;
    const int64_t inputs = w->map.inputs, outputs = w->map.outputs;
    const UnitMatrix matrix = {w->map.weights.packed_back, outputs, inputs};
    for (int64_t block = first; block < end; block++) {
        const int64_t row = block * BLOCK_ROWS, left = w->rows - row;
        multiply_packed(w->of_y.bf16 + row * outputs,
                        left < BLOCK_ROWS ? left : BLOCK_ROWS, matrix, w->is_added,
                        w->of_x + row * inputs);
    }
}

static void form_gradient_blocks(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const WayBack *w = shared;
    const int64_t inputs = w->map.inputs, depth = in_depths(w->rows);
    for (int64_t block = first; block < end; block++) {
        const int64_t output = block * BLOCK_ROWS, left = w->map.outputs - output;
        multiply_packed(w->turned + output * depth,
                        left < BLOCK_ROWS ? left : BLOCK_ROWS,
                        (UnitMatrix){w->paired, depth, inputs}, 0,
                        w->of_map.weights.weight + output * inputs);
    }
}

/* The gradient of y with its rows as columns, times x. */
static void form_weight_gradient(WayBack *w, int num_threads)
{
    const int64_t blocks = in_depths(w->rows) / TILE_DEPTH;
    Summed x = {w->x.bf16, w->rows, w->map.inputs, w->paired};
    Summed of_y = {w->of_y.bf16, w->rows, w->map.outputs, w->turned};
    share_out(pack_summed, &x, blocks, 1, num_threads);
    share_out(turn_summed, &of_y, blocks, 1, num_threads);
    share_out(form_gradient_blocks, w, row_blocks(w->map.outputs), 1, num_threads);
}

static void differentiate_map(WayBack w, int num_threads)
{
    const int64_t inputs = w.map.inputs, outputs = w.map.outputs;
    const MapWeights of = w.of_map.weights;
    const int is_bf16 = w.map.weights.packed_back != 0;
    Columns columns = {w.of_y, w.rectified, of.bias, w.rows, outputs};
    share_out(is_bf16 ? sum_and_round_columns : sum_columns, &columns, outputs / LINE,
              1, num_threads);
    if (is_bf16) {
        share_out(multiply_blocks, &w, row_blocks(w.rows), 1, num_threads);
        form_weight_gradient(&w, num_threads);
        return;
    }
    form_product(AS_IT_IS, w.of_y.fp32, outputs, AS_IT_IS, w.map.weights.weight, inputs,
                 w.rows, inputs, outputs, w.is_added ? 1.0f : 0.0f, w.of_x);
    form_product(TRANSPOSED, w.of_y.fp32, outputs, AS_IT_IS, w.x.fp32, inputs, outputs,
                 inputs, w.rows, 0.0f, of.weight);
}

/* The weight for both ways, or for the first alone. */
static void pack_map(LinearMap map, int num_threads)
{
    const int64_t inputs = map.inputs, outputs = map.outputs;
    Packed forth = {map.weights.weight, 1, inputs, inputs, map.weights.packed};
    Packed back = {map.weights.weight, inputs, 1, outputs, map.weights.packed_back};
    share_out(pack_panels, &forth, outputs / UNIT_COLUMNS, 1, num_threads);
    if (back.to)
        share_out(pack_panels, &back, inputs / UNIT_COLUMNS, 1, num_threads);
}
