"""The likeliest next tokens, by a kernel of our own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Int64
from torch import Tensor

from transduce.decoding.kernels.library import address, kernels, loaded_kernels


@dataclass(slots=True, kw_only=True)
class BestTokens:
    """Of each hypothesis, best first."""

    values: Float32[np.ndarray, "sentences group found"]
    """Log-probabilities; minus infinity where there is no further token."""
    tokens: Int64[np.ndarray, "sentences group found"]
    log_sums: Float32[np.ndarray, "sentences group"]
    """What logits are above log-probabilities."""


def can_find_best(logits: Tensor) -> bool:
    """Whether the kernel takes these."""
    is_plain = logits.device.type == "cpu" and logits.dtype == torch.float32
    return is_plain and kernels() is not None


def best_tokens(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: Sequence[int] | Bool[Tensor, "sentences group vocab"],
) -> BestTokens:
    """The `count` likeliest, or all if there are not so many."""
    library = loaded_kernels()
    logits = logits.contiguous()
    sentences, group, vocab = logits.shape
    count = min(count, vocab)
    values = torch.empty(sentences, group, count)
    tokens = torch.empty(sentences, group, count, dtype=torch.int64)
    log_sums = torch.empty(sentences, group)
    mask = None
    if isinstance(excluded, Tensor):
        assert excluded.shape == logits.shape
        mask = excluded.cpu().contiguous()
    never = _numbers(() if isinstance(excluded, Tensor) else tuple(excluded))
    library.transduce_best(
        address(logits),
        sentences * group,
        vocab,
        None if mask is None else address(mask, torch.bool),
        address(never, torch.int64),
        len(never),
        count,
        address(values),
        address(tokens, torch.int64),
        address(log_sums),
    )
    return BestTokens(
        values=values.numpy(), tokens=tokens.numpy(), log_sums=log_sums.numpy()
    )


@cache
def _numbers(tokens: tuple[int, ...]) -> Int[Tensor, " tokens"]:
    return torch.tensor(tokens, dtype=torch.int64)
