"""The log-probability of given targets."""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
from jaxtyping import Float64

from transduce.decoding.candidates import log_likelihoods
from transduce.decoding.ready_model import ReadyModel
from transduce.decoding.search import Decoder
from transduce.metrics.perplexity import TargetScore
from transduce.text.vocabulary import BOS, EOS, PAD

MOST_ROWS = 256
"""Targets that are read at once: their logits are 38 MB for 37,000 tokens."""

Pair = tuple[list[int], list[int]]
"""Ids of a source and its target, both without the end token."""


def score_pairs(
    model: ReadyModel, pairs: Sequence[Pair], positions: int
) -> Iterator[tuple[int, TargetScore]]:
    """Score pairs in batches of similar lengths; yields each pair's number and score.

    The scores of a batch come together; between two batches the caller may stop.
    """
    lengths = [max(map(len, pair)) for pair in pairs]
    for batch in similar_lengths(lengths, positions):
        # The longest targets first, so that the rows that end are the last ones.
        numbers = sorted(batch, key=lambda i: -len(pairs[i][1]))
        yield from zip(
            numbers, _scores(model, [pairs[i] for i in numbers]), strict=True
        )


def _scores(model: ReadyModel, pairs: Sequence[Pair]) -> Iterator[TargetScore]:
    """Yield the scores of a batch, whose longest targets come first."""
    sources = [[*source, EOS] for source, _ in pairs]
    if model.needs_torch:
        from transduce.decoding.torch_model import score_by_torch

        targets = [target for _, target in pairs]
        yield from score_by_torch(model.operators.model, sources, targets)
        return
    for start in range(0, len(pairs), MOST_ROWS):
        outputs = [[*target, EOS] for _, target in pairs[start : start + MOST_ROWS]]
        decoder = model.read(sources[start : start + MOST_ROWS])
        totals = read_targets(decoder, outputs).tolist()
        for total, output in zip(totals, outputs, strict=True):
            yield TargetScore(log_probability=total, num_tokens=len(output))


def read_targets(
    decoder: Decoder, targets: Sequence[Sequence[int]]
) -> Float64[np.ndarray, " targets"]:
    """Log-probability of each target, which a decoder reads token by token.

    The decoder has one hypothesis of each source. Targets include their end tokens, and
    the longest come first.
    """
    lengths = np.array([len(target) for target in targets])
    ids = np.full((len(targets), lengths[0]), PAD, dtype=np.int64)
    for row, target in zip(ids, targets, strict=True):
        row[: len(target)] = target
    totals = np.zeros(len(targets))
    last_ids, live = np.full((len(targets), 1), BOS, dtype=np.int64), len(targets)
    for position in count():
        logits = decoder.step(last_ids)[:, 0]
        totals[:live] += log_likelihoods(logits, ids[:live, position])
        live = int((lengths > position + 1).sum())
        if not live:
            break
        decoder.reorder(np.arange(live)[:, None])
        last_ids = ids[:live, position, None].copy()
    return totals


def similar_lengths(lengths: list[int], positions: int) -> Iterator[list[int]]:
    """Indices of sentences in batches of so many positions, longest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows
