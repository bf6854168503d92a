/* Several steps by one call. */
#ifndef TRANSDUCE_STEPS_H
#define TRANSDUCE_STEPS_H

#include "decode/beam_search.h"
#include "decode/step.h"
#include "decode/top_k.h"

/* A decoder and a search, both of whose groups are as large as the beam; what the
   candidates are to be of is filled in. */
typedef struct {
    const Decoder *decoder;
    State *state;
    const float *positions; /* up to the last that may be read */
    Beams *beams;
    CandidateSearch *candidates;
    int64_t is_greedy, has_prefixes;
    int64_t most;  /* steps */
    int64_t few;   /* sentences: no more steps once no more go on */
    int64_t taken; /* of these */
} Steps;

/* Take them, but for those after one that leaves a few or fewer, and those for which
   there is no room. 1 if memory is lacking, 2 if one is no token, 3 if beams go on in
   another order, 4 if there is no room for the first, otherwise 0. */
static int transduce_steps(Steps *steps, int num_threads);

#endif
