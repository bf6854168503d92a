/* Search for the best next tokens. */
#include "decode/top_k.h"

#include <math.h>
#include <stdlib.h>

#include "alloc.h"
#include "checks.h"
#include "simd/vec.h"
#include "sizes.h"

/* A logit to base 2 (x log2(e)) that is computed in registers and log2(e) times the
 * stored logit are rounded differently. They differ by less than
 * FUSED_ERROR * (1 + |logit to base 2|), unless terms of the sums are huge. */
#define FUSED_ERROR 1e-3f

/* ---- TopK -------------------------------------------------------------------- */

static void clear_top_k(TopK *top)
{
    top->values[-1] = INFINITY; /* so that nothing is inserted before the first */
    for (int64_t i = 0; i < round_up_to_lanes(top->count); i++) {
        top->values[i] = -INFINITY;
        top->tokens[i].id = 0;
    }
}

/* Smallest of the largest logits: only larger ones are inserted. */
static float smallest_of(const TopK *top) { return top->values[top->count - 1]; }

/* Insert a value before all smaller ones and drop the last. All vectors are shifted and
 * blended: a branch to the right place would be mispredicted. */
static void insert(TopK *top, float value, int64_t token)
{
    const Token id = {.id = (int32_t)token};
    const vec new_value = vec_set1(value), new_token = vec_set1(id.lane);
    for (int64_t i = round_up_to_lanes(top->count) - LANES; i >= 0; i -= LANES) {
        float *values = top->values + i, *tokens = &top->tokens[i].lane;
        const vec own = vec_load(values), before = vec_load(values - 1);
        const vec_mask is_above = vec_gt_zero(new_value - own);
        const vec_mask shifts = vec_gt_zero(new_value - before);
        const vec next_token = vec_select(shifts, vec_load(tokens - 1), new_token);
        const vec next_value = vec_select(shifts, before, new_value);
        vec_store(tokens, vec_select(is_above, next_token, vec_load(tokens)));
        vec_store(values, vec_select(is_above, next_value, own));
    }
}

typedef struct {
    const int64_t *tokens;
    int64_t count;
} Tokens;

static int contains(Tokens tokens, int64_t token)
{
    for (int64_t i = 0; i < tokens.count; i++)
        if (tokens.tokens[i] == token)
            return 1;
    return 0;
}

/* Tokens that are not inserted while the logits of a hypothesis are searched. */
typedef struct {
    const uint8_t *mask; /* [vocab]: 1 for tokens that must not follow it; or NULL */
    Tokens forbidden;    /* that must not follow any hypothesis */
    Tokens banned;       /* that must not follow this one, unless they are forced */
    Tokens repeated;     /* that insert_repeated() inserts after the search */
} Excluded;

/* Whether a token must not follow, even if it is forced. */
static int is_forbidden(const Excluded *excluded, int64_t token)
{
    return (excluded->mask && excluded->mask[token]) ||
           contains(excluded->forbidden, token);
}

static int is_excluded(const Excluded *excluded, int64_t token)
{
    return is_forbidden(excluded, token) || contains(excluded->banned, token) ||
           contains(excluded->repeated, token);
}

static int64_t count_excluded(const Excluded *excluded)
{
    return excluded->forbidden.count + excluded->banned.count +
           excluded->repeated.count;
}

/* Logits of a row, for consecutive tokens or for the tokens of a shortlist. */
typedef struct {
    const float *values;
    int64_t count, first_token;
    const int32_t *tokens; /* in ascending order; NULL: from first_token on */
} LogitBlock;

static int64_t token_at(const LogitBlock *block, int64_t place)
{
    return block->tokens ? block->tokens[place] : block->first_token + place;
}

