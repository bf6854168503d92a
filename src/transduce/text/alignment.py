"""Word alignment by IBM model 1 (Brown et al., 1993), from sentence pairs alone.

Each target word comes from one word of its source, or from none, with a probability
t(target | source) that depends on nothing else. Expectation maximisation finds the
probabilities, whose likelihood has no other maximum; it never falls.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

ITERATIONS = 5
"""Usual number of iterations for model 1, after which alignments hardly change."""
NULL = -1
"""Source id of target words that come from no source word."""
CHUNK_LINKS = 2**21
"""Links computed at once. A link is a target word with a possible source word."""

IdPair = tuple[Sequence[int], Sequence[int]]
"""Ids of a source and of a target, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationTable:
    """Probabilities of target words given source words that occur with them.

    Entries are ordered by source, then target; all other probabilities are 0.
    """

    source: Int64[np.ndarray, " entries"]
    """Source ids; `NULL` for none."""
    target: Int64[np.ndarray, " entries"]
    probability: Float64[np.ndarray, " entries"]
    log_likelihoods: tuple[float, ...] = ()
    """Natural logarithm of the corpus's probability before each iteration, without the
    probabilities of the targets' lengths."""

    def best(self, *, least: float = 0.0) -> dict[int, int]:
        """Return the likeliest target of each source, if it has at least `least`.

        `NULL` is left out. Equal probabilities give the smallest id.
        """
        keep = (self.source != NULL) & (self.probability >= least)
        source, target = self.source[keep], self.target[keep]
        order = np.lexsort((target, -self.probability[keep], source))
        source, target = source[order], target[order]
        is_first = np.ones(len(source), dtype=bool)
        is_first[1:] = source[1:] != source[:-1]
        found = zip(source[is_first].tolist(), target[is_first].tolist(), strict=True)
        return dict(found)


def ibm_model_1(
    pairs: Iterable[IdPair], iterations: int = ITERATIONS
) -> TranslationTable:
    """Learn t(target | source) by expectation maximisation.

    Pairs with an empty side are left out. Memory is about 30 bytes for each pair of a
    source and a target word in the same sentence pair, so the caller limits these.
    """
    corpus = _Corpus.of(pairs)
    keys = _distinct(corpus.keys(links) for links in corpus.links())
    indices = [
        np.searchsorted(keys, corpus.keys(links)).astype(np.int32)
        for links in corpus.links()
    ]
    source, target = np.divmod(keys, corpus.num_targets)
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    sizes = np.diff(starts, append=len(source))
    # Uniform first probabilities; their size matters for the likelihood only.
    probability = np.full(len(keys), 1 / max(corpus.num_targets, 1))
    log_likelihoods = []
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        log_likelihood = 0.0
        for links, index in zip(corpus.links(), indices, strict=True):
            terms = probability[index]
            sums = np.add.reduceat(terms, links.starts)
            log_likelihood += float(np.log(sums / links.sizes).sum())
            terms /= np.repeat(sums, links.sizes)
            counts += np.bincount(index, terms, minlength=len(keys))
        totals = np.add.reduceat(counts, starts) if len(starts) else counts
        probability = counts / np.repeat(totals, sizes)
        log_likelihoods.append(log_likelihood)
    return TranslationTable(
        source=source - 1,
        target=target,
        probability=probability,
        log_likelihoods=tuple(log_likelihoods),
    )


def symmetrized(
    forward: TranslationTable, backward: TranslationTable
) -> TranslationTable:
    """Return the products t(target | source) t(source | target).

    `backward` is learned from the same pairs with their sides swapped. In one direction
    alone, a rare word takes the translations of all words around it; the other
    direction gives it little for these.
    """
    forward, backward = _without_null(forward), _without_null(backward)
    width = int(max(forward.target.max(initial=0), backward.source.max(initial=0))) + 1
    keys = forward.source * width + forward.target
    reverse = backward.target * width + backward.source
    _, mine, theirs = np.intersect1d(
        keys, reverse, assume_unique=True, return_indices=True
    )
    return TranslationTable(
        source=forward.source[mine],
        target=forward.target[mine],
        probability=forward.probability[mine] * backward.probability[theirs],
    )


