"""The number of threads is the same without PyTorch as with it."""

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from transduce.machine import (
    READ_BY_PYTORCH,
    leave_a_core,
    num_threads,
    use_threads,
)


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
        {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"},
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
