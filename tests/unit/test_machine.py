"""Figures of the machine, read from its operating system."""

import ctypes
import gc
import math
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from transduce import machine
from transduce.device import choose_hardware
from transduce.machine import (
    free_memory,
    keep_freed_memory,
    may_have_gpu,
    memory_of_children,
    num_physical_cores,
    objects_frozen,
    proc_bytes,
    processor_flags,
    use_one_arena,
)


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """Replace the system's files about memory by given ones."""
    monkeypatch.setattr("transduce.machine.PROC", tmp_path)
    monkeypatch.setattr("transduce.machine.CONTROL_GROUPS", tmp_path / "groups")

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    write({"self/cgroup": "", "self/status": "VmHWM: 90 kB\n"})
    return write


class Library:
    """Stand-in for glibc that records the options of malloc."""

    def __init__(self, _name: None) -> None:
        self.calls: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return 1


@pytest.mark.parametrize(
    ("setting", "num_calls"), [(keep_freed_memory, 3), (use_one_arena, 1)]
)
@pytest.mark.parametrize("library", ["glibc", "musl", ""])
def test_only_glibc_has_settings_of_memory(monkeypatch, library, setting, num_calls):
    libc = Library(None)
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, "2.36"))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    setting()
    assert len(libc.calls) == (num_calls if library == "glibc" else 0)
    assert all(0 < value < 2**31 for _, value in libc.calls)


@pytest.mark.parametrize(
    ("frozen_before", "calls"), [(0, ["collect", "freeze", "unfreeze"]), (7, [])]
)
def test_objects_are_frozen_meanwhile_unless_the_caller_has_done_so(
    monkeypatch, frozen_before, calls
):
    made = []
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, partial(made.append, name))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_before)
    with suppress(KeyError), objects_frozen():
        assert made == calls[:2]
        raise KeyError
    assert made == calls


ALLOCATION = r"""
import re, resource, sys
from pathlib import Path
from transduce import machine

kind = sys.argv[1]
machine.free_memory = lambda _: 2**27
if kind == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
machine.keep_freed_memory()
machine.use_huge_pages()
if kind == "returned":
    first = bytearray(2**26)
    del first
    machine.return_freed_memory()
    machine.use_huge_pages()
resident = machine.proc_bytes("self/status", "VmRSS")
held = bytearray(2**26)
mappings = re.split(r"(?m)^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
heaps = [each for each in mappings if "[heap]" in each]
sizes = [re.search(r"Size: +(\d+) kB", each)[1] for each in heaps if " hg" in each]
print(1024 * sum(map(int, sizes)), resident)
"""


@pytest.mark.skipif(not machine.can_use_huge_pages(), reason="Linux with advice only")
@pytest.mark.parametrize(
    ("kind", "variables", "least"),
    [
        ("first", {}, 2**27),
        ("returned", {}, 2**27),
        ("limited", {}, 0),
        ("filling", {"MALLOC_PERTURB_": "7"}, 0),
        ("filling", {"GLIBC_TUNABLES": "glibc.malloc.perturb=7"}, 0),
    ],
)
def test_the_heap_is_in_huge_pages_where_they_cost_nothing(kind, variables, least):
    """Limits of addresses, and a malloc that fills blocks, count unused memory."""
    program = [sys.executable, "-c", ALLOCATION, kind]
    found = subprocess.run(
        program,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GLIBC_TUNABLES": "", **variables},
    )
    size, resident = map(int, found.stdout.split())
    assert size >= least
    assert (size > 0) == (least > 0)
    assert resident < 2**27


@pytest.mark.parametrize(
    ("enabled", "size", "expected"),
    [
        ("always [madvise] never\n", "2097152\n", True),
        ("[always] madvise never\n", "2097152\n", False),
        ("always madvise [never]\n", "2097152\n", False),
        ("always [madvise] never\n", "536870912\n", False),
        (None, None, False),
    ],
)
@pytest.mark.skipif(not machine.can_use_huge_pages(), reason="Linux with advice only")
def test_advice_is_given_where_linux_asks_for_it(
    tmp_path, monkeypatch, enabled, size, expected
):
    monkeypatch.setattr(machine, "HUGE_PAGES", tmp_path)
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(size)
    assert machine.can_use_huge_pages() is expected


def test_memory_shared_with_children_does_not_count():
    before = memory_of_children()
    code = f"held = bytearray({50 * 2**20}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        grown = memory_of_children() - before
        child.communicate(b"\n")
    assert 50 * 2**20 <= grown < 100 * 2**20
    assert memory_of_children() < before + 50 * 2**20


def test_a_thread_that_ends_meanwhile_has_no_children(linux):
    linux({"self/task/7/children/ended": ""})  # a folder cannot be read, either
    assert memory_of_children() == 0


def test_a_process_may_have_a_name_that_is_cut_within_a_letter(linux, tmp_path):
    status = "Name:\tVmRSS: 1 kB entraîne".encode()[:-2] + b"\nVmRSS:\t  12 kB\n"
    (tmp_path / "self" / "status").write_bytes(status.replace("î".encode(), b"\xc3"))
    assert proc_bytes("self/status", "VmRSS") == 12 * 1024


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1000000\n", 1_000_000), ("max\n", None), ("9223372036854771712\n", None)],
)
@pytest.mark.parametrize("place", ["job/step", "job", "."])
@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/job/step", "{}/memory.max"),
        ("9:cpu,memory:/job/step", "memory/{}/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_limits_the_memory_of_the_machine(
    linux, limit, expected, place, line, file
):
    hardware = choose_hardware("cpu")
    present = hardware.memory_bytes()
    linux({"self/cgroup": f"7:cpuset:/other\n{line}\n"})
    assert hardware.memory_bytes() == present
    linux({f"groups/{file.format(place)}": limit})
    assert hardware.memory_bytes() == (expected or present)


