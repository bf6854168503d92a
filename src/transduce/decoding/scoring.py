"""The log-probability of given targets."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batches import pad_rows
from transduce.evaluation.perplexity import perplexity
from transduce.model.transformer import Transformer
from transduce.special_ids import BOS, EOS, PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """How likely a model holds a target, given its source."""

    log_probability: float
    """Natural logarithm, the end token counted."""
    num_tokens: int
    """The end token counted."""

    @property
    def perplexity(self) -> float:
        """Of a token."""
        return perplexity(self.log_probability, self.num_tokens)


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


def _log_probability(
    model: Transformer,
    states: Float[Tensor, "target d_model"],
    target_out: Int[Tensor, " target"],
) -> float:
    """One sentence at a time, so that the logits of a batch need not fit in memory."""
    log_probs = model.logits(states).float().log_softmax(dim=-1)
    chosen = log_probs.gather(-1, target_out[:, None]).squeeze(-1).double()
    return float(chosen.masked_fill(target_out == PAD, 0.0).sum())


def similar_lengths(lengths: list[int], positions: int) -> Iterator[list[int]]:
    """Indices of sentences in batches of so many positions, longest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows
