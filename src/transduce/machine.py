"""Resources of this machine: memory, cores, instruction sets, threads."""

import ctypes
import math
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
"""Precision of the matrix products of training."""

BUSY_LOAD = 0.5
"""Load average above which timings are unreliable."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of `mallopt`, from glibc's malloc.h."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Linux control groups: limits of containers and cluster jobs."""

PROC = Path("/proc")
"""Linux process information."""

CORES = Path("/sys/devices/system/cpu")
"""Linux information on each hardware thread."""
MATRIX_FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
)
"""Instruction sets that decide the speed of matrix products."""


def free_memory(num_processes: int) -> float:
    """Return the bytes of memory that each of `num_processes` may still allocate.

    Control-group limits count. Infinite where the system does not say.
    """
    free = proc_bytes("meminfo", "MemAvailable")
    if free is None:
        return math.inf
    left = [group.limit - group.used() for group in memory_groups()]
    return max(min([free, *left]) / num_processes, 0.0)


def proc_bytes(file: str, name: str) -> int | None:
    """Read a size in a file below `/proc`; None if file or line is missing."""
    path = PROC / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(rf"{name}:\s*(\d+) kB", text)
    return 1024 * int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryGroup:
    """Control group with a memory limit, such as a container or a cluster job."""

    folder: Path
    limit: int
    usage: str
    """Name of the file that holds the bytes in use."""
    cache: str
    """Name of the reclaimable part in `memory.stat`."""

    def used(self) -> int:
        """Return the bytes in use that cannot be reclaimed."""
        path = self.folder / "memory.stat"  # missing on some systems
        statistics = path.read_text(encoding="ascii") if path.is_file() else ""
        found = re.search(rf"^{self.cache} (\d+)$", statistics, re.MULTILINE)
        usage = int((self.folder / self.usage).read_text(encoding="ascii"))
        return usage - (int(found[1]) if found else 0)


def memory_groups() -> Iterator[_MemoryGroup]:
    """Yield the control groups of this process that limit memory, inner to outer."""
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
        # A container may see only the outermost group, which is then its own.
        for each in (Path(group), *Path(group).parents):
            folder = root / each.relative_to("/")
            with suppress(OSError, ValueError):  # missing, or without a limit
                most = int((folder / limit).read_text(encoding="ascii"))
                yield _MemoryGroup(folder=folder, limit=most, usage=usage, cache=cache)


def memory_of_children() -> int:
    """Return the private resident bytes of this process's children."""
    num_bytes = 0
    for children in (PROC / "self" / "task").glob("*/children"):
        for child in children.read_text(encoding="utf-8").split():
            with suppress(OSError):  # it has ended
                text = (PROC / child / "smaps_rollup").read_text(encoding="utf-8")
                found = re.findall(r"Private_(?:Clean|Dirty):\s*(\d+) kB", text)
                num_bytes += 1024 * sum(map(int, found))
    return num_bytes


def num_cores() -> int | None:
    """Return the number of hardware threads this process may use; None if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def num_whole_cores() -> int | None:
    """Return the number of physical cores this process may use; None if unknown.

    A second hardware thread on a core does not speed up matrix products.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores: set[str] = set()
    for number in os.sched_getaffinity(0):
        path = CORES / f"cpu{number}" / "topology" / "thread_siblings_list"
        if not path.is_file():
            return None
        cores.add(path.read_text(encoding="ascii"))
    return len(cores)


def scheduled_seconds() -> tuple[float, float] | None:
    """Return the seconds that this process's threads ran, and waited for a core.

    Ended threads do not count. None if the system does not record it.
    """
    ran = waited = 0
    found = False
    for path in (PROC / "self" / "task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has ended
            on_core, on_queue, _ = map(int, path.read_text(encoding="ascii").split())
            ran, waited, found = ran + on_core, waited + on_queue, True
    return (ran / 1e9, waited / 1e9) if found else None


class WaitingMeter:
    """Measures the share of time that this process waits for a core."""

    def __init__(self) -> None:
        self._before = scheduled_seconds()

    def share(self) -> float:
        """Return the share since the meter was made: 0 (idle machine) to nearly 1."""
        now = scheduled_seconds()
        if self._before is None or now is None:
            return self._share_by_load()
        ran, waited = (max(b - a, 0.0) for a, b in zip(self._before, now, strict=True))
        return waited / (ran + waited) if ran + waited > 0 else 0.0

    @staticmethod
    def _share_by_load() -> float:
        """Estimate from the load average of the last minute; 0 without one."""
        if not hasattr(os, "getloadavg"):
            return 0.0
        return max(1 - (num_cores() or 1) / max(os.getloadavg()[0], 1e-9), 0.0)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; no effect with another C library.

    By default glibc returns large blocks to the system at once, and each new tensor
    costs page faults: about a tenth of the time of training on a CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(M_MMAP_THRESHOLD, 2**30):
        return  # older versions refuse this value; the rest would then do harm
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, 2**28)


