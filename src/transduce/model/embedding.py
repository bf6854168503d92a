"""Embeddings (section 3.4) and positions (section 3.5)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.config import sinusoid_array


class OutputLayer(nn.Module):
    """Matrix of the logits, and their bias if they have one (section 3.4)."""

    def __init__(self, vocab_size: int, d_model: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        # Unlike the paper: a bias of the logits, for models of Marian. Off by default:
        # `model.output_bias`.
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows: x W^T, or x W^T + b with a bias."""
        return functional.linear(x, self.weight, self.bias)


class SharedEmbedding(OutputLayer):
    """Matrix shared by embeddings and logits (section 3.4).

    Embeddings are multiplied by sqrt(d_model). Source, target and output share one
    matrix, or the source has a matrix of its own.
    """

    def __init__(self, vocab_size: int, d_model: int, *, bias: bool) -> None:
        super().__init__(vocab_size, d_model, bias=bias)
        self.d_model = d_model

    def forward(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        return functional.embedding(ids, self.weight) * math.sqrt(self.d_model)


def sinusoids(
    length: int, d_model: int, base: float = 10_000.0
) -> Float[Tensor, "{length} {d_model}"]:
    """Return the encodings of positions 0, 1, 2, ... (section 3.5)."""
    return torch.from_numpy(sinusoid_array(length, d_model, base))


class SinusoidalPositions(nn.Module):
    """Sinusoids of any length, from a table that grows as needed."""

    def __init__(self, d_model: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base
        self._table = torch.empty(0, d_model)

    def forward(
        self, first: int, length: int, device: torch.device
    ) -> Float[Tensor, "{length} d_model"]:
        """Return the encodings of `length` positions from `first` on."""
        end = first + length
        table = self._table  # another thread may replace it
        if len(table) < end or table.device != device:
            size = max(end, 2 * len(table), 128)
            self._table = table = sinusoids(size, self.d_model, self.base).to(device)
        return table[first:end]

    def at(
        self, positions: Int[Tensor, " count"], highest: int
    ) -> Float[Tensor, "count d_model"]:
        """Return the encodings of positions that are at most `highest`."""
        return self(0, highest + 1, positions.device)[positions]


class LearnedPositions(nn.Module):
    """Table of learned encodings (section 3.5; Table 3, row E)."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(
        self, first: int, length: int, device: torch.device
    ) -> Float[Tensor, "{length} d_model"]:
        """Return the encodings of `length` positions from `first` on."""
        end = first + length
        return self.at(torch.arange(first, end, device=device), end - 1)

    def at(
        self, positions: Int[Tensor, " count"], _highest: int
    ) -> Float[Tensor, "count d_model"]:
        """Return the encodings of positions; the table does not grow."""
        # Unlike the paper: learned positions beyond the table have the encoding of its
        # last row, and are translated badly. The paper does not mention such sentences.
        # Off by default: `model.positions`.
        rows = positions.clamp(max=len(self.weight) - 1)
        return functional.embedding(rows, self.weight) * self.scale
