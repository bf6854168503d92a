/* All kernels, for processors with AVX2. */
/* clang-format off */
#include "beams.c"
#include "candidates.c"
#include "decoder.c"
#include "encoder.c"
#include "gathering.c"
#include "linear.c"
#include "matrix_unit.c"
#include "packing.c"
#include "rows.c"
#include "threads.c"
#include "transformer.c"
#include "sizes.c"
