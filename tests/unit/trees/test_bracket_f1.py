"""EVALB's counts, worked out by hand."""

import time
from itertools import product
from random import Random
from string import ascii_lowercase

import pytest

from transduce.errors import DataError
from transduce.trees.bracket_f1 import (
    SentenceCounts,
    bracket_f1,
    compare,
    percentage,
    with_tags_of,
)
from transduce.trees.trees import Constituent, Leaf, Tree, parse_tree, read_parses

GOLD = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (PRP me))) (. .)))"


def tree(line: str) -> Tree:
    return next(read_parses([line], "tree"))


def counts(gold: str, predicted: str) -> SentenceCounts:
    return compare(tree(gold), tree(predicted))


def brackets(gold: str, predicted: str) -> tuple[int, int, int]:
    """Numbers of matched, gold and predicted brackets."""
    found = counts(gold, predicted)
    assert found.status == "valid"
    return found.matched, found.gold, found.predicted


def test_a_tree_matches_itself() -> None:
    assert counts(GOLD, GOLD) == SentenceCounts(
        length=5, matched=4, gold=4, predicted=4, words=4, correct_tags=4
    )


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        # The same label or span alone is no match.
        ("(S (NP (A a) (A b)) (A c))", "(S (VP (A a) (A b)) (A c))", (1, 2, 2)),
        ("(S (NP (A a) (A b)) (A c))", "(S (A a) (NP (A b) (A c)))", (1, 2, 2)),
        # A repeated bracket counts each time, and matches as often as both trees have
        # it.
        ("(TOP (NP (NP (A a))))", "(TOP (NP (A a)))", (1, 2, 1)),
        ("(TOP (NP (A a)))", "(TOP (NP (NP (NP (A a)))))", (1, 1, 3)),
        ("(TOP (NP (NP (A a))))", "(TOP (NP (NP (A a))))", (2, 2, 2)),
        # The order of brackets around the same words does not matter.
        ("(TOP (S (VP (A a))))", "(TOP (VP (S (A a))))", (2, 2, 2)),
        # ADVP and PRT are the same.
        ("(TOP (ADVP (A a)))", "(TOP (PRT (A a)))", (1, 1, 1)),
        ("(TOP (ADVP (PRT (A a))))", "(TOP (PRT (PRT (A a))))", (2, 2, 2)),
        ("(TOP (ADVP (A a)))", "(TOP (PRT-X (A a)))", (1, 1, 1)),
        ("(TOP (PRT|ADVP (A a)))", "(TOP (PRT (A a)))", (0, 1, 1)),
        # Functions are cut off, at the first sign.
        ("(TOP (NP-SBJ-1=2 (A a)))", "(TOP (NP=3 (A a)))", (1, 1, 1)),
        ("(TOP (-X (A a)))", "(TOP (=Y (A a)))", (1, 1, 1)),
        # TOP and labels of punctuation are not counted; other roots are.
        ("(TOP (S (A a)))", "(S (A a))", (1, 1, 1)),
        ("(TOP (S (A a)))", "(TOP-1 (TOP (, (: (S (A a))))))", (1, 1, 1)),
        ("(ROOT (S (A a)))", "(ROOT (S (A a)))", (2, 2, 2)),
        ("( (S (A a)))", "(S1 (S (A a)))", (1, 2, 2)),
        ("(A a)", "(TOP (A a))", (0, 0, 0)),
        # Brackets around punctuation and traces alone vanish, and spans close up.
        ("(TOP (S (X (, ,)) (A a)))", "(TOP (S (, ,) (A a)))", (1, 1, 1)),
        ("(TOP (S (NP (-NONE- *)) (A a)))", "(TOP (S (A a)))", (1, 1, 1)),
        ("(S (NP (A a) (, ,)) (A b))", "(S (NP (A a)) (, ,) (A b))", (2, 2, 2)),
        ("(S (`` ``) (NP (A a)) ('' '') (. .))", "(S (NP (: -) (A a)))", (2, 2, 2)),
        # Only these tags are left out.
        ("(S (X (-LRB- x)) (A a))", "(S (X (HYPH x)) (A a))", (2, 2, 2)),
    ],
)
def test_brackets_are_counted_as_evalb_does(
    gold: str, predicted: str, expected: tuple[int, int, int]
) -> None:
    assert brackets(gold, predicted) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "crossing"),
    [
        ("(TOP (S (X (A a) (A b)) (A c)))", "(TOP (S (A a) (X (A b) (A c))))", 1),
        ("(TOP (S (A a) (X (A b) (A c))))", "(TOP (S (X (A a) (A b)) (A c)))", 1),
        # A bracket that crosses several counts once, and so does each that crosses it.
        (
            "(TOP (S (A a) (X (A b) (X (A c) (A d)))))",
            "(TOP (S (X (A a) (A b) (A c)) (A d)))",
            1,
        ),
        (
            "(TOP (S (X (A a) (A b)) (A c)))",
            "(TOP (S (A a) (X (Y (A b) (A c)))))",
            2,
        ),
        # Nested and adjacent brackets do not cross.
        ("(TOP (S (X (A a) (A b)) (A c)))", "(TOP (S (X (A a)) (X (A b)) (A c)))", 0),
        ("(TOP (S (X (A a) (A b)) (A c)))", "(TOP (S (A a) (A b) (X (A c))))", 0),
        # TOP crosses nothing.
        ("(TOP (TOP (A a) (A b)) (A c))", "(TOP (A a) (X (A b) (A c)))", 0),
    ],
)
def test_predicted_brackets_that_cross_gold_ones_are_counted(
    gold: str, predicted: str, crossing: int
) -> None:
    assert counts(gold, predicted).crossing == crossing


