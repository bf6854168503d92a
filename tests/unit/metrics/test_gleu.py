"""GLEU of a sentence equals the definition of Wu et al. (2016), counted by hand."""

import numpy as np
import pytest

from transduce.metrics.scores import mean_gleu, sentence_gleu


def by_definition(hypothesis: list[int], reference: list[int]) -> float:
    """Smaller of precision and recall, by striking out matches in a list."""

    def grams(tokens: list[int]) -> list[tuple[int, ...]]:
        return [
            tuple(tokens[first : first + n])
            for n in (1, 2, 3, 4)
            for first in range(len(tokens) - n + 1)
        ]

    found, wanted, matches = grams(hypothesis), grams(reference), 0
    left = list(wanted)
    for gram in found:
        if gram in left:
            left.remove(gram)
            matches += 1
    if not found or not wanted:
        return 0.0
    return min(matches / len(found), matches / len(wanted))


def test_gleu_equals_its_definition() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        one, other = (random.integers(4, size=random.integers(9)) for _ in range(2))
        expected = by_definition(one.tolist(), other.tolist())
        assert sentence_gleu(one.tolist(), other.tolist()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "score"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b", "a b c d", 3 / 10),
        ("a b c d", "a b", 3 / 10),
        ("a a a", "a b", 1 / 6),
        ("c d a b", "a b c d", 6 / 10),
        ("x", "a", 0.0),
        ("", "a", 0.0),
        ("", "", 0.0),
    ],
)
def test_gleu_of_short_sentences(hypothesis: str, reference: str, score: float) -> None:
    found = sentence_gleu(hypothesis.split(), reference.split())
    assert found == pytest.approx(score)


def test_the_mean_is_in_percent() -> None:
    assert mean_gleu(["a b", "x"], ["a b", "y"]) == 50.0
    assert mean_gleu([], []) == 0.0
