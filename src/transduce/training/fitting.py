"""How much of an update fits in memory at a time, and how long it takes.

The recipe says what an update is; how it is cut up to fit a device is found by trying.
"""

import gc
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Integer

from transduce.data.batches import Batcher
from transduce.device import Hardware, peak_memory
from transduce.errors import ConfigError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.loss.batch_loss import BatchLoss

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What the trial of the longest batch showed."""

    max_positions: int
    """Source and target positions a device bears at a time."""
    was_cut: bool
    """Whether that is less than a whole batch."""
    seconds: float
    """For each position."""
    peak_bytes: int
    """Memory in use at most: the process's own, or the GPU's."""


def require_memory(config: ModelConfig, hardware: Hardware) -> None:
    """`ConfigError` if weights and optimizer alone are more than there is."""
    try:
        with torch.device("meta"):
            num_parameters = Transformer(config).num_parameters()
    except RuntimeError:  # more than can be counted
        num_parameters = sys.maxsize
    needed, present = BYTES_PER_PARAMETER * num_parameters, hardware.memory_bytes()
    if needed > present:
        raise ConfigError(
            f"Training must fit in the {present / 1e9:,.0f} GB of memory, but a model "
            f"of {num_parameters:,} parameters takes {needed / 1e9:,.0f} GB; make "
            "`model.d_model`, `model.d_ff` or `model.num_layers` smaller."
        )


def fit(batch_loss: BatchLoss, batcher: Batcher, hardware: Hardware) -> Fit:
    """Form the gradient of the longest batch, halved until memory suffices.

    `ConfigError` if not even one pair fits. The model's gradients are gone afterwards.
    """
    indices, was_cut, seconds = batcher.longest_batch(), False, math.nan
    while True:
        try:
            if hardware.device.type == "cuda":
                # What was too much is not what the run will take.
                torch.cuda.reset_peak_memory_stats(hardware.device)
            seconds = _try(batch_loss, batcher, indices, hardware)
            break
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
        if len(indices) == 1:
            raise ConfigError(
                "The longest pair must fit in memory, but does not; make the model or "
                "`batching.max_length` smaller."
            )
        _free(batch_loss, hardware)
        indices, was_cut = indices[: -(-len(indices) // 2)], True
    _free(batch_loss, hardware)
    max_positions = batcher.num_positions(indices)
    return Fit(
        max_positions=max_positions,
        was_cut=was_cut,
        seconds=seconds / max_positions,
        peak_bytes=peak_memory(hardware.device),
    )


def _try(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
) -> float:
    """Seconds of the second of two times, as the first one warms up."""
    batch_loss.train()
    seconds = math.nan
    for _ in range(2):
        started = time.perf_counter()
        batch_loss(batcher.load(indices)).smoothed.backward()
        if hardware.device.type == "cuda":
            torch.cuda.synchronize(hardware.device)
        seconds = time.perf_counter() - started
    return seconds


def _free(batch_loss: BatchLoss, hardware: Hardware) -> None:
    batch_loss.zero_grad(set_to_none=True)
    gc.collect()
    if hardware.device.type == "cuda":
        torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    # A CPU has no error of its own for it.
    is_gpu = isinstance(error, torch.OutOfMemoryError)
    return is_gpu or "can't allocate memory" in str(error)
