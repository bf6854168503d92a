"""Where to compute, and in which precision."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import get_args

import torch

from transduce.errors import ConfigError, RequestError
from transduce.machine import PROC, Precision, memory_groups, told_bytes

WIDE = 128
"""d_model from which on bf16 pays on a processor that has it without matrix units:
below, its products gain less than casting loses."""

# cuDNN plans its attention anew for every pair of lengths, 7 to 10 ms on the CPU each,
# which took nine tenths of an update on an H200; PyTorch's own kernels need no plan.
torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device and the precision of its matrix products; weights are always fp32."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in `dtype` what bears it."""
        # Unlike the paper: bf16, several times faster where the processor has it.
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def seed(self, number: int) -> None:
        """From here on, draw on this device what follows from the number."""
        if self.device.type == "cpu":
            # Else each call would note its traceback, for GPUs that may be used later.
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)

    def memory_bytes(self) -> int:
        """What the device has in all, or lets this container have."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[1]
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([present, *(group.limit for group in memory_groups())])

    @property
    def precision(self) -> Precision:
        """The name of `dtype`."""
        return "fp32" if self.dtype == torch.float32 else "bf16"

    def __str__(self) -> str:
        return f"{self.device.type} ({self.precision})"


def choose_hardware(
    device: str = "auto",
    precision: Precision = "auto",
    number: int = 0,
    width: int = WIDE,
) -> Hardware:
    """The device asked for, or CUDA if there is one; `RequestError` if there is none.

    Of several GPUs, the one of that number. Precision "auto" is bf16 where a model of
    that width, d_model, trains faster so than in fp32.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f'`device` must be "auto", "cpu" or "cuda", but is "{device}".'
        )
    if precision not in get_args(Precision):
        raise ConfigError(
            f'`precision` must be "auto", "fp32" or "bf16", but is "{precision}".'
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(
            "The device must be present, but this machine (or this build of PyTorch) "
            "has no CUDA; use --device cpu."
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if precision == "auto":
        is_faster = is_good_at_bf16(device) and (
            width >= WIDE or device == "cuda" or torch.cpu._is_amx_tile_supported()
        )
        precision = "bf16" if is_faster else "fp32"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if device == "cpu":
        return Hardware(device=torch.device(device), dtype=dtype)
    if number >= torch.cuda.device_count():
        raise RequestError(
            f"There must be a GPU for each process, but this machine has "
            f"{torch.cuda.device_count()} and this is process {number + 1}; ask for "
            "fewer --devices."
        )
    torch.cuda.set_device(number)
    return Hardware(device=torch.device(device, number), dtype=dtype)


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held on the device; on a CPU, resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not what `getrusage` says if it can be helped: that may be the parent's peak.
    if (peak := told_bytes("self/status", "VmHWM")) is not None:
        return peak
    import resource  # which Windows has not

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def forget_peak_memory(device: torch.device) -> None:
    """Let the peak be what is held now; on a CPU only Linux does."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        (PROC / "self" / "clear_refs").write_text("5", encoding="ascii")


def used_memory(device: torch.device) -> int:
    """The bytes of a GPU that all programs hold together; none of a CPU's."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def is_good_at_bf16(device: str) -> bool:
    """Whether a kind of device multiplies matrices of bf16 faster than of fp32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions bf16 is emulated, several times slower than fp32.
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
