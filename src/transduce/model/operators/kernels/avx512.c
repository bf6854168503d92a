/* All kernels of training, for processors with AVX-512 VNNI. */
/* clang-format off */
#include "attention.c"
#include "dropout.c"
#include "threads.c"
#include "sizes.c"