def _without_null(table: TranslationTable) -> TranslationTable:
    keep = table.source != NULL
    return TranslationTable(
        source=table.source[keep],
        target=table.target[keep],
        probability=table.probability[keep],
    )


class _Links(NamedTuple):
    """Links of consecutive target words, those of one target word together."""

    words: slice
    """Target words."""
    starts: Int64[np.ndarray, " words"]
    """First link of each target word."""
    sizes: Int64[np.ndarray, " words"]
    """Number of links of each target word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corpus:
    """Words of all pairs, without boundaries."""

    source: Int32[np.ndarray, " source_words"]
    """Source ids plus 1, with 0 for `NULL` before each source."""
    target: Int32[np.ndarray, " target_words"]
    first: Int64[np.ndarray, " target_words"]
    """Position in `source` where the source of each target word begins."""
    sizes: Int64[np.ndarray, " target_words"]
    """Length of the source of each target word, `NULL` included."""
    num_targets: int

    @classmethod
    def of(cls, pairs: Iterable[IdPair]) -> "_Corpus":
        sources: list[Int32[np.ndarray, " _"]] = []
        targets: list[Int32[np.ndarray, " _"]] = []
        for source, target in pairs:
            if len(source) and len(target):
                sources.append(np.array([NULL, *source], dtype=np.int32) + np.int32(1))
                targets.append(np.array(target, dtype=np.int32))
        source_sizes = np.array([len(each) for each in sources], dtype=np.int64)
        target_sizes = np.array([len(each) for each in targets], dtype=np.int64)
        begins = np.cumsum(source_sizes) - source_sizes
        none = [np.zeros(0, dtype=np.int32)]
        target_ids = np.concatenate(targets or none)
        return cls(
            source=np.concatenate(sources or none),
            target=target_ids,
            first=np.repeat(begins, target_sizes),
            sizes=np.repeat(source_sizes, target_sizes),
            num_targets=int(target_ids.max(initial=0)) + 1,
        )

    def links(self) -> Iterator[_Links]:
        """Yield the links in chunks of about `CHUNK_LINKS`."""
        chunk = np.cumsum(self.sizes) // CHUNK_LINKS
        ends = np.flatnonzero(np.diff(chunk, append=-1)) + 1
        start = 0
        for end in ends.tolist():
            sizes = self.sizes[start:end]
            yield _Links(slice(start, end), np.cumsum(sizes) - sizes, sizes)
            start = end

    def keys(self, links: _Links) -> Int64[np.ndarray, " links"]:
        """Return a number for the source and target word of each link."""
        shift = self.first[links.words] - links.starts
        places = np.arange(int(links.sizes.sum())) + np.repeat(shift, links.sizes)
        target = np.repeat(self.target[links.words], links.sizes)
        return self.source[places].astype(np.int64) * self.num_targets + target


def _distinct(
    chunks: Iterable[Int64[np.ndarray, " _"]],
) -> Int64[np.ndarray, " keys"]:
    """Return the distinct keys of all chunks in order."""
    merged = [np.zeros(0, dtype=np.int64)]
    for chunk in chunks:
        merged.append(_sorted_distinct(chunk))
        # Merge similar sizes, so that a key is sorted few times.
        while len(merged) > 1 and len(merged[-2]) <= 2 * len(merged[-1]):
            merged[-2:] = [_sorted_distinct(np.concatenate(merged[-2:]))]
    return _sorted_distinct(np.concatenate(merged))


def _sorted_distinct(keys: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " keys"]:
    # `np.unique` takes ten times as long: it puts the keys into a hash table first.
    keys = np.sort(keys)
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = keys[1:] != keys[:-1]
    return keys[is_new]
