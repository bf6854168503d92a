"""Embeddings and positions (sections 3.4 and 3.5)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.sizes import sinusoid_array


class SharedEmbedding(nn.Module):
    """One matrix for source, target and output; scaled on input (section 3.4).

    Or for a source alone, or a target and its output, that have their own symbols.
    """

    def __init__(self, vocab_size: int, d_model: int, *, bias: bool) -> None:
        super().__init__()
        self.d_model = d_model
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        # Unlike the paper: a bias on output, which models of Marian have.
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        return functional.embedding(ids, self.weight) * math.sqrt(self.d_model)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """How well each output fits each row: the transposed matrix."""
        return functional.linear(x, self.weight, self.bias)


def sinusoids(length: int, d_model: int) -> Float[Tensor, "{length} {d_model}"]:
    """The encodings of the positions 0, 1, 2, ... (section 3.5)."""
    return torch.from_numpy(sinusoid_array(length, d_model))


class SinusoidalPositions(nn.Module):
    """Sinusoids of any length, kept once worked out."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self._known = torch.empty(0, d_model)

    def forward(
        self, first: int, length: int, device: torch.device
    ) -> Float[Tensor, "{length} d_model"]:
        end = first + length
        if len(self._known) < end or self._known.device != device:
            grown = max(end, 2 * len(self._known), 128)
            self._known = sinusoids(grown, self.d_model).to(device)
        return self._known[first:end]

    def at(
        self, positions: Int[Tensor, " count"], highest: int
    ) -> Float[Tensor, "count d_model"]:
        """Those of some positions, none above the highest."""
        return self(0, highest + 1, positions.device)[positions]


class LearnedPositions(nn.Module):
    """A table of positions learned with the rest (section 3.5; Table 3, row E).

    Positions beyond the table share its last row: such a sentence is translated
    badly, but it is translated.
    """

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(
        self, first: int, length: int, device: torch.device
    ) -> Float[Tensor, "{length} d_model"]:
        return self.at(torch.arange(first, first + length, device=device), first)

    def at(
        self, positions: Int[Tensor, " count"], _: int
    ) -> Float[Tensor, "count d_model"]:
        """Those of some positions."""
        # Unlike the paper: positions beyond the table share its last row; the paper
        # does not say what becomes of such sentences.
        rows = positions.clamp(max=len(self.weight) - 1)
        return functional.embedding(rows, self.weight) * self.scale
