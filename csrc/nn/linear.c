/* Linear maps of training. */
#include "nn/linear.h"

#include "gemm/fp32_product.h"
#include "nn/dropout.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

#define MIN_LINEAR_ROWS 16 /* of a part of parallel_for, for element-wise work */
#define SUM_COLUMNS 16     /* columns that are summed together: a cache line */
#define STRIP_ROWS 32      /* of a product in bf16, computed together */
#define MIN_STRIPS 6       /* of a part of parallel_for */

/* Transposed strips of grad_y that stay in the cache of a core. */
#define TRANSPOSED_STRIPS 4

/* Matrix with contiguous rows, as a factor of a product, and its transpose. */
static td_factor rows_of(const float *matrix, int64_t width)
{
    return (td_factor){matrix, width, 1};
}

static td_factor transpose_of(const float *matrix, int64_t width)
{
    return (td_factor){matrix, 1, width};
}

typedef struct {
    const Relu *relu;
    float *rows;
    int64_t width;
} RowDropout;

static void drop_rows(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const RowDropout *d = shared;
    for (int64_t row = first; row < end; row++) {
        float *elements = d->rows + row * d->width;
        drop_row(&d->relu->dropout, d->relu->first_row + row, d->width, elements,
                 elements);
    }
}

static void linear_forward_fp32(LinearForward f, int num_threads)
{
    const LinearMap linear = f.linear;
    const td_product product = {.rows = f.rows,
                                .columns = linear.outputs,
                                .inner = linear.inputs,
                                .a = rows_of(f.x.fp32, linear.inputs),
                                .b = transpose_of(linear.weight, linear.inputs),
                                .c = f.y.fp32,
                                .bias = linear.bias,
                                .relu = f.relu != NULL,
                                .workspace = f.product_workspace};
    multiply_fp32(&product, num_threads);
    RowDropout dropout = {f.relu, f.y.fp32, linear.outputs};
    if (f.relu && f.relu->dropout.rate.num_dropped > 0)
        parallel_for(drop_rows, &dropout, f.rows, MIN_LINEAR_ROWS, num_threads);
}

static void multiply_strips(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Bf16Product *p = shared;
    const RowSpan rows = {first * STRIP_ROWS, min_i64(end * STRIP_ROWS, p->x.rows)};
    multiply_bf16(p->x, rows, p->matrix, p->epilogue);
}

/* Smallest number of strips of a part: the whole share of a thread, which then reads
 * the matrix once. */
static int64_t min_strips(int64_t strips, int num_threads)
{
    return max_i64(ceil_div(strips, num_threads), MIN_STRIPS);
}

TD_INTERNAL void run_bf16_product(Bf16Product product, int num_threads)
{
    const int64_t strips = ceil_div(product.x.rows, STRIP_ROWS);
    parallel_for(multiply_strips, &product, strips, min_strips(strips, num_threads),
                 num_threads);
}

TD_INTERNAL void linear_forward(LinearForward f, int num_threads)
{
    const LinearMap linear = f.linear;
    if (!linear.packed_forward) {
        linear_forward_fp32(f, num_threads);
        return;
    }
    const Relu *relu = f.relu;
    const int is_dropped = relu && relu->dropout.rate.num_dropped > 0;
    Bf16Dropout dropout = {NULL, 1.0f};
    if (is_dropped) {
        MaskBits masks = {&relu->dropout, relu->first_row, linear.outputs, relu->bits};
        parallel_for(draw_mask_bits, &masks, f.rows, MIN_LINEAR_ROWS, num_threads);
        dropout = (Bf16Dropout){relu->bits, relu->dropout.rate.scale};
    }
    const Bf16Epilogue epilogue = {.columns = linear.outputs,
                                   .bf16 = f.y.bf16,
                                   .fp32 = f.y.fp32,
                                   .bias = linear.bias,
                                   .relu = relu != NULL,
                                   .dropout = is_dropped ? &dropout : NULL};
    const Bf16Matrix matrix = {linear.packed_forward, linear.inputs, linear.outputs};
    run_bf16_product((Bf16Product){f.x.bf16, matrix, epilogue}, num_threads);
}

