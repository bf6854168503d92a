/* Steps of decoder and search together, as long as no sentence leaves. */
#include "steps.h"

/* One of them; what has failed, or 0. */
static int step_and_grow(const Steps *steps, int num_threads)
{
    State *state = steps->state;
    Beams *beams = steps->beams;
    CandidateSearch *found = steps->candidates;
    int failure = transduce_step(steps->decoder, state, beams->tokens, steps->positions,
                                 steps->logits, num_threads);
    if (failure)
        return failure;
    found->logits = steps->logits;
    found->totals = beams->totals;
    found->forced = steps->has_prefixes ? beams->forced : NULL;
    if ((failure = transduce_candidates(found)))
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
        const int failure = step_and_grow(steps, num_threads);
        if (failure)
            return failure;
    }
    return 0;
}
