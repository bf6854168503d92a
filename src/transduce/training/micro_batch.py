"""How much of an update fits in memory at a time, and how long it takes.

The recipe says what an update is; how it is cut up to fit a device is found by trying.
"""

import gc
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Integer

from transduce.architectures.config import ArchitectureConfig
from transduce.architectures.models import build
from transduce.data.batches import Batcher
from transduce.device import Hardware, forget_peak_memory, peak_memory
from transduce.errors import ConfigError
from transduce.machine import WaitingMeter, free_memory, return_freed_memory
from transduce.training.loss import BatchLoss

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
PART = 4
"""Of a batch, the fourth part at most is to tell how much memory the whole takes."""
SAFE_SHARE = 0.8
"""Of free memory: what is taken is not quite in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What the trial of the longest batch showed."""

    max_positions: int
    """Source and target positions a device bears at a time."""
    was_cut: bool
    """Whether that is less than a whole batch."""
    seconds: float
    """Seconds per position, corrected for the time of other programs."""
    peak_bytes: int
    """Memory in use at most: the process's own, or the GPU's."""
    waiting_share: float = 0.0
    """Share of the trial's time in which other programs had the processor's cores."""
    unfused: str | None = None
    """Why PyTorch could not compile the layers, where that was tried."""


def require_memory(config: ArchitectureConfig, hardware: Hardware) -> None:
    """`ConfigError` if weights and optimizer alone are more than there is."""
    try:
        with torch.device("meta"):
            num_parameters = build(config).num_parameters()
    except RuntimeError:  # more than can be counted
        num_parameters = sys.maxsize
    needed, present = BYTES_PER_PARAMETER * num_parameters, hardware.memory_bytes()
    if needed > present:
        raise ConfigError(
            f"Training must fit in the {present / 1e9:,.0f} GB of memory, but a model "
            f"of {num_parameters:,} parameters takes {needed / 1e9:,.0f} GB; make "
            "`model.d_model`, `model.d_ff` or `model.num_layers` smaller."
        )


def fit(
    batch_loss: BatchLoss, batcher: Batcher, hardware: Hardware, num_processes: int = 1
) -> Fit:
    """Form the gradient of the longest batch, halved until memory suffices.

    So many processes of this machine do so at once. `ConfigError` if not even one pair
    fits. The model's gradients are gone afterwards.
    """
    indices = longest = batcher.longest_batch()
    seconds, waiting_share = math.nan, 0.0
    batch_loss.train()
    if hardware.device.type == "cpu":
        with _out_of_memory_suppressed():  # what fits is then found out below
            count = _foreseen(batch_loss, batcher, longest, hardware, num_processes)
            indices = longest[:count]
    while True:
        _free(batch_loss, hardware)
        # What was too much is not what the run will take.
        forget_peak_memory(hardware.device)
        with _out_of_memory_suppressed():
            # The first time warms up.
            for _ in range(2):
                meter = WaitingMeter()
                seconds = _try(batch_loss, batcher, indices, hardware)
                waiting_share = meter.share()
            break
        if len(indices) == 1:
            raise ConfigError(
                "The longest pair must fit in memory, but does not; make the model or "
                "`batching.max_length` smaller."
            )
        indices = indices[: -(-len(indices) // 2)]
    _free(batch_loss, hardware)
    max_positions = batcher.num_positions(indices)
    return Fit(
        max_positions=max_positions,
        was_cut=len(indices) < len(longest),
        seconds=seconds * (1 - waiting_share) / max_positions,
        waiting_share=waiting_share,
        peak_bytes=peak_memory(hardware.device),
    )


def _foreseen(
    batch_loss: BatchLoss,
    batcher: Batcher,
    longest: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    num_processes: int,
) -> int:
    """How many of the pairs memory will bear, by what one, two, four... of them take.

    A system that has none left ends a process, without an error to learn from.
    """
    # From now on there are gradients, and what is made once.
    _try(batch_loss, batcher, longest[:1], hardware)
    gc.collect()
    return_freed_memory()
    forget_peak_memory(hardware.device)
    peak, positions = peak_memory(hardware.device), 0
    bound = peak + SAFE_SHARE * free_memory(num_processes)
    fitting, count = len(longest), 1
    while count < len(longest) and count <= min(fitting, max(len(longest) // PART, 2)):
        before, at = peak, positions
        _try(batch_loss, batcher, longest[:count], hardware)
        peak = peak_memory(hardware.device)
        positions = batcher.num_positions(longest[:count])
        # A position's; by the first trial alone also what any batch takes.
        each = max((peak - before) / (positions - at), 1)
        fitting = bisect_right(
            range(1, len(longest) + 1),
            positions + max(bound - peak, 0) / each,
            key=lambda number: batcher.num_positions(longest[:number]),
        )
        count *= 2
    return fitting


def _try(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
) -> float:
    """Seconds that the gradient of a batch takes."""
    started = time.perf_counter()
    batch_loss(batcher.load(indices)).smoothed.backward()
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter() - started


def _free(batch_loss: BatchLoss, hardware: Hardware) -> None:
    batch_loss.zero_grad(set_to_none=True)
    gc.collect()
    if hardware.device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        return_freed_memory()


@contextmanager
def _out_of_memory_suppressed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # A CPU has no error of its own for it.
        is_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_gpu and "can't allocate memory" not in str(error):
            raise
