/* Linear maps of many rows, forwards and backwards, by the products of the library that
   PyTorch has. */
#include <math.h>

#include "exported.h"
#include "lanes.h"
#include "threads.h"

#define LEAST_BIASED_ROWS 16 /* fewer are not worth a thread */
#define LINE 16              /* numbers in a cache line: columns of a part of a sum */

/* BLAS: with columns that follow each other, all by address. */
typedef void (*Sgemm)(const char *of_one, const char *of_other, const int *rows,
                      const int *columns, const int *inner, const float *factor,
                      const float *one, const int *by_one, const float *other,
                      const int *by_other, const float *beta, float *to,
                      const int *by_to);

static Sgemm sgemm;

EXPORTED void transduce_use_products(void *address) { *(void **)&sgemm = address; }

typedef struct {
    float *weight, *bias; /* [outputs, inputs] and [outputs], or their gradients */
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
    float *rows;
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
        float *numbers = b->rows + row * b->width;
        for (int64_t i = 0; i < b->width; i += LANES) {
            const Lanes sum = lanes_at(numbers + i) + lanes_at(b->bias + i);
            /* NaN stays NaN. */
            lanes_store(numbers + i, LANES, lanes_max(least, sum));
        }
    }
}

/* y = x W^T + b, and the positive part of it, if it is to be rectified. */
static void map_rows(LinearMap map, const float *x, int64_t rows, int is_rectified,
                     float *y, int num_threads)
{
    form_product(AS_IT_IS, x, map.inputs, TRANSPOSED, map.weight, map.inputs, rows,
                 map.outputs, map.inputs, 0.0f, y);
    Biased biased = {y, map.bias, map.outputs, is_rectified};
    share_out(add_bias, &biased, rows, LEAST_BIASED_ROWS, num_threads);
}

/* Columns that are summed up, once they are zero where others are not positive. */
typedef struct {
    float *rows;
    const float *rectified; /* or NULL */
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
            float *numbers = c->rows + row * c->width + at;
            for (int l = 0; l < LINE / LANES; l++) {
                Lanes number = lanes_at(numbers + l * LANES);
                if (c->rectified) {
                    const float *from = c->rectified + row * c->width + at;
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

/* A way back through a map. The gradients of y become zero where it was rectified. */
typedef struct {
    LinearMap map, of_map;
    const float *x;
    const float *rectified; /* y, or NULL */
    float *of_y, *of_x;
    int64_t rows;
    float beta; /* on what is in the place of x's gradient already */
} WayBack;

static void differentiate_map(WayBack w, int num_threads)
{
    const int64_t inputs = w.map.inputs, outputs = w.map.outputs;
    Columns columns = {w.of_y, w.rectified, w.of_map.bias, w.rows, outputs};
    share_out(sum_columns, &columns, outputs / LINE, 1, num_threads);
    form_product(AS_IT_IS, w.of_y, outputs, AS_IT_IS, w.map.weight, inputs, w.rows,
                 inputs, outputs, w.beta, w.of_x);
    form_product(TRANSPOSED, w.of_y, outputs, AS_IT_IS, w.x, inputs, outputs, inputs,
                 w.rows, 0.0f, w.of_map.weight);
}
