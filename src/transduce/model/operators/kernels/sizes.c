/* Sizes of what is read from without, so that others can see whether they mean the
   same. The last of all sources, as it must know them. */
#include <stdint.h>

#include "exported.h"

EXPORTED void transduce_sizes(int64_t sizes[7])
{
    sizes[0] = sizeof(Attention);
    sizes[1] = sizeof(Masking);
    sizes[2] = sizeof(Orthogonalization);
    sizes[3] = sizeof(CrossEntropy);
    sizes[4] = sizeof(Residual);
    sizes[5] = sizeof(Stack);
    sizes[6] = sizeof(UnitLoss);
}