/* Place of a token in a block, or -1. */
static int64_t place_of_token(const LogitBlock *block, int64_t token)
{
    int64_t low = 0, high = block->count;
    if (!block->tokens) {
        const int64_t place = token - block->first_token;
        return place >= 0 && place < block->count ? place : -1;
    }
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (block->tokens[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < block->count && block->tokens[low] == token ? low : -1;
}

/* Load LANES logits of a block, with minus infinity past its end. */
static inline vec load_logits(const LogitBlock *block, int64_t i)
{
    const float *from = block->values + i;
    if (block->count - i >= LANES)
        return vec_load(from);
    const vec_mask mask = vec_mask_first(block->count - i);
    return vec_select(mask, vec_load_masked(mask, from), vec_set1(-INFINITY));
}

/* Logits that are skipped together if their maximum is low. */
#define STRIP_LOGITS (4 * LANES)

/* Maximum of each lane over a strip; NaN counts as minus infinity. */
static inline vec max_of_strip(const float *values)
{
    const vec none = vec_set1(-INFINITY);
    const vec first = vec_max(vec_load(values), none);
    const vec second = vec_max(vec_load(values + LANES), none);
    return vec_max(vec_max(vec_load(values + 2 * LANES), first),
                   vec_max(vec_load(values + 3 * LANES), second));
}

/* Maximum of each lane over a block. */
static vec max_of_block(const LogitBlock *block)
{
    vec max = vec_set1(-INFINITY);
    int64_t i = 0;
    for (; i + STRIP_LOGITS <= block->count; i += STRIP_LOGITS)
        max = vec_max(max_of_strip(block->values + i), max);
    for (; i < block->count; i += LANES)
        max = vec_max(load_logits(block, i), max);
    return max;
}

/* The `place`-th largest lane; 1 is the largest. */
static float nth_largest_lane(vec x, int64_t place)
{
    float numbers[LANES];
    vec_store(numbers, x);
    for (int64_t i = 0; i < place; i++)
        for (int64_t k = LANES - 1; k > i; k--)
            if (numbers[k] > numbers[k - 1]) {
                const float number = numbers[k];
                numbers[k] = numbers[k - 1];
                numbers[k - 1] = number;
            }
    return numbers[place - 1];
}

/* A lower bound of the best logits of a block, given the maximum of each lane: the n-th
 * largest of these maxima, where n is the number of wanted tokens plus the number of
 * excluded tokens. At least n logits reach this bound, so enough remain without the
 * excluded tokens. Minus infinity if fewer than n lanes have a logit that can be
 * inserted. */
static float lower_bound_of_best(const TopK *top, vec max, const Excluded *excluded)
{
    const int64_t enough = top->count + count_excluded(excluded);
    const uint32_t better = vec_gt_bits(max, vec_set1(smallest_of(top)));
    if (excluded->mask || __builtin_popcount(better) < enough)
        return -INFINITY;
    return nth_largest_lane(max, enough);
}

/* Insert the logits of a vector that reach the bound, from left to right. */
static void insert_lanes(TopK *top, const LogitBlock *block, int64_t first, float bound,
                         const Excluded *excluded)
{
    const vec values = load_logits(block, first);
    const uint32_t below = vec_gt_bits(vec_set1(bound), values);
    uint32_t better = vec_gt_bits(values, vec_set1(smallest_of(top))) & ~below;
    for (; better; better &= better - 1) {
        const int64_t i = first + __builtin_ctz(better);
        const int64_t token = token_at(block, i);
        const float value = block->values[i];
        if (value > smallest_of(top) && !is_excluded(excluded, token))
            insert(top, value, token);
    }
}

/* Insert the best logits of a block, given the maximum of each lane. Strips whose
 * maximum is below a bound of the best are skipped. */
static void insert_best(TopK *top, const LogitBlock *block, vec max,
                        const Excluded *excluded)
{
    if (!vec_gt_bits(max, vec_set1(smallest_of(top))))
        return;
    const float bound = lower_bound_of_best(top, max, excluded);
    int64_t i = 0;
    for (; i + STRIP_LOGITS <= block->count; i += STRIP_LOGITS) {
        const vec strip = max_of_strip(block->values + i);
        const uint32_t below = vec_gt_bits(vec_set1(bound), strip);
        if (vec_gt_bits(strip, vec_set1(smallest_of(top))) & ~below)
            for (int64_t k = i; k < i + STRIP_LOGITS; k += LANES)
                insert_lanes(top, block, k, bound, excluded);
    }
    for (; i < block->count; i += LANES)
        insert_lanes(top, block, i, bound, excluded);
}

/* ---- OnlineSoftmax ----------------------------------------------------------- */

/* Sum of exp(logit - offset) over a block. The relative error of each exponential is
 * about 1e-7. */
static float sum_exp(const LogitBlock *block, float offset)
{
    const vec offsets = vec_set1(offset), log2_e = vec_set1(LOG2_E);
    vec sum = vec_set1(0.0f);
    int64_t i = 0;
    for (; i + LANES <= block->count; i += LANES)
        sum += vec_exp2((vec_load(block->values + i) - offsets) * log2_e);
    if (i < block->count)
        sum += vec_exp2((load_logits(block, i) - offsets) * log2_e);
    return vec_reduce_add(sum);
}

static void add_to_softmax(OnlineSoftmax *softmax, const LogitBlock *block, float max)
{
    if (max > softmax->max) {
        /* The factor is 0 if the maximum was minus infinity; then the sum is 0 or NaN.
         */
        softmax->sum *= expf(softmax->max - max);
        softmax->max = max;
    }
    softmax->sum += sum_exp(block, softmax->max > -INFINITY ? softmax->max : 0.0f);
}

/* Logarithm of the sum of all exponentials; NaN if no logit is above minus infinity, as
 * there is no distribution then. */
static float log_sum_exp(const OnlineSoftmax *softmax)
{
    return softmax->max > -INFINITY ? softmax->max + logf(softmax->sum) : NAN;
}

/* ---- Rows -------------------------------------------------------------------- */

static int64_t rows_of(const td_candidates *query)
{
    return query->sentences * query->group;
}

/* Number of repeated tokens of all rows. */
static int64_t num_repeated(const td_candidates *query)
{
    const td_restrictions *given = query->restrictions;
    return given ? given->repeated_offsets[rows_of(query)] : 0;
}

static Tokens tokens_of_row(const int64_t *offsets, const int64_t *tokens, int64_t row)
{
    return (Tokens){tokens + offsets[row], offsets[row + 1] - offsets[row]};
}

static Excluded excluded_after(const td_candidates *query, int64_t row)
{
    Excluded excluded = {
        .mask = query->mask ? query->mask + row * query->vocab : NULL,
        .forbidden = {query->excluded_tokens, query->num_excluded_tokens},
    };
    const td_restrictions *given = query->restrictions;
    if (given) {
        excluded.banned =
            tokens_of_row(given->banned_offsets, given->banned_tokens, row);
        excluded.repeated =
            tokens_of_row(given->repeated_offsets, given->repeated_tokens, row);
    }
    return excluded;
}

/* Logits of a row's repeated tokens. */
static float *repeated_logits_of(const td_candidates *query,
                                 const CandidateWorkspace *workspace, int64_t row)
{
    return workspace->repeated_logits + query->restrictions->repeated_offsets[row];
}

static int64_t forced_after(const td_candidates *query, int64_t row)
{
    return query->forced_tokens ? query->forced_tokens[row / query->group] : -1;
}

static TopK top_of(const CandidateWorkspace *workspace, int64_t row)
{
    return (TopK){workspace->count, workspace->values + row * workspace->stride,
                  workspace->tokens + row * workspace->stride};
}

static void add_block(const td_candidates *query, CandidateWorkspace *workspace,
                      int64_t row, const LogitBlock *block)
{
    const vec max = max_of_block(block);
    const Excluded excluded = excluded_after(query, row);
    const int64_t forced = forced_after(query, row);
    TopK top = top_of(workspace, row);
    insert_best(&top, block, max, &excluded);
    add_to_softmax(&workspace->rows[row].softmax, block, vec_reduce_max(max));
    const int64_t place = place_of_token(block, forced);
    if (place >= 0)
        workspace->rows[row].forced_logit = block->values[place];
    for (int64_t i = 0; i < excluded.repeated.count; i++) {
        const int64_t found = place_of_token(block, excluded.repeated.tokens[i]);
        if (found >= 0)
            repeated_logits_of(query, workspace, row)[i] = block->values[found];
    }
}

/* Insert a log-probability; if two are equal, the lower token comes first. */
static void insert_in_order(TopK *top, float value, int64_t token)
{
    int64_t place = top->count;
    while (place > 0 &&
           (top->values[place - 1] < value ||
            (top->values[place - 1] == value && top->tokens[place - 1].id > token)))
        place--;
    if (place == top->count)
        return;
    for (int64_t i = top->count - 1; i > place; i--) {
        top->values[i] = top->values[i - 1];
        top->tokens[i] = top->tokens[i - 1];
    }
    top->values[place] = value;
    top->tokens[place].id = (int32_t)token;
}

/* Insert the repeated tokens of a row with their penalty. */
static void insert_repeated(const td_candidates *query,
                            const CandidateWorkspace *workspace, int64_t row, TopK *top,
                            const Excluded *excluded, float log_sum)
{
    for (int64_t i = 0; i < excluded->repeated.count; i++) {
        const int64_t token = excluded->repeated.tokens[i];
        const float log_prob =
            (repeated_logits_of(query, workspace, row)[i] - log_sum) *
            (float)query->restrictions->repetition_penalty;
        if (log_prob > -INFINITY && !is_forbidden(excluded, token) &&
            !contains(excluded->banned, token))
            insert_in_order(top, log_prob, token);
    }
}

/* Turn the largest logits of a row into log-probabilities. Missing ones become minus
 * infinity; if the row has NaN, all become NaN. */
static void normalize(const td_candidates *query, CandidateWorkspace *workspace,
                      int64_t row)
{
    TopK top = top_of(workspace, row);
    const Excluded excluded = excluded_after(query, row);
    const int64_t forced = forced_after(query, row);
    const float log_sum = log_sum_exp(&workspace->rows[row].softmax);
    for (int64_t i = 0; i < top.count; i++)
        top.values[i] -= log_sum;
    if (forced < 0) {
        insert_repeated(query, workspace, row, &top, &excluded, log_sum);
        return;
    }
    for (int64_t i = 0; i < top.count; i++) {
        top.values[i] = -INFINITY - log_sum; /* NaN if log_sum is */
        top.tokens[i].id = (int32_t)forced;
    }
    if (!is_forbidden(&excluded, forced))
        top.values[0] = workspace->rows[row].forced_logit - log_sum;
}

/* ---- Candidates of sentences ------------------------------------------------- */

/* Whether a candidate is better than another; NaN is worse than all numbers. */
static int is_before(double one, double other)
{
    return one > other || (isnan(other) && !isnan(one));
}

/* Merge the candidates of a sentence's hypotheses; of equal ones, the first comes
 * first. */
static void merge(const td_candidates *query, CandidateWorkspace *workspace,
                  int64_t sentence)
{
    const int64_t group = query->group, first_row = sentence * group;
    const int64_t stride = workspace->stride;
    const float *values = workspace->values + first_row * stride;
    const Token *tokens = workspace->tokens + first_row * stride;
    int64_t *num_taken = workspace->num_taken;
    for (int64_t h = 0; h < group; h++)
        num_taken[h] = 0;
    for (int64_t place = 0; place < query->count; place++) {
        int64_t parent = -1;
        double best_rank = 0.0, log_prob = -INFINITY;
        for (int64_t h = 0; h < group; h++) {
            if (num_taken[h] == workspace->count)
                continue;
            const double total = (double)values[h * stride + num_taken[h]] +
                                 query->log_probs[first_row + h];
            const double rank = total - query->diversity * (double)num_taken[h];
            if (parent < 0 || is_before(rank, best_rank)) {
                parent = h;
                best_rank = rank;
                log_prob = total;
            }
        }
        const int64_t at = sentence * query->count + place;
        query->found_log_probs[at] = log_prob;
        query->found_parents[at] = parent < 0 ? 0 : parent;
        query->found_tokens[at] =
            parent < 0 ? 0 : tokens[parent * stride + num_taken[parent]++].id;
    }
}

/* Whether offsets begin with 0 and are in ascending order. */
static int are_offsets(const int64_t *offsets, int64_t rows)
{
    if (!offsets || offsets[0])
        return 0;
    for (int64_t i = 0; i < rows; i++)
        if (offsets[i + 1] < offsets[i])
            return 0;
    return 1;
}

static td_status check_restrictions(const td_candidates *query)
{
    const td_restrictions *given = query->restrictions;
    const int64_t rows = rows_of(query);
    if (!are_offsets(given->banned_offsets, rows) ||
        !are_offsets(given->repeated_offsets, rows) || !(given->repetition_penalty > 0))
        return TD_BAD_ARGUMENT;
    const int64_t count = given->repeated_offsets[rows];
    if (is_missing(given->banned_tokens, given->banned_offsets[rows]) ||
        is_missing(given->repeated_tokens, count))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; i < count; i++)
        if (given->repeated_tokens[i] < 0 || given->repeated_tokens[i] >= query->vocab)
            return TD_BAD_TOKEN;
    return TD_OK;
}

static td_status check_query(const td_candidates *query)
{
    if (!is_size(query->sentences, 0) || !is_size(query->group, 1) ||
        !is_size(query->vocab, 1) || !is_size(query->count, 1))
        return TD_BAD_ARGUMENT;
    if (query->num_excluded_tokens < 0 ||
        is_missing(query->excluded_tokens, query->num_excluded_tokens))
        return TD_BAD_ARGUMENT;
    if (is_missing(query->log_probs, query->sentences) ||
        is_missing(query->found_log_probs, query->sentences) ||
        is_missing(query->found_parents, query->sentences) ||
        is_missing(query->found_tokens, query->sentences))
        return TD_BAD_ARGUMENT;
    for (int64_t i = 0; query->forced_tokens && i < query->sentences; i++)
        if (query->forced_tokens[i] < -1 || query->forced_tokens[i] >= query->vocab)
            return TD_BAD_TOKEN;
    return query->restrictions ? check_restrictions(query) : TD_OK;
}

/* Place the buffers of all rows in the block, which is replaced if it is too small. */
static td_status reserve_candidates(const td_candidates *query,
                                    CandidateWorkspace *workspace)
{
    const int64_t rows = rows_of(query), group = query->group;
    workspace->count = min_i64(query->count, query->vocab);
    /* A vector of padding precedes the values and the tokens of a row. */
    workspace->stride = LANES + round_up_to_lanes(workspace->count);
    const size_t per_row = sizeof(CandidateRow) +
                           (size_t)workspace->stride * (sizeof(Token) + sizeof(float));
    size_t bytes;
    if (__builtin_mul_overflow((size_t)rows, per_row, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)group * sizeof(int64_t), &bytes) ||
        __builtin_add_overflow(bytes, (size_t)num_repeated(query) * sizeof(float),
                               &bytes))
        return TD_OUT_OF_MEMORY;
    if (!workspace->block || bytes > workspace->capacity) {
        void *block = allocate_lines((double)bytes);
        if (!block)
            return TD_OUT_OF_MEMORY;
        free(workspace->block);
        workspace->block = block;
        workspace->capacity = bytes;
    }
    workspace->num_taken = workspace->block;
    workspace->rows = (CandidateRow *)(workspace->num_taken + group);
    Token *tokens = (Token *)(workspace->rows + rows);
    float *values = (float *)(tokens + rows * workspace->stride);
    workspace->repeated_logits = values + rows * workspace->stride;
    workspace->tokens = tokens + LANES; /* after the padding of the first row */
    workspace->values = values + LANES;
    return TD_OK;
}

