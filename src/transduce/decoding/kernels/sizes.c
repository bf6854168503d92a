/* Sizes of what is read from without, so that others can see whether they mean the
   same. The last of all sources, as it must know them. */
#include <stdint.h>

#include "exported.h"

EXPORTED void transduce_sizes(int64_t sizes[12])
{
    sizes[0] = sizeof(Linear);
    sizes[1] = sizeof(Layer);
    sizes[2] = sizeof(Decoder);
    sizes[3] = sizeof(State);
    sizes[4] = sizeof(Needs);
    sizes[5] = sizeof(CandidateSearch);
    sizes[6] = sizeof(End);
    sizes[7] = sizeof(Beam);
    sizes[8] = sizeof(Beams);
    sizes[9] = sizeof(Steps);
    sizes[10] = sizeof(Encoder);
    sizes[11] = sizeof(Sources);
}
