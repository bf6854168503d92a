"""Preparation of a training for its device: compiled layers, and the micro-batch.

A GPU starts every operator from the CPU, and most operators read and write more than
they compute. PyTorch's compiler fuses the many small ones of a layer into a few.

The settings determine the pairs of an update. Trials find how to split it into the
largest micro-batches that fit in memory, and their time.
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
from transduce.model.transformer import Transformer
from transduce.training.distributed import ALONE, Processes
from transduce.training.loss import BatchLoss

MIN_UPDATES = 10_000
"""Shortest training that is compiled: compiling can take minutes."""
MAX_GRAPHS = 64
"""Largest number of graphs for one kind of layer.

There is a graph for training or evaluation, one sentence or several, one token or more,
and lengths that are multiples of eight or not. PyTorch's default is eight.
"""
REASON_LINES = 2
"""Lines of the compiler's message that a user sees."""


def is_worth_compiling(batch_loss: BatchLoss, hardware: Hardware, updates: int) -> bool:
    """Return whether compiling saves time in a training of that many updates.

    On a CPU the native library is faster. Guided attention reads attention weights by
    hooks, which compiled layers skip.
    """
    is_slow = hardware.device.type == "cuda" and not batch_loss.is_guided
    has_layers = isinstance(batch_loss.model, Transformer)
    return is_slow and has_layers and updates >= MIN_UPDATES


def compile_layers(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    processes: Processes = ALONE,
) -> str | None:
    """Compile each kind of layer for all lengths, and try the layers in training.

    Returns why PyTorch cannot compile in one of the processes, if so; then all keep
    uncompiled layers. A graph that fails to compile later runs uncompiled.
    """
    model = batch_loss.model
    assert isinstance(model, Transformer)
    layers = [*model.encoder_layers, *model.decoder_layers]
    for layer in layers:
        layer.compile(dynamic=True)
    torch._dynamo.config.recompile_limit = MAX_GRAPHS
    reason = _try_to_compile(batch_loss, batcher)
    # All processes or none: compiled layers draw dropout masks from another stream.
    if processes.all_reduce_any(reason is not None, hardware.device):
        for layer in layers:
            layer._compiled_call_impl = None  # there is no public way to undo it
        return reason or "it cannot in another process"
    # Otherwise one rare batch could end a long run, and again when it is resumed.
    torch._dynamo.config.suppress_errors = True
    return None


def _try_to_compile(batch_loss: BatchLoss, batcher: Batcher) -> str | None:
    """Compute a gradient; return the reason if the layers cannot be compiled."""
    try:
        _compute_gradient(batch_loss, batcher)
    except RuntimeError as error:  # base of all errors of the compiler
        return " ".join(str(error).split("\n")[:REASON_LINES])
    return None


