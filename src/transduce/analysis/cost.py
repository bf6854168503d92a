"""Cost of layers (section 4, Table 1) and of training (Table 2), as the paper has it.

These are the paper's formulas and estimates; `model.sizes` counts the FLOPs of a model.
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
"""Rows of Table 1. Its convolutional layers are dilated, more with each layer; the text
of section 4 also has contiguous kernels."""

SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""Sustained single-precision TFLOPS by device, as the paper assumes (footnote 5)."""

UTILISATION = 0.28, 0.43
"""Lowest and highest utilisation of the sustained speed in published trainings of this
model: 0.29 and 0.42 for the paper's base and big models, 0.28 to 0.41 in the figures of
NVIDIA and MLPerf."""


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
