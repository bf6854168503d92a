"""Candidates, samples and mean probabilities of logits that are tensors, on any device.

`beam_search`, `search` and `sampling` compute the same from arrays.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, Int32, Int64, Shaped
from torch import Tensor

from transduce.decoding.beam_search import (
    NOT_FORCED,
    CandidateQuery,
    Candidates,
    ExcludedTokens,
    Restrictions,
)
from transduce.decoding.search import AllowedTokens
from transduce.device import for_inference
from transduce.native import RowTokens
from transduce.nn.kernels import has_triton
from transduce.search_config import SamplingConfig

SPAN = 64
"""Tokens of a span; in a first pass only the maxima of spans are compared."""


@for_inference
def find_by_torch(
    logits: Float[Any, "sentences group vocab"], query: CandidateQuery
) -> Candidates:
    """Find the likeliest continuations, as `beam_search.find_candidates` does."""
    values, tokens = _likeliest(torch.as_tensor(logits), query)
    # Few numbers are left, for which numpy is faster.
    totals = values + query.log_probabilities[..., None]
    ranks = totals
    if query.diversity:
        ranks = totals - query.diversity * np.arange(values.shape[-1])
    chosen = np.argsort(-_flat(ranks), axis=1, kind="stable")[:, : query.count]
    sentences = np.arange(len(chosen))[:, None]
    return Candidates(
        _padded(_flat(totals)[sentences, chosen], query.count, -math.inf),
        _padded(chosen // values.shape[-1], query.count, 0),
        _padded(_flat(tokens)[sentences, chosen], query.count, 0),
    )


def _likeliest(
    logits: Float[Tensor, "sentences group vocab"], query: CandidateQuery
) -> tuple[
    Float32[np.ndarray, "sentences group found"],
    Int64[np.ndarray, "sentences group found"],
]:
    """Return log-probabilities and tokens of the likeliest tokens of each row.

    All log-probabilities of a row with NaN are NaN.
    """
    excluded, forced = query.excluded, query.forced
    is_plain = query.restrictions is None and forced is None
    if (
        is_plain
        and not isinstance(excluded, np.ndarray)
        and has_top_k(logits, query.count)
    ):
        return top_k_on_gpu(logits, query.count, tuple(excluded))
    # `log_softmax` takes half the time of subtracting `logsumexp`.
    log_probs = logits.float().log_softmax(dim=-1)
    is_nan = _numpy(log_probs[..., 0].isnan())  # then the whole row is NaN
    if query.restrictions is not None:
        _restrict(log_probs, query.restrictions, forced)
    _exclude(log_probs, excluded)
    if forced is not None:
        _force(log_probs, forced)
    values, tokens = map(_numpy, _largest(log_probs, query.count))
    values[is_nan] = math.nan
    return values, tokens


def has_top_k(logits: Float[Tensor, "sentences group vocab"], count: int) -> bool:
    """Whether Triton's kernels find the candidates of each row."""
    if not (logits.is_cuda and has_triton()):
        return False
    from transduce.nn import gpu_kernels

    num_spans = logits.size(-1) // gpu_kernels.SPAN
    return count <= min(gpu_kernels.MAX_CANDIDATES, num_spans)


def top_k_on_gpu(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: tuple[int, ...],
) -> tuple[
    Float32[np.ndarray, "sentences group {count}"],
    Int64[np.ndarray, "sentences group {count}"],
]:
    """Return log-probabilities and tokens of the likeliest tokens of each row."""
    from transduce.nn.gpu_kernels import top_k

    rows, device = logits.flatten(0, 1), logits.device
    # Triton launches kernels on the current GPU.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        found = top_k(rows, count, _ids_on(device, excluded)).cpu().numpy()
    log_probs, tokens = found.reshape(2, *logits.shape[:2], count)
    return log_probs.view(np.float32), tokens.astype(np.int64)


@cache
def _ids_on(device: torch.device, ids: tuple[int, ...]) -> Int32[Tensor, " ids"]:
    return torch.tensor(ids, dtype=torch.int32, device=device)


def _restrict(
    log_probs: Float[Tensor, "sentences group vocab"],
    restrictions: Restrictions,
    forced: Int64[np.ndarray, " sentences"] | None,
) -> None:
    """Penalize repeated tokens, and set banned ones to minus infinity, in place."""
    rows = log_probs.flatten(0, 1)
    is_free = np.ones(len(rows), dtype=np.bool_)
    if forced is not None:
        is_free = np.repeat(forced == NOT_FORCED, log_probs.size(1))

    def places(of: RowTokens) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
        """Return rows and tokens; bad words may have tokens beyond the vocabulary."""
        applies = is_free[of.rows] & (of.tokens < rows.size(1))
        row, token = (
            torch.from_numpy(each[applies]).to(rows.device)
            for each in (of.rows, of.tokens)
        )
        return row, token

    rows[places(restrictions.repeated)] *= restrictions.penalty
    rows[places(restrictions.banned)] = -math.inf


def _exclude(
    log_probs: Float[Tensor, "sentences group vocab"], excluded: ExcludedTokens
) -> None:
    """Set tokens that must not come next to minus infinity, in place."""
    if isinstance(excluded, np.ndarray):
        mask = torch.from_numpy(excluded).to(log_probs.device)
        log_probs.masked_fill_(mask, -math.inf)
        return
    for token in excluded:
        log_probs[..., token] = -math.inf


