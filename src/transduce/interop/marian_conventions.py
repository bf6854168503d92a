"""Conventions and checks for Marian's models in its own format and Hugging Face's."""

from dataclasses import fields
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from transduce.errors import CheckpointError
from transduce.search_config import NOT_GREEDY, SearchConfig

NEVER = -1e4
"""Bias that gives a token zero probability in any precision."""
NORM_EPSILON = 1e-5
"""Fixed epsilon of its layer norms; a smaller one of a model hardly differs."""
USUAL_LENGTH = 25
"""Length in tokens at which both length penalties grow alike."""


def differences(search: SearchConfig, written: SearchConfig) -> list[str]:
    """Return the names of settings in which two searches differ."""
    unused = {"num_best"}  # a model's own never counts
    if search.beam_size == 1:
        unused |= {*NOT_GREEDY, "penalty", "length_penalty"}
    return [
        field.name
        for field in fields(SearchConfig)
        if field.name not in unused
        and getattr(search, field.name) != getattr(written, field.name)
    ]


def halved(d_model: int) -> Int64[Tensor, " d_model"]:
    """Return the permutation to Marian's order: even dimensions first, then odd."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def require_finite(weight: Tensor, name: str, path: Path) -> None:
    """Raise `CheckpointError` if numbers of a weight of a file are not finite."""
    if not torch.isfinite(weight).all():
        raise CheckpointError(
            f"{path}: the weights must be finite numbers, but those of `{name}` are "
            "not; fetch another file."
        )
