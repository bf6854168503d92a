/* Products of large matrices in fp32, as training computes them. Sums do not depend on
 * the number of threads. */
#ifndef TRANSDUCE_GEMM_FP32_PRODUCT_H
#define TRANSDUCE_GEMM_FP32_PRODUCT_H

#include <stdint.h>

#include "isa/name.h"
#include "transduce.h"

/* Floats of workspace that each thread needs. */
TD_INTERNAL int64_t td_product_workspace(void);

/* Compute a product whose arguments are valid. */
TD_INTERNAL void multiply_fp32(const td_product *product, int num_threads);

TD_INTERNAL td_status td_product_run(const td_product *product, int num_threads);

#endif
