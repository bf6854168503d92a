"""Each hypothesis of a constrained search has its own forbidden symbols."""

import numpy as np
from jaxtyping import Int64

from transduce.decoding.parser import TreeDecoder
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.linearization import STYLES, SymbolVocabulary, partial_tree

VOCABULARY = SymbolVocabulary("xx", ("(NP", "(S", ")NP", ")S", "XX"))
NP, S, END_NP, END_S, XX = 4, 5, 6, 7, 8


class Uniform:
    """Model that gives all symbols the same probability."""

    def step(self, last_ids: Int64[np.ndarray, "sentences group"]) -> np.ndarray:
        return np.zeros((*last_ids.shape, VOCABULARY.vocab_size))

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None: ...

    def join(self, other: "Uniform") -> None: ...


def watcher(*num_words: int) -> TreeDecoder:
    trees = [partial_tree(n, 20, STYLES["xx"]) for n in num_words]
    return TreeDecoder(Uniform(), trees, VOCABULARY.symbols, EOS)


def allowed(watched: TreeDecoder) -> list[list[list[int]]]:
    possible = ~watched.excluded()
    return [[row.nonzero()[0].tolist() for row in group] for group in possible]


def read(watched: TreeDecoder, *groups: list[int]) -> None:
    watched.step(np.array(groups))


def test_a_tree_can_be_opened_filled_and_closed() -> None:
    watched = watcher(1)
    read(watched, [BOS])
    assert allowed(watched) == [[[NP, S, XX]]]
    read(watched, [S])
    assert allowed(watched) == [[[NP, S, XX]]]
    read(watched, [XX])
    assert allowed(watched) == [[[END_S]]]
    read(watched, [END_S])
    assert allowed(watched) == [[[EOS]]]


def test_reordered_hypotheses_keep_their_partial_trees() -> None:
    watched = watcher(2, 2)
    read(watched, [BOS], [BOS])
    watched.reorder(np.array([[0, 0], [1, 1]]))
    read(watched, [S, NP], [NP, S])
    watched.reorder(np.array([[1, 0], [2, 3]]))
    read(watched, [XX, XX], [XX, XX])
    watched.reorder(np.array([[1, 0], [2, 3]]))
    read(watched, [XX, XX], [XX, XX])
    assert allowed(watched) == [[[END_S], [END_NP]], [[END_NP], [END_S]]]
    watched.reorder(np.array([[3, 2]]))
    assert allowed(watched) == [[[END_S], [END_NP]]]


def test_joining_sentences_keep_their_partial_trees() -> None:
    one, other = watcher(1), watcher(2)
    read(one, [BOS])
    read(other, [BOS])
    read(one, [S])
    read(one, [XX])
    one.join(other)
    read(one, [END_S], [NP])
    assert allowed(one) == [[[EOS]], [[NP, S, XX]]]


def test_an_invalid_tree_allows_no_further_symbol() -> None:
    watched = watcher(1)
    read(watched, [BOS])
    watched.reorder(np.array([[0, 0]]))
    read(watched, [END_S, S])
    assert allowed(watched) == [[[], [NP, S, XX]]]
    read(watched, [XX, XX])
    assert allowed(watched) == [[[], [END_S]]]
