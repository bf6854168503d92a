"""The number of threads: by affinity, CPU quota and environment, as PyTorch's."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from transduce.machine import (
    READ_BY_PYTORCH,
    WRITTEN_THREADS,
    Cores,
    are_threads_chosen,
    cpu_quota,
    describe_threads,
    leave_a_core,
    num_physical_cores,
    num_threads,
    respect_cpu_quota,
    spins_briefly,
    threads_of_each,
    usable_cores,
    use_threads,
)
from transduce.native import api

PRESENT = os.cpu_count() or 1
AFFINE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else PRESENT
CORES = min(num_physical_cores() or AFFINE, AFFINE)
VERSION_2 = "31 23 0:28 / {} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
VERSION_1 = "32 31 0:29 / {} rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct"

OPENMP = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
needs_openmp = pytest.mark.skipif(
    not OPENMP, reason="this PyTorch does not bring GCC's OpenMP"
)
needs_threads = pytest.mark.skipif(
    AFFINE == 1, reason="one hardware thread has no smaller limit"
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a stand-in for `/proc` whose files are written by `limited`."""
    (tmp_path / "self").mkdir()
    return tmp_path


def limited(
    proc: Path, mounts: str, groups: str, files: dict[str, str], folder: str = "groups"
) -> Path:
    """Write the control groups of this process, and the files of their folders.

    Mounts have the place of `folder` in braces.
    """
    (proc / "self" / "mountinfo").write_text(
        f"29 1 8:1 / / rw - ext4 /dev/sda rw\n{mounts.format(proc / folder)}\n"
    )
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = proc / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc


def told_by(program: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in READ_BY_PYTORCH}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**environment, **variables},
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMP_NUM_THREADS": "1"},
        {"MKL_NUM_THREADS": "1"},
        pytest.param(
            {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"},
            marks=pytest.mark.skipif(
                CORES == 1, reason="on one core, the default is one thread in any case"
            ),
        ),
        {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"},
    ],
    ids=str,
)
def test_the_default_number_of_threads_is_pytorchs(variables: dict[str, str]) -> None:
    without = told_by(
        "import sys\n"
        "from transduce.machine import num_threads\n"
        "print(num_threads())\n"
        "assert 'torch' not in sys.modules",
        **variables,
    )
    pytorch = told_by("import torch; print(torch.get_num_threads())", **variables)
    assert without == pytorch


def test_a_partly_loaded_pytorch_is_not_queried(monkeypatch) -> None:
    before = num_threads()
    loading = ModuleType("torch")
    loading.__spec__ = torch.__spec__
    monkeypatch.setitem(sys.modules, "torch", loading)
    for name in READ_BY_PYTORCH:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("transduce.machine._Threads.number", None)
    monkeypatch.setenv(WRITTEN_THREADS, "7")
    use_threads(1)
    assert num_threads() == before == 1


def test_a_chosen_number_of_threads_is_used() -> None:
    program = (
        "from transduce.machine import num_threads, use_threads\n"
        "use_threads(1)\n"
        "print(num_threads())\n"
        "import torch\n"
        "print(torch.get_num_threads(), num_threads())"
    )
    assert (
        told_by(program, OMP_NUM_THREADS="2", MKL_NUM_THREADS="2").split() == ["1"] * 3
    )
    try:
        use_threads(2)
        assert torch.get_num_threads() == num_threads() == 2
    finally:
        use_threads(1)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (3, 2)])
def test_one_core_is_left_free_if_there_are_several(monkeypatch, before, after):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(before)
    try:
        leave_a_core()
        assert torch.get_num_threads() == after
    finally:
        torch.set_num_threads(1)