def return_freed_memory() -> None:
    """Return freed memory to the system; no effect without glibc."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def processor_flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty if unknown."""
    path = PROC / "cpuinfo"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def describe_processor() -> str:
    """Describe the processor: hardware threads, model, matrix instructions."""
    path = PROC / "cpuinfo"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)", text, flags=re.MULTILINE)
    if not names:
        return platform.processor() or platform.machine()
    flags = processor_flags()
    found = [flag for flag in MATRIX_FLAGS if flag in flags]
    return f"{len(names)} x {names[0]} ({', '.join(found)})"


def torch_folder() -> Path | None:
    """Find the folder of the installed PyTorch without loading it; None if missing."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent


def may_have_gpu() -> bool:
    """Return whether the installed PyTorch is built for GPUs, without loading it."""
    folder = torch_folder()
    if folder is None:
        return False
    path = folder / "version.py"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    builds = re.findall(r"^(?:cuda|hip)\b[^=]*=\s*(\S+)", text, re.MULTILINE)
    return not builds or any(build != "None" for build in builds)


READ_BY_PYTORCH = "OMP_NUM_THREADS", "MKL_NUM_THREADS"
"""Environment variables that PyTorch reads once, when it is loaded."""


def gomp_parallel() -> int | None:
    """Return the address of `GOMP_parallel` in PyTorch's OpenMP; None if not GCC's.

    With it, the native library shares PyTorch's threads; without, it starts its own.
    """
    library = _openmp()
    if library is None:
        return None
    return ctypes.cast(library.GOMP_parallel, c_void_p).value


def num_threads() -> int:
    """Return the number of threads that PyTorch computes with, or would."""
    if (torch := _loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return _Threads.number or _default_threads()


def use_threads(number: int) -> None:
    """Set the number of threads, also of PyTorch, whether loaded now or later."""
    _Threads.number = number
    if (torch := _loaded_torch()) is not None:
        torch.set_num_threads(number)
        return
    for name in READ_BY_PYTORCH:
        os.environ[name] = str(number)
    if (library := _openmp()) is not None:
        library.omp_set_num_threads(number)


def _loaded_torch() -> ModuleType | None:
    """Return PyTorch if loaded; None while another thread is still loading it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


class _Threads:
    """Number of threads set by `use_threads`, for this process."""

    number: int | None = None


def leave_a_core() -> None:
    """Compute on all cores but one, unless the environment sets a number of threads.

    If another program needs a core, threads on all cores would spin until the thread
    that lost its core catches up.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        use_threads(max(num_threads() - 1, 1))


@cache
def _default_threads() -> int:
    """Return one thread per core, or what the environment sets.

    MKL_NUM_THREADS takes precedence over OMP_NUM_THREADS, as in PyTorch.
    """
    library = _openmp()
    most = num_cores() if library is None else library.omp_get_max_threads()
    for name in READ_BY_PYTORCH if library is None else ("MKL_NUM_THREADS",):
        with suppress(KeyError, ValueError):
            most = int(os.environ[name]) or most
    return max(min(filter(None, [most, num_whole_cores()]), default=1), 1)


@cache
def _openmp() -> ctypes.CDLL | None:
    """Return GCC's OpenMP library, the one that PyTorch uses or will use, or None."""
    folder = torch_folder()
    own = [] if folder is None else sorted((folder / "lib").glob("libgomp*"))
    # PyTorch brings its own copy, uses the system's, or has it loaded already.
    for path in [*map(str, own), None, "libgomp.so.1"]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            _ = library.GOMP_parallel, library.omp_get_max_threads
            return library
    return None
