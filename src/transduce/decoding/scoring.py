"""The log-probability of given targets."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batches import pad_rows
from transduce.decoding.translation.target_score import TargetScore
from transduce.model.transformer import Transformer
from transduce.special_ids import BOS, EOS, PAD

LOGIT_POSITIONS = 256
"""Positions whose logits are computed at once: 38 MB for 37,000 tokens."""


@torch.no_grad()
def score_targets(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    targets: list[list[int]],
) -> list[TargetScore]:
    """The log-probability of each target, in one pass over the batch."""
    target_in = pad_rows([[BOS, *ids] for ids in targets]).to(source.device)
    target_out = pad_rows([[*ids, EOS] for ids in targets]).to(source.device)
    states = model.decode(target_in, model.encode(source))
    totals = [
        _log_probability(model, row_states, row_out)
        for row_states, row_out in zip(states, target_out, strict=True)
    ]
    return [
        TargetScore(log_probability=total, num_tokens=len(ids) + 1)
        for total, ids in zip(totals, targets, strict=True)
    ]


def score_pairs(
    model: Transformer, pairs: Sequence[tuple[list[int], list[int]]], positions: int
) -> Iterator[tuple[int, TargetScore]]:
    """Score pairs in batches of similar lengths; yields each pair's number and score.

    The scores of a batch come together; between two batches the caller may stop.
    """
    device = model.output_weight.device
    lengths = [max(map(len, pair)) for pair in pairs]
    for batch in similar_lengths(lengths, positions):
        source = pad_rows([[*pairs[i][0], EOS] for i in batch]).to(device)
        found = score_targets(model, source, [pairs[i][1] for i in batch])
        yield from zip(batch, found, strict=True)


def _log_probability(
    model: Transformer,
    states: Float[Tensor, "target d_model"],
    target_out: Int[Tensor, " target"],
) -> float:
    """Log-probability of a target, a few positions at a time to save memory."""
    total = 0.0
    for some_states, some_out in zip(
        states.split(LOGIT_POSITIONS), target_out.split(LOGIT_POSITIONS), strict=True
    ):
        log_probs = model.logits(some_states).float().log_softmax(dim=-1)
        chosen = log_probs.gather(-1, some_out[:, None]).squeeze(-1).double()
        total += float(chosen.masked_fill(some_out == PAD, 0.0).sum())
    return total


def similar_lengths(lengths: list[int], positions: int) -> Iterator[list[int]]:
    """Indices of sentences in batches of so many positions, longest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows
