"""Cost and path lengths of layers (section 4, Table 1), and cost of training (Table 2).

The formulas and estimates are the paper's; `model.config` counts the FLOPs of a model.
The layers of Table 1 are also modules, of which three properties are measured: the
maximum path length, the number of sequential operations, and the growth of the running
time with each size. `path_lengths` measures whole models.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import geometric_mean, linear_regression, median
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional

from transduce.device import torch_defaults
from transduce.machine import one_thread
from transduce.model.attention import MultiHeadAttention
from transduce.settings import MAX_WHOLE, convert_and_check, require_between

LayerType = Literal[
    "self-attention",
    "recurrent",
    "convolutional",
    "convolutional, contiguous",
    "separable convolutional",
    "restricted self-attention",
]
"""Rows of Table 1. Its convolutional layers are dilated, more with each layer; the text
of section 4 also has contiguous kernels and separable convolutions."""
Letter = Literal["n", "d", "k", "r"]
"""Size of a layer, by the letters of Table 1."""
Positions: TypeAlias = Float[Tensor, "batch length d_model"]
"""Input and output of a layer: a vector for each position."""

SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""Sustained single-precision TFLOPS by device, as the paper assumes (footnote 5)."""

UTILISATION = 0.28, 0.43
"""Bounds of the utilisation of the sustained speed in published trainings of this
model: 0.290 and 0.421 for the paper's base and big models, 0.28 to 0.41 in the figures
of NVIDIA and MLPerf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """Sizes of a layer, by the letters of Table 1."""

    n: int
    """Length of the sequence."""
    d: int
    """Dimension of a position's representation."""
    k: int = 3
    """Kernel width of a convolution."""
    r: int = 1
    """Neighbourhood of restricted self-attention, in positions to either side."""

    def __post_init__(self) -> None:
        convert_and_check(self)
        # A convolution of width 1 would connect no two positions, in any number of
        # layers.
        for name, minimum in (("n", 1), ("d", 1), ("k", 2), ("r", 1)):
            require_between(name, getattr(self, name), minimum, MAX_WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices of a training."""

    name: str
    """Name of one device."""
    tflops: float
    """Sustained TFLOPS of one device in matrix products."""
    num_devices: int

    @property
    def flops(self) -> float:
        """FLOP/s of all devices."""
        return self.tflops * 1e12 * self.num_devices

    def __str__(self) -> str:
        return f"{self.num_devices:,} x {self.name} of {self.tflops:.3g} TFLOPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Row of Table 1 for given sizes; operations are up to a constant factor."""

    operations: int
    """Multiply-adds of a layer."""
    sequential_operations: int
    """Operations that must follow one another."""
    maximum_path_length: int
    """Layers (steps of a recurrence) from one end of the sequence to the other."""


def layer_cost(layer: LayerType, sizes: LayerSizes) -> LayerCost:
    """Cost of a layer by Table 1; recurrences and convolutions are causal."""
    n, d, k, r = sizes.n, sizes.d, sizes.k, sizes.r

    def cost(operations: int, path_length: int, sequential: int = 1) -> LayerCost:
        return LayerCost(
            operations=operations,
            sequential_operations=sequential,
            maximum_path_length=path_length,
        )

    match layer:
        case "self-attention":
            return cost(n**2 * d, path_length=1)
        case "recurrent":
            return cost(n * d**2, path_length=n, sequential=n)
        case "convolutional":
            return cost(k * n * d**2, path_length=_dilated_steps(n, k))
        case "convolutional, contiguous":
            return cost(k * n * d**2, path_length=_steps(n - 1, reach=k - 1))
        case "separable convolutional":
            return cost(k * n * d + n * d**2, path_length=_dilated_steps(n, k))
        case "restricted self-attention":
            return cost(r * n * d, path_length=_steps(n - 1, reach=r))


def estimate_flops(seconds: float, cluster: Cluster) -> float:
    """FLOPs of a training as the paper estimates them (section 6.1; Table 2)."""
    return seconds * cluster.flops


def utilisation(flops: float, seconds: float, cluster: Cluster) -> float:
    """Share of a cluster's speed that a training of `flops` FLOPs used."""
    return flops / estimate_flops(seconds, cluster)


def forecast(flops: float, cluster: Cluster) -> tuple[float, float]:
    """Fewest and most seconds that a training of `flops` FLOPs takes."""
    least, most = UTILISATION
    return flops / (most * cluster.flops), flops / (least * cluster.flops)


def _steps(distance: int, reach: int) -> int:
    """Number of layers that cover the distance, at least 1."""
    return max(-(-distance // reach), 1)


def _dilated_steps(n: int, k: int) -> int:
    """Logarithm of n to the base k, rounded up: each layer reaches k times as far."""
    steps = 1
    while k**steps < n:
        steps += 1
    return steps


HEAD_WIDTH = 64
"""d_k and d_v, as in the paper's base and big models; wider layers have more heads."""
CAUSAL: tuple[LayerType, ...] = (
    "recurrent", "convolutional", "convolutional, contiguous",
    "separable convolutional",
)  # fmt: skip
"""Layer types whose outputs depend on no later input."""


class SelfAttention(nn.Module):
    """Self-attention of every position to all (section 3.2.3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attention = _attention(d_model)

    def forward(self, x: Positions) -> Positions:
        return self.attention(x, x, None)


class RestrictedSelfAttention(nn.Module):
    """Self-attention of every position to those at most r away (section 4).

    It computes the same as the model's layer (`model.attention`), with the keys of a
    block of r queries: the block and r positions to either side. Blocks follow one
    another, because all at once leave the processor's caches if r is large.
    """

    def __init__(self, d_model: int, neighbourhood: int) -> None:
        super().__init__()
        self.attention = _attention(d_model)
        self.neighbourhood = neighbourhood

    def forward(self, x: Positions) -> Positions:
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
    """Long short-term memory (Hochreiter and Schmidhuber, 1997)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)

    def forward(self, x: Positions) -> Positions:
        output, _ = self.lstm(x)
        return output


class Convolution(nn.Module):
    """Causal convolution over a position and k - 1 earlier ones, `dilation` apart."""

    def __init__(self, d_model: int, kernel_width: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d_model, d_model, kernel_width, dilation=dilation)
        self.reach = (kernel_width - 1) * dilation

    def forward(self, x: Positions) -> Positions:
        channels = functional.pad(x.transpose(1, 2), (self.reach, 0))
        return self.convolution(channels).transpose(1, 2)


class SeparableConvolution(nn.Module):
    """Causal convolution of each channel alone, then one linear map of all channels.

    A depthwise and a pointwise convolution (Chollet, 2016), of k n d and n d^2
    multiply-adds.
    """

    def __init__(self, d_model: int, kernel_width: int, dilation: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(
            d_model, d_model, kernel_width, dilation=dilation, groups=d_model
        )
        self.pointwise = nn.Conv1d(d_model, d_model, 1)
        self.reach = (kernel_width - 1) * dilation

    def forward(self, x: Positions) -> Positions:
        channels = functional.pad(x.transpose(1, 2), (self.reach, 0))
        return self.pointwise(self.depthwise(channels)).transpose(1, 2)


def make_layer(layer: LayerType, sizes: LayerSizes, place: int = 0) -> nn.Module:
    """Make the layer at a place in a stack, from 0, which determines the dilation."""
    # A dilation beyond the sequence's length makes no difference.
    dilation = min(sizes.k**place, sizes.n)
    match layer:
        case "self-attention":
            return SelfAttention(sizes.d)
        case "restricted self-attention":
            return RestrictedSelfAttention(sizes.d, sizes.r)
        case "recurrent":
            return Recurrence(sizes.d)
        case "convolutional":
            return Convolution(sizes.d, sizes.k, dilation)
        case "convolutional, contiguous":
            return Convolution(sizes.d, sizes.k, dilation=1)
        case "separable convolutional":
            return SeparableConvolution(sizes.d, sizes.k, dilation)


def share_of_term(layer: LayerType, sizes: LayerSizes, letter: Letter) -> float:
    """Share of a layer's FLOPs in the term of Table 1 that grows most with a size.

    The rest is the other term of a separable convolution, or the four projections of
    attention, of n * d * d multiply-adds each.
    """
    match layer:
        case "separable convolutional" if letter != "n":
            return (sizes.k if letter == "k" else sizes.d) / (sizes.k + sizes.d)
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


EXACT = torch.float64
"""Precise enough that gradients over long paths do not vanish. Besides, PyTorch has no
fused LSTM for this type, which would hide the steps of the recurrence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLength:
    """Maximum path length of a layer type, measured and by the formula of Table 1."""

    layer: LayerType
    sizes: LayerSizes
    measured: int
    theory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialOperations:
    """Longest chain of dependent operations in one layer, by sequence length."""

    layer: LayerType
    n: tuple[int, ...]
    counts: tuple[int, ...]


class TruncatedRecurrence(nn.Module):
    """Recurrence whose gradient is truncated to a number of steps.

    In sequence i of the batch, the gradient of position i flows back through the last
    `num_steps` steps only: the state before them is detached.
    """

    def __init__(self, recurrence: Recurrence, num_steps: int) -> None:
        super().__init__()
        self.lstm = recurrence.lstm
        self.num_steps = num_steps

    def forward(self, x: Positions) -> Positions:
        outputs, state = [], None
        for position in range(x.size(1)):
            output, (hidden, cell) = self.lstm(x[:, position : position + 1], state)
            outputs.append(output)
            is_detached = (torch.arange(len(x)) == position + self.num_steps)[:, None]
            state = (
                torch.where(is_detached, hidden.detach(), hidden),
                torch.where(is_detached, cell.detach(), cell),
            )
        return torch.cat(outputs, dim=1)


def dependencies(layers: nn.Module, n: int, d: int) -> Bool[Tensor, "outputs inputs"]:
    """Inputs that each output depends on: the non-zeros of the Jacobian."""
    # One copy of the sequence per output, so that one backward pass is enough.
    x = torch.randn(n, d, dtype=EXACT).repeat(n, 1, 1).requires_grad_()
    own = layers(x).diagonal(dim1=0, dim2=1)
    (gradient,) = torch.autograd.grad((own * torch.randn_like(own)).sum(), x)
    return (gradient != 0).any(dim=-1)


@torch_defaults()
def maximum_path_length(layer: LayerType, sizes: LayerSizes) -> int:
    """Fewest steps that connect each output with all inputs it may depend on.

    A step is a layer of a stack or, for a recurrence, a position.
    """
    expected = torch.ones(sizes.n, sizes.n, dtype=torch.bool)
    if layer in CAUSAL:
        expected = expected.tril()

    def connects(num_steps: int) -> bool:
        steps = _stack_of_steps(layer, sizes, num_steps).to(EXACT)
        found = dependencies(steps, sizes.n, sizes.d)
        assert not (found & ~expected).any()
        return bool(found[expected].all())

    return 1 + bisect_left(range(1, sizes.n + 1), True, key=connects)


@torch_defaults()
def count_sequential_operations(layer: LayerType, sizes: LayerSizes) -> int:
    """Number of operations in the longest chain of one layer's autograd graph."""
    made = make_layer(layer, sizes).to(EXACT)
    for module in made.modules():
        if isinstance(module, MultiHeadAttention):
            # With a hook on its weights, attention is not one fused operation.
            module.weights_tap.register_forward_hook(lambda *_: None)
    x = torch.randn(1, sizes.n, sizes.d, dtype=EXACT, requires_grad=True)
    node = made(x).grad_fn
    assert node is not None
    return longest_chain(node)


def _stack_of_steps(layer: LayerType, sizes: LayerSizes, num_steps: int) -> nn.Module:
    """Stack of `num_steps` layers, or a recurrence of `num_steps` steps."""
    if layer == "recurrent":
        return TruncatedRecurrence(Recurrence(sizes.d), num_steps)
    return nn.Sequential(*(make_layer(layer, sizes, i) for i in range(num_steps)))


def longest_chain(last: Node) -> int:
    """Number of nodes on the longest path that ends in `last`."""
    lengths: dict[Node, int] = {}
    waiting = [last]
    while waiting:
        node = waiting[-1]
        needed = [each for each, _ in node.next_functions if each is not None]
        if unknown := [each for each in needed if each not in lengths]:
            waiting += unknown
            continue
        lengths[node] = 1 + max((lengths[each] for each in needed), default=0)
        waiting.pop()
    return lengths[last]


MIN_ROUNDS = 6
STEADY = 0.03
"""Largest difference of the exponents of odd and even rounds."""
SEED = 1
"""Seed of the order of layers in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Several values for one size of a layer, with the other sizes fixed."""

    layer: LayerType
    letter: Letter
    values: tuple[int, ...]
    others: LayerSizes
    theory: int
    """Exponent by Table 1."""
    batch: int = 1
    """Sequences per forward pass."""

    @property
    def sizes(self) -> list[LayerSizes]:
        """Sizes of the layer at each value."""
        return [replace(self.others, **{self.letter: value}) for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of a layer's running time over a sweep."""

    sweep: Sweep
    seconds: tuple[float, ...]
    """Median processor time at each value."""
    exponent: float
    """Slope of a straight line through the logarithms."""

    def fitted(self) -> list[float]:
        """Seconds at each value by the fitted power law."""
        centre_x = geometric_mean(self.sweep.values)
        centre_y = geometric_mean(self.seconds)
        return [centre_y * (x / centre_x) ** self.exponent for x in self.sweep.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Growth of the running time over all sweeps."""

    growths: tuple[Growth, ...]
    rounds: int
    is_steady: bool
    """Whether the exponents of odd and even rounds agree."""


class _Trial:
    """Layer with its input and the times of its forward passes."""

    def __init__(self, sweep: Sweep, sizes: LayerSizes) -> None:
        self.layer: nn.Module = make_layer(sweep.layer, sizes)
        self.input: Tensor = torch.randn(sweep.batch, sizes.n, sizes.d)
        self.seconds: list[float] = []

    def take_turn(self) -> None:
        started = time.process_time()
        self.layer(self.input)
        self.seconds.append(time.process_time() - started)


@torch_defaults()
def measure_scaling(
    sweeps: Sequence[Sweep], max_rounds: int, on_round: Callable[[int], None]
) -> Scaling:
    """Time forward passes in processor time of one thread, which load hardly disturbs.

    In each round all layers take turns, until the exponents of odd and even rounds
    agree, or for `max_rounds`. Calls `on_round` with the number of each round before
    it.
    """
    random, rounds, is_steady = np.random.default_rng(SEED), 0, False
    with one_thread(), torch.inference_mode():
        tried = [[_Trial(sweep, sizes) for sizes in sweep.sizes] for sweep in sweeps]
        trials = [trial for each in tried for trial in each]
        for trial in trials:
            trial.layer(trial.input)  # warm up
        while rounds < max_rounds and not is_steady:
            rounds += 1
            on_round(rounds)
            for i in random.permutation(len(trials)):
                trials[i].take_turn()
            is_steady = rounds >= MIN_ROUNDS and all(
                _halves_agree(sweep, each)
                for sweep, each in zip(sweeps, tried, strict=True)
            )
    growths = [
        _growth(sweep, [trial.seconds for trial in each])
        for sweep, each in zip(sweeps, tried, strict=True)
    ]
    return Scaling(growths=tuple(growths), rounds=rounds, is_steady=is_steady)


def _growth(sweep: Sweep, seconds: Sequence[Sequence[float]]) -> Growth:
    """Fit a straight line to the logarithms of the median times."""
    medians = [median(each) for each in seconds]
    slope, _ = linear_regression(list(map(log, sweep.values)), list(map(log, medians)))
    return Growth(sweep=sweep, seconds=tuple(medians), exponent=slope)


def _halves_agree(sweep: Sweep, trials: Sequence[_Trial]) -> bool:
    odd, even = (
        _growth(sweep, [trial.seconds[first::2] for trial in trials]).exponent
        for first in (0, 1)
    )
    return abs(odd - even) < STEADY
