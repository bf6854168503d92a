/* Linear maps of many rows, forwards and backwards: in fp32 by the products of the
   library that PyTorch has, in bf16 by the processor's matrix unit. */
#include <math.h>

#include "parallel.h"
#include "gemm/pack_bf16.h"
#include "simd/vec.h"

#define LEAST_BIASED_ROWS 16 /* fewer are not worth a thread */
#define LINE 16              /* numbers in a cache line: columns of a part of a sum */
#define STRIP 32             /* rows that a product in bf16 takes at a time */
#define LEAST_STRIPS 6       /* fewer are not worth a thread */
#define TURNED_STRIPS 4      /* of a gradient, that stay in the cache of a core */

/* BLAS: with columns that follow each other, all by address. */
typedef void (*Sgemm)(const char *of_one, const char *of_other, const int *rows,
                      const int *columns, const int *inner, const float *factor,
                      const float *one, const int *by_one, const float *other,
                      const int *by_other, const float *beta, float *to,
                      const int *by_to);

static Sgemm sgemm;

static td_status use_sgemm(void *address)
{
    *(void **)&sgemm = address;
    return TD_OK;
}

/* Numbers, and the same in bf16, if products are of such: then the former need not be
   kept. */
typedef struct {
    float *fp32;
    td_panels bf16;
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

/* ReLU after a linear map, with optional dropout. */
typedef struct {
    td_dropout dropout;
    int64_t first_row; /* its number in the tensor, of which these may be a part */
    uint8_t *bits;     /* workspace for masks in bf16: one bit for each number */
} Relu;

/* Rows to which a bias is added, and the ReLU after it, if any. */
typedef struct {
    float *rows;
    const float *bias;
    int64_t width;
    const Relu *relu;
} Biased;

static void add_bias(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Biased *b = shared;
    const vec least = vec_set1(b->relu ? 0.0f : -INFINITY);
    for (int64_t row = first; row < end; row++) {
        float *numbers = b->rows + row * b->width;
        for (int64_t i = 0; i < b->width; i += LANES) {
            const vec sum = vec_load(numbers + i) + vec_load(b->bias + i);
            /* NaN stays NaN. */
            vec_store_first(numbers + i, LANES, vec_max(least, sum));
        }
        if (b->relu && b->relu->dropout.rate.num_dropped > 0)
            drop_row(&b->relu->dropout, b->relu->first_row + row, b->width, numbers,
                     numbers);
    }
}

static void map_in_fp32(LinearMap map, const float *x, int64_t rows, const Relu *relu,
                        float *y, int num_threads)
{
    form_product(AS_IT_IS, x, map.inputs, TRANSPOSED, map.weights.weight, map.inputs,
                 rows, map.outputs, map.inputs, 0.0f, y);
    Biased biased = {y, map.weights.bias, map.outputs, relu};
    parallel_for(add_bias, &biased, rows, LEAST_BIASED_ROWS, num_threads);
}

/* Rows that are multiplied, and what becomes of them. */
typedef struct {
    td_panels x;
    UnitMatrix matrix;
    Sums sums;
} Product;

static void multiply_strips(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Product *p = shared;
    const Span rows = {first * STRIP, at_most(end * STRIP, p->x.rows)};
    multiply_packed(p->x, rows, p->matrix, p->sums);
}

static int64_t strips_of(int64_t rows) { return (rows + STRIP - 1) / STRIP; }

/* Each thread takes its share at once, so that it reads the matrix but once. */
static int64_t least_strips(int64_t strips, int num_threads)
{
    const int64_t share = (strips + num_threads - 1) / num_threads;
    return share > LEAST_STRIPS ? share : LEAST_STRIPS;
}

static void form_in_unit(Product product, int num_threads)
{
    const int64_t strips = strips_of(product.x.rows);
    parallel_for(multiply_strips, &product, strips, least_strips(strips, num_threads),
                 num_threads);
}

/* y = x W^T + b, with a ReLU if there is one; y may be in bf16 alone. */
static void map_rows(LinearMap map, Numbers x, int64_t rows, const Relu *relu,
                     Numbers y, int num_threads)
{
    const MapWeights *w = &map.weights;
    if (!w->packed) {
        map_in_fp32(map, x.fp32, rows, relu, y.fp32, num_threads);
        return;
    }
    const int is_dropped = relu && relu->dropout.rate.num_dropped > 0;
    Dropped dropped = {0, 1.0f};
    if (is_dropped) {
        MaskBits masks = {&relu->dropout, relu->first_row, map.outputs, relu->bits};
        parallel_for(draw_bits, &masks, rows, LEAST_BIASED_ROWS, num_threads);
        dropped = (Dropped){relu->bits, relu->dropout.rate.scale};
    }
    const Sums sums = {.bf16 = y.bf16,
                       .fp32 = y.fp32,
                       .columns = map.outputs,
                       .bias = w->bias,
                       .is_rectified = relu != 0,
                       .dropped = is_dropped ? &dropped : 0};
    form_in_unit((Product){x.bf16, {w->packed, map.inputs, map.outputs}, sums},
                 num_threads);
}

typedef struct {
    const float *from;
    td_panels to;
    int64_t width;
} Narrowed;

static void narrow_rows(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Narrowed *n = shared;
    for (int64_t row = first; row < end; row++)
        narrow_into(n->to, row, 0, n->width, n->from + row * n->width);
}

/* In bf16 too, if they are wanted so. */
static void round_rows(Numbers rows, int64_t width, int num_threads)
{
    Narrowed narrowed = {rows.fp32, rows.bf16, width};
    if (rows.bf16.data)
        parallel_for(narrow_rows, &narrowed, rows.bf16.rows, LEAST_BIASED_ROWS,
                     num_threads);
}

/* Columns to sum, after they are set to zero where `rectified` is not positive, and
   scaled elsewhere. */
typedef struct {
    float *rows;
    const float *rectified; /* or NULL: then there is no scale either */
    float scale;
    float *sums;
    int64_t count, width;
} Columns;

static void sum_columns(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Columns *c = shared;
    const vec zero = vec_set1(0.0f), scale = vec_set1(c->scale);
    for (int64_t at = first * LINE; at < end * LINE; at += LINE) {
        vec sums[LINE / LANES];
        for (int l = 0; l < LINE / LANES; l++)
            sums[l] = zero;
        for (int64_t row = 0; row < c->count; row++) {
            float *numbers = c->rows + row * c->width + at;
            for (int l = 0; l < LINE / LANES; l++) {
                vec number = vec_load(numbers + l * LANES);
                if (c->rectified) {
                    const float *from = c->rectified + row * c->width + at;
                    const vec_mask is_on = vec_gt_zero(vec_load(from + l * LANES));
                    number = vec_select(is_on, number * scale, zero);
                    vec_store_first(numbers + l * LANES, LANES, number);
                }
                sums[l] += number;
            }
        }
        for (int l = 0; l < LINE / LANES; l++)
            vec_store_first(c->sums + at + l * LANES, LANES, sums[l]);
    }
}

/* A way back through a map. In fp32 the gradients of y become zero where it was
   rectified; in bf16 those of x do where x was, if they are rounded. */
typedef struct {
    LinearMap map, of_map;
    Numbers x;
    const float *rectified; /* y, or nowhere */
    Numbers of_y, of_x;
    td_panels rectified_x;  /* or NULL */
    float dropout_scale; /* on gradients of numbers that ReLU and dropout kept */
    int64_t rows;
    int is_added; /* x's gradient, to what is in its place */
    Bf16 *paired; /* where x is packed, or is so already */
    int is_paired;
    Bf16 *turned; /* of each thread, as `turned_numbers` says */
} WayBack;

/* Of the columns of a panel. */
static void sum_panel(td_panels rows, int64_t column, float *sums)
{
    vec all[PANEL_WIDTH / LANES];
    for (int l = 0; l < PANEL_WIDTH / LANES; l++)
        all[l] = vec_set1(0.0f);
    for (int64_t row = 0; row < rows.rows; row++)
        for (int l = 0; l < PANEL_WIDTH / LANES; l++)
            all[l] += vec_from_bf16(in_panels(rows, row, column + l * LANES));
    for (int l = 0; l < PANEL_WIDTH / LANES; l++)
        vec_store_first(sums + column + l * LANES, LANES, all[l]);
}

/* Rows whose columns, summed up each with all of x's, are the gradient of a weight. */
typedef struct {
    td_panels of_y;
    UnitMatrix x; /* packed, with its rows as depth */
    int64_t outputs;
    float *weight; /* [outputs, columns of x] */
    float *bias;   /* or nowhere */
    int is_added;  /* the weight's, to what there is */
    Bf16 *turned;  /* of each thread, as `turned_numbers` says */
} WeightGradient;

static int64_t turned_numbers(int64_t rows)
{
    return TURNED_STRIPS * STRIP * in_whole(rows);
}

static void form_weight_strips(void *shared, int64_t first, int64_t end, int worker)
{
    const WeightGradient *g = shared;
    td_panels turned = {g->turned + worker * turned_numbers(g->of_y.rows), 0};
    for (int64_t strip = first; strip < end; strip += TURNED_STRIPS) {
        const int64_t output = strip * STRIP;
        turned.rows = at_most(end - strip, TURNED_STRIPS) * STRIP;
        for (int64_t row = 0; row < turned.rows; row += STRIP) {
            if (g->bias)
                sum_panel(g->of_y, output + row, g->bias);
            turn_panel(g->of_y, output + row, turned, row);
        }
        const Sums sums = {.fp32 = g->weight + output * g->x.columns,
                           .columns = g->x.columns,
                           .is_added = g->is_added};
        multiply_packed(turned, (Span){0, at_most(g->outputs - output, turned.rows)},
                        g->x, sums);
    }
}

static void form_weight_gradient(WeightGradient gradient, int num_threads)
{
    const int64_t strips = strips_of(gradient.outputs);
    parallel_for(form_weight_strips, &gradient, strips,
                 least_strips(strips, num_threads), num_threads);
}

static void differentiate_in_unit(WayBack w, int num_threads)
{
    const int64_t inputs = w.map.inputs, outputs = w.map.outputs;
    const Dropped dropped = {0, w.dropout_scale};
    const Sums sums = {.bf16 = w.of_x.bf16,
                       .fp32 = w.of_x.fp32,
                       .dropped = w.rectified_x.data ? &dropped : 0,
                       .columns = inputs,
                       .is_added = w.is_added,
                       .rectified = w.rectified_x};
    form_in_unit(
        (Product){w.of_y.bf16, {w.map.weights.packed_back, outputs, inputs}, sums},
        num_threads);
    Summed x = {w.x.bf16, inputs, w.paired};
    if (!w.is_paired)
        parallel_for(pack_summed, &x, inputs / PANEL_WIDTH, 1, num_threads);
    form_weight_gradient((WeightGradient){.of_y = w.of_y.bf16,
                                          .x = {w.paired, in_whole(w.rows), inputs},
                                          .outputs = outputs,
                                          .weight = w.of_map.weights.weight,
                                          .bias = w.of_map.weights.bias,
                                          .turned = w.turned},
                         num_threads);
}

static void differentiate_map(WayBack w, int num_threads)
{
    const int64_t inputs = w.map.inputs, outputs = w.map.outputs;
    const MapWeights of = w.of_map.weights;
    if (w.map.weights.packed_back) {
        differentiate_in_unit(w, num_threads);
        return;
    }
    Columns columns = {w.of_y.fp32, w.rectified, w.dropout_scale,
                       of.bias,     w.rows,      outputs};
    parallel_for(sum_columns, &columns, outputs / LINE, 1, num_threads);
    form_product(AS_IT_IS, w.of_y.fp32, outputs, AS_IT_IS, w.map.weights.weight, inputs,
                 w.rows, inputs, outputs, w.is_added ? 1.0f : 0.0f, w.of_x.fp32);
    form_product(TRANSPOSED, w.of_y.fp32, outputs, AS_IT_IS, w.x.fp32, inputs, outputs,
                 inputs, w.rows, 0.0f, of.weight);
}

/* The weight for both ways, or for the first alone. */
static void pack_map(LinearMap map, int num_threads)
{
    const int64_t inputs = map.inputs, outputs = map.outputs;
    PackedWeight forth = {map.weights.weight, outputs, inputs, map.weights.packed};
    PackedWeight back = {map.weights.weight, outputs, inputs, map.weights.packed_back};
    parallel_for(pack_forth, &forth, outputs / UNIT_COLUMNS, 1, num_threads);
    if (back.to)
        parallel_for(pack_back, &back, inputs / UNIT_COLUMNS, 1, num_threads);
}
