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

SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""What the paper takes a device to do in single precision (section 6.1, footnote 5)."""

UTILISATION = 0.28, 0.43
"""What trainings of this model make of such a speed, at least and at most: the paper's
base and big models 0.29 and 0.42, and the same between 0.28 and 0.41 in the published
figures of NVIDIA and of MLPerf."""


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
class Cluster:
    """What a training is done on."""

    name: str
    """Of one device."""
    tflops: float
    """That one device sustains in products of matrices."""
    num_devices: int

    @property
    def flops(self) -> float:
        """A second, of all devices."""
        return self.tflops * 1e12 * self.num_devices

    def __str__(self) -> str:
        return f"{self.num_devices:,} x {self.name} of {self.tflops:.3g} TFLOPS"


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


def estimate_flops(seconds: float, cluster: Cluster) -> float:
    """The paper's own estimate of a training's cost (section 6.1; Table 2)."""
    return seconds * cluster.flops


def utilisation(flops: float, seconds: float, cluster: Cluster) -> float:
    """The share of a cluster's speed that a training of so many FLOPs made use of."""
    return flops / estimate_flops(seconds, cluster)


def forecast(flops: float, cluster: Cluster) -> tuple[float, float]:
    """Seconds that a training of so many FLOPs takes, at least and at most."""
    least, most = UTILISATION
    return flops / (most * cluster.flops), flops / (least * cluster.flops)


def _steps(distance: int, reach: int) -> int:
    """At least one, and as many as it takes."""
    return max(-(-distance // reach), 1)


def _dilated_steps(n: int, k: int) -> int:
    """The logarithm of n, rounded up: each step reaches k times as far."""
    steps = 1
    while k**steps < n:
        steps += 1
    return steps
