"""Resources of this machine: memory, cores, instruction sets, threads."""

import ctypes
import gc
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

from transduce.errors import ConfigError, counted
from transduce.settings import shown, without_numpy

Precision = Literal["auto", "fp32", "bf16"]
"""Precision of the matrix products of training."""

BUSY_LOAD = 0.5
"""Load average above which timings are unreliable."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
M_MMAP_MAX, M_ARENA_MAX = -4, -8
"""Parameters of `mallopt`, from glibc's malloc.h."""
MMAP_THRESHOLD = 2**30
"""Value of M_MMAP_THRESHOLD with which all but the largest blocks are in the heap."""
NEVER_TRIM = -1
"""Value of M_TRIM_THRESHOLD with which freed memory is never returned."""
DEFAULT_MMAP_MAX = 65_536
"""Value of M_MMAP_MAX with which a program starts."""
MADV_HUGEPAGE = 14
"""Advice of `madvise` to use huge pages, from Linux's mman-common.h."""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
"""Linux information on huge pages."""
MAX_HUGE_PAGE = 2**25
"""Largest huge page in bytes: some ARM systems have pages of 512 MB, which would take
that much memory for a few bytes."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Usual folder of Linux control groups: limits of containers and cluster jobs."""

PROC = Path("/proc")
"""Linux process information."""

CORES = Path("/sys/devices/system/cpu")
"""Linux information on each hardware thread."""
MOUNT_ROOT, MOUNT_FOLDER = 3, 4
"""Fields of a line of `/proc/self/mountinfo`."""
READ_BY_PYTORCH = "MKL_NUM_THREADS", "OMP_NUM_THREADS"
"""Environment variables with the number of threads, which PyTorch reads when it is
loaded; the first that is set counts."""
WRITTEN_THREADS = "TRANSDUCE_WRITTEN_THREADS"
"""Environment variable with the number that `use_threads` has written to the others, so
that child processes do not take it for the user's choice."""
MAX_BRIEF_SPINS = 10_000
"""Number of spins of a waiting thread that take less than a millisecond on any
processor: a spin pauses for up to 140 cycles."""
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
    """Read a size in a file below `/proc`; None if file or line is missing.

    The file may have the name of the process, which need not be UTF-8.
    """
    found = re.search(rf"^{name}:\s*(\d+) kB", _text(PROC / file), re.MULTILINE)
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
        statistics = _text(self.folder / "memory.stat")  # missing on some systems
        found = re.search(rf"^{self.cache} (\d+)$", statistics, re.MULTILINE)
        usage = int((self.folder / self.usage).read_text(encoding="ascii"))
        return usage - (int(found[1]) if found else 0)


def memory_groups() -> Iterator[_MemoryGroup]:
    """Yield the control groups of this process that limit memory, inner to outer."""
    for folder, version in control_groups("memory", PROC):
        if version == 2:
            limit, usage, cache = "memory.max", "memory.current", "inactive_file"
        else:
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        with suppress(OSError, ValueError):  # missing, or without a limit
            maximum = int((folder / limit).read_text(encoding="ascii"))
            yield _MemoryGroup(folder=folder, limit=maximum, usage=usage, cache=cache)


def control_groups(kind: str, proc: Path) -> Iterator[tuple[Path, int]]:
    """Yield folder and version of this process's control groups, inner to outer.

    `kind` is the controller, such as "cpu". Some folders may not exist: a container may
    see its own group only, as the outermost one. A group that is mounted several times
    is yielded several times.
    """
    mounts = _group_mounts(proc)
    for line in _text(proc / "self" / "cgroup").split("\n"):
        _, _, rest = line.partition(":")
        kinds, _, group = rest.partition(":")
        if group and not kinds:
            version, default, found = 2, CONTROL_GROUPS, mounts.get("")
        elif kind in kinds.split(","):
            version, default, found = 1, CONTROL_GROUPS / kind, mounts.get(kind)
        else:
            continue
        for folder in _group_folders(Path(group), found or {default: Path("/")}):
            yield folder, version


def _group_folders(group: Path, mounts: Mapping[Path, Path]) -> Iterator[Path]:
    """Yield the folders of a group and of the groups around it, mount by mount.

    `mounts` has the outermost group of each mount, by folder.
    """
    paths = {
        folder: group.relative_to(root)
        for folder, root in mounts.items()
        if group.is_relative_to(root) and ".." not in group.parts
    }
    if not paths:  # the group has its name in another namespace
        yield next(iter(mounts))
    for folder, path in paths.items():
        for each in (path, *path.parents):
            yield folder / each


