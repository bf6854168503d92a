"""What a training costs by the paper's own estimate (section 6.1; Table 2)."""

from typing import Literal

Accelerator = Literal["K80", "K40", "M40", "P100"]

SUSTAINED_TFLOPS: dict[Accelerator, float] = {
    "K80": 2.8,
    "K40": 3.7,
    "M40": 6.0,
    "P100": 9.5,
}
"""What the paper takes a device to do in single precision (section 6.1, footnote 5)."""


def estimate_flops(seconds: float, num_devices: int, device: Accelerator) -> float:
    """The paper's own estimate of a training's cost (section 6.1; Table 2)."""
    return seconds * num_devices * SUSTAINED_TFLOPS[device] * 1e12
