"""IBM model 1 against a hand-computed example and the sum over all alignments."""

import threading
from collections.abc import Iterable
from itertools import product
from math import log, prod

import numpy as np
import pytest

from transduce.native import library
from transduce.text import alignment
from transduce.text.alignment import (
    ITERATIONS,
    NULL,
    EncodedPairs,
    IdPair,
    TranslationTable,
    ibm_model_1,
    likeliest_targets,
    symmetrized,
)

PAIRS = [([0, 1], [0, 1]), ([0], [0])]


def model_1(pairs: Iterable[IdPair], iterations: int = ITERATIONS) -> TranslationTable:
    return ibm_model_1(EncodedPairs.of(pairs), iterations)


def entries(table: TranslationTable) -> dict[tuple[int, int], float]:
    keys = zip(table.source.tolist(), table.target.tolist(), strict=True)
    return dict(zip(keys, table.probability.tolist(), strict=True))


def random_pairs(number: int = 60) -> list[tuple[list[int], list[int]]]:
    random = np.random.default_rng(4)
    return [
        (
            random.integers(9, size=random.integers(1, 6)).tolist(),
            random.integers(12, size=random.integers(1, 6)).tolist(),
        )
        for _ in range(number)
    ]


def test_the_first_iteration_is_as_computed_by_hand() -> None:
    table = model_1(PAIRS, iterations=1)
    # Expected counts: of the first pair a third each, of the second a half each.
    expected = {
        (NULL, 0): 5 / 7,
        (NULL, 1): 2 / 7,
        (0, 0): 5 / 7,
        (0, 1): 2 / 7,
        (1, 0): 1 / 2,
        (1, 1): 1 / 2,
    }
    assert entries(table) == pytest.approx(expected)


def brute_force(
    pairs: list[tuple[list[int], list[int]]], iterations: int
) -> dict[tuple[int, int], float]:
    """Probabilities from the sum over all alignments of each pair."""
    num_targets = max(i for _, target in pairs for i in target) + 1
    probability: dict[tuple[int, int], float] = {}
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = {}
        for source, target in pairs:
            ways = list(product([NULL, *source], repeat=len(target)))
            weights = [
                prod(
                    probability.get(link, 1 / num_targets)
                    for link in zip(way, target, strict=True)
                )
                for way in ways
            ]
            total = sum(weights)
            for way, weight in zip(ways, weights, strict=True):
                for link in zip(way, target, strict=True):
                    counts[link] = counts.get(link, 0) + weight / total
        totals: dict[int, float] = {}
        for (word, _), count in counts.items():
            totals[word] = totals.get(word, 0) + count
        probability = {link: n / totals[link[0]] for link, n in counts.items()}
    return probability


def test_three_iterations_equal_the_sum_over_all_alignments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = random_pairs(12)
    expected = brute_force(pairs, 3)
    assert entries(model_1(pairs, 3)) == pytest.approx(expected)
    monkeypatch.setattr(alignment, "CHUNK_LINKS", 7)
    assert entries(model_1(pairs, 3)) == pytest.approx(expected)


def log_likelihood(pairs: list[tuple[list[int], list[int]]], iterations: int) -> float:
    """Log-probability of the targets, without that of their lengths."""
    probability = entries(model_1(pairs, iterations))
    return sum(
        log(
            sum(probability[link, word] for link in [NULL, *source]) / (1 + len(source))
        )
        for source, target in pairs
        for word in target
    )


def test_the_likelihood_never_falls() -> None:
    pairs = random_pairs()
    found = [log_likelihood(pairs, number) for number in range(1, 21)]
    assert (np.diff(found) > 0).all()


def test_the_probabilities_of_each_source_word_sum_to_one() -> None:
    table = model_1(random_pairs())
    for word in [NULL, *range(9)]:
        assert table.probability[table.source == word].sum() == pytest.approx(1)


def test_words_that_occur_together_are_translations() -> None:
    random = np.random.default_rng(2)
    pairs = []
    for _ in range(300):
        source = random.integers(30, size=6).tolist()
        pairs.append((source, random.permutation([29 - i for i in source]).tolist()))
    assert model_1(pairs).best() == {i: 29 - i for i in range(30)}


def test_both_directions_keep_a_rare_word_from_taking_frequent_ones() -> None:
    # Word 9 occurs once, beside frequent words that all have a translation.
    pairs = [([0, 1], [0, 1]), ([0], [0]), ([1], [1])] * 5 + [([0, 1, 9], [0, 1])]
    forward = model_1(pairs)
    backward = model_1([(target, source) for source, target in pairs])
    assert 9 in forward.best(min_probability=0.2)
    assert symmetrized(forward, backward).best(min_probability=0.2) == {0: 0, 1: 1}


def test_products_of_both_directions_are_those_of_their_entries() -> None:
    pairs = random_pairs(20)
    forward = entries(model_1(pairs))
    backward = entries(model_1([(target, source) for source, target in pairs]))
    expected = {
        (source, target): value * backward[target, source]
        for (source, target), value in forward.items()
        if source != NULL
    }
    both = symmetrized(model_1(pairs), model_1([(t, s) for s, t in pairs]))
    assert entries(both) == pytest.approx(expected)


def test_pairs_with_an_empty_side_and_empty_corpora_are_allowed() -> None:
    assert entries(model_1([*PAIRS, ([], [3]), ([7], [])])) == entries(model_1(PAIRS))
    assert model_1([]).best() == {}
    assert symmetrized(model_1([]), model_1([])).best() == {}


def test_encoded_pairs_are_read_back_in_both_directions() -> None:
    pairs = [([0, 1], [2]), ([], [3, 4]), ([5], [])]
    encoded = EncodedPairs.of(pairs)
    assert list(encoded) == pairs
    assert list(encoded.swapped()) == [(target, source) for source, target in pairs]
    assert len(EncodedPairs.of([])) == 0


def test_signals_act_while_likeliest_targets_are_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native, threads = library(), list[threading.Thread]()
    if native is None:
        pytest.skip("there is no native library")

    class Watched:
        @staticmethod
        def td_learn_lexicon(*arguments: object) -> int:
            threads.append(threading.current_thread())
            return native.td_learn_lexicon(*arguments)

    monkeypatch.setattr("transduce.text.alignment.library", Watched)
    likeliest_targets(EncodedPairs.of([([1], [2])]), 1)
    assert threading.main_thread() not in threads
    assert threads


@pytest.mark.usefixtures("is_native")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_likeliest_targets_are_those_of_the_whole_table(num_threads: int) -> None:
    pairs = random_pairs(200)
    whole = entries(model_1(pairs))
    found = entries(
        likeliest_targets(EncodedPairs.of(pairs), 4, num_threads=num_threads)
    )
    for source in {source for source, _ in whole}:
        best = sorted((p for (s, _), p in whole.items() if s == source), reverse=True)
        kept = {key: p for key, p in found.items() if key[0] == source}
        assert sorted(kept.values(), reverse=True) == pytest.approx(best[:4], abs=1e-4)
        for key, probability in kept.items():
            assert probability == pytest.approx(whole[key], abs=1e-4)
