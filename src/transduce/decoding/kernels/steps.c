/* Steps of decoder and search together, as long as no sentence leaves. */
#include "steps.h"

#include "tiles.h"

#define LOGITS_AT_ONCE (64 * 1024) /* which stay in a second-level cache */

_Static_assert(SEEN_AT_ONCE % COLUMNS == 0, "logits begin with a block of outputs");

/* Tokens whose logits are computed and seen together: more only where rows are many, as
   some are always summed up at once. */
static int64_t tokens_at_once(const Work *work)
{
    const int64_t count = LOGITS_AT_ONCE / work->rows / SEEN_AT_ONCE * SEEN_AT_ONCE;
    return largest(count, SEEN_AT_ONCE) * work->num_threads;
}

/* Find how the hypotheses go on that have read a token. */
static void find_candidates(const Steps *steps, const Work *work, Seeing *seeing)
{
    const int64_t vocab = steps->decoder->output.outputs;
    const int64_t most = tokens_at_once(work);
    for (int64_t first = 0; first < vocab; first += most) {
        const int64_t left = vocab - first, count = left < most ? left : most;
        multiply_for_logits(work, steps->decoder, first, count, steps->logits);
        see_logits(steps->candidates, seeing, steps->logits, count, first, count);
    }
    end_candidates(steps->candidates, seeing);
}

/* What a step has failed by, or 0. */
static int step_and_find(const Steps *steps, int num_threads)
{
    Work work;
    Seeing seeing;
    CandidateSearch *asked = steps->candidates;
    asked->totals = steps->beams->totals;
    asked->forced = steps->has_prefixes ? steps->beams->forced : NULL;
    int failure = begin_candidates(asked, &seeing);
    if (failure)
        return failure;
    failure = read_tokens(&work, steps->decoder, steps->state, steps->beams->tokens,
                          steps->positions, num_threads);
    if (failure) {
        drop_candidates(&seeing);
        return failure;
    }
    find_candidates(steps, &work, &seeing);
    end_work(&work);
    return 0;
}

/* Let beams grow by what was found; what has failed, or 0. */
static int grow_by_found(const Steps *steps)
{
    State *state = steps->state;
    Beams *beams = steps->beams;
    const CandidateSearch *found = steps->candidates;
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
        int failure = step_and_find(steps, num_threads);
        /* It has changed nothing, and fails again when it is the first. */
        if (failure)
            return steps->taken ? 0 : failure;
        if ((failure = grow_by_found(steps)))
            return failure;
    }
    return 0;
}
