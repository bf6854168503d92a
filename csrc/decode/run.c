/* Steps of a search together with a decoder, several in one call.
 *
 * The logits of a step are computed and searched part by part, so that they stay in a
 * cache. Products by AMX search all logits but the first in registers.
 */
#include "decode/run.h"

#include <stdlib.h>

#include "alloc.h"
#include "checks.h"
#include "decode/restrictions.h"
#include "decode/step.h"
#include "decode/top_k.h"
#include "gemm/amx_int8.h"
#include "gemm/tiles.h"
#include "parallel.h"

#define CACHED_LOGITS (64 * 1024) /* that fit in a second-level cache */

/* Logits of a row that are stored and searched before the others are searched in
 * registers: they give a threshold that few others reach. */
#define FIRST_LOGITS 512

_Static_assert(SOFTMAX_BLOCK % BLOCK_OUTPUTS == 0 && FIRST_LOGITS % BLOCK_OUTPUTS == 0,
               "parts of the logits begin with a block of outputs");

/* Whether the next token of any live sentence is forced. */
static int has_forced_tokens(const td_search *search)
{
    for (int64_t i = 0; i < search->num_live; i++)
        if (search->forced_tokens[i] != NO_TOKEN)
            return 1;
    return 0;
}

static td_candidates candidates_of(const td_search *search, int64_t vocab)
{
    return (td_candidates){
        .sentences = search->num_live,
        .group = search->group,
        .vocab = vocab,
        .count = search->num_candidates,
        .log_probs = search->log_probs,
        .excluded_tokens = search->config.excluded_tokens,
        .num_excluded_tokens = search->config.num_excluded_tokens,
        .forced_tokens = has_forced_tokens(search) ? search->forced_tokens : NULL,
        .restrictions = has_restrictions(search) ? &search->restrictions : NULL,
        .diversity = search->config.is_greedy ? 0.0 : search->config.diversity,
        .found_log_probs = search->found_log_probs,
        .found_parents = search->found_parents,
        .found_tokens = search->found_tokens,
    };
}

TD_INTERNAL td_status search_grow_by_logits(td_search *search, const float *logits,
                                            int64_t vocab, const uint8_t *mask,
                                            const double *coverage)
{
    if (!search || (needs_coverage(search) && !coverage))
        return TD_BAD_ARGUMENT;
    if (!search->num_live)
        return TD_OK;
    td_candidates query = candidates_of(search, vocab);
    query.mask = mask;
    td_status status = reserve_step(search);
    if (status == TD_OK)
        status = find_restrictions(search);
    if (status == TD_OK)
        status = find_candidates(&query, logits);
    if (status != TD_OK)
        return status;
    for (int64_t i = 0; needs_coverage(search) && i < search->num_live * search->group;
         i++)
        search->coverage[i] = coverage[i];
    grow_live(search);
    return TD_OK;
}

/* ---- Steps with a decoder ---------------------------------------------------- */

typedef struct {
    td_search *search;
    td_decoder *decoder;
    int num_threads;
    td_candidates query;
    CandidateWorkspace workspace;
    Matrix logits; /* of one part of the vocabulary, for all rows; with shortlists, of
                      one sentence's list on each thread: [threads, group, list] */
    double logits_bytes; /* of the buffer of `logits` */
    FusedSoftmax *fused; /* of each row */
} Run;

/* Columns of a part of the logits: as many as stay in a cache, at least SOFTMAX_BLOCK.
 */
static int64_t part_width(int64_t rows)
{
    return max_i64(CACHED_LOGITS / rows / SOFTMAX_BLOCK, 1) * SOFTMAX_BLOCK;
}

static td_status begin_run(Run *run)
{
    const int64_t rows = run->search->num_live * run->search->group;
    const int64_t stride = padded_stride(part_width(rows) * run->num_threads);
    run->logits_bytes = (double)(rows * stride) * (double)sizeof(float);
    run->logits = (Matrix){allocate_lines(run->logits_bytes), stride};
    run->fused = allocate_lines((double)rows * (double)sizeof(FusedSoftmax));
    return run->logits.data && run->fused ? TD_OK : TD_OUT_OF_MEMORY;
}

static void end_run(Run *run)
{
    free(run->logits.data);
    free(run->fused);
    free_candidates(&run->workspace);
}

/* Enlarge the buffer to hold the listed logits of one sentence on each thread. */
static td_status reserve_listed_logits(Run *run)
{
    const int64_t widest = max_listed(run->decoder->shortlists, run->decoder->model);
    run->logits.stride = padded_stride(widest);
    const double bytes = (double)run->search->group * (double)run->logits.stride *
                         run->num_threads * sizeof(float);
    if (bytes > run->logits_bytes) {
        free(run->logits.data);
        run->logits.data = allocate_lines(bytes);
        run->logits_bytes = run->logits.data ? bytes : 0.0;
    }
    return run->logits.data ? TD_OK : TD_OUT_OF_MEMORY;
}

typedef struct {
    Run *run;
    const Workspace *work;
    const Matrix *x;
} ListedSearch;

/* Compute and search the logits of the shortlists of some sentences. */
static void search_listed(void *shared, int64_t begin, int64_t end, int worker)
{
    const ListedSearch *listed = shared;
    Run *run = listed->run;
    const int64_t group = run->search->group, stride = run->logits.stride;
    const Matrix logits = {run->logits.data + worker * group * stride, stride};
    for (int64_t i = begin; i < end; i++) {
        const TokenList *list = run->decoder->shortlists->lists[i];
        const int64_t vocab = target_vocab_size(run->decoder->model);
        multiply_listed(listed->work, run->decoder->model, list, listed->x, i * group,
                        group, &logits);
        for (int64_t k = 0; k < group; k++)
            add_row_logits(&run->query, &run->workspace, i * group + k,
                           row_of(&logits, k), list->count ? list->tokens : NULL,
                           list->count ? list->count : vocab);
    }
}

