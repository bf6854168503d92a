"""What layers cost (section 4; Table 1), and what a training does (Table 2).

By the paper's own formulas and estimates; `model.cost` counts what a model computes.
"""

from dataclasses import dataclass
from typing import Literal

LayerType = Literal[
    "self-attention",
    "recurrent",
    "convolutional",
    "convolutional, contiguous",
    "restricted self-attention",
]
"""The rows of Table 1. Its convolutional layers, one upon the other, are ever more
dilated; contiguous ones stand beside them in the text."""

Accelerator = Literal["K80", "K40", "M40", "P100"]

SUSTAINED_TFLOPS: dict[Accelerator, float] = {
    "K80": 2.8,
    "K40": 3.7,
    "M40": 6.0,
    "P100": 9.5,
}
"""What the paper takes a device to do in single precision (section 6.1, footnote 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The letters of Table 1."""

    n: int
    """Positions of the sequence."""
    d: int
    """Width of a position's representation."""
    k: int = 3
    """Positions that a convolution's kernel covers."""
    r: int = 1
    """How far to either side restricted self-attention sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """A row of Table 1, for some sizes."""

    operations: int
    """Multiply-adds of a layer, up to a factor."""
    sequential_operations: int
    """Of which each waits for the one before, up to a factor."""
    maximum_path_length: int
    """Steps of the layer's kind from one end of the sequence to the other."""


def layer_cost(layer: LayerType, sizes: LayerSizes) -> LayerCost:
    """Table 1. Recurrences and convolutions see only what comes before a position."""
    n, d, k, r = sizes.n, sizes.d, sizes.k, sizes.r
    match layer:
        case "self-attention":
            return LayerCost(
                operations=n**2 * d, sequential_operations=1, maximum_path_length=1
            )
        case "recurrent":
            return LayerCost(
                operations=n * d**2, sequential_operations=n, maximum_path_length=n
            )
        case "convolutional":
            return LayerCost(
                operations=k * n * d**2,
                sequential_operations=1,
                maximum_path_length=_dilated_steps(n, k),
            )
        case "convolutional, contiguous":
            return LayerCost(
                operations=k * n * d**2,
                sequential_operations=1,
                maximum_path_length=_steps(n - 1, reach=k - 1),
            )
        case "restricted self-attention":
            return LayerCost(
                operations=r * n * d,
                sequential_operations=1,
                maximum_path_length=_steps(n - 1, reach=r),
            )


def estimate_flops(seconds: float, num_devices: int, device: Accelerator) -> float:
    """The paper's own estimate of a training's cost (section 6.1; Table 2)."""
    return seconds * num_devices * SUSTAINED_TFLOPS[device] * 1e12


def _steps(distance: int, reach: int) -> int:
    """At least one, and as many as it takes."""
    return max(-(-distance // reach), 1)


def _dilated_steps(n: int, k: int) -> int:
    """The logarithm of n, rounded up: each step reaches k times as far."""
    steps = 1
    while k**steps < n:
        steps += 1
    return steps