TD_INTERNAL td_status begin_candidates(const td_candidates *query,
                                       CandidateWorkspace *workspace)
{
    td_status status = check_query(query);
    if (status == TD_OK)
        status = reserve_candidates(query, workspace);
    if (status == TD_OK)
        reset_candidates(query, workspace);
    return status;
}

TD_INTERNAL void reset_candidates(const td_candidates *query,
                                  CandidateWorkspace *workspace)
{
    for (int64_t row = 0; row < rows_of(query); row++) {
        TopK top = top_of(workspace, row);
        clear_top_k(&top);
        workspace->rows[row] = (CandidateRow){{-INFINITY, 0.0f}, -INFINITY};
    }
    for (int64_t i = 0; i < num_repeated(query); i++)
        workspace->repeated_logits[i] = -INFINITY; /* a shortlist may lack the token */
}

TD_INTERNAL void add_logits(const td_candidates *query, CandidateWorkspace *workspace,
                            const float *logits, int64_t stride, int64_t first,
                            int64_t count)
{
    for (int64_t row = 0; row < rows_of(query); row++)
        for (int64_t i = 0; i < count; i += SOFTMAX_BLOCK) {
            const LogitBlock block = {logits + row * stride + i,
                                      min_i64(count - i, SOFTMAX_BLOCK), first + i,
                                      NULL};
            add_block(query, workspace, row, &block);
        }
}

