"""The likeliest ways to go on, by a kernel of our own."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from transduce.decoding.kernels.fields import CandidateSearchFields
from transduce.decoding.kernels.library import (
    address,
    kernels,
    loaded_kernels,
    require_done,
)

NOT_FORCED = -1
"""Of a sentence that may go on with any token."""


def can_find_candidates(logits: Tensor) -> bool:
    """Whether the kernel takes these."""
    is_plain = logits.dtype == torch.float32 and logits.is_cpu
    return is_plain and kernels() is not None


def found_candidates(
    logits: Float[Tensor, "sentences group vocab"],
    totals: Float64[Tensor, "sentences group"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
    forced: Int64[Tensor, " sentences"] | None,
    diversity: float,
) -> tuple[
    Float64[Tensor, "sentences candidates"],
    Int64[Tensor, "sentences candidates"],
    Int64[Tensor, "sentences candidates"],
]:
    """`count` of each sentence: their log-probabilities, hypotheses and tokens."""
    logits, totals = logits.contiguous(), totals.contiguous()
    sentences, group, vocab = logits.shape
    found = torch.empty(3, sentences, count, dtype=torch.int64)
    first, plane = address(found, torch.int64), sentences * count * found.itemsize
    # These must be there until the kernel is done.
    mask, never = _excluded(logits, excluded)
    fields = CandidateSearchFields(
        address(logits),
        sentences,
        group,
        vocab,
        address(totals, torch.float64),
        None if mask is None else address(mask, torch.bool),
        address(never, torch.int64),
        len(never),
        None if forced is None else address(forced, torch.int64),
        diversity,
        count,
        first,
        first + plane,
        first + 2 * plane,
    )
    require_done(loaded_kernels().transduce_candidates(ctypes.byref(fields)))
    totals, parents, tokens = found
    return totals.view(torch.float64), parents, tokens


def _excluded(
    logits: Tensor, excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"]
) -> tuple[Bool[Tensor, "sentences group vocab"] | None, Int[Tensor, " tokens"]]:
    """As a mask and as numbers of tokens."""
    if not isinstance(excluded, Tensor):
        return None, _numbers(tuple(excluded))
    assert excluded.shape == logits.shape
    return excluded.cpu().contiguous(), _numbers(())


@cache
def _numbers(tokens: tuple[int, ...]) -> Int[Tensor, " tokens"]:
    return torch.tensor(tokens, dtype=torch.int64)
