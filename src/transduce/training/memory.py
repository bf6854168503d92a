"""Search for the largest micro-batch that fits in memory, by trials."""

import gc
import math
import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Integer

from transduce.architectures.config import ArchitectureConfig, num_parameters
from transduce.data.batches import Batcher
from transduce.data.dataset import Dataset
from transduce.device import (
    Hardware,
    forget_peak_memory,
    is_out_of_memory,
    peak_memory,
)
from transduce.errors import NO_MEMORY, ConfigError, LackOfMemoryError
from transduce.machine import (
    WaitingMeter,
    free_memory,
    proc_bytes,
    return_freed_memory,
    use_huge_pages,
)
from transduce.nn.operators import own_generator
from transduce.training.gpu_gradients import GraphedGradients
from transduce.training.gradients import draws_from_context
from transduce.training.loss import BatchLoss

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
SIZE_SETTINGS = [
    # widths
    "d_model", "d_embedding", "embedding_width", "d_hidden", "cells", "d_ff",
    # depths
    "num_layers", "encoder_layers", "num_blocks", "encoder_blocks",
]  # fmt: skip
"""Settings of any architecture that mainly make a model large."""
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
    """Number of source and target positions that fit in memory at a time, in `unit`."""
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
    unit: Literal["positions", "tokens"] = "positions"
    """Unit of `max_positions`: "positions" count padding, and "tokens", of packed
    sentences, do not."""


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
    *others, last = [
        *(f"`model.{name}`" for name in SIZE_SETTINGS if name in known),
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
    is_packed = batch_loss.can_pack
    longest = batcher.largest_update() if is_packed else batcher.longest_batch()
    trials = _Trials(
        batch_loss, batcher.dataset, hardware, graphs if is_packed else None
    )
    batch_loss.train()
    # Another run in this process may be drawing from PyTorch's generator.
    is_own = draws_from_context(hardware)
    with own_generator(TRIAL_SEED) if is_own else nullcontext():
        pairs = longest
        if hardware.device.type == "cpu":
            with _out_of_memory_suppressed():  # the trials below find what fits
                pairs = longest[: trials.estimate(longest, num_processes)]
        pairs, trial = trials.largest_fitting(pairs)
    peak_bytes = _peak_bytes(hardware.device)
    trials.free()
    dataset = batcher.dataset
    # Packed parts of updates are bounded by their tokens, as they have no padding.
    max_positions = (
        dataset.num_tokens(pairs) if is_packed else dataset.num_positions(pairs)
    )
    return MicroBatchSize(
        max_positions=max_positions,
        was_cut=len(pairs) < len(longest),
        seconds=trial.seconds * (1 - trial.waiting_share) / max_positions,
        waiting_share=trial.waiting_share,
        peak_bytes=peak_bytes,
        growth_bytes=peak_bytes - _bytes_in_use(hardware.device, peak_bytes),
        unit="tokens" if is_packed else "positions",
    )


Pairs = Integer[np.ndarray, " _"]
"""Indices of the pairs of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Time of a trial whose batch fits in memory."""

    seconds: float
    waiting_share: float
    """Share of the time in which other programs had the processor's cores."""


class _Trials:
    """Gradients of batches, computed to find out how much time and memory they take."""

    def __init__(
        self,
        batch_loss: BatchLoss,
        dataset: Dataset,
        hardware: Hardware,
        graphs: GraphedGradients | None,
    ) -> None:
        """Prepare trials; with `graphs` they compute packed batches."""
        self._batch_loss = batch_loss
        self._dataset = dataset
        self._hardware = hardware
        self._graphs = graphs

    def largest_fitting(self, pairs: Pairs) -> tuple[Pairs, _Trial]:
        """Halve a batch until its gradient fits in memory; return that part of it.

        Raises `ConfigError` if not even one pair fits.
        """
        while (trial := self.run(pairs)) is None:
            if self._graphs is not None:
                self._graphs.clear()
            if len(pairs) == 1:
                raise ConfigError(
                    "The longest pair must fit in memory, but does not; make the model "
                    "or `batching.max_length` smaller."
                )
            pairs = pairs[: -(-len(pairs) // 2)]
        return pairs, trial

    def run(self, pairs: Pairs) -> _Trial | None:
        """Compute the gradient of a batch; None if it does not fit in memory."""
        self.free()
        # The peak of a trial that failed is not the run's.
        forget_peak_memory(self._hardware.device)
        # The first pass warms up, and a graph is made in the second.
        num_passes = 2 if self._graphs is None else 3
        with _out_of_memory_suppressed():
            seconds, waiting_share = math.nan, 0.0
            for _ in range(num_passes):
                meter = WaitingMeter()
                seconds = self._time_gradient(pairs)
                waiting_share = meter.share()
            return _Trial(seconds=seconds, waiting_share=waiting_share)
        return None

    def estimate(self, longest: Pairs, num_processes: int) -> int:
        """Estimate how many of the longest pairs fit in the memory of a CPU.

        Each trial computes twice as many pairs as the one before, beginning with one,
        and shows how many bytes a position takes. A system whose memory runs out kills
        the process, so no trial has more than a fourth of the pairs, or two.
        """
        device = self._hardware.device
        # After this call gradients, and everything allocated only once, are in memory.
        self._time_gradient(longest[:1])
        _return_memory()
        forget_peak_memory(device)
        peak, positions = peak_memory(device), 0
        bound = peak + SAFE_SHARE * free_memory(num_processes)
        fitting, count = len(longest), 1
        largest_trial = max(len(longest) // TRIAL_PART, 2)

        def positions_of(count: int) -> int:
            return self._dataset.num_positions(longest[:count])

        while count < len(longest) and count <= min(fitting, largest_trial):
            last_peak, last_positions = peak, positions
            self._time_gradient(longest[:count])
            peak, positions = peak_memory(device), positions_of(count)
            # In the first trial, memory that any batch takes counts for its positions,
            # too.
            bytes_each = max((peak - last_peak) / (positions - last_positions), 1)
            fitting_positions = positions + max(bound - peak, 0) / bytes_each
            counts = range(1, len(longest) + 1)
            fitting = bisect_right(counts, fitting_positions, key=positions_of)
            count *= 2
        return fitting

    def _time_gradient(self, pairs: Pairs) -> float:
        """Compute the gradient of a batch; return the seconds it takes."""
        device, started = self._hardware.device, time.perf_counter()
        if self._graphs is None:
            self._batch_loss(self._dataset.load(pairs)).smoothed.backward()
        else:
            batch = self._dataset.load_packed(pairs).padded_to_bucket().pinned()
            self._graphs.backward(batch, weight=1.0, is_alone=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    def free(self) -> None:
        """Drop gradients and return freed memory to the system or the device."""
        self._batch_loss.zero_grad(set_to_none=True)
        if self._hardware.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        else:
            _return_memory()


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory of the trial, with that of graphs beside it."""
    peak = peak_memory(device)
    if device.type != "cuda":
        return peak
    torch.cuda.empty_cache()  # then only graphs reserve memory beside tensors
    return peak + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _bytes_in_use(device: torch.device, default: int) -> int:
    """Return the present memory of the process or, on a GPU, of its tensors.

    The default is for systems without /proc. They do not tell free memory either, which
    then counts as infinite, so that nothing depends on this number.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return proc_bytes("self/status", "VmRSS") or default


def _return_memory() -> None:
    gc.collect()
    return_freed_memory()
    use_huge_pages()  # the heap has shrunk


@contextmanager
def _out_of_memory_suppressed() -> Iterator[None]:
    try:
        yield
    except (LackOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        if not (is_out_of_memory(error) or re.search(NO_MEMORY, str(error))):
            raise