TD_INTERNAL void add_row_logits(const td_candidates *query,
                                CandidateWorkspace *workspace, int64_t row,
                                const float *logits, const int32_t *tokens,
                                int64_t count)
{
    for (int64_t i = 0; i < count; i += SOFTMAX_BLOCK) {
        const LogitBlock block = {logits + i, min_i64(count - i, SOFTMAX_BLOCK), i,
                                  tokens ? tokens + i : NULL};
        add_block(query, workspace, row, &block);
    }
}

TD_INTERNAL void finish_candidates(const td_candidates *query,
                                   CandidateWorkspace *workspace)
{
    for (int64_t row = 0; row < rows_of(query); row++)
        normalize(query, workspace, row);
    for (int64_t i = 0; i < query->sentences; i++)
        merge(query, workspace, i);
}

TD_INTERNAL void free_candidates(CandidateWorkspace *workspace)
{
    free(workspace->block);
    *workspace = (CandidateWorkspace){0};
}

TD_INTERNAL td_status find_candidates(const td_candidates *query, const float *logits)
{
    if (!query || is_missing(logits, query->sentences))
        return TD_BAD_ARGUMENT;
    CandidateWorkspace workspace = {0};
    const td_status status = begin_candidates(query, &workspace);
    if (status == TD_OK) {
        add_logits(query, &workspace, logits, query->vocab, 0, query->vocab);
        finish_candidates(query, &workspace);
    }
    free_candidates(&workspace);
    return status;
}