def test_crossing_brackets_are_those_of_the_definition() -> None:
    random = Random(1)
    trees = [_random_tree(random, 12) for _ in range(60)]
    for gold, predicted in product(trees, repeat=2):
        spans = {(one.start, one.end) for one in gold.constituents[1:]}
        expected = sum(
            any(
                start < one.start < end < one.end or one.start < start < one.end < end
                for start, end in spans
            )
            for one in predicted.constituents[1:]
        )
        assert compare(gold, predicted).crossing == expected


def _random_tree(random: Random, num_words: int) -> Tree:
    """Return a tree over words of one letter, with brackets at random places."""
    constituents = [Constituent("TOP", 0, num_words)]

    def divide(start: int, end: int) -> None:
        # Some are unary chains.
        chain = random.choice((1, 1, 1, 2, 3))
        constituents.extend([Constituent("X", start, end)] * chain)
        if end - start > 1:
            middle = random.randrange(start + 1, end)
            for inner in ((start, middle), (middle, end)):
                if random.random() < 0.8:
                    divide(*inner)

    divide(0, num_words)
    leaves = tuple(Leaf("A", letter) for letter in ascii_lowercase[:num_words])
    return Tree(leaves=leaves, constituents=tuple(constituents))


MANY = 40_000


@pytest.mark.parametrize(
    "spans",
    [
        [(i, i + 1) for i in range(MANY)],
        [(i, MANY) for i in range(MANY)],
        [(0, MANY - i) for i in range(MANY)],
        [(0, MANY)] * MANY,
    ],
    ids=["flat", "right-branching", "left-branching", "unary"],
)
def test_a_tree_of_very_many_brackets_is_compared_soon(
    spans: list[tuple[int, int]],
) -> None:
    large = Tree(
        leaves=(Leaf("N", "a"),) * MANY,
        constituents=tuple([Constituent("NP", *span) for span in spans]),
    )
    started = time.process_time()
    found = compare(large, large)
    assert time.process_time() - started < 5
    assert (found.matched, found.crossing) == (MANY, 0)


@pytest.mark.parametrize(
    ("gold", "predicted", "correct"),
    [
        ("(TOP (S (A a) (B b)))", "(TOP (S (A a) (X b)))", 1),
        ("(TOP (S (NN-X a) (B b)))", "(TOP (S (NN a) (B b)))", 1),
        ("(TOP (S (ADVP a) (B b)))", "(TOP (S (PRT a) (B b)))", 2),
        ("(TOP (S (A a) (. .)))", "(TOP (S (A a) (, .)))", 1),
    ],
)
def test_tags_are_compared_whole_where_words_are(
    gold: str, predicted: str, correct: int
) -> None:
    assert counts(gold, predicted).correct_tags == correct


@pytest.mark.parametrize(
    ("gold", "predicted", "status", "fault"),
    [
        ("(S (A a) (A b))", "(S (A a))", "error", "1 word for 2"),
        ("(S (A a) (. .))", "(S (A a) (A .))", "error", "2 words for 1"),
        ("(S (A a) (A b))", "(S (A a) (A B))", "error", "`B` for `b`"),
        ("(S (. .))", "(S (A a))", "error", "`a` for `.`"),
        ("", "(S (A a))", "error", "1 word for 0"),
        ("(S (A a))", "", "skip", "no words"),
        ("(S (A a))", "(())", "skip", "no words"),
        ("(S (A a))", "(S (. .))", "skip", "no words"),
        ("(S (A a))", "(TOP a)", "skip", "no words"),
        # Nothing of these is compared, whatever the tree.
        ("(S (. .))", "(S (. .))", "skip", ""),
        ("(S (. .))", "", "skip", ""),
        ("", "", "skip", ""),
    ],
)
def test_a_sentence_with_other_words_is_dropped(
    gold: str, predicted: str, status: str, fault: str
) -> None:
    found = counts(gold, predicted)
    assert found == SentenceCounts(length=found.length, status=status, fault=fault)  # type: ignore[arg-type] # a status


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ("(S (A a) (. .))", "(S (A a) (. !))"),
        ("(S (A a) (. .))", "(S (A a))"),
        ("(S (A a) (, ,) (A b))", "(S (: x) (A a) (A b) ('' y))"),
        ("(S (A a) (-NONE- *))", "(S (A a))"),
    ],
)
def test_ignored_words_may_differ(gold: str, predicted: str) -> None:
    assert counts(gold, predicted).status == "valid"