def test_a_chosen_number_of_threads_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    try:
        leave_a_core()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "expected"),
    [
        (VERSION_2, "0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        (VERSION_2, "0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, math.inf),
        # The smallest of nested quotas counts.
        (
            VERSION_2,
            "0::/a/b\n",
            {"a/b/cpu.max": "400000 100000", "a/cpu.max": "50000 50000"},
            1.0,
        ),
        (
            VERSION_2,
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "cpu.max": "300000 100000"},
            3.0,
        ),
        (
            VERSION_1,
            "5:cpuacct,cpu:/a\n",
            {"a/cpu.cfs_quota_us": "25000", "a/cpu.cfs_period_us": "50000"},
            0.5,
        ),
        (
            VERSION_1,
            "5:cpu,cpuacct:/a\n",
            {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "50000"},
            math.inf,
        ),
        # A container without a namespace for groups: the mount begins at its own.
        (
            VERSION_2.replace(" / ", " /docker/7 "),
            "0::/docker/7/job\n",
            {"cpu.max": "200000 100000", "job/cpu.max": "max 100000"},
            2.0,
        ),
        # A group outside of what the container sees.
        (
            VERSION_2,
            "0::/../x\n",
            {"cpu.max": "200000 100000", "../x/cpu.max": "1000 100000"},
            2.0,
        ),
        (
            VERSION_2.replace(" / ", " /docker/7 "),
            "0::/x\n",
            {"cpu.max": "200000 100000"},
            2.0,
        ),
        # Both versions on one machine.
        (
            VERSION_2.replace("{}", "{0}/unified")
            + "\n"
            + VERSION_1.replace("{}", "{0}/cpu"),
            "4:memory:/m\n1:cpu:/\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "9000", "cpu/cpu.cfs_period_us": "10000"},
            0.9,
        ),
        # Mounts of groups of another namespace, of another group, and of an inner one.
        *(
            (
                VERSION_2.replace("{}", "{0}/own")
                + "\n"
                + VERSION_2.replace("{}", "{0}/later").replace(" / ", f" {root} "),
                "0::/a\n",
                {"own/a/cpu.max": "200000 100000", "later/cpu.max": "1000 100000"},
                2.0,
            )
            for root in ("/../..", "/other", "/a/b")
        ),
        # The inner group has two mounts, and both are read.
        (
            VERSION_2.replace("{}", "{0}/own")
            + "\n"
            + VERSION_2.replace("{}", "{0}/inner").replace(" / ", " /a "),
            "0::/a/b\n",
            {"own/cpu.max": "200000 100000", "inner/b/cpu.max": "150000 100000"},
            1.5,
        ),
        # A mount hides an earlier one on the same folder.
        (
            f"{VERSION_2.replace(' / ', ' /a ')}\n{VERSION_2}".replace("{}", "{0}"),
            "0::/a\n",
            {"a/cpu.max": "200000 100000", "cpu.max": "max 100000"},
            2.0,
        ),
        # Only a line feed ends a line, and mounts of version 1 have options.
        (
            VERSION_2 + "\n32 31 0:29 / /x rw - cgroup",
            "0::/a\fb\n",
            {"a\fb/cpu.max": "200000 100000"},
            2.0,
        ),
    ],
)
def test_the_cpu_quota_is_that_of_the_control_groups(
    proc, mounts, groups, files, expected
):
    assert cpu_quota(limited(proc, mounts, groups, files)) == expected


def test_a_mount_may_have_spaces_in_its_name(proc):
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": "50000 100000"}, "my groups")
    path = proc / "self" / "mountinfo"
    path.write_text(path.read_text().replace("my groups", r"my\040groups"))
    assert cpu_quota(proc) == 0.5


@pytest.mark.parametrize(
    ("mounts", "groups", "quota"),
    [
        ("", "", ""),
        ("- cgroup2", "0::/", "1 2 3"),
        (" - \n1 2 - cgroup", "nonsense", "0 0"),
        (VERSION_2, "0::/\n::\n\n0:", "100000"),
        (VERSION_2, "0::/", "-5 100000"),
        (VERSION_2, "0::/", "100000 0"),
        (VERSION_2, "0::/", "\udcff 1"),
        (VERSION_2, "0::/", "9" * 400 + " 1"),
        (VERSION_2, "0::/", "9" * 5000 + " 1"),
        (VERSION_2, "\udcff:cpu:/\udcff\n1:cpu:/", "max"),
    ],
)
def test_malformed_files_mean_no_quota(proc, mounts, groups, quota):
    limited(proc, mounts, "", {})
    (proc / "self" / "cgroup").write_text(groups, errors="surrogateescape")
    (proc / "groups").mkdir()
    (proc / "groups" / "cpu.max").write_text(quota, errors="surrogateescape")
    assert cpu_quota(proc) == math.inf
    assert usable_cores(proc, {}).number == AFFINE


def test_without_the_systems_files_there_is_no_quota(proc):
    assert cpu_quota(proc / "missing") == math.inf


