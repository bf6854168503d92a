/* Linear maps y = x W^T + b of training, forward and backward, in fp32 or in bf16. */
#ifndef TRANSDUCE_NN_LINEAR_H
#define TRANSDUCE_NN_LINEAR_H

#include <stdint.h>

#include "gemm/bf16_product.h"
#include "gemm/pack_bf16.h"
#include "isa/name.h"
#include "transduce.h"

/* Rows in fp32 and, for products in bf16, as panels. `fp32` is NULL if nothing but such
 * products reads the rows. */
typedef struct {
    float *fp32;
    td_panels bf16;
} Activations;

/* Parameters of a linear map, or their gradients, which are not packed. */
typedef struct {
    int64_t inputs, outputs;  /* multiples of 16, or of 32 in bf16 */
    float *weight;            /* [outputs, inputs] */
    float *bias;              /* [outputs]; NULL: none, and no ReLU follows the map */
    td_bf16 *packed_forward;  /* NULL if products are in fp32 */
    td_bf16 *packed_backward; /* NULL also if there is no backward pass */
} LinearMap;

/* ReLU after a linear map, with dropout. */
typedef struct {
    td_dropout dropout;
    int64_t first_row; /* number of the first row in the whole tensor */
    uint8_t *bits;     /* workspace in bf16: [rows, outputs / 8] */
} Relu;

/* Forward pass: y = x W^T + b, then ReLU and its dropout unless `relu` is NULL. In
 * bf16, y is in panels if it has some. */
typedef struct {
    LinearMap linear;
    int64_t rows;
    Activations x, y;
    const Relu *relu;
    float *product_workspace; /* workspace in fp32: [threads, td_product_workspace] */
} LinearForward;

/* Backward pass. */
typedef struct {
    LinearMap linear, grad; /* parameters, and their gradients */
    int64_t rows;
    Activations x, grad_y, grad_x;
    int accumulates; /* 1: add to grad_x, which is in fp32 then */
    /* In fp32, the output of a ReLU that follows the map, or NULL. grad_y is then the
     * gradient of relu_y, and the gradient of y replaces it. */
    const float *relu_y;
    /* In bf16, x if it is the output of a ReLU, otherwise without data. grad_x is then
     * the gradient of the ReLU's input. */
    td_panels relu_x;
    float dropout_scale;      /* of the elements that the ReLU's dropout keeps */
    float *product_workspace; /* workspace in fp32: [threads, td_product_workspace] */
    /* Workspaces in bf16. */
    td_bf16 *packed_x;   /* [rows rounded up to panels, inputs]: x as a right factor */
    int is_x_packed;     /* 1: packed_x has x already */
    td_bf16 *transposed; /* [threads, transposed_size(rows)] */
} LinearBackward;

/* Arguments of run_bf16_product. */
typedef struct {
    td_panels x;
    Bf16Matrix matrix;
    Bf16Epilogue epilogue;
} Bf16Product;

/* Gradient of a weight in bf16: grad_y^T x. */
typedef struct {
    td_panels grad_y; /* [rows, outputs] */
    Bf16Matrix x;     /* packed, [rows rounded up to panels, inputs] */
    int64_t outputs;
    float *weight;       /* [outputs, inputs] result */
    float *bias;         /* [outputs] sum of grad_y's rows, or NULL */
    int accumulates;     /* 1: add to `weight` */
    td_bf16 *transposed; /* [threads, transposed_size(rows)] */
} WeightGradient;

TD_INTERNAL void linear_forward(LinearForward forward, int num_threads);
TD_INTERNAL void linear_backward(LinearBackward backward, int num_threads);

/* Pack the weight in bf16 for the forward pass and, if there is space for it, for the
 * backward pass. */
TD_INTERNAL void pack_weights(LinearMap linear, int num_threads);

/* Round fp32 rows into their panels, if they have some. */
TD_INTERNAL void round_activations(Activations rows, int64_t width, int num_threads);

/* Multiply all rows, shared by threads. */
TD_INTERNAL void run_bf16_product(Bf16Product product, int num_threads);
TD_INTERNAL void run_weight_gradient(WeightGradient gradient, int num_threads);

/* bf16 elements of workspace that each thread needs for a WeightGradient. */
TD_INTERNAL int64_t transposed_size(int64_t rows);

#endif