def test_the_length_counts_punctuation_but_no_traces() -> None:
    assert counts("(S (A a) (-NONE- *) (, ,) (TOP b))", "").length == 3


CORPUS = [
    (GOLD, GOLD),
    (GOLD, GOLD.replace("(NP (PRP me))", "(PRP me)")),
    (GOLD, "(TOP (S (NN the) (VP (NN dog) (VBZ sees)) (NP (PRP me)) (. .)))"),
    (GOLD, GOLD.replace("me", "you")),
    (GOLD, "(())"),
]


def test_figures_are_of_the_whole_corpus() -> None:
    gold, predicted = zip(
        *[(tree(one), tree(other)) for one, other in CORPUS], strict=True
    )
    figures = bracket_f1(gold, predicted).all
    assert (figures.sentences, figures.errors, figures.skipped) == (5, 1, 1)
    assert (figures.matched, figures.gold, figures.predicted) == (4 + 3 + 2, 12, 10)
    assert figures.recall == pytest.approx(100 * 9 / 12)
    assert figures.precision == pytest.approx(100 * 9 / 10)
    assert figures.f1 == pytest.approx(100 * 18 / 22)
    assert figures.complete_match == pytest.approx(100 / 3)
    assert (figures.crossing, figures.average_crossing) == (1, pytest.approx(1 / 3))
    assert figures.no_crossing == pytest.approx(200 / 3)
    assert figures.few_crossing == 100
    assert figures.tagging_accuracy == pytest.approx(100 * 11 / 12)


def test_few_crossing_brackets_are_at_most_two() -> None:
    gold = tree("(TOP (S (X (A a) (A b)) (A c)))")
    crossing = [
        tree(f"(TOP (S (A a) {'(Y ' * n}(A b) (A c){')' * n}))") for n in (2, 3)
    ]
    figures = bracket_f1([gold, gold], crossing).all
    assert (figures.crossing, figures.few_crossing, figures.no_crossing) == (5, 50, 0)


def test_sentences_of_at_most_forty_words_have_figures_of_their_own() -> None:
    short = tree("(TOP (S" + " (A a)" * 39 + " (-NONE- *) (. .)))")
    long = tree("(TOP (S (NP" + " (A a)" * 40 + ") (. .)))")
    flat = tree("(TOP (S" + " (A a)" * 40 + " (. .)))")
    score = bracket_f1([short, long, long], [short, flat, tree("")])
    assert (score.all.sentences, score.all.skipped, score.all.gold) == (3, 1, 3)
    assert score.all.recall == pytest.approx(200 / 3)
    assert (score.short.sentences, score.short.skipped) == (1, 0)
    assert (score.short.recall, score.short.words) == (100, 39)


@pytest.mark.parametrize("predicted", ["", "(TOP (X (A a)))", "(TOP (A a))"])
def test_figures_of_an_empty_corpus_are_zero(predicted: str) -> None:
    figures = bracket_f1([tree("(TOP (S (A a)))")], [tree(predicted)]).all
    assert figures.f1 == figures.recall == figures.precision == 0
    assert percentage(0, 0) == 0


@pytest.mark.parametrize(("num_gold", "num_predicted"), [(2, 1), (1, 2), (0, 0)])
def test_each_gold_tree_needs_a_predicted_one(
    num_gold: int, num_predicted: int
) -> None:
    message = (
        "^There must be as many predicted trees as gold trees, and at least one, but "
        f"there are {num_predicted} and {num_gold}\\.$"
    )
    with pytest.raises(DataError, match=message):
        bracket_f1([tree(GOLD)] * num_gold, [tree(GOLD)] * num_predicted)


@pytest.mark.parametrize(
    ("gold", "predicted", "tagged"),
    [
        ("(S (A a) (. .))", "(NP (XX a) (XX .))", "(NP (A a) (. .))"),
        ("(S (A a) (-NONE- 0) (. .))", "(NP (XX a) (XX .))", "(NP (A a) (. .))"),
        ("(S (A a) (. .))", "(NP (XX a))", "(NP (XX a))"),
        ("(S (A a))", "(NP (XX b))", "(NP (XX b))"),
        # The predicted tree may have traces as well, the same or others.
        (
            "(S (-NONE- *) (A a) (. .))",
            "(NP (XX *) (XX a) (XX .))",
            "(NP (-NONE- *) (A a) (. .))",
        ),
        (
            "(S (-NONE- *) (A a) (. .))",
            "(NP (X (-NONE- 0)) (XX a) (XX .))",
            "(NP (A a) (. .))",
        ),
    ],
)
def test_gold_tags_replace_predicted_ones_by_word(
    gold: str, predicted: str, tagged: str
) -> None:
    assert with_tags_of(parse_tree(gold), parse_tree(predicted)) == parse_tree(tagged)