@pytest.mark.parametrize(
    ("quota", "environment", "expected"),
    [
        ("max 100000", {}, Cores(AFFINE, "affinity" if AFFINE < PRESENT else None)),
        ("1000 100000", {}, Cores(1, "CPU quota of 0.01 cores")),
        ("1000 100000", {"OMP_NUM_THREADS": "1"}, Cores(1, "CPU quota of 0.01 cores")),
        ("max 100000", {"OMP_NUM_THREADS": "1"}, Cores(1, "OMP_NUM_THREADS")),
        ("max 100000", {"OMP_NUM_THREADS": " 1 , 4"}, Cores(1, "OMP_NUM_THREADS")),
        ("max 100000", {"MKL_NUM_THREADS": "1"}, Cores(1, "MKL_NUM_THREADS")),
    ],
)
@needs_threads
def test_the_smallest_limit_of_cores_counts(proc, quota, environment, expected):
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": quota})
    assert usable_cores(proc, environment) == expected


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "two", "1.5", "², 1", "0x1", "9" * 30]
)
def test_a_malformed_number_of_threads_is_ignored(proc, value):
    assert usable_cores(proc, {"OMP_NUM_THREADS": value}).number == AFFINE


@needs_threads
def test_the_limit_stands_beside_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    torch.set_num_threads(1)
    assert describe_threads() == "1 thread (MKL_NUM_THREADS)"
    monkeypatch.setenv("MKL_NUM_THREADS", str(AFFINE))
    assert describe_threads() == "1 thread"


def test_parts_of_cores_are_rounded_up(proc):
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": "110000 100000"})
    assert usable_cores(proc, {}).number == min(2, AFFINE)


def test_pytorch_loaded_later_respects_the_quota(proc):
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": "90000 100000"})
    program = (
        "from pathlib import Path\n"
        "from transduce.machine import num_threads, respect_cpu_quota\n"
        f"respect_cpu_quota(Path({str(proc)!r}))\n"
        "import torch\n"
        "print(torch.get_num_threads(), num_threads())"
    )
    assert told_by(program) == "1 1"


def test_loaded_pytorch_respects_the_quota(proc):
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": "150000 100000"})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        respect_cpu_quota(proc)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        respect_cpu_quota(proc)
        assert torch.get_num_threads() == 1
        torch.set_num_threads(3)
        respect_cpu_quota(proc / "missing")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("variables", "quota", "expected"),
    [
        ({}, "90000 100000", [1, False]),
        ({"OMP_NUM_THREADS": "1"}, "90000 100000", [1, True]),
        ({"MKL_NUM_THREADS": "1"}, "90000 100000", [1, True]),
        ({"OMP_NUM_THREADS": "2"}, "90000 100000", [1, False]),
    ],
)
def test_a_number_within_the_quota_stays_the_users_choice(
    proc, variables, quota, expected
):
    """Processes that share the cores inherit it, unlike a number by the quota."""
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": quota})
    program = (
        "import json\n"
        "from pathlib import Path\n"
        "from transduce.machine import are_threads_chosen, num_threads\n"
        "from transduce.machine import respect_cpu_quota\n"
        f"respect_cpu_quota(Path({str(proc)!r}))\n"
        "print(json.dumps([num_threads(), are_threads_chosen()]))"
    )
    assert json.loads(told_by(program, **variables)) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, CORES), ({"OMP_NUM_THREADS": ""}, CORES), ({"OMP_NUM_THREADS": "1"}, 1)],
)
def test_processes_share_the_cores_unless_the_user_sets_their_threads(
    proc, variables, expected
):
    """They do not inherit the number of threads that a quota gives the first one."""
    limited(proc, VERSION_2, "0::/\n", {"cpu.max": "90000 100000"})
    say = "import os; print(os.environ['OMP_NUM_THREADS'])"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from transduce.cli.launching import run_processes\n"
        "from transduce.machine import respect_cpu_quota\n"
        f"respect_cpu_quota(Path({str(proc)!r}))\n"
        f"run_processes([sys.executable, '-c', {say!r}], 1)"
    )
    assert told_by(program, **variables) == str(expected)


