"""How fast a machine multiplies matrices: what training could reach at best."""

import time

import torch
from torch import Tensor

from transduce.benchmark.turns import Turns
from transduce.device import Hardware

FIRST_SIZE, LAST_SIZE = 1024, 16_384
LONG_S = 0.1
"""A product that takes this long keeps every core busy; larger ones gain nothing."""
REPEATS = 3


def take_turns(hardware: Hardware, turns: Turns[float]) -> None:
    """Measure the rate at every turn."""
    turns.begin()
    while True:
        turns.done(matrix_rate(hardware))


def matrix_rate(hardware: Hardware) -> float:
    """FLOP/s of square products, the best of several sizes, in the hardware's type."""
    size, best = FIRST_SIZE, 0.0
    while True:
        seconds = _fastest_product(size, hardware)
        best = max(best, 2 * size**3 / seconds)
        if seconds > LONG_S or size >= LAST_SIZE:
            return best
        size *= 2


def _fastest_product(size: int, hardware: Hardware) -> float:
    """Seconds of the fastest of several."""
    left, right = (
        torch.randn(size, size, dtype=hardware.dtype, device=hardware.device)
        for _ in range(2)
    )
    return min(_product_seconds(left, right) for _ in range(REPEATS))


def _product_seconds(left: Tensor, right: Tensor) -> float:
    _finish(left)
    started = time.perf_counter()
    torch.mm(left, right)
    _finish(left)
    return time.perf_counter() - started


def _finish(x: Tensor) -> None:
    """Wait for what a device was told to do and is still doing."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