def _force(
    log_probs: Float[Tensor, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"],
) -> None:
    """Set all tokens but the forced ones to minus infinity, in place."""
    for sentence, token in enumerate(forced.tolist()):
        if token == NOT_FORCED:
            continue
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only


def _flat(
    each: Shaped[np.ndarray, "sentences group found"],
) -> Shaped[np.ndarray, "sentences candidates"]:
    return each.reshape(len(each), -1)


def _padded(
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

    Of equal values, those of lower tokens come first. All lie in the spans with the
    largest maxima, so only these spans are sorted.
    """
    num_spans = log_probs.size(-1) // SPAN
    if num_spans <= count:
        return _first_sorted(log_probs, count)
    in_spans = num_spans * SPAN
    spans = log_probs[..., :in_spans].unflatten(-1, (num_spans, SPAN))
    _, chosen = _first_sorted(spans.amax(dim=-1), count)
    starts = chosen.sort(dim=-1).values[..., None] * SPAN
    tokens = (starts + torch.arange(SPAN, device=log_probs.device)).flatten(-2)
    rest = torch.arange(in_spans, log_probs.size(-1), device=log_probs.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], dim=-1)
    values, indices = _first_sorted(log_probs.gather(-1, tokens), count)
    return values, tokens.gather(-1, indices)


def _first_sorted(
    values: Float[Tensor, "*rows columns"], count: int
) -> tuple[Float[Tensor, "*rows found"], Int[Tensor, "*rows found"]]:
    """Return the `count` largest values and their columns; of equal ones the first."""
    # `topk` takes any of equal values, and a stable sort takes five times as long. So
    # `topk` compares integers: in the upper half the bits of a value, in the order of
    # the values, and in the lower half its distance from the last column.
    bits = (values + 0.0).view(torch.int32)  # without negative zeros
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = values.size(-1) - 1
    distances = torch.arange(last, -1, -1, device=values.device)
    keys = (ordered << 32) + distances
    columns = last - (keys.topk(min(count, last + 1)).values & 0xFFFFFFFF)
    return values.gather(-1, columns), columns


@for_inference
def keep_shortlists(
    logits: Float[Tensor, "sentences group vocab"],
    shortlists: Sequence[AllowedTokens],
) -> Float[Tensor, "sentences group vocab"]:
    """Return logits that are minus infinity except for each sentence's shortlist."""
    is_allowed = np.zeros((len(shortlists), logits.size(-1)), dtype=bool)
    for row, own in zip(is_allowed, shortlists, strict=True):
        row[slice(None) if own is None else own] = True
    mask = torch.from_numpy(is_allowed).to(logits.device)
    return logits.masked_fill(~mask[:, None], -torch.inf)


@for_inference
def log_mean_by_torch(
    logits: Sequence[Float[Any, "*rows vocab"]],
) -> Float[Tensor, "*rows vocab"]:
    """Return the logarithm of the mean probability over several models."""
    each = [torch.as_tensor(x).float().log_softmax(dim=-1) for x in logits]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


@for_inference
def draw_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    uniforms: Float64[np.ndarray, "sentences samples"],
    config: SamplingConfig,
    excluded: Sequence[int],
) -> tuple[
    Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
]:
    """Return the token of each sample and its log-probability among all tokens.

    Tokens are drawn as by `sampling.draw`. In the first step a group has one
    hypothesis, which all samples of the sentence extend.
    """
    logits = logits.float()
    log_probs = logits.log_softmax(dim=-1)
    allowed = logits.clone()  # the decoder may reuse its logits
    allowed[..., list(excluded)] = -torch.inf
    shape = (*uniforms.shape, logits.size(-1))
    on_device = torch.from_numpy(uniforms).to(logits.device)
    tokens = _draw(allowed.expand(shape), on_device, config)
    chosen = log_probs.expand(shape).gather(-1, tokens[..., None]).squeeze(-1)
    return tokens.cpu().numpy(), chosen.cpu().numpy()


def _draw(
    logits: Float[Tensor, "sentences samples vocab"],
    uniforms: Float64[Tensor, "sentences samples"],
    config: SamplingConfig,
) -> Int64[Tensor, "sentences samples"]:
    values = logits / config.temperature
    vocab_size = logits.size(-1)
    count = min(config.top_k or vocab_size, vocab_size)
    is_restricted = count < vocab_size or config.top_p < 1
    tokens: Tensor | None = None  # in the order of the vocabulary
    if is_restricted:
        values, tokens = _largest(values, count)
    probabilities = values.double().softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    if is_restricted:
        # The token at which the sum reaches `top_p` belongs to the nucleus.
        is_outside = cumulative - probabilities >= config.top_p
        probabilities = probabilities.masked_fill(is_outside, 0.0)
        cumulative = probabilities.cumsum(dim=-1)
    # The product is below the total, also rounded.
    thresholds = uniforms[..., None] * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, thresholds, right=True)
    index = index.clamp(max=cumulative.size(-1) - 1)  # NaN
    return (index if tokens is None else tokens.gather(-1, index)).squeeze(-1)