/* ---- Logits that stay in registers ------------------------------------------- */

/* The first logits of a row are searched as above. From then on, a product keeps its
 * logits in registers: it adds their exponentials to `sums`. It stores and inserts
 * logits only if one exceeds the threshold, which few do. The sums are relative to the
 * maximum of the first logits; finish_fused() finds sums that have overflowed because a
 * later logit was much larger. */

/* Threshold of a row: the smallest of its largest logits, to base 2, less the rounding
 * error. */
static float fused_threshold(const TopK *top)
{
    const float smallest = smallest_of(top) * LOG2_E;
    return smallest - FUSED_ERROR * (1 + fabsf(smallest));
}

TD_INTERNAL void begin_fused(const td_candidates *query,
                             const CandidateWorkspace *workspace, FusedSoftmax *fused)
{
    for (int64_t i = 0; i < rows_of(query); i++) {
        const TopK top = top_of(workspace, i);
        fused[i] =
            (FusedSoftmax){vec_set1(0.0f), workspace->rows[i].softmax.max * LOG2_E,
                           fused_threshold(&top)};
    }
}

TD_INTERNAL void insert_fused(const td_candidates *query, CandidateWorkspace *workspace,
                              FusedSoftmax *fused, int64_t row, vec first, vec second,
                              int64_t token)
{
    float values[2 * LANES];
    vec_store(values, first);
    vec_store(values + LANES, second);
    TopK top = top_of(workspace, row);
    const LogitBlock block = {values, 2 * LANES, token, NULL};
    const Excluded excluded = excluded_after(query, row);
    insert_lanes(&top, &block, 0, -INFINITY, &excluded);
    insert_lanes(&top, &block, LANES, -INFINITY, &excluded);
    fused[row].threshold = fused_threshold(&top);
}

TD_INTERNAL int finish_fused(const td_candidates *query, CandidateWorkspace *workspace,
                             const FusedSoftmax *fused)
{
    int are_finite = 1;
    for (int64_t row = 0; row < rows_of(query); row++) {
        OnlineSoftmax *softmax = &workspace->rows[row].softmax;
        softmax->sum += vec_reduce_add(fused[row].sums);
        are_finite &= isfinite(softmax->sum) && softmax->max > -INFINITY;
    }
    return are_finite;
}
