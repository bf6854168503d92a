"""The layers themselves: PyTorch's LSTM and convolution, and the model's attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transduce.analysis.cost import LayerSizes, LayerType
from transduce.model.attention import MultiHeadAttention

HEAD_WIDTH = 64
"""d_k and d_v of the paper's base and big models; what is wider has more heads."""
LOOKING_BACK: frozenset[LayerType] = frozenset(
    {"recurrent", "convolutional", "convolutional, contiguous"}
)
"""Those whose outputs depend on no later input."""


class SelfAttention(nn.Module):
    """Every position attends to all (section 3.2.3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attention = _attention(d_model)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.attention(x, x, None)


class RestrictedSelfAttention(nn.Module):
    """Every position attends to those at most r away (section 4).

    What a model with `neighbourhood` computes, but with few of the scores that its mask
    hides: a block of r positions has no keys but its own and r to either side.
    """

    def __init__(self, d_model: int, neighbourhood: int) -> None:
        super().__init__()
        self.attention = _attention(d_model)
        self.neighbourhood = neighbourhood

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        r, length = self.neighbourhood, x.size(1)
        # The keys of a block begin r positions before it.
        is_near = torch.ones(r, 3 * r, dtype=torch.bool, device=x.device)
        is_near = is_near.triu().tril(2 * r)
        key, value = self.attention.keys_and_values(x)
        outputs = []
        for start in range(0, length, r):
            first, end = max(start - r, 0), min(start + 2 * r, length)
            mask = is_near[: length - start, first - start + r : end - start + r]
            outputs.append(
                self.attention.attend(
                    x[:, start : start + r],
                    key[:, :, first:end],
                    value[:, :, first:end],
                    mask[None, None],
                )
            )
        return torch.cat(outputs, dim=1)


class Recurrence(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber, 1997)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        output, _ = self.lstm(x)
        return output


class Convolution(nn.Module):
    """A position is made of itself and k - 1 before it, some way apart."""

    def __init__(self, d_model: int, kernel_width: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d_model, d_model, kernel_width, dilation=dilation)
        self.reach = (kernel_width - 1) * dilation

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        channels = functional.pad(x.transpose(1, 2), (self.reach, 0))
        return self.convolution(channels).transpose(1, 2)


def make_layer(layer: LayerType, sizes: LayerSizes, place: int = 0) -> nn.Module:
    """A layer at its place in a stack, from 0, by which convolutions are dilated."""
    match layer:
        case "self-attention":
            return SelfAttention(sizes.d)
        case "restricted self-attention":
            return RestrictedSelfAttention(sizes.d, sizes.r)
        case "recurrent":
            return Recurrence(sizes.d)
        case "convolutional":
            # Further apart than the sequence is long makes no difference.
            dilation = min(sizes.k**place, sizes.n)
            return Convolution(sizes.d, sizes.k, dilation)
        case "convolutional, contiguous":
            return Convolution(sizes.d, sizes.k, dilation=1)


def share_of_term(layer: LayerType, sizes: LayerSizes) -> float:
    """How much of a layer's products Table 1 speaks of, as a share of their FLOPs.

    Attention has four projections besides, of n * d * d multiply-adds each.
    """
    match layer:
        case "self-attention":
            return sizes.n / (sizes.n + 2 * sizes.d)
        case "restricted self-attention":
            return 3 * sizes.r / (3 * sizes.r + 2 * sizes.d)
        case _:
            return 1.0


def _attention(d_model: int) -> MultiHeadAttention:
    num_heads = max(d_model // HEAD_WIDTH, 1)
    width = d_model // num_heads
    return MultiHeadAttention(d_model, num_heads, width, width, "scaled")
