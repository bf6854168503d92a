"""The likeliest ways to go on, of all hypotheses of a sentence at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Shaped
from torch import Tensor

from transduce.decoding.kernels.best_tokens import best_tokens, can_find_best

LikelyTokens = tuple[
    Float32[np.ndarray, "sentences group found"],
    Int64[np.ndarray, "sentences group found"],
]
"""Log-probabilities and tokens of each hypothesis, best first."""
BLOCK = 64
"""Tokens of which only the best is looked at first."""
Excluded = Sequence[int] | Callable[[], Bool[Tensor, "sentences group vocab"]]
"""Ids that are never put out, or what says which may not come next, after what the
model has read of each hypothesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The likeliest ways to go on, best first."""

    log_probabilities: Float64[np.ndarray, "sentences candidates"]
    """Of the whole sequence; minus infinity where there is no further candidate."""
    parents: Int64[np.ndarray, "sentences candidates"]
    """The hypothesis of the group that each goes on from."""
    tokens: Int64[np.ndarray, "sentences candidates"]

    def without(self, is_out: Bool[np.ndarray, "sentences candidates"]) -> "Candidates":
        """The others first; behind them those that are out, as impossible."""
        order = np.argsort(is_out, axis=1, kind="stable")
        sentences = np.arange(len(order))[:, None]
        totals = np.where(is_out, -math.inf, self.log_probabilities)
        return Candidates(
            log_probabilities=totals[sentences, order],
            parents=self.parents[sentences, order],
            tokens=self.tokens[sentences, order],
        )


def now_excluded(
    excluded: Excluded,
) -> Sequence[int] | Bool[Tensor, "sentences group vocab"]:
    """What may not come next."""
    return excluded() if callable(excluded) else excluded


def best_candidates(
    logits: Float[Tensor, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    *,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"] = (),
    forced: Mapping[int, int] | None = None,
    diversity: float = 0.0,
) -> Candidates:
    """The likeliest `count` tokens after the hypotheses of each sentence.

    `log_probabilities` are those of the hypotheses so far. `forced` has the only token
    that some sentences may go on with.
    """
    values, tokens = likeliest(logits, count, excluded, forced)
    totals = values + log_probabilities[..., None]
    ranked = totals - diversity * np.arange(values.shape[-1]) if diversity else totals
    chosen = np.argsort(-_flat(ranked), axis=1, kind="stable")[:, :count]
    sentences = np.arange(len(chosen))[:, None]
    return Candidates(
        log_probabilities=_filled(_flat(totals)[sentences, chosen], count, -math.inf),
        parents=_filled(chosen // values.shape[-1], count, 0),
        tokens=_filled(_flat(tokens)[sentences, chosen], count, 0),
    )


def likeliest(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"] = (),
    forced: Mapping[int, int] | None = None,
) -> LikelyTokens:
    """The likeliest tokens after each hypothesis, so many if there are."""
    find = _found_by_kernel if can_find_best(logits) else _found_by_torch
    return find(logits, count, excluded, forced or {})


def _found_by_kernel(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
    forced: Mapping[int, int],
) -> LikelyTokens:
    best = best_tokens(logits, count, excluded)
    for sentence, token in forced.items():
        only = logits[sentence, :, token].numpy() - best.log_sums[sentence]
        if isinstance(excluded, Tensor):
            only[excluded[sentence, :, token].cpu().numpy()] = -math.inf
        elif token in excluded:
            only[:] = -math.inf
        best.values[sentence] = -math.inf
        best.values[sentence, :, 0] = only
        best.tokens[sentence] = token
    return best.values, best.tokens


def _found_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
    forced: Mapping[int, int],
) -> LikelyTokens:
    # Not the logits minus their `logsumexp`: that takes twice as long.
    log_probs = logits.float().log_softmax(dim=-1)
    if isinstance(excluded, Tensor):
        log_probs = log_probs.masked_fill(excluded.to(logits.device), -math.inf)
    else:
        for token in excluded:
            log_probs[..., token] = -math.inf
    for sentence, token in forced.items():
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only
    # What is left is little: numpy is done with it sooner.
    values, tokens = map(_numpy, _largest(log_probs, count))
    return values, tokens


def _flat(
    each: Shaped[np.ndarray, "sentences group found"],
) -> Shaped[np.ndarray, "sentences candidates"]:
    return each.reshape(len(each), -1)


def _filled(
    each: Shaped[np.ndarray, "sentences found"], count: int, filling: float | int
) -> Shaped[np.ndarray, "sentences {count}"]:
    """With so many columns."""
    missing = count - each.shape[1]
    if not missing:
        return each
    return np.pad(each, ((0, 0), (0, missing)), constant_values=filling)


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _largest(
    log_probs: Float[Tensor, "sentences group vocab"], count: int
) -> tuple[
    Float[Tensor, "sentences group found"], Int[Tensor, "sentences group found"]
]:
    """The largest and their tokens, best first; all if there are not so many.

    The best of a row stand in those blocks of it whose best are best: these are found
    without sorting.
    """
    num_blocks = log_probs.size(-1) // BLOCK
    if num_blocks <= count:
        values, tokens = log_probs.topk(min(count, log_probs.size(-1)))
        return values, tokens
    in_blocks = num_blocks * BLOCK
    blocks = log_probs[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK))
    chosen = blocks.amax(dim=-1).topk(count).indices[..., None]
    tokens = (chosen * BLOCK + torch.arange(BLOCK, device=log_probs.device)).flatten(-2)
    rest = torch.arange(in_blocks, log_probs.size(-1), device=log_probs.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], dim=-1)
    values, indices = log_probs.gather(-1, tokens).topk(count)
    return values, tokens.gather(-1, indices)