static void add_listed_logits(Run *run, Workspace *work)
{
    const Norm *norm = &run->decoder->model->decoder.final_norm;
    ListedSearch listed = {run, work, sublayer_input(work, norm)};
    parallel_for(search_listed, &listed, run->search->num_live, 1, run->num_threads);
}

/* Compute, store and search the logits of tokens `first` to `end` - 1. */
static void add_computed_logits(Run *run, const Workspace *work, int64_t first,
                                int64_t end)
{
    const int64_t width = run->logits.stride / SOFTMAX_BLOCK * SOFTMAX_BLOCK;
    for (; first < end; first += width) {
        const int64_t count = min_i64(end - first, width);
        multiply_for_logits(work, run->decoder->model, first, count, &run->logits);
        add_logits(&run->query, &run->workspace, run->logits.data, run->logits.stride,
                   first, count);
    }
}

/* Search the logits of tokens from `first` on in registers. Returns 0 if a sum
 * overflows: then the candidates must be found anew. */
static int add_fused_logits(Run *run, const Workspace *work, int64_t first)
{
    const Linear *output = &run->decoder->model->output;
    const Linear rest = slice_outputs(output, first, output->outputs - first);
    const Product product = {&rest, &work->packed, NULL, 0};
    const LogitSink sink = {&run->query, &run->workspace, run->fused, first};
    begin_fused(&run->query, &run->workspace, run->fused);
    amx_search(&product, &sink);
    return finish_fused(&run->query, &run->workspace, run->fused);
}

/* Whether logits can be searched in registers: by AMX, on one thread, and without
 * forced or repeated tokens, whose logits must be stored. */
static int can_fuse(const Run *run, const Workspace *work)
{
    return work->packed.for_amx && work->num_threads == 1 &&
           !run->query.forced_tokens && !has_repetition_penalty(run->search) &&
           run->decoder->model->output.outputs > FIRST_LOGITS;
}

/* Find the next candidates, given the output of the decoder's stack in `work`. */
static void find_next(Run *run, Workspace *work)
{
    if (run->decoder->shortlists) {
        add_listed_logits(run, work);
        finish_candidates(&run->query, &run->workspace);
        return;
    }
    const int64_t vocab = run->decoder->model->output.outputs;
    const int is_fused = can_fuse(run, work);
    const int64_t first = is_fused ? FIRST_LOGITS : vocab;
    add_computed_logits(run, work, 0, first);
    if (is_fused && !add_fused_logits(run, work, first)) {
        reset_candidates(&run->query, &run->workspace);
        add_computed_logits(run, work, 0, vocab);
    }
    finish_candidates(&run->query, &run->workspace);
}

/* Let the decoder read tokens, and find the next candidates. A failure has no effect on
 * later steps. */
static td_status read_and_find(Run *run, const int64_t *tokens)
{
    Workspace work;
    td_status status = reserve_step(run->search);
    if (status == TD_OK)
        status = find_restrictions(run->search);
    if (status != TD_OK)
        return status;
    run->query = candidates_of(run->search, run->decoder->model->output.outputs);
    status = begin_candidates(&run->query, &run->workspace);
    if (status == TD_OK && run->decoder->shortlists)
        status = reserve_listed_logits(run);
    if (status != TD_OK)
        return status;
    status = read_tokens(&work, run->decoder, tokens, run->num_threads);
    if (status != TD_OK)
        return status;
    find_next(run, &work);
    end_workspace(&work);
    return TD_OK;
}

/* Grow the search by the candidates, and reorder the decoder. After a failure, the two
 * have different hypotheses and must not be used any more. */
static td_status grow_both(Run *run)
{
    td_search *search = run->search;
    if (needs_coverage(search))
        sum_coverage(run->decoder, search->coverage);
    grow_live(search);
    return search->num_live ? decoder_reorder(run->decoder, search->rows,
                                              search->num_live, search->group)
                            : TD_OK;
}

static td_status take_steps(Run *run, const int64_t *tokens, int64_t max_steps,
                            int64_t max_live, int64_t *num_steps)
{
    td_search *search = run->search;
    td_status status = begin_run(run);
    while (status == TD_OK && *num_steps < max_steps && search->num_live > max_live) {
        status = read_and_find(run, *num_steps ? search->tokens : tokens);
        if (status != TD_OK)
            return *num_steps ? TD_OK : status;
        status = grow_both(run);
        ++*num_steps;
    }
    return status;
}

TD_INTERNAL td_status search_run(td_search *search, td_decoder *decoder,
                                 const int64_t *tokens, int64_t max_steps,
                                 int64_t max_live, int num_threads, int64_t *num_steps)
{
    if (!num_steps)
        return TD_BAD_ARGUMENT;
    *num_steps = 0;
    if (!search || !decoder || !tokens || max_steps < 0 || max_live < 0 ||
        !is_thread_count(num_threads))
        return TD_BAD_ARGUMENT;
    if (search->num_live <= max_live)
        return TD_OK;
    if (decoder->state.sentences != search->num_live ||
        decoder->state.group != search->group ||
        search->group != search->config.beam_size ||
        (needs_coverage(search) && decoder->state.summed_layers != 1))
        return TD_BAD_ARGUMENT;
    Run run = {.search = search, .decoder = decoder, .num_threads = num_threads};
    const td_status status = take_steps(&run, tokens, max_steps, max_live, num_steps);
    end_run(&run);
    return status;
}
