/* Recurrence of an SSRU in training, forward and backward. */
#include "nn/recurrence.h"

#include "checks.h"
#include "parallel.h"
#include "simd/vec.h"
#include "sizes.h"

/* Forward pass of one sentence, whose rows follow one another from element `at` on. The
 * cell of a position is computed from the stored cell of the position before. */
static void forward_cells(const td_recurrence *r, int64_t at)
{
    const vec zero = vec_set1(0.0f), one = vec_set1(1.0f);
    for (int64_t i = at; i < at + r->length * r->width; i += LANES) {
        const vec before = i < at + r->width ? zero : vec_load(r->cells + i - r->width);
        const vec forget = vec_sigmoid(vec_load(r->gate + i));
        const vec new = (one - forget) * vec_load(r->candidate + i);
        const vec cell = vec_fma(forget, before, new);
        vec_store(r->forget + i, forget);
        vec_store(r->cells + i, cell);
        /* vec_max returns its second argument if that is NaN. */
        vec_store(r->output + i, vec_max(zero, cell));
    }
}

/* Backward pass of one sentence. The gradient of a cell c is the sum of the gradient of
 * its output, where c is positive, and the gradient from the next cell:
 *
 *   grad_c[t] = grad_output[t] (c[t] > 0) + forget[t + 1] grad_c[t + 1]
 *   grad_candidate[t] = (1 - forget[t]) grad_c[t]
 *   grad_gate[t] = grad_c[t] (c[t - 1] - candidate[t]) forget[t] (1 - forget[t]) */
static void backward_cells(const td_recurrence *r, int64_t at)
{
    const vec zero = vec_set1(0.0f), one = vec_set1(1.0f);
    for (int64_t column = at; column < at + r->width; column += LANES) {
        vec from_next = zero;
        for (int64_t t = r->length - 1; t >= 0; t--) {
            const int64_t i = column + t * r->width;
            const vec cell = vec_load(r->cells + i);
            const vec before = t ? vec_load(r->cells + i - r->width) : zero;
            const vec forget = vec_load(r->forget + i);
            const vec candidate = vec_load(r->candidate + i);
            const vec from_output =
                vec_select(vec_gt_zero(cell), vec_load(r->grad_output + i), zero);
            const vec grad_cell = from_output + from_next;
            const vec rest = one - forget;
            vec_store(r->grad_candidate + i, rest * grad_cell);
            vec_store(r->grad_gate + i,
                      grad_cell * (before - candidate) * forget * rest);
            from_next = forget * grad_cell;
        }
    }
}

static void forward_sentences(void *shared, int64_t first, int64_t end, int worker)
{
    const td_recurrence *r = shared;
    (void)worker;
    for (int64_t sentence = first; sentence < end; sentence++)
        forward_cells(r, sentence * r->length * r->width);
}

static void backward_sentences(void *shared, int64_t first, int64_t end, int worker)
{
    const td_recurrence *r = shared;
    (void)worker;
    for (int64_t sentence = first; sentence < end; sentence++)
        backward_cells(r, sentence * r->length * r->width);
}

TD_INTERNAL void recurrence_forward(td_recurrence recurrence, int num_threads)
{
    parallel_for(forward_sentences, &recurrence, recurrence.sentences, 1, num_threads);
}

TD_INTERNAL void recurrence_backward(td_recurrence recurrence, int num_threads)
{
    parallel_for(backward_sentences, &recurrence, recurrence.sentences, 1, num_threads);
}

static td_status check_recurrence(const td_recurrence *r, int num_threads)
{
    if (!r || !is_thread_count(num_threads) || !is_size(r->sentences, 0) ||
        !is_size(r->length, 1) || !is_multiple(r->width, ROW_MULTIPLE) ||
        !is_tensor(r->sentences, r->length, r->width))
        return TD_BAD_ARGUMENT;
    return is_missing(r->candidate, r->sentences) ||
                   is_missing(r->forget, r->sentences) ||
                   is_missing(r->cells, r->sentences)
               ? TD_BAD_ARGUMENT
               : TD_OK;
}

TD_INTERNAL td_status td_recurrence_forward(const td_recurrence *r, int num_threads)
{
    const td_status status = check_recurrence(r, num_threads);
    if (status != TD_OK)
        return status;
    if (is_missing(r->gate, r->sentences) || is_missing(r->output, r->sentences))
        return TD_BAD_ARGUMENT;
    recurrence_forward(*r, num_threads);
    return TD_OK;
}

TD_INTERNAL td_status td_recurrence_backward(const td_recurrence *r, int num_threads)
{
    const td_status status = check_recurrence(r, num_threads);
    if (status != TD_OK)
        return status;
    if (is_missing(r->grad_output, r->sentences) ||
        is_missing(r->grad_gate, r->sentences) ||
        is_missing(r->grad_candidate, r->sentences))
        return TD_BAD_ARGUMENT;
    recurrence_backward(*r, num_threads);
    return TD_OK;
}
