/* Steps of decoder and search together, as long as no sentence leaves. */
#include "steps.h"

/* Let beams grow after a step; what has failed, or 0. */
static int grow_after_step(const Steps *steps)
{
    State *state = steps->state;
    Beams *beams = steps->beams;
    CandidateSearch *found = steps->candidates;
    found->logits = steps->logits;
    found->totals = beams->totals;
    found->forced = steps->has_prefixes ? beams->forced : NULL;
    const int failure = transduce_candidates(found);
    if (failure)
        return failure;
    if (steps->is_greedy)
        transduce_grow_greedily(beams, found->found_totals, found->found_parents,
                                found->found_tokens, found->count, state->group);
    else
        transduce_grow(beams, found->found_totals, found->found_parents,
                       found->found_tokens, found->count, state->group);
    return beams->sentences ? transduce_reorder(state, beams->rows, beams->sentences)
                            : 0;
}

EXPORTED int transduce_steps(Steps *steps, int num_threads)
{
    const int64_t sentences = steps->beams->sentences;
    for (steps->taken = 0; steps->taken < steps->most; steps->taken++) {
        if (steps->beams->sentences < sentences)
            return 0;
        int failure = transduce_step(steps->decoder, steps->state, steps->beams->tokens,
                                     steps->positions, steps->logits, num_threads);
        /* It has changed nothing, and fails again when it is the first. */
        if (failure)
            return steps->taken ? 0 : failure;
        if ((failure = grow_after_step(steps)))
            return failure;
    }
    return 0;
}