@pytest.mark.parametrize(
    ("physical", "count", "expected"), [(4, 2, "2"), (4, 5, "1"), (None, 2, "4")]
)
def test_processes_share_physical_cores(monkeypatch, physical, count, expected):
    for name in READ_BY_PYTORCH:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("transduce.machine.num_cores", lambda: 8)
    monkeypatch.setattr("transduce.machine.num_physical_cores", lambda: physical)
    assert threads_of_each(count) == dict.fromkeys(READ_BY_PYTORCH, expected)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of_each(count) == {}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OMP_NUM_THREADS": ""}, False),
        ({"OMP_NUM_THREADS": "0"}, False),
        ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "two"}, True),
        ({"OMP_NUM_THREADS": "2", WRITTEN_THREADS: "2"}, False),
        ({"OMP_NUM_THREADS": "3", WRITTEN_THREADS: "2"}, True),
    ],
)
def test_only_a_number_that_pytorch_would_use_is_a_choice(
    monkeypatch, variables, expected
):
    for name in (*READ_BY_PYTORCH, WRITTEN_THREADS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert are_threads_chosen() == expected


def test_a_child_process_does_not_take_an_inherited_number_for_the_users_choice():
    child = (
        "from transduce.machine import are_threads_chosen, num_threads\n"
        "print(num_threads(), are_threads_chosen())"
    )
    program = (
        "import subprocess, sys\n"
        "from transduce.machine import use_threads\n"
        "use_threads(1)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    assert told_by(program) == "1 False"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"GOMP_SPINCOUNT": "1000"}, True),
        ({"GOMP_SPINCOUNT": "300000", "OMP_WAIT_POLICY": "passive"}, False),
        ({"GOMP_SPINCOUNT": "infinity"}, False),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, True),
        ({"OMP_WAIT_POLICY": "active"}, False),
    ],
)
def test_spinning_threads_of_openmp_are_recognized(environment, expected):
    assert spins_briefly(environment) == expected


@needs_openmp
@pytest.mark.parametrize(("spins", "is_shared"), [("1000", False), ("300000", True)])
def test_threads_of_openmp_are_shared_only_if_they_spin_for_long(spins, is_shared):
    program = (
        "from transduce.machine import gomp_parallel\n"
        "print(gomp_parallel() is not None)"
    )
    assert told_by(program, GOMP_SPINCOUNT=spins) == str(is_shared)


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("", {}, "1000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "active"}, "None"),
        # OpenMP has read its settings.
        ("import sys\nsys.modules['torch'] = sys\n", {}, "None"),
        pytest.param(
            f"import ctypes\nctypes.CDLL({str(OPENMP[0])!r})\n" if OPENMP else "",
            {},
            "None",
            marks=needs_openmp,
        ),
    ],
)
def test_openmp_spins_briefly_unless_the_user_chooses(before, variables, expected):
    names = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
    clean = "import os\nfor n in {}: os.environ.pop(n, None)\nos.environ.update({})\n"
    program = (
        clean.format(names, variables)
        + before
        + "import transduce\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    )
    assert told_by(program) == expected


@needs_openmp
def test_threads_of_an_openmp_that_is_loaded_before_are_shared(tmp_path):
    """It is that of another extension, which PyTorch uses instead of its own."""
    other = tmp_path / OPENMP[0].name
    other.write_bytes(OPENMP[0].read_bytes())
    program = (
        "import ctypes, os\n"
        "for n in 'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY': os.environ.pop(n, None)\n"
        f"library = ctypes.CDLL({str(other)!r})\n"
        "from transduce.machine import gomp_parallel\n"
        "import torch\n"
        "own = ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value\n"
        "maps = open('/proc/self/maps').read()\n"
        f"print(gomp_parallel() == own, {str(OPENMP[0])!r} in maps)"
    )
    assert told_by(program) == "True False"


@needs_openmp
@pytest.mark.skipif(api() is None, reason="no native library")
def test_the_native_library_computes_in_a_fork_of_a_program_whose_openmp_has_threads():
    """Threads do not survive a fork, and OpenMP would wait for them for ever."""
    program = (
        "import os, signal, sys, torch\n"
        "import numpy as np\n"
        "torch.set_num_threads(2)\n"
        "torch.ones(10**6).exp()\n"
        "from transduce.decoding.torch_model import PackedLinear\n"
        "if (child := os.fork()) == 0:\n"
        "    signal.alarm(60)\n"
        "    ones = np.ones((512, 512), dtype=np.float32)\n"
        "    product = PackedLinear(ones, None, 'fp32')(ones)\n"
        "    os._exit(int((product != 512).any()))\n"
        "print(os.waitpid(child, 0)[1])"
    )
    assert told_by(program, GOMP_SPINCOUNT="300000") == "0"
