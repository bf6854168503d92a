"""From logits to tokens in PyTorch, on any device and in any precision.

`candidates` has the same functions for arrays.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Shaped
from torch import Tensor

from transduce.decoding.candidates import NOT_FORCED, Candidates
from transduce.search_config import SamplingConfig

BLOCK = 64
"""Tokens of a block; in a first pass only the maxima of blocks are compared."""


@torch.inference_mode()
def find_by_torch(
    logits: Float[Any, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    excluded: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
    diversity: float,
) -> Candidates:
    """Find the likeliest continuations, as `candidates.find_candidates` does."""
    # `log_softmax` takes half the time of subtracting `logsumexp`.
    log_probs = torch.as_tensor(logits).float().log_softmax(dim=-1)
    is_nan = _numpy(log_probs[..., 0].isnan())  # then the whole row is NaN
    _exclude(log_probs, excluded, forced)
    # Few numbers are left, for which numpy is faster.
    values, tokens = map(_numpy, _largest(log_probs, count))
    values[is_nan] = math.nan
    after = values + log_probabilities[..., None]
    ranked = after - diversity * np.arange(values.shape[-1]) if diversity else after
    chosen = np.argsort(-_flat(ranked), axis=1, kind="stable")[:, :count]
    sentences = np.arange(len(chosen))[:, None]
    return Candidates(
        _filled(_flat(after)[sentences, chosen], count, -math.inf),
        _filled(chosen // values.shape[-1], count, 0),
        _filled(_flat(tokens)[sentences, chosen], count, 0),
    )


def _exclude(
    log_probs: Float[Tensor, "sentences group vocab"],
    excluded: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
) -> None:
    """Set tokens that must not come next to minus infinity, in place."""
    if isinstance(excluded, np.ndarray):
        mask = torch.from_numpy(excluded).to(log_probs.device)
        log_probs.masked_fill_(mask, -math.inf)
    else:
        for token in excluded:
            log_probs[..., token] = -math.inf
    for sentence, token in enumerate([] if forced is None else forced.tolist()):
        if token == NOT_FORCED:
            continue
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only


def _flat(
    each: Shaped[np.ndarray, "sentences group found"],
) -> Shaped[np.ndarray, "sentences candidates"]:
    return each.reshape(len(each), -1)


def _filled(
    each: Shaped[np.ndarray, "sentences found"], count: int, filling: float | int
) -> Shaped[np.ndarray, "sentences {count}"]:
    """Pad to `count` columns."""
    missing = count - each.shape[1]
    return np.pad(each, ((0, 0), (0, missing)), constant_values=filling)


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _largest(
    log_probs: Float[Tensor, "sentences group vocab"], count: int
) -> tuple[
    Float[Tensor, "sentences group found"], Int[Tensor, "sentences group found"]
]:
    """Return the `count` largest values of each row and their tokens, best first.

    They lie in the blocks with the largest maxima, so only these blocks are sorted.
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


@torch.inference_mode()
def log_mean_by_torch(
    logits: Sequence[Float[Any, "*rows vocab"]],
) -> Float[Tensor, "*rows vocab"]:
    """Return the logarithm of the mean probability over several models."""
    each = [torch.as_tensor(x).float().log_softmax(dim=-1) for x in logits]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


@torch.inference_mode()
def draw_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    chances: Float64[np.ndarray, "sentences samples"],
    config: SamplingConfig,
    excluded: Sequence[int],
) -> tuple[
    Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
]:
    """Return the token of each sample and its log-probability among all tokens.

    Tokens are drawn as by `candidates.draw`. In the first step a group has one
    hypothesis, which all samples of the sentence extend.
    """
    logits = logits.float()
    log_probs = logits.log_softmax(dim=-1)
    allowed = logits.clone()  # the decoder may reuse its logits
    allowed[..., list(excluded)] = -torch.inf
    shape = (*chances.shape, logits.size(-1))
    on_device = torch.from_numpy(chances).to(logits.device)
    tokens = _draw(allowed.expand(shape), on_device, config)
    gains = log_probs.expand(shape).gather(-1, tokens[..., None]).squeeze(-1)
    return tokens.cpu().numpy(), gains.cpu().numpy()


def _draw(
    logits: Float[Tensor, "sentences samples vocab"],
    chances: Float64[Tensor, "sentences samples"],
    config: SamplingConfig,
) -> Int64[Tensor, "sentences samples"]:
    vocab_size = logits.size(-1)
    count = vocab_size if config.top_k is None else min(config.top_k, vocab_size)
    values, tokens = (logits / config.temperature).topk(count)
    probabilities = values.double().softmax(dim=-1)
    reached = probabilities.cumsum(dim=-1)
    # The token at which the sum reaches `top_p` belongs to the nucleus.
    is_outside = reached - probabilities >= config.top_p
    probabilities = probabilities.masked_fill(is_outside, 0.0)
    reached = probabilities.cumsum(dim=-1)
    aims = chances[..., None] * reached[..., -1:]
    last = (~is_outside).sum(dim=-1, keepdim=True) - 1
    index = torch.searchsorted(reached, aims, right=True).minimum(last)
    return tokens.gather(-1, index).squeeze(-1)
