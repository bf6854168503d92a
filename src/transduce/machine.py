"""What this machine has and can do, as its system tells. Knows no torch."""

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
"""Programs that want to run, from which on what is timed is to be taken with care."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Of glibc's malloc.h."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Where Linux tells what containers, and the jobs of a cluster, may have."""

PROC = Path("/proc")
"""Where it tells what it has, and each process."""

CORES = Path("/sys/devices/system/cpu")
"""Where it tells of each of the processor's threads."""
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
    """Bytes of the machine's that this process may take beyond those that it holds.

    So many processes may do so alike. Infinite where the system does not tell.
    """
    free = told_bytes("meminfo", "MemAvailable")
    if free is None:
        return math.inf
    left = [group.limit - group.used() for group in memory_groups()]
    return max(min([free, *left]) / num_processes, 0.0)


def told_bytes(file: str, name: str) -> int | None:
    """What Linux tells in a file of `PROC`; none where there is no such line."""
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


def memory_groups() -> Iterator[_MemoryGroup]:
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


def num_whole_cores() -> int | None:
    """Of these, each that runs several threads at once counted once; None if not told.

    Products gain nothing by a second thread on a core.
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
    """Seconds that this process's threads have run, and that they waited for a core.

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
        """Share since the meter was made: 0 alone on the machine, up to nearly 1."""
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


def describe_processor() -> str:
    """Number and model of the cores, with their matrix instructions."""
    path = PROC / "cpuinfo"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)", text, flags=re.MULTILINE)
    if not names:
        return platform.processor() or platform.machine()
    flags = processor_flags()
    found = [flag for flag in MATRIX_FLAGS if flag in flags]
    return f"{len(names)} x {names[0]} ({', '.join(found)})"


def torch_folder() -> Path | None:
    """Folder of the installed PyTorch, which is not loaded; None without PyTorch."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent


def may_have_gpu() -> bool:
    """Whether the installed PyTorch is built for GPUs; it is not loaded."""
    folder = torch_folder()
    if folder is None:
        return False
    path = folder / "version.py"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    builds = re.findall(r"^(?:cuda|hip)\b[^=]*=\s*(\S+)", text, re.MULTILINE)
    return not builds or any(build != "None" for build in builds)


READ_BY_PYTORCH = "OMP_NUM_THREADS", "MKL_NUM_THREADS"
"""Once, as it is loaded."""


def gomp_parallel() -> int | None:
    """Address of GOMP_parallel in the OpenMP that PyTorch has; None if it is not GCC's.

    Without it the native library uses threads of its own.
    """
    library = _openmp()
    if library is None:
        return None
    return ctypes.cast(library.GOMP_parallel, c_void_p).value


def num_threads() -> int:
    """As many as PyTorch computes with, or would."""
    if (torch := _loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return _Threads.asked or _usual_number()


def use_threads(number: int) -> None:
    """From here on compute with so many, in PyTorch too, also if it is loaded later."""
    _Threads.asked = number
    if (torch := _loaded_torch()) is not None:
        torch.set_num_threads(number)
        return
    for name in READ_BY_PYTORCH:
        os.environ[name] = str(number)
    if (library := _openmp()) is not None:
        library.omp_set_num_threads(number)


def _loaded_torch() -> ModuleType | None:
    """None also while another thread is still loading it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


class _Threads:
    """How many of them."""

    asked: int | None = None


def leave_a_core() -> None:
    """Compute on all cores but one, unless the environment sets a number of threads.

    Where another program wants that core, threads on all of them would wait, actively,
    for the one that has lost its own.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        use_threads(max(num_threads() - 1, 1))


@cache
def _usual_number() -> int:
    """Default number of threads: one for each core, or what the environment sets.

    MKL_NUM_THREADS comes before OMP_NUM_THREADS, as it does in PyTorch.
    """
    library = _openmp()
    most = num_cores() if library is None else library.omp_get_max_threads()
    for name in READ_BY_PYTORCH if library is None else ("MKL_NUM_THREADS",):
        with suppress(KeyError, ValueError):
            most = int(os.environ[name]) or most
    return max(min(filter(None, [most, num_whole_cores()]), default=1), 1)


@cache
def _openmp() -> ctypes.CDLL | None:
    """GCC's: the very one that PyTorch has, or will have, if it has that one."""
    folder = torch_folder()
    own = [] if folder is None else sorted((folder / "lib").glob("libgomp*"))
    # PyTorch may bring its own, have the system's, or have it loaded already.
    for path in [*map(str, own), None, "libgomp.so.1"]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            _ = library.GOMP_parallel, library.omp_get_max_threads
            return library
    return None
