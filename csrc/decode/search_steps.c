/* Steps of decoder and search together, as long as more than a few sentences go on. */
#include "decode/search_steps.h"

#include <stdlib.h>

#include "gemm/amx_int8.h"
#include "gemm/tiles.h"
#include "simd/prefetch.h"

#define LOGITS_AT_ONCE (64 * 1024) /* which stay in a second-level cache */
#define SEEN_FIRST 512 /* before the others: by then most of the best are known */

_Static_assert(SEEN_AT_ONCE % COLUMNS == 0 && SEEN_FIRST % COLUMNS == 0,
               "logits begin with a block of outputs");

/* Room for the logits of some tokens after so many rows, which are computed and seen
   together: as many as stay in a cache or, where rows are many, those whose
   exponentials are summed up at once. No numbers, if memory is lacking. */
static Matrix room_for_logits(int64_t rows, int num_threads)
{
    const int64_t count = LOGITS_AT_ONCE / rows / SEEN_AT_ONCE * SEEN_AT_ONCE;
    const int64_t stride = spread(largest(count, SEEN_AT_ONCE) * num_threads);
    const size_t bytes = (size_t)(rows * stride) * sizeof(float);
    return (Matrix){aligned_alloc(LINE, bytes), stride};
}

/* Compute the logits from a token on, and let them be seen, some after others. */
static void see_from(const Steps *steps, const Work *work, int64_t first, int64_t end,
                     const Matrix *logits, Seeing *seeing)
{
    const int64_t most = logits->stride / SEEN_AT_ONCE * SEEN_AT_ONCE;
    for (; first < end; first += most) {
        const int64_t left = end - first, count = left < most ? left : most;
        multiply_for_logits(work, steps->decoder, first, count, logits);
        see_logits(steps->candidates, seeing, logits->numbers, logits->stride, first,
                   count);
    }
}

/* Whether logits can be seen as they are summed up: by one thread, and where none is
   asked for by its token. */
static int can_watch(const Steps *steps, const Work *work)
{
    return work->arranged.are_for_unit && work->num_threads == 1 &&
           !steps->candidates->forced;
}

/* Let the logits from a token on be seen so, those before it having been seen. Whether
   that has been done. */
static int watch_from(const Steps *steps, const Work *work, int64_t first,
                      Seeing *seeing)
{
    const Linear *output = &steps->decoder->output;
    const CandidateSearch *asked = steps->candidates;
    const size_t bytes = (size_t)work->rows * sizeof(Glimpse);
    Glimpse *glimpses = aligned_alloc(LINE, bytes);
    if (!glimpses)
        return 0;
    begin_glimpses(asked, seeing, glimpses);
    const Linear rest = some_outputs(output, first, output->outputs - first);
    const Product product = {&rest, &work->arranged, NULL, 0};
    const Watch watch = {asked, seeing, glimpses, first};
    watch_in_unit(&product, &watch, 0, num_blocks(rest.outputs));
    const int are_seen = end_glimpses(asked, seeing, glimpses);
    free(glimpses);
    return are_seen;
}

/* Find how the hypotheses go on that have read a token. */
static void find_candidates(const Steps *steps, const Work *work, const Matrix *logits,
                            Seeing *seeing)
{
    const int64_t vocab = steps->decoder->output.outputs;
    const int is_watched = vocab > SEEN_FIRST && can_watch(steps, work);
    const int64_t first = is_watched ? SEEN_FIRST : vocab;
    see_from(steps, work, 0, first, logits, seeing);
    if (is_watched && !watch_from(steps, work, first, seeing)) {
        begin_again(steps->candidates, seeing);
        see_from(steps, work, 0, vocab, logits, seeing);
    }
    end_candidates(steps->candidates, seeing);
}

/* What a step has failed by, or 0. */
static int step_and_find(const Steps *steps, const Matrix *logits, int num_threads)
{
    Work work;
    Seeing seeing;
    CandidateSearch *asked = steps->candidates;
    asked->sentences = steps->beams->sentences;
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
    find_candidates(steps, &work, logits, &seeing);
    end_work(&work);
    return 0;
}

/* Let beams grow by what was found; what has failed, or 0. */
static int grow_by_found(const Steps *steps)
{
    State *state = steps->state;
    Beams *beams = steps->beams;
    const CandidateSearch *found = steps->candidates;
    if (beams->coverages)
        transduce_coverage(state, beams->coverages);
    if (steps->is_greedy)
        transduce_grow_greedily(beams, found->found_totals, found->found_parents,
                                found->found_tokens, found->count, state->group);
    else
        transduce_grow(beams, found->found_totals, found->found_parents,
                       found->found_tokens, found->count, state->group);
    return beams->sentences ? transduce_reorder(state, beams->rows, beams->sentences)
                            : 0;
}

/* Steps until a few sentences are left; what the last has failed by, or 0. */
static int take_steps(Steps *steps, const Matrix *logits, int num_threads)
{
    for (; steps->taken < steps->most; steps->taken++) {
        if (steps->beams->sentences <= steps->few)
            return 0;
        int failure = step_and_find(steps, logits, num_threads);
        /* It has changed nothing, and fails again when it is the first. */
        if (failure)
            return steps->taken ? 0 : failure;
        if ((failure = grow_by_found(steps)))
            return failure;
    }
    return 0;
}

static int transduce_steps(Steps *steps, int num_threads)
{
    const int64_t rows = steps->state->sentences * steps->state->group;
    const Matrix logits = room_for_logits(rows, num_threads);
    steps->taken = 0;
    if (!logits.numbers)
        return 1;
    const int failure = take_steps(steps, &logits, num_threads);
    free(logits.numbers);
    return failure;
}
