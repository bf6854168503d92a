/* Linear maps of many rows, forward and backward: in fp32 by the BLAS of PyTorch, or in
 * bf16 by AMX. */
#ifndef TRANSDUCE_NN_LINEAR_H
#define TRANSDUCE_NN_LINEAR_H

#include <stdint.h>

#include "gemm/amx_bf16.h"
#include "gemm/pack_bf16.h"
#include "isa/name.h"
#include "transduce.h"

/* Rows in fp32 and, for products in bf16, as panels; where nothing else reads the fp32
 * rows, they are NULL. */
typedef struct {
    float *fp32;
    td_panels bf16;
} Activations;

/* Parameters of a linear map, or their gradients; td_stack has pointers in this order.
 */
typedef struct {
    float *weight;                             /* [outputs, inputs] */
    td_bf16 *packed_forward, *packed_backward; /* NULL if products are in fp32; the
                                                  latter also without backward pass */
    float *bias;                               /* [outputs] */
} LinearWeights;

typedef struct {
    LinearWeights weights;
    int64_t inputs, outputs; /* multiples of 16, or of 32 in bf16 */
} Linear;

/* ReLU after a linear map, with dropout. */
typedef struct {
    td_dropout dropout;
    int64_t first_row; /* number of the first row in the whole tensor */
    uint8_t *bits;     /* workspace in bf16: [rows, outputs / 8] */
} Relu;

/* Backward pass of a linear map y = x W^T + b. */
typedef struct {
    Linear linear, grad; /* parameters, and their gradients */
    int64_t rows;
    Activations x, grad_y, grad_x;
    int accumulates; /* add to grad_x, which is fp32 then */
    /* If y went through a ReLU: y in fp32; grad_y is then masked in place. */
    const float *relu_y;
    /* If x went through a ReLU: x in bf16; grad_x is then masked. */
    td_panels relu_x;
    float dropout_scale; /* of elements that ReLU and dropout kept */
    /* Workspaces in bf16: [inputs, rows rounded up to panels] for x as right factor,
     * which has it already if is_x_packed; and [threads, transposed_size(rows)]. */
    td_bf16 *packed_x;
    int is_x_packed;
    td_bf16 *transposed;
} LinearBackward;

/* A product in bf16 that threads share. */
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
    float *weight;       /* [outputs, inputs] */
    float *bias;         /* [outputs], or NULL */
    int accumulates;     /* add to the weight's gradient */
    td_bf16 *transposed; /* [threads, transposed_size(rows)] */
} WeightGradient;

/* Whether `td_use_sgemm` has set a function. */
TD_INTERNAL int has_sgemm(void);

/* y = x W^T + b, then ReLU and its dropout unless `relu` is NULL; in bf16, y may have
 * panels only. */
TD_INTERNAL void linear_forward(Linear linear, Activations x, int64_t rows,
                                const Relu *relu, Activations y, int num_threads);

TD_INTERNAL void linear_backward(LinearBackward backward, int num_threads);

/* Pack the weight in bf16 for the forward pass and, if there is space for it, for the
 * backward pass. */
TD_INTERNAL void pack_linear(Linear linear, int num_threads);

/* Round rows to their panels, if they have some. */
TD_INTERNAL void round_activations(Activations rows, int64_t width, int num_threads);

TD_INTERNAL void run_bf16_product(Bf16Product product, int num_threads);
TD_INTERNAL void run_weight_gradient(WeightGradient gradient, int num_threads);

/* bf16 elements of workspace that each thread needs for a WeightGradient. */
TD_INTERNAL int64_t transposed_size(int64_t rows);

TD_INTERNAL td_status td_use_sgemm(void *sgemm);

#endif
