"""Search for the largest micro-batch that fits in memory, by trials."""

import gc
import math
import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Integer

from transduce.architectures.config import ArchitectureConfig, num_parameters
from transduce.data.batches import Batcher
from transduce.device import Hardware, forget_peak_memory, peak_memory
from transduce.errors import NO_GPU_MEMORY, NO_MEMORY, ConfigError
from transduce.machine import (
    WaitingMeter,
    free_memory,
    proc_bytes,
    return_freed_memory,
    use_huge_pages,
)
from transduce.nn.operators import own_generator
from transduce.training.gradients import GraphedGradients, draws_from_context
from transduce.training.loss import BatchLoss

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
TRIAL_PART = 4
"""The memory of a batch is estimated from trials of at most a fourth of its pairs."""
SAFE_SHARE = 0.8
"""Share of free memory to use, because memory is not exactly proportional to pairs."""
TRIAL_SEED = 0
"""Seed of dropout in trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSize:
    """Largest micro-batch that fits in memory, with its time and memory."""

    max_positions: int
    """Source and target positions that fit in memory at a time."""
    was_cut: bool
    """Whether a whole batch, or a whole update if it is packed, does not fit."""
    seconds: float
    """Seconds per position, corrected for the time of other programs."""
    peak_bytes: int
    """Peak memory in use: of the process, or of the GPU."""
    waiting_share: float = 0.0
    """Share of the trial's time in which other programs had the processor's cores."""
    compile_error: str | None = None
    """Why PyTorch could not compile the layers; None if it did or was not to."""
    growth_bytes: int = 0
    """Memory that the trial took and then gave back."""
    reward_positions: int | None = None
    """Positions of a micro-batch in updates by reward, samples included; None if there
    are no such updates."""


def require_memory(
    config: ArchitectureConfig,
    hardware: Hardware,
    task: str = "Training",
    bytes_per_parameter: int = BYTES_PER_PARAMETER,
) -> None:
    """Raise `ConfigError` if weights, and in training the optimizer, exceed the memory.

    Linux grants more memory than it has, and would kill the process that uses it.
    """
    count = num_parameters(config)
    needed, present = bytes_per_parameter * count, hardware.memory_bytes()
    if needed > present:
        # Rounded up and down, so that the message never shows equal numbers.
        needed_gb = math.ceil(needed / 1e8) / 10
        present_gb = math.floor(present / 1e8) / 10
        raise ConfigError(
            f"{task} must fit in the {present_gb:,.1f} GB of memory, but a model of "
            f"{count:,} parameters takes {needed_gb:,.1f} GB; make {_sizes(config)} "
            "smaller."
        )


def _sizes(config: ArchitectureConfig) -> str:
    """Name the settings that make a model of this architecture large."""
    known = config.__dataclass_fields__
    names = ["d_model", "d_ff", "num_layers", "encoder_layers", "num_blocks"]
    *others, last = [
        *(f"`model.{name}`" for name in names if name in known),
        *(["`model.experts.num_experts`"] if "experts" in known else []),
    ]
    return f"{', '.join(others)} or {last}" if others else last


def find_micro_batch(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    num_processes: int = 1,
    graphs: GraphedGradients | None = None,
) -> MicroBatchSize:
    """Halve the longest batch until its gradient fits in memory.

    If sentences are packed, halve the largest update, whose gradient is computed by a
    CUDA graph if there are `graphs`. `num_processes` processes of this machine do so at
    the same time. The model's gradients are dropped. Raises `ConfigError` if not even
    one pair fits.
    """
    # Another run in this process may be drawing from PyTorch's generator.
    is_own = draws_from_context(batch_loss, hardware)
    with own_generator(TRIAL_SEED) if is_own else nullcontext():
        return _find_micro_batch(batch_loss, batcher, hardware, num_processes, graphs)


def _find_micro_batch(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    num_processes: int,
    graphs: GraphedGradients | None,
) -> MicroBatchSize:
    is_packed = batch_loss.is_packed
    longest = batcher.largest_update() if is_packed else batcher.longest_batch()
    graphs = graphs if is_packed else None
    indices = longest
    batch_loss.train()
    if hardware.device.type == "cpu":
        with _out_of_memory_suppressed():  # the loop below finds what fits
            count = _estimate(batch_loss, batcher, longest, hardware, num_processes)
            indices = longest[:count]
    while (trial := _try(batch_loss, batcher, indices, hardware, graphs)) is None:
        if graphs is not None:
            graphs.clear()
        if len(indices) == 1:
            raise ConfigError(
                "The longest pair must fit in memory, but does not; make the model or "
                "`batching.max_length` smaller."
            )
        indices = indices[: -(-len(indices) // 2)]
    seconds, waiting_share = trial
    peak_bytes = _peak_bytes(hardware.device)
    _free(batch_loss, hardware)
    if hardware.device.type == "cuda":
        remaining = torch.cuda.memory_allocated(hardware.device)
    else:
        # A system without /proc does not tell free memory either, which then counts as
        # infinite: the growth is not used.
        remaining = proc_bytes("self/status", "VmRSS") or peak_bytes
    max_positions = batcher.dataset.num_positions(indices)
    return MicroBatchSize(
        max_positions=max_positions,
        was_cut=len(indices) < len(longest),
        seconds=seconds * (1 - waiting_share) / max_positions,
        waiting_share=waiting_share,
        peak_bytes=peak_bytes,
        growth_bytes=peak_bytes - remaining,
    )


def _try(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    graphs: GraphedGradients | None,
) -> tuple[float, float] | None:
    """Compute the gradient of a batch; return its seconds, and a share of them.

    It is the share in which other programs had the processor's cores. Returns None if
    the batch does not fit in memory.
    """
    _free(batch_loss, hardware)
    # The peak of a trial that failed is not the run's.
    forget_peak_memory(hardware.device)
    # The first pass warms up, and a graph is made in the second.
    num_passes = 2 if graphs is None else 3
    with _out_of_memory_suppressed():
        seconds, waiting_share = math.nan, 0.0
        for _ in range(num_passes):
            meter = WaitingMeter()
            seconds = _time_gradient(batch_loss, batcher, indices, hardware, graphs)
            waiting_share = meter.share()
        return seconds, waiting_share
    return None


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory of the trial, with that of graphs beside it."""
    peak = peak_memory(device)
    if device.type != "cuda":
        return peak
    torch.cuda.empty_cache()  # then only graphs reserve memory beside tensors
    return peak + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _estimate(
    batch_loss: BatchLoss,
    batcher: Batcher,
    longest: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    num_processes: int,
) -> int:
    """Estimate how many of the longest pairs fit in memory.

    Each trial computes twice as many pairs as the one before, beginning with one, and
    shows how many bytes a position takes. A system whose memory runs out kills the
    process, so no trial has more than a fourth of the pairs, or two.
    """
    # After this call gradients, and everything allocated only once, are in memory.
    _time_gradient(batch_loss, batcher, longest[:1], hardware)
    _return_memory()
    forget_peak_memory(hardware.device)
    peak, positions = peak_memory(hardware.device), 0
    bound = peak + SAFE_SHARE * free_memory(num_processes)
    fitting, count = len(longest), 1
    largest_trial = max(len(longest) // TRIAL_PART, 2)

    def positions_of(count: int) -> int:
        return batcher.dataset.num_positions(longest[:count])

    while count < len(longest) and count <= min(fitting, largest_trial):
        last_peak, last_positions = peak, positions
        _time_gradient(batch_loss, batcher, longest[:count], hardware)
        peak, positions = peak_memory(hardware.device), positions_of(count)
        # In the first trial, memory that any batch takes counts for its positions, too.
        bytes_each = max((peak - last_peak) / (positions - last_positions), 1)
        fitting_positions = positions + max(bound - peak, 0) / bytes_each
        counts = range(1, len(longest) + 1)
        fitting = bisect_right(counts, fitting_positions, key=positions_of)
        count *= 2
    return fitting


def _time_gradient(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    graphs: GraphedGradients | None = None,
) -> float:
    """Compute the gradient of a batch; return the seconds it takes."""
    started = time.perf_counter()
    if graphs is None:
        batch_loss(batcher.dataset.load(indices)).smoothed.backward()
    else:
        batch = batcher.dataset.load_packed(indices).padded_to_bucket().pinned()
        graphs.backward(batch, weight=1.0, is_alone=True)
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter() - started


def _free(batch_loss: BatchLoss, hardware: Hardware) -> None:
    """Drop gradients and return freed memory to the system or the device."""
    batch_loss.zero_grad(set_to_none=True)
    if hardware.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    else:
        _return_memory()


def _return_memory() -> None:
    gc.collect()
    return_freed_memory()
    use_huge_pages()  # the heap has shrunk


@contextmanager
def _out_of_memory_suppressed() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        pass
    except RuntimeError as error:
        if not re.search(f"{NO_MEMORY}|{NO_GPU_MEMORY}", str(error)):
            raise