def _compute_gradient(batch_loss: BatchLoss, batcher: Batcher) -> None:
    """Compute the gradient of as much of the longest batch as fits in memory.

    The compiler tunes its graphs for the size of the first batch, so a small one would
    make all later ones slow.
    """
    batch_loss.train()
    pairs = batcher.longest_batch()
    while True:
        try:
            batch_loss(batcher.load(pairs)).smoothed.backward()
            return
        except torch.OutOfMemoryError:
            if len(pairs) == 1:
                return  # `find_micro_batch` reports this
        finally:
            batch_loss.zero_grad()
        pairs = pairs[: -(-len(pairs) // 2)]


BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
TRIAL_PART = 4
"""The memory of a batch is estimated from trials of at most a fourth of its pairs."""
SAFE_SHARE = 0.8
"""Share of free memory to use, because memory is not exactly proportional to pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Result of trying the longest batch."""

    max_positions: int
    """Source and target positions that fit in memory at a time."""
    was_cut: bool
    """Whether that is less than a whole batch."""
    seconds: float
    """Seconds per position, corrected for the time of other programs."""
    peak_bytes: int
    """Peak memory in use: of the process, or of the GPU."""
    waiting_share: float = 0.0
    """Share of the trial's time in which other programs had the processor's cores."""
    compile_error: str | None = None
    """Why PyTorch could not compile the layers; None if it did or was not to."""


def require_memory(config: ArchitectureConfig, hardware: Hardware) -> None:
    """Raise `ConfigError` if weights and optimizer alone exceed the memory."""
    try:
        with torch.device("meta"):
            num_parameters = build(config).num_parameters()
    except RuntimeError:  # the number overflows
        num_parameters = sys.maxsize
    needed, present = BYTES_PER_PARAMETER * num_parameters, hardware.memory_bytes()
    if needed > present:
        raise ConfigError(
            f"Training must fit in the {present / 1e9:,.0f} GB of memory, but a model "
            f"of {num_parameters:,} parameters takes {needed / 1e9:,.0f} GB; make "
            f"{_sizes(config)} smaller."
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
    batch_loss: BatchLoss, batcher: Batcher, hardware: Hardware, num_processes: int = 1
) -> MicroBatch:
    """Compute the gradient of the longest batch, halved until it fits in memory.

    `num_processes` processes of this machine do so at the same time. The model's
    gradients are dropped. Raises `ConfigError` if not even one pair fits.
    """
    indices = longest = batcher.longest_batch()
    seconds, waiting_share = math.nan, 0.0
    batch_loss.train()
    if hardware.device.type == "cpu":
        with _out_of_memory_suppressed():  # the loop below finds what fits
            count = _estimate(batch_loss, batcher, longest, hardware, num_processes)
            indices = longest[:count]
    while True:
        _free(batch_loss, hardware)
        # The peak of a trial that failed is not the run's.
        forget_peak_memory(hardware.device)
        with _out_of_memory_suppressed():
            # The first pass warms up.
            for _ in range(2):
                meter = WaitingMeter()
                seconds = _time_gradient(batch_loss, batcher, indices, hardware)
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
    return MicroBatch(
        max_positions=max_positions,
        was_cut=len(indices) < len(longest),
        seconds=seconds * (1 - waiting_share) / max_positions,
        waiting_share=waiting_share,
        peak_bytes=peak_memory(hardware.device),
    )


def _estimate(
    batch_loss: BatchLoss,
    batcher: Batcher,
    longest: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    num_processes: int,
) -> int:
    """Estimate how many pairs fit in memory from trials of 1, 2, 4, ... pairs.

    A system without free memory kills a process, so trying too much is no option.
    """
    # From now on gradients, and all that is allocated once, are in memory.
    _time_gradient(batch_loss, batcher, longest[:1], hardware)
    gc.collect()
    return_freed_memory()
    forget_peak_memory(hardware.device)
    peak, positions = peak_memory(hardware.device), 0
    bound = peak + SAFE_SHARE * free_memory(num_processes)
    fitting, count = len(longest), 1
    largest_trial = max(len(longest) // TRIAL_PART, 2)
    while count < len(longest) and count <= min(fitting, largest_trial):
        before, at = peak, positions
        _time_gradient(batch_loss, batcher, longest[:count], hardware)
        peak = peak_memory(hardware.device)
        positions = batcher.num_positions(longest[:count])
        # Bytes per position; after the first trial they include those of any batch.
        each = max((peak - before) / (positions - at), 1)
        fitting = bisect_right(
            range(1, len(longest) + 1),
            positions + max(bound - peak, 0) / each,
            key=lambda number: batcher.num_positions(longest[:number]),
        )
        count *= 2
    return fitting


def _time_gradient(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
) -> float:
    """Compute the gradient of a batch; return the seconds it takes."""
    started = time.perf_counter()
    batch_loss(batcher.load(indices)).smoothed.backward()
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter() - started


def _free(batch_loss: BatchLoss, hardware: Hardware) -> None:
    """Drop gradients and return freed memory to the system or the device."""
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
        # On a CPU, PyTorch raises a plain RuntimeError.
        is_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_gpu and "can't allocate memory" not in str(error):
            raise
