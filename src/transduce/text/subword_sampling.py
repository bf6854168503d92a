"""Sampled segmentations: BPE-dropout, and sampling from a unigram model.

A model that reads a word in several segmentations learns what its pieces have in
common, and copes better with rare and misspelt words. Samplers replace the usual pieces
of encoded sentences, word by word. Their draws depend on the random generators alone;
their caches only save time.
"""

import json
import math
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Integer

from transduce.text.sentence_pieces import (
    SPACE,
    SentencePieceTokenizer,
    UnigramModel,
)
from transduce.text.tokenizer import SubwordTokenizer
from transduce.text.vocabulary import EOS, TAG_IN_TEXT

MAX_CACHED = 200_000
"""Maximum number of entries of a cache: some 100 MB."""
CACHED_LENGTH = 24
"""Maximum length in characters of a cached word; longer ones hardly recur."""
MAX_SYMBOLS = 1_000
"""Maximum length in characters of a word that is sampled, as the time grows with its
square; longer ones keep their usual pieces."""

Ids = tuple[int, ...]
Value = TypeVar("Value")
Segmented = tuple[
    Integer[np.ndarray, " new_ids"], Integer[np.ndarray, " sentences_and_one"]
]
"""Ids of sentences, one after the other, and the bounds between the sentences."""


class Sampler(Protocol):
    """Sampler of segmentations of one side of a corpus."""

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> Segmented:
        """Return the ids and offsets of the sentences with sampled pieces.

        `ids` are the usual pieces of all sentences, one after the other, and `offsets`
        the bounds between the sentences.
        """
        ...


class _Cache(dict[object, Value], Generic[Value]):
    """Cache that is emptied when it is full."""

    def add(self, key: object, value: Value) -> None:
        if len(self) >= MAX_CACHED:
            self.clear()
        self[key] = value


def can_drop_merges(tokenizer: SubwordTokenizer) -> bool:
    """Return whether a tokenizer is one of byte-pair encoding."""
    model = json.loads(tokenizer.json())["model"]
    return model["type"] == "BPE" and bool(model["merges"])


class _Merge(NamedTuple):
    """Merge that is possible in a sequence of symbols."""

    rank: int
    """Position among the learned merges, which are made in this order."""
    place: int
    """Index of the first of the two symbols."""
    piece: int
    """Id of the merged symbol."""

    def made(self, symbols: Ids) -> Ids:
        """Return the symbols after this merge."""
        return (*symbols[: self.place], self.piece, *symbols[self.place + 2 :])


MergeHistory = tuple[Ids, ...]
"""Symbols of a part of a word: its characters, then those after each usual merge."""