def _group_mounts(proc: Path) -> dict[str, dict[Path, Path]]:
    """Return the outermost group of each mount of control groups, by folder.

    The mounts are grouped by controller. Mounts of version 2 have all controllers, and
    the name "".
    """
    mounts: dict[str, dict[Path, Path]] = {}
    for line in _text(proc / "self" / "mountinfo").split("\n"):
        mount, _, system = line.partition(" - ")
        fields, (kind, *options) = mount.split(" "), system.split(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        if len(fields) <= MOUNT_FOLDER or not options:
            continue
        group, folder = (_unescaped(fields[i]) for i in (MOUNT_ROOT, MOUNT_FOLDER))
        names = [""] if kind == "cgroup2" else options[-1].split(",")
        for name in names:  # a mount on the same folder hides the earlier one
            mounts.setdefault(name, {})[Path(folder)] = Path(group)
    return mounts


def _unescaped(path: str) -> str:
    """Decode spaces and the like, which mountinfo writes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _text(path: Path) -> str:
    """Read a file of the system; empty if it cannot be read.

    Its lines end by line feeds alone: names of groups may have other control
    characters.
    """
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return ""


def memory_of_children() -> int:
    """Return the private resident bytes of this process's children."""
    num_bytes = 0
    for children in (PROC / "self" / "task").glob("*/children"):
        for child in _text(children).split():
            text = _text(PROC / child / "smaps_rollup")  # empty if it has ended
            found = re.findall(r"Private_(?:Clean|Dirty):\s*(\d+) kB", text)
            num_bytes += 1024 * sum(map(int, found))
    return num_bytes


@dataclass(frozen=True, slots=True)
class Cores:
    """Number of cores that this process may use, and the origin of this limit."""

    number: int
    """At least 1."""
    limit: str | None = None
    """"affinity", a CPU quota, a variable of the environment, or None: no limit."""


def num_cores() -> int:
    """Return the number of hardware threads that affinity and CPU quota allow."""
    return usable_cores(environment={}).number


def require_number_of_processes(number: object, maximum: int) -> None:
    """Raise `ConfigError` for a number that this machine cannot have.

    It may be up to `maximum`, or as large as the number of cores.
    """
    whole = without_numpy(number)
    if type(whole) is not int:
        raise ConfigError(
            f"The number of processes must be a whole number, but is {shown(number)}."
        )
    if whole < 1:
        raise ConfigError(
            f"The number of processes must be at least 1, but is {whole}."
        )
    if whole > (maximum := max(num_cores(), maximum)):
        raise ConfigError(
            f"The number of processes must be at most {maximum} on this machine, but "
            f"is {whole:,}; more processes than cores slow each other down."
        )


def usable_cores(
    proc: Path = PROC, environment: Mapping[str, str] = os.environ
) -> Cores:
    """Return the number of threads to compute with, and the origin of this limit.

    It is the smallest of the cores in the process's affinity, the CPU quotas of its
    control groups (of containers and cluster jobs), rounded up, and MKL_NUM_THREADS, or
    OMP_NUM_THREADS where it is not set.
    """
    number = _cores_of_affinity()
    limits = [Cores(number, "affinity" if number < (os.cpu_count() or 1) else None)]
    if (quota := cpu_quota(proc)) < math.inf:
        several = "core" if quota == 1 else "cores"
        limits.append(Cores(math.ceil(quota), f"CPU quota of {quota:.3g} {several}"))
    limits += _chosen_threads(environment)
    return min(limits, key=lambda cores: cores.number)  # the first of equal ones


def _cores_of_affinity() -> int:
    """Return the number of hardware threads in the process's affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(proc: Path = PROC) -> float:
    """Return the cores whose time this process may use; infinite without a quota.

    Control groups limit it (`cpu.max`, or `cpu.cfs_quota_us` in version 1), also those
    around the process's own.
    """
    quotas = [math.inf]
    for folder, version in control_groups("cpu", proc):
        # A file is missing, malformed, or says "max", which means no limit.
        with suppress(OSError, ValueError, OverflowError):
            if version == 2:
                text = (folder / "cpu.max").read_text(encoding="ascii")
            else:
                files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                text = " ".join(
                    (folder / file).read_text(encoding="ascii") for file in files
                )
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas)


def _chosen_threads(environment: Mapping[str, str]) -> Iterator[Cores]:
    """Yield the number of threads that the environment sets, if any.

    A variable may have a list of numbers, one for each level of nested loops; the first
    one counts.
    """
    for name in READ_BY_PYTORCH:
        first = environment.get(name, "").split(",")[0].strip()
        if re.fullmatch(r"0*[1-9]\d{0,8}", first, re.ASCII):
            yield Cores(int(first), name)
            return


def num_physical_cores() -> int | None:
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
        return max(1 - num_cores() / max(os.getloadavg()[0], 1e-9), 0.0)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory; no effect with another C library.

    By default glibc returns large blocks to the system at once, and each new tensor
    costs page faults: about a tenth of the time of training on a CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD):
        return  # older versions refuse this value; the rest would then do harm
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, 2**28)


def use_huge_pages() -> None:
    """Make glibc allocate in huge pages; no effect where `can_use_huge_pages` is false.

    A processor remembers the addresses of few pages: with pages of 4 KB, training on a
    CPU takes up to 1.26 times as long. Linux takes advice only for addresses that
    exist, so the heap first grows by all free memory; pages take memory when they are
    written. The process then keeps all memory that it has freed, until
    `return_freed_memory`. Blocks of other threads are in the heap only after
    `use_one_arena`.
    """
    free = free_memory(1)
    if math.isinf(free) or not can_use_huge_pages():
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD):
        return  # large blocks would not be in the heap
    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), c_void_p
    libc.free.argtypes = (c_void_p,)
    libc.madvise.argtypes = c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mallopt(M_TRIM_THRESHOLD, NEVER_TRIM)
    libc.mallopt(M_MMAP_MAX, 0)  # or the block would not be in the heap
    libc.free(libc.malloc(int(free)))
    libc.mallopt(M_MMAP_MAX, DEFAULT_MMAP_MAX)
    for line in _text(PROC / "self" / "maps").split("\n"):
        if line.endswith("[heap]"):
            first, end = (int(each, 16) for each in line.partition(" ")[0].split("-"))
            libc.madvise(first, end - first, MADV_HUGEPAGE)


def can_use_huge_pages() -> bool:
    """Whether Linux gives huge pages on advice, and large blocks cost no memory."""
    return (
        platform.libc_ver()[0] == "glibc"
        and _has_huge_pages_on_advice()
        and not _is_address_space_limited()
        and not _fills_new_memory()
        and _is_malloc_of_glibc()
    )


def _has_huge_pages_on_advice() -> bool:
    enabled, size = (_text(HUGE_PAGES / name) for name in ("enabled", "hpage_pmd_size"))
    return "[madvise]" in enabled and 0 < int(size or 0) <= MAX_HUGE_PAGE


def _is_address_space_limited() -> bool:
    """Whether memory counts for a limit before it is written."""
    import resource  # missing on Windows

    limits = resource.RLIMIT_AS, resource.RLIMIT_DATA
    is_strict = _text(PROC / "sys" / "vm" / "overcommit_memory").strip() == "2"
    return is_strict or any(
        resource.getrlimit(each)[0] != resource.RLIM_INFINITY for each in limits
    )


def _fills_new_memory() -> bool:
    """Whether malloc writes each new block, to find errors in programs."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "MALLOC_PERTURB_" in os.environ or "malloc.perturb" in tunables


def _is_malloc_of_glibc() -> bool:
    """Whether no other library, such as jemalloc, takes the place of malloc."""
    used, glibc = (
        ctypes.cast(ctypes.CDLL(name).malloc, c_void_p).value
        for name in (None, "libc.so.6")
    )
    return used == glibc


def use_one_arena() -> None:
    """Make threads allocate from the memory of the main one; only for glibc.

    It must be called before the process starts its first other thread: an arena stays
    after its thread has ended, and later threads use it. By default each thread has an
    arena of its own, which returns large blocks to the system at once, whatever
    `keep_freed_memory` has set. Training in two threads then takes up to a fifth
    longer.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


@contextmanager
def objects_frozen() -> Iterator[None]:
    """Keep all objects that exist out of garbage collections meanwhile.

    Collections would visit the many objects of PyTorch's modules again and again, which
    takes 4 % of the time of training a small model. It has no effect if objects are
    frozen already, as the command line freezes them after its imports: at the end of
    the block, the caller's could not be told apart.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def return_freed_memory() -> None:
    """Return freed memory to the system; no effect without glibc."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def processor_flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty if unknown."""
    text = _text(PROC / "cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def describe_processor() -> str:
    """Describe the processor: hardware threads, model, matrix instructions."""
    text = _text(PROC / "cpuinfo")
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
    text = _text(folder / "version.py")
    builds = re.findall(r"^(?:cuda|hip)\b[^=]*=\s*(\S+)", text, re.MULTILINE)
    return not builds or any(build != "None" for build in builds)


def gomp_parallel() -> int | None:
    """Return the address of `GOMP_parallel` in PyTorch's OpenMP, or None.

    The native library computes on PyTorch's threads if it has the address, otherwise on
    threads of its own, which never wait for a late one. PyTorch's threads are better
    only if they spin for long after each operator, and so occupy the cores anyway.
    Threads of LLVM's OpenMP spin for long, and threads of GCC's OpenMP unless
    `spins_briefly`. Both libraries have the function.
    """
    if (library := _openmp()) is None:
        return None
    if spins_briefly(os.environ) and not hasattr(library, "__kmpc_fork_call"):
        return None
    return ctypes.cast(library.GOMP_parallel, c_void_p).value


def spins_briefly(environment: Mapping[str, str]) -> bool:
    """Return whether the threads of GCC's OpenMP sleep soon after an operator.

    The environment must be that of the time when PyTorch is loaded.
    """
    policy = environment.get("OMP_WAIT_POLICY", "").strip().lower()
    spins = environment.get("GOMP_SPINCOUNT", "").strip()
    if re.fullmatch(r"\d{1,9}", spins, re.ASCII):
        return int(spins) <= MAX_BRIEF_SPINS
    return policy == "passive"


def num_threads() -> int:
    """Return the number of threads that PyTorch computes with, or would."""
    if (torch := _loaded_torch()) is not None:
        return int(torch.get_num_threads())
    return _Threads.number or _default_threads()


def threads_limit() -> str | None:
    """Return the limit of `num_threads`: affinity, a CPU quota or a variable."""
    cores = usable_cores()
    return cores.limit if cores.number == num_threads() else None


def describe_threads() -> str:
    """Describe the number of threads and its limit: "1 thread (OMP_NUM_THREADS)"."""
    limit = threads_limit()
    return counted(num_threads(), "thread") + (f" ({limit})" if limit else "")


def use_threads(number: int) -> None:
    """Set the number of threads, also of PyTorch, whether loaded now or later.

    If PyTorch is not loaded, child processes inherit the number.
    """
    _Threads.number = number
    if (torch := _loaded_torch()) is not None:
        torch.set_num_threads(number)
        return
    os.environ["OMP_NUM_THREADS"] = os.environ[WRITTEN_THREADS] = str(number)
    if "MKL_NUM_THREADS" in os.environ:
        os.environ["MKL_NUM_THREADS"] = str(number)
    if (library := _openmp()) is not None:
        library.omp_set_num_threads(number)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, also in PyTorch, as measurements of time should."""
    before = num_threads()
    use_threads(1)
    try:
        yield
    finally:
        use_threads(before)


def respect_cpu_quota(proc: Path = PROC) -> None:
    """Reduce the number of threads, also of PyTorch, to what the CPU quota allows.

    PyTorch does not know quotas: in a container with a quota of one core on a machine
    of 64, it would start 64 threads, which then wait for each other.
    """
    if (quota := cpu_quota(proc)) == math.inf:
        return
    if (torch := _loaded_torch()) is not None:
        before = torch.get_num_threads()
    else:
        chosen = next(_chosen_threads(os.environ), None)
        before = _cores_of_affinity() if chosen is None else chosen.number
    if math.ceil(quota) < before:
        use_threads(min(num_threads(), math.ceil(quota)))


def threads_of_each(count: int) -> dict[str, str]:
    """Return environment variables by which `count` processes share the cores.

    Each gets the same number of threads. If the user sets a number, each process takes
    it, and there are no variables.
    """
    if are_threads_chosen():
        return {}
    cores = min(filter(None, [num_cores(), num_physical_cores()]))
    return dict.fromkeys(READ_BY_PYTORCH, str(max(cores // count, 1)))


def are_threads_chosen() -> bool:
    """Return whether the user sets a number of threads in the environment."""
    chosen = next(_chosen_threads(os.environ), None)
    return chosen is not None and str(chosen.number) != os.environ.get(WRITTEN_THREADS)


def _loaded_torch() -> ModuleType | None:
    """Return PyTorch if loaded; None while another thread is still loading it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


class _Threads:
    """Number of threads set by `use_threads`, for this process."""

    number: int | None = None


def leave_a_core() -> None:
    """Compute on all cores but one, unless the environment sets a number of threads.

    If another program needs a core, the threads of PyTorch on all cores would wait for
    the one that lost its core.
    """
    if not are_threads_chosen():
        use_threads(max(num_threads() - 1, 1))


@cache
def _default_threads() -> int:
    """Return one thread per core, or the number that the environment sets."""
    return min(filter(None, [usable_cores().number, num_physical_cores()]))


@cache
def _openmp() -> ctypes.CDLL | None:
    """Return the OpenMP library that PyTorch uses or will use, or None.

    It is GCC's, or another one that has GCC's functions.
    """
    folder = torch_folder()
    own = [] if folder is None else sorted((folder / "lib").glob("libgomp*"))
    # PyTorch brings its own copy, uses the system's, or has it loaded already. A loaded
    # library of the same name, such as another extension's, takes its copy's place.
    choices = [(path.name, os.RTLD_NOLOAD) for path in own]
    choices += [(str(path), 0) for path in own]
    for name, mode in [*choices, (None, 0), ("libgomp.so.1", 0)]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(name, mode)
            _ = library.GOMP_parallel, library.omp_get_max_threads
            return library
    return None