typedef struct {
    Activations rows;
    int64_t width;
} Rounding;

static void round_rows(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const Rounding *r = shared;
    for (int64_t row = first; row < end; row++)
        round_into_panels(r->rows.bf16, row, 0, r->width,
                          r->rows.fp32 + row * r->width);
}

TD_INTERNAL void round_activations(Activations rows, int64_t width, int num_threads)
{
    Rounding rounding = {rows, width};
    if (rows.bf16.data)
        parallel_for(round_rows, &rounding, rows.bf16.rows, MIN_LINEAR_ROWS,
                     num_threads);
}

/* Arguments of sum_columns: rows [count, width] whose columns are summed. With
 * `relu_y`, elements are first set to zero where it is not positive, and scaled
 * elsewhere. */
typedef struct {
    float *rows;
    const float *relu_y; /* or NULL */
    float scale;
    float *sums;
    int64_t count, width;
} ColumnSums;

static void sum_columns(void *shared, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const ColumnSums *c = shared;
    const vec zero = vec_set1(0.0f), scale = vec_set1(c->scale);
    for (int64_t at = first * SUM_COLUMNS; at < end * SUM_COLUMNS; at += SUM_COLUMNS) {
        vec sums[SUM_COLUMNS / LANES];
        for (int v = 0; v < SUM_COLUMNS / LANES; v++)
            sums[v] = zero;
        for (int64_t row = 0; row < c->count; row++) {
            float *elements = c->rows + row * c->width + at;
            for (int v = 0; v < SUM_COLUMNS / LANES; v++) {
                vec element = vec_load(elements + v * LANES);
                if (c->relu_y) {
                    const float *y = c->relu_y + row * c->width + at;
                    const vec_mask is_positive = vec_gt_zero(vec_load(y + v * LANES));
                    element = vec_select(is_positive, element * scale, zero);
                    vec_store(elements + v * LANES, element);
                }
                sums[v] += element;
            }
        }
        for (int v = 0; v < SUM_COLUMNS / LANES; v++)
            vec_store(c->sums + at + v * LANES, sums[v]);
    }
}

static void linear_backward_fp32(LinearBackward b, int num_threads)
{
    const int64_t inputs = b.linear.inputs, outputs = b.linear.outputs;
    const LinearMap grad = b.grad;
    ColumnSums columns = {b.grad_y.fp32, b.relu_y, b.dropout_scale,
                          grad.bias,     b.rows,   outputs};
    if (grad.bias)
        parallel_for(sum_columns, &columns, outputs / SUM_COLUMNS, 1, num_threads);
    const td_product grad_x = {.rows = b.rows,
                               .columns = inputs,
                               .inner = outputs,
                               .a = rows_of(b.grad_y.fp32, outputs),
                               .b = rows_of(b.linear.weight, inputs),
                               .c = b.grad_x.fp32,
                               .accumulates = b.accumulates,
                               .workspace = b.product_workspace};
    multiply_fp32(&grad_x, num_threads);
    const td_product grad_weight = {.rows = outputs,
                                    .columns = inputs,
                                    .inner = b.rows,
                                    .a = transpose_of(b.grad_y.fp32, outputs),
                                    .b = rows_of(b.x.fp32, inputs),
                                    .c = grad.weight,
                                    .workspace = b.product_workspace};
    multiply_fp32(&grad_weight, num_threads);
}

/* Sum the columns of the panel that begins with `column`. */
static void sum_panel(td_panels rows, int64_t column, float *sums)
{
    vec all[PANEL_WIDTH / LANES];
    for (int v = 0; v < PANEL_WIDTH / LANES; v++)
        all[v] = vec_set1(0.0f);
    for (int64_t row = 0; row < rows.rows; row++)
        for (int v = 0; v < PANEL_WIDTH / LANES; v++)
            all[v] += vec_from_bf16(panel_element(rows, row, column + v * LANES));
    for (int v = 0; v < PANEL_WIDTH / LANES; v++)
        vec_store(sums + column + v * LANES, all[v]);
}