class BytePairSampler:
    """BPE-dropout (Provilkov et al., 2020, algorithm 1).

    Before each merge, every possible merge of the word is dropped with the probability
    `rate`, and the first of the others in the learned order is made. A word is finished
    when all are dropped. The rate 0 gives the usual pieces, 1 gives characters.
    """

    def __init__(self, tokenizer: SubwordTokenizer, rate: float) -> None:
        """The tokenizer is one of byte-pair encoding."""
        model = json.loads(tokenizer.json())["model"]
        ids: dict[str, int] = model["vocab"]
        self._decode = tokenizer.decode
        self._rate = rate
        self._ids = ids
        self._pieces = sorted(ids, key=ids.__getitem__)
        self._lengths = np.array([len(piece) for piece in self._pieces])
        self._begins = np.array([piece.startswith(" ") for piece in self._pieces])
        self._ranked_pieces = {
            (ids[left], ids[right]): (rank, ids[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        """Rank and piece of each learned merge, by its two symbols."""
        self._split_word = tokenizer.words.pre_tokenize_str
        self._histories: _Cache[list[MergeHistory]] = _Cache()
        """Merge histories of the parts of a word, by its usual pieces."""
        self._merges: _Cache[list[_Merge]] = _Cache()
        """Possible merges by symbols."""

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> Segmented:
        if self._rate == 0 or not len(ids):
            return ids, offsets
        bounds = _word_bounds(self._begins[ids], offsets)
        num_characters = np.add.reduceat(self._lengths[ids], bounds[:-1])
        num_merges = num_characters - np.diff(bounds)
        # A word keeps its usual pieces if none of their merges is dropped. Only the
        # others are sampled, from their first dropped merge on.
        num_made = self._merges_before_drop(random.random(len(num_merges)))
        changed = np.flatnonzero(num_made < num_merges)
        draw = Random(int(random.integers(2**63)))
        sampled = [
            self._with_drop(ids[bounds[word] : bounds[word + 1]], int(made), draw)
            for word, made in zip(changed, num_made[changed], strict=True)
        ]
        return _with_words(ids, offsets, bounds, changed, sampled)

    def _merges_before_drop(
        self, uniform: Float[np.ndarray, " words"]
    ) -> Float[np.ndarray, " words"]:
        """Return numbers of merges before the first dropped one.

        They follow a geometric distribution, drawn by inverting its distribution
        function.
        """
        if self._rate == 1:
            return np.zeros(len(uniform))
        return np.floor(np.log1p(-uniform) / math.log1p(-self._rate))

    def _with_drop(
        self, ids: Integer[np.ndarray, " pieces"], num_made: int, draw: Random
    ) -> Ids:
        """Sample a word whose first usual merges are made, and the next is dropped."""
        sampled: list[int] = []
        histories = iter(self._merge_histories(ids))
        for history in histories:
            num_merges = len(history) - 1
            if num_made < num_merges:
                sampled += self._merged(history[num_made], draw, num_dropped=1)
                break
            sampled += history[-1]
            num_made -= num_merges
        for history in histories:  # the parts after the dropped merge
            sampled += self._merged(history[0], draw)
        return tuple(sampled)

    def _merged(self, symbols: Ids, draw: Random, num_dropped: int = 0) -> Ids:
        """Merge symbols with dropout; the first `num_dropped` merges are dropped."""
        while merges := self._possible_merges(symbols):
            choice, num_dropped = num_dropped, 0
            while choice < len(merges) and draw.random() < self._rate:
                choice += 1
            if choice == len(merges):
                break
            symbols = merges[choice].made(symbols)
        return symbols

    def _merge_histories(
        self, ids: Integer[np.ndarray, " pieces"]
    ) -> list[MergeHistory]:
        """Return the history of each part of a word, whose borders no piece crosses."""
        key = ids.tobytes()
        if (histories := self._histories.get(key)) is not None:
            return histories
        text = "".join(self._pieces[i] for i in ids)
        if len(text) > MAX_SYMBOLS or TAG_IN_TEXT.search(self._decode(ids)):
            return [(tuple(ids.tolist()),)]  # no merge that can be dropped
        histories = [self._merge_history(part) for part, _ in self._split_word(text)]
        if len(text) <= CACHED_LENGTH:
            self._histories.add(key, histories)
        return histories

    def _merge_history(self, part: str) -> MergeHistory:
        history = [tuple(self._ids[character] for character in part)]
        while merges := self._possible_merges(history[-1]):
            history.append(merges[0].made(history[-1]))
        return tuple(history)

    def _possible_merges(self, symbols: Ids) -> list[_Merge]:
        """Return the possible merges of symbols, in learned order."""
        if (merges := self._merges.get(symbols)) is not None:
            return merges
        merges = []
        for place, pair in enumerate(pairwise(symbols)):
            if (learned := self._ranked_pieces.get(pair)) is not None:
                rank, piece = learned
                merges.append(_Merge(rank, place, piece))
        merges.sort()
        if len(symbols) <= CACHED_LENGTH:
            self._merges.add(symbols, merges)
        return merges


class _LastPiece(NamedTuple):
    """Possible last piece of the beginning of a word."""

    cumulative: float
    """Probability of this piece and of those before it in the list."""
    start: int
    """Number of characters before the piece."""
    piece: int


Lattice = list[list[_LastPiece]]
"""Possible last pieces of each beginning of a word, by the length of the beginning."""


class UnigramSampler:
    """Sampling from a unigram model (Kudo, 2018, section 3.2).

    A segmentation is drawn by its probability to the power `alpha`, of all
    segmentations: forwards the probability of each beginning of a word is summed up,
    backwards one piece after the other is drawn. Unknown pieces stay.
    """

    def __init__(
        self,
        tokenizer: SentencePieceTokenizer,
        model: UnigramModel,
        alpha: float,
        vocab_size: int | None = None,
    ) -> None:
        """`model` is the tokenizer's model of the side that is sampled.

        `vocab_size` is the number of pieces that the side may have, the first ones; by
        default all.
        """
        own = tokenizer.vocabulary[:vocab_size]
        ids = {piece: i for i, piece in enumerate(own) if i > EOS}
        self._vocabulary = tokenizer.vocabulary
        self._scores = {
            piece: (alpha * score, ids[piece])
            for piece, score in model.pieces
            if piece in ids
        }
        """Logarithm of the probability to the power `alpha`, and id, by piece."""
        self._longest = max(map(len, self._scores), default=0)
        self._begins = self._beginnings()
        sampled = self._scores.keys() - {*tokenizer.added}
        self._is_known = np.array(
            [
                piece in sampled and TAG_IN_TEXT.search(piece) is None
                for piece in tokenizer.vocabulary
            ]
        )
        self._lattices: _Cache[Lattice] = _Cache()

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> Segmented:
        if not len(ids):
            return ids, offsets
        begins = self._begins[ids].copy()
        # A tag and an unknown piece stand alone.
        alone = ~self._is_known[ids]
        begins |= alone
        begins[1:] |= alone[:-1]
        bounds = _word_bounds(begins, offsets)
        draw = Random(int(random.integers(2**63)))
        changed, sampled = [], []
        for word, (start, end) in enumerate(pairwise(bounds.tolist())):
            if lattice := self._lattice(ids[start:end]):
                changed.append(word)
                sampled.append(_drawn(lattice, draw))
        return _with_words(
            ids, offsets, bounds, np.array(changed, dtype=np.int64), sampled
        )

    def _beginnings(self) -> Bool[np.ndarray, " vocabulary"]:
        """Return which pieces begin a word: none if some pieces span several words."""
        if any(SPACE in piece[1:] for piece in self._scores):
            return np.zeros(len(self._vocabulary), dtype=bool)
        return np.array([piece.startswith(SPACE) for piece in self._vocabulary])

    def _lattice(self, ids: Integer[np.ndarray, " pieces"]) -> Lattice:
        """Return the lattice of a word; empty if the word keeps its usual pieces."""
        key = ids.tobytes()
        if (lattice := self._lattices.get(key)) is not None:
            return lattice
        text = "".join(self._vocabulary[i] for i in ids)
        is_fixed = not self._is_known[ids].all() or len(text) > MAX_SYMBOLS
        lattice = [] if is_fixed else self._new_lattice(text)
        if len(text) <= CACHED_LENGTH:
            self._lattices.add(key, lattice)
        return lattice

    def _new_lattice(self, text: str) -> Lattice:
        """Sum up the probabilities of the beginnings of a text.

        The probability of a last piece is its share in the sum over all ways to cut the
        beginning; `totals` has the logarithms of these sums.
        """
        totals = [0.0]
        lattice: Lattice = [[]]
        for end in range(1, len(text) + 1):
            logits, pieces = [], []
            for start in range(max(end - self._longest, 0), end):
                known = self._scores.get(text[start:end])
                if known is not None and totals[start] > -math.inf:
                    score, piece = known
                    logits.append(totals[start] + score)
                    pieces.append((start, piece))
            largest = max(logits, default=0.0)
            weights = [math.exp(logit - largest) for logit in logits]
            total = sum(weights)
            totals.append(largest + math.log(total) if total else -math.inf)
            cumulative = accumulate(weight / total for weight in weights)
            last = zip(cumulative, pieces, strict=True)
            lattice.append([_LastPiece(share, *piece) for share, piece in last])
        return lattice


def _drawn(lattice: Lattice, draw: Random) -> list[int]:
    """Draw the pieces of a word, from the last to the first."""
    pieces, end = [], len(lattice) - 1
    while end > 0:
        chance = draw.random()
        last = lattice[end]
        drawn = next((each for each in last if chance < each.cumulative), last[-1])
        pieces.append(drawn.piece)
        end = drawn.start
    return pieces[::-1]


def _word_bounds(
    begins: Bool[np.ndarray, " ids"],
    offsets: Integer[np.ndarray, " sentences_and_one"],
) -> Integer[np.ndarray, " words_and_one"]:
    """Return the bounds of words; each sentence begins with one."""
    is_bound = np.append(begins, True)
    is_bound[offsets] = True
    return np.flatnonzero(is_bound)


def _with_words(
    ids: Integer[np.ndarray, " ids"],
    offsets: Integer[np.ndarray, " sentences_and_one"],
    bounds: Integer[np.ndarray, " words_and_one"],
    changed: Integer[np.ndarray, " changed"],
    sampled: Sequence[Sequence[int]],
) -> Segmented:
    """Return the ids and offsets of sentences of which some words have changed."""
    lengths = np.diff(bounds)
    lengths[changed] = [len(word) for word in sampled]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    is_changed = np.zeros(len(lengths), dtype=bool)
    is_changed[changed] = True
    new_ids = np.empty(ends[-1], dtype=ids.dtype)
    is_sampled = np.repeat(is_changed, lengths)
    new_ids[is_sampled] = list(chain.from_iterable(sampled))
    new_ids[~is_sampled] = ids[~np.repeat(is_changed, np.diff(bounds))]
    return new_ids, ends[np.searchsorted(bounds, offsets)].astype(offsets.dtype)
