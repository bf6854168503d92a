/* Beams that grow by their likeliest candidates, as beam_search.py says it
 * (section 6.1).
 */
#include "decode/beam_search.h"

#include <math.h>
#include <string.h>

/* Not inlined, where it might become a product that is rounded otherwise. */
static __attribute__((noinline)) double score(double log_probability, double divisor)
{
    return log_probability / divisor;
}

/* A product that the compiler must not fuse with a sum, likewise. */
static __attribute__((noinline)) double product(double one, double other)
{
    return one * other;
}

/* Keep a hypothesis, if it is among the best; of equals, the first. `coverage` is that
   of its parent, or NULL. */
static void end_one(const Beams *beams, Beam *beam, double log_probability,
                    const double *coverage, int64_t last, int64_t is_finished)
{
    const double divisor = beams->divisors[beam->num_steps + is_finished];
    End ended = {score(log_probability, divisor), log_probability, beam->num_steps,
                 last, is_finished};
    if (coverage)
        ended.score += product(beams->coverage_penalty, *coverage);
    int64_t place = beam->num_ends;
    if (place == beams->size) {
        if (!(ended.score > beam->ends[place - 1].score))
            return;
        place--;
    } else {
        beam->num_ends++;
    }
    for (; place > 0 && beam->ends[place - 1].score < ended.score; place--)
        beam->ends[place] = beam->ends[place - 1];
    beam->ends[place] = ended;
}

/* Coverage of a hypothesis; NULL without a coverage penalty. */
static const double *coverage_of(const double *coverages, int64_t hypothesis)
{
    return coverages ? coverages + hypothesis : NULL;
}

/* Continue the best of `count` candidates, and keep those that end. Returns the number
   of continuing ones that rank among those that may end. */
static int64_t grow(const Beams *beams, Beam *beam, const double *totals,
                    const int64_t *parents, const int64_t *tokens, int64_t count,
                    const double *coverages)
{
    const int64_t first = beam->num_steps * beams->size;
    int64_t kept = 0, may_end = 0;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] == beams->eos && totals[i] > -INFINITY) {
            if (beam->num_steps >= beams->min_length && i < beams->end_candidates) {
                beam->num_finished++;
                end_one(beams, beam, totals[i], coverage_of(coverages, parents[i]),
                        parents[i], 1);
            }
        } else if (kept < beams->size) {
            beam->totals[first + kept] = totals[i];
            beam->parents[first + kept] = parents[i];
            beam->tokens[first + kept] = tokens[i];
            kept++;
            may_end += i < beams->end_candidates;
        }
    }
    beam->num_steps++;
    return may_end;
}

/* Whether nothing unfinished can overtake those that are asked for, or enough ended. */
static int is_done(const Beams *beams, const Beam *beam)
{
    const double *totals = beam->totals + (beam->num_steps - 1) * beams->size;
    double best = totals[0];
    for (int64_t k = 1; k < beams->size; k++)
        if (totals[k] > best)
            best = totals[k];
    if (best == -INFINITY || beam->num_steps >= beam->max_length)
        return 1;
    if (beam->num_ends < beams->num_best)
        return 0;
    if (beam->num_finished >= beams->enough_ends)
        return 1;
    return beam->ends[beams->num_best - 1].score >= score(best, beam->last_divisor);
}

/* Keep hypotheses that are cut short: all if none has finished; if they compete with
   finished ones, the first `may_end` at the length limit. */
static void cut_short(const Beams *beams, Beam *beam, int64_t may_end,
                      const double *coverages)
{
    const int64_t last = (beam->num_steps - 1) * beams->size;
    const double *totals = beam->totals + last;
    const int compete = beams->cut_ones_compete && beam->num_steps >= beam->max_length;
    const int64_t count = !beam->num_ends ? beams->size : compete ? may_end : 0;
    for (int64_t k = 0; k < count; k++)
        if (totals[k] > -INFINITY)
            end_one(beams, beam, totals[k],
                    coverage_of(coverages, beam->parents[last + k]), k, 0);
}

/* Put down as the sentence of that number how one goes on, whose first row was that. */
static void go_on(Beams *beams, Beam *beam, int64_t sentence, int64_t first_row)
{
    const int64_t size = beams->size, last = (beam->num_steps - 1) * size;
    const size_t bytes = (size_t)size * sizeof(int64_t);
    beams->live[sentence] = beam;
    memcpy(beams->totals + sentence * size, beam->totals + last, bytes);
    memcpy(beams->tokens + sentence * size, beam->tokens + last, bytes);
    for (int64_t k = 0; k < size; k++)
        beams->rows[sentence * size + k] = first_row + beam->parents[last + k];
    beams->forced[sentence] =
        beam->num_steps < beam->prefix_length ? beam->prefix[beam->num_steps] : -1;
}

static void transduce_grow(Beams *beams, const double *totals, const int64_t *parents,
                           const int64_t *tokens, int64_t count, int64_t group)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < beams->sentences; i++) {
        Beam *beam = beams->live[i];
        const double *coverages = coverage_of(beams->coverages, i * group);
        const int64_t may_end =
            grow(beams, beam, totals + i * count, parents + i * count,
                 tokens + i * count, count, coverages);
        if (is_done(beams, beam))
            cut_short(beams, beam, may_end, coverages);
        else
            go_on(beams, beam, kept++, i * group);
    }
    beams->sentences = kept;
}

/* The better of two candidates; not an end that comes too early. Whether it is done;
   its end says by how many steps, and how. */
static int grow_path(const Beams *paths, Beam *path, const double *gains,
                     const int64_t *tokens)
{
    const int64_t step = path->num_steps;
    const int chosen = step < paths->min_length && tokens[0] == paths->eos;
    const int is_end = tokens[chosen] == paths->eos;
    path->totals[step] = gains[chosen];
    path->parents[step] = 0;
    path->tokens[step] = tokens[chosen];
    path->num_steps++;
    if (!is_end && path->num_steps < path->max_length)
        return 0;
    path->ends[0] = (End){0.0, 0.0, step + 1 - is_end, 0, is_end};
    path->num_ends = 1;
    return 1;
}

static void transduce_grow_greedily(Beams *paths, const double *gains,
                                    const int64_t *parents, const int64_t *tokens,
                                    int64_t count, int64_t group)
{
    int64_t kept = 0;
    (void)parents;
    for (int64_t i = 0; i < paths->sentences; i++) {
        Beam *path = paths->live[i];
        if (grow_path(paths, path, gains + i * count, tokens + i * count))
            continue;
        go_on(paths, path, kept, i * group);
        paths->totals[kept++] = 0.0;
    }
    paths->sentences = kept;
}

/* The tokens by which one was found that ended, and what each added to its
   log-probability; behind these, what its end added. */
static void trace(const Beam *beam, int64_t size, const End *end, int64_t *tokens,
                  double *gains)
{
    double after = end->log_probability;
    for (int64_t step = end->num_steps - 1, at = end->last; step >= 0; step--) {
        const int64_t here = step * size + at;
        tokens[step] = beam->tokens[here];
        gains[step + 1] = after - beam->totals[here];
        after = beam->totals[here];
        at = beam->parents[here];
    }
    gains[0] = after;
}

/* The same of the best that ended, each with room for as many steps as there were. */
static void transduce_trace_best(const Beam *beam, int64_t size, int64_t count,
                                 int64_t *tokens, double *gains)
{
    for (int64_t i = 0; i < count; i++)
        trace(beam, size, beam->ends + i, tokens + i * beam->num_steps,
              gains + i * (beam->num_steps + 1));
}