@pytest.mark.parametrize(
    ("line", "limit", "usage", "cache"),
    [
        ("0::/job", "job/memory.max", "job/memory.current", "inactive_file"),
        (
            "9:memory:/job",
            "memory/job/memory.limit_in_bytes",
            "memory/job/memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_free_memory_is_the_least_of_machine_and_groups(
    linux, line, limit, usage, cache
):
    linux({"meminfo": "MemTotal: 900 kB\nMemAvailable: 400 kB\n"})
    assert free_memory(1) == 400 * 1024
    assert free_memory(2) == 200 * 1024
    linux({"self/cgroup": f"{line}\n", f"groups/{limit}": "300000"})
    folder = f"groups/{limit}".rpartition("/")[0]
    linux(
        {
            f"groups/{usage}": "120000\n",
            f"{folder}/memory.stat": f"a 7\n{cache} 20000\n",
        }
    )
    assert free_memory(1) == 200_000
    assert free_memory(2) == 100_000
    linux({f"groups/{usage}": "330000\n"})
    assert free_memory(1) == 0


def test_a_group_without_a_cache_figure_counts_no_cache(linux):
    linux({"meminfo": "MemAvailable: 400 kB\n", "self/cgroup": "0::/\n"})
    linux({"groups/memory.max": "300000", "groups/memory.current": "120000\n"})
    assert free_memory(1) == 180_000


@pytest.mark.parametrize("root", ["/../..", "/other", "/job/step"])
def test_a_later_mount_does_not_hide_the_groups_limit(linux, tmp_path, root):
    mounts = [
        f"31 23 0:28 {root} {folder} rw - cgroup2 cgroup2 rw"
        for root, folder in (("/", tmp_path / "own"), (root, tmp_path / "later"))
    ]
    linux(
        {
            "meminfo": "MemAvailable: 400 kB\n",
            "self/cgroup": "0::/job\n",
            "self/mountinfo": "\n".join(mounts),
            "own/job/memory.max": "300000",
            "own/job/memory.current": "120000\n",
            "later/memory.max": "200000",
            "later/memory.current": "190000\n",
        }
    )
    assert free_memory(1) == 180_000


def test_free_memory_is_infinite_if_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.machine.PROC", tmp_path)
    assert free_memory(1) == math.inf


def test_the_features_of_a_processor_are_read(linux):
    assert processor_flags() == frozenset()
    linux({"cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\n"})
    assert processor_flags() == frozenset()
    linux({"cpuinfo": "flags\t\t: fpu avx2 fma\nbugs\t: none\nvmx flags\t: vnmi\n"})
    assert processor_flags() == {"fpu", "avx2", "fma"}


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [(["0", "1", "2", "3"], 4), (["0-1", "0-1", "2,3", "2,3"], 2)],
)
def test_threads_of_one_core_count_once(tmp_path, monkeypatch, siblings, expected):
    monkeypatch.setattr("transduce.machine.CORES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(len(siblings)))
    assert num_physical_cores() is None
    for number, text in enumerate(siblings):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    assert num_physical_cores() == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda = None\nhip = '6.4'\n", True),
        ("cuda = None\n", False),
        ("__version__ = '9'\n", True),
        (None, True),
    ],
)
def test_a_build_of_pytorch_without_gpus_is_recognized(
    tmp_path, monkeypatch, version, expected
):
    monkeypatch.setattr("transduce.machine.torch_folder", lambda: tmp_path)
    if version is not None:
        (tmp_path / "version.py").write_text(version)
    assert may_have_gpu() == expected


def test_this_build_of_pytorch_is_recognized():
    assert may_have_gpu() == (torch.version.cuda is not None)


def test_time_without_a_core_is_measured(monkeypatch, tmp_path):
    """Statistics of a thread are its running time and its waiting time."""
    monkeypatch.setattr(machine, "PROC", tmp_path)
    threads = [tmp_path / "self" / "task" / name for name in "12"]

    def tell(*times: tuple[int, int]) -> None:
        for folder, (ran, waited) in zip(threads, times, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"{ran} {waited} 7\n")

    tell((5_000_000_000, 0), (1_000_000_000, 0))
    assert machine.scheduled_seconds() == (6.0, 0.0)
    meter = machine.WaitingMeter()
    assert meter.share() == 0.0
    tell((6_000_000_000, 2_000_000_000), (2_000_000_000, 4_000_000_000))
    assert meter.share() == 0.75


@pytest.mark.parametrize(("load", "share"), [(1.0, 0.0), (2.0, 0.0), (8.0, 0.75)])
def test_the_load_average_is_used_without_thread_statistics(
    monkeypatch, tmp_path, load, share
):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert machine.scheduled_seconds() is None
    assert machine.WaitingMeter().share() == share


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="only Linux tells of its threads"
)
def test_programs_on_the_same_core_wait_for_each_other():
    """Several programs share one core."""
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    busy = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(["true"]) as done:
        done.wait()
    os.sched_setaffinity(0, core)
    others = [subprocess.Popen(busy) for _ in range(4)]
    try:
        time.sleep(0.5)
        meter, end = machine.WaitingMeter(), time.monotonic() + 1
        while time.monotonic() < end:
            pass
        assert meter.share() > 0.4
    finally:
        os.sched_setaffinity(0, before)
        for other in others:
            other.kill()
            other.wait()
