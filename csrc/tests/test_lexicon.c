/* IBM model 1 against expectation maximisation over a dense table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

enum { SENTENCES = 700, SOURCES = 11, TARGETS = 13, MAX_WORDS = 6, ITERATIONS = 4 };

typedef struct {
    td_sentence_pairs pairs;
    int32_t sources[SENTENCES * MAX_WORDS], targets[SENTENCES * MAX_WORDS];
    int64_t source_ends[SENTENCES], target_ends[SENTENCES];
} Corpus;

static int64_t add_words(uint32_t *seed, int32_t *to, int64_t end, int64_t vocab)
{
    const int64_t count = random_int(seed, 0, MAX_WORDS);
    for (int64_t i = 0; i < count; i++)
        to[end + i] = (int32_t)random_int(seed, 0, vocab - 1);
    return end + count;
}

/* Random sentences, some of them empty. The last source id does not occur. */
static Corpus *make_corpus(void)
{
    Corpus *corpus = calloc(1, sizeof *corpus);
    uint32_t seed = 3;
    int64_t source = 0, target = 0;
    for (int64_t i = 0; i < SENTENCES; i++) {
        source = add_words(&seed, corpus->sources, source, SOURCES - 1);
        target = add_words(&seed, corpus->targets, target, TARGETS);
        corpus->source_ends[i] = source;
        corpus->target_ends[i] = target;
    }
    corpus->pairs = (td_sentence_pairs){
        .pairs = SENTENCES,
        .source_vocab = SOURCES,
        .target_vocab = TARGETS,
        .sources = corpus->sources,
        .targets = corpus->targets,
        .source_ends = corpus->source_ends,
        .target_ends = corpus->target_ends,
    };
    return corpus;
}

typedef double Table[SOURCES + 1][TARGETS];

/* One iteration for all words of one sentence; the last row is of no source. */
static void count_sentence(const Corpus *corpus, int64_t i, const Table before,
                           Table counts)
{
    const int64_t first = i ? corpus->source_ends[i - 1] : 0;
    for (int64_t t = i ? corpus->target_ends[i - 1] : 0; t < corpus->target_ends[i];
         t++) {
        const int32_t target = corpus->targets[t];
        double sum = before[SOURCES][target];
        for (int64_t s = first; s < corpus->source_ends[i]; s++)
            sum += before[corpus->sources[s]][target];
        counts[SOURCES][target] += before[SOURCES][target] / sum;
        for (int64_t s = first; s < corpus->source_ends[i]; s++)
            counts[corpus->sources[s]][target] +=
                before[corpus->sources[s]][target] / sum;
    }
}

static void learn_reference(const Corpus *corpus, Table table)
{
    for (int64_t s = 0; s <= SOURCES; s++)
        for (int64_t t = 0; t < TARGETS; t++)
            table[s][t] = 1.0;
    for (int64_t iteration = 0; iteration < ITERATIONS; iteration++) {
        Table counts = {{0}};
        for (int64_t i = 0; i < SENTENCES; i++)
            count_sentence(corpus, i, (const double (*)[TARGETS])table, counts);
        for (int64_t s = 0; s <= SOURCES; s++) {
            double total = 0.0;
            for (int64_t t = 0; t < TARGETS; t++)
                total += counts[s][t];
            for (int64_t t = 0; t < TARGETS; t++)
                table[s][t] = total > 0.0 ? counts[s][t] / total : 0.0;
        }
    }
}

static void test_probabilities(void)
{
    Corpus *corpus = make_corpus();
    Table expected;
    learn_reference(corpus, expected);
    int32_t tokens[SOURCES + 1][TARGETS], same[SOURCES + 1][TARGETS];
    float probs[SOURCES + 1][TARGETS], again[SOURCES + 1][TARGETS];
    CHECK_STATUS(
        td_learn_lexicon(&corpus->pairs, ITERATIONS, TARGETS, 1, tokens[0], probs[0]),
        TD_OK);
    for (int64_t s = 0; s <= SOURCES; s++)
        for (int64_t i = 0; i < TARGETS; i++) {
            if (s == SOURCES - 1) {
                CHECK_INT(tokens[s][i], -1);
                continue;
            }
            CHECK(tokens[s][i] >= 0);
            CHECK_NEAR(probs[s][i], expected[s][tokens[s][i]], 1e-5);
            CHECK(i == 0 || probs[s][i] <= probs[s][i - 1]);
        }
    CHECK_STATUS(
        td_learn_lexicon(&corpus->pairs, ITERATIONS, TARGETS, 3, same[0], again[0]),
        TD_OK);
    CHECK(!memcmp(tokens, same, sizeof tokens));
    CHECK(are_same_bits(probs[0], again[0], (SOURCES + 1) * TARGETS));
    int32_t best[SOURCES + 1][2];
    float best_probs[SOURCES + 1][2];
    CHECK_STATUS(
        td_learn_lexicon(&corpus->pairs, ITERATIONS, 2, 2, best[0], best_probs[0]),
        TD_OK);
    for (int64_t s = 0; s <= SOURCES; s++)
        CHECK(!memcmp(best[s], tokens[s], sizeof best[s]));
    free(corpus);
}

static void test_bad_arguments(void)
{
    Corpus *corpus = make_corpus();
    int32_t tokens[(SOURCES + 1) * TARGETS];
    float probs[(SOURCES + 1) * TARGETS];
    td_sentence_pairs pairs = corpus->pairs;
#define REFUSES(status)                                                                \
    CHECK_STATUS(td_learn_lexicon(&pairs, 1, 2, 1, tokens, probs), status);            \
    pairs = corpus->pairs
    CHECK_STATUS(td_learn_lexicon(NULL, 1, 2, 1, tokens, probs), TD_BAD_ARGUMENT);
    CHECK_STATUS(td_learn_lexicon(&pairs, 0, 2, 1, tokens, probs), TD_BAD_ARGUMENT);
    CHECK_STATUS(td_learn_lexicon(&pairs, 1, 0, 1, tokens, probs), TD_BAD_ARGUMENT);
    CHECK_STATUS(td_learn_lexicon(&pairs, 1, TARGETS + 1, 1, tokens, probs),
                 TD_BAD_ARGUMENT);
    CHECK_STATUS(td_learn_lexicon(&pairs, 1, 2, 0, tokens, probs), TD_BAD_ARGUMENT);
    CHECK_STATUS(td_learn_lexicon(&pairs, 1, 2, 1, NULL, probs), TD_BAD_ARGUMENT);
    pairs.target_vocab = TARGETS - 1;
    REFUSES(TD_BAD_TOKEN);
    pairs.source_vocab = 3;
    REFUSES(TD_BAD_TOKEN);
    pairs.sources = NULL;
    REFUSES(TD_BAD_ARGUMENT);
    pairs.target_ends = NULL;
    REFUSES(TD_BAD_ARGUMENT);
    pairs.pairs = -1;
    REFUSES(TD_BAD_ARGUMENT);
    corpus->source_ends[4] = corpus->source_ends[SENTENCES - 1] + 1;
    REFUSES(TD_BAD_ARGUMENT);
    pairs.pairs = 0;
    REFUSES(TD_OK);
    CHECK_INT(tokens[0], -1);
    free(corpus);
}

int main(void)
{
    test_probabilities();
    test_bad_arguments();
    return check_result();
}
