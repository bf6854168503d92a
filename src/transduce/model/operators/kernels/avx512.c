/* All kernels of training, for processors with AVX-512 VNNI. */
/* clang-format off */
#include "attention.c"
#include "cross_entropy.c"
#include "dropout.c"
#include "orthogonal.c"
#include "residual.c"
#include "packing.c"
#include "matrix_unit.c"
#include "linear.c"
#include "stack.c"
#include "layers.c"
#include "threads.c"
#include "sizes.c"
