"""Where to compute, and in which precision."""

import ctypes
import math
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from transduce.errors import ConfigError, RequestError

BUSY_LOAD = 0.5
"""Programs that want to run, from which on what is timed is to be taken with care."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Of glibc's malloc.h."""

WIDE = 128
"""d_model from which on bf16 pays on a processor that has it without matrix units:
below, its products gain less than casting loses."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Where Linux tells what containers, and the jobs of a cluster, may have."""

PROC = Path("/proc")
"""Where it tells what it has, and each process."""

Precision = Literal["auto", "fp32", "bf16"]


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
        return min([present, *(group.limit for group in _memory_groups())])

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
    if (peak := _told_bytes("self/status", "VmHWM")) is not None:
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


def free_memory(num_processes: int) -> float:
    """Bytes of the machine's that this process may take beyond those that it holds.

    So many processes may do so alike. Infinite where the system does not tell.
    """
    free = _told_bytes("meminfo", "MemAvailable")
    if free is None:
        return math.inf
    left = [group.limit - group.used() for group in _memory_groups()]
    return max(min([free, *left]) / num_processes, 0.0)


def _told_bytes(file: str, name: str) -> int | None:
    path = PROC / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(rf"{name}:\s*(\d+) kB", text)
    return 1024 * int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryGroup:
    """Processes that share a limit: those of a container, or of a cluster's job."""

    folder: Path
    limit: int
    usage: str
    """The file that says what is in use."""
    cache: str
    """What the statistics call that part of it which can be done without."""

    def used(self) -> int:
        """Bytes that cannot be had by others."""
        path = self.folder / "memory.stat"  # which not all systems have
        statistics = path.read_text(encoding="ascii") if path.is_file() else ""
        found = re.search(rf"^{self.cache} (\d+)$", statistics, re.MULTILINE)
        usage = int((self.folder / self.usage).read_text(encoding="ascii"))
        return usage - (int(found[1]) if found else 0)


def _memory_groups() -> Iterator[_MemoryGroup]:
    """Those that this process is in, directly or not, and that have a limit."""
    path = PROC / "self" / "cgroup"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        _, kinds, group = line.split(":", 2)
        if not kinds:
            root, limit = CONTROL_GROUPS, "memory.max"
            usage, cache = "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            root, limit = CONTROL_GROUPS / "memory", "memory.limit_in_bytes"
            usage, cache = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # A container may see only the outermost, which is then its own.
        for each in (Path(group), *Path(group).parents):
            folder = root / each.relative_to("/")
            with suppress(OSError, ValueError):  # it is not there, or has no limit
                most = int((folder / limit).read_text(encoding="ascii"))
                yield _MemoryGroup(folder=folder, limit=most, usage=usage, cache=cache)


def memory_of_children() -> int:
    """Bytes that only they have, of the processes that this one has begun; resident."""
    num_bytes = 0
    for children in (PROC / "self" / "task").glob("*/children"):
        for child in children.read_text(encoding="utf-8").split():
            with suppress(OSError):  # it has ended
                text = (PROC / child / "smaps_rollup").read_text(encoding="utf-8")
                found = re.findall(r"Private_(?:Clean|Dirty):\s*(\d+) kB", text)
                num_bytes += 1024 * sum(map(int, found))
    return num_bytes


def num_cores() -> int | None:
    """The processor's cores that this process may use, as far as the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def used_memory(device: torch.device) -> int:
    """The bytes of a GPU that all programs hold together; none of a CPU's."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def leave_a_core() -> None:
    """Compute on all cores but one, unless the environment says on how many.

    Where another program wants that core, threads on all of them would wait, actively,
    for the one that has lost its own.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(torch.get_num_threads() - 1, 1))


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, where it is the C library.

    By default it returns large blocks to the system at once, and each new tensor is
    paid for in page faults: about a tenth of the time of training on a CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(M_MMAP_THRESHOLD, 2**30):
        return  # older versions refuse so much, and the rest would then do harm
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, 2**28)


def return_freed_memory() -> None:
    """Let glibc give back to the system what is free, where it is the C library."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def processor_flags() -> frozenset[str]:
    """What this processor can do, as Linux names it; none where it does not tell."""
    path = PROC / "cpuinfo"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def is_good_at_bf16(device: str) -> bool:
    """Whether a kind of device multiplies matrices of bf16 faster than of fp32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions bf16 is emulated, several times slower than fp32.
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def has_matrix_unit() -> bool:
    """Whether the processor multiplies matrices of bytes, and this process may do so.

    Linux keeps room for such a unit's tiles only for processes that have asked for it.
    """
    if not {"amx_tile", "amx_int8"} <= processor_flags():
        return False
    return torch.cpu._init_amx()