TD_INTERNAL int64_t transposed_size(int64_t rows)
{
    /* Without rows, the gradient is the product with a panel of zeros. */
    return TRANSPOSED_STRIPS * STRIP_ROWS * round_up_to_panels(max_i64(rows, 1));
}

static void weight_gradient_strips(void *shared, int64_t first, int64_t end, int worker)
{
    const WeightGradient *g = shared;
    td_panels strips = {g->transposed + worker * transposed_size(g->grad_y.rows), 0};
    for (int64_t strip = first; strip < end; strip += TRANSPOSED_STRIPS) {
        const int64_t output = strip * STRIP_ROWS;
        strips.rows = min_i64(end - strip, TRANSPOSED_STRIPS) * STRIP_ROWS;
        for (int64_t row = 0; row < strips.rows; row += STRIP_ROWS) {
            if (g->bias)
                sum_panel(g->grad_y, output + row, g->bias);
            transpose_panel(g->grad_y, output + row, strips, row);
        }
        const Bf16Epilogue epilogue = {.columns = g->x.columns,
                                       .fp32 = g->weight + output * g->x.columns,
                                       .accumulates = g->accumulates};
        multiply_bf16(strips, (RowSpan){0, min_i64(g->outputs - output, strips.rows)},
                      g->x, epilogue);
    }
}

TD_INTERNAL void run_weight_gradient(WeightGradient gradient, int num_threads)
{
    const int64_t strips = ceil_div(gradient.outputs, STRIP_ROWS);
    parallel_for(weight_gradient_strips, &gradient, strips,
                 min_strips(strips, num_threads), num_threads);
}

static void linear_backward_bf16(LinearBackward b, int num_threads)
{
    const int64_t inputs = b.linear.inputs, outputs = b.linear.outputs;
    const Bf16Dropout dropout = {NULL, b.dropout_scale};
    const Bf16Epilogue epilogue = {.columns = inputs,
                                   .bf16 = b.grad_x.bf16,
                                   .fp32 = b.grad_x.fp32,
                                   .accumulates = b.accumulates,
                                   .dropout = b.relu_x.data ? &dropout : NULL,
                                   .relu_output = b.relu_x};
    const Bf16Matrix matrix = {b.linear.packed_backward, outputs, inputs};
    run_bf16_product((Bf16Product){b.grad_y.bf16, matrix, epilogue}, num_threads);
    RowPacking packing = {b.x.bf16, inputs, b.packed_x};
    if (!b.is_x_packed)
        parallel_for(pack_rows, &packing, inputs / PANEL_WIDTH, 1, num_threads);
    run_weight_gradient(
        (WeightGradient){.grad_y = b.grad_y.bf16,
                         .x = {b.packed_x, round_up_to_panels(b.rows), inputs},
                         .outputs = outputs,
                         .weight = b.grad.weight,
                         .bias = b.grad.bias,
                         .transposed = b.transposed},
        num_threads);
}

TD_INTERNAL void linear_backward(LinearBackward backward, int num_threads)
{
    if (backward.linear.packed_backward)
        linear_backward_bf16(backward, num_threads);
    else
        linear_backward_fp32(backward, num_threads);
}

TD_INTERNAL void pack_weights(LinearMap linear, int num_threads)
{
    const int64_t inputs = linear.inputs, outputs = linear.outputs;
    WeightPacking forward = {linear.weight, outputs, inputs, linear.packed_forward};
    WeightPacking backward = {linear.weight, outputs, inputs, linear.packed_backward};
    parallel_for(pack_forward, &forward, outputs / PACKED_COLUMNS, 1, num_threads);
    if (backward.to)
        parallel_for(pack_backward, &backward, inputs / PACKED_COLUMNS, 1, num_threads);
}
