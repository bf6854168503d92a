"""A run records its hardware and software and reports changes."""

import sys
from dataclasses import asdict, replace
from types import ModuleType

import pytest
import torch

from transduce.device import Hardware
from transduce.experiments import resuming
from transduce.experiments.resuming import (
    Environment,
    current_environment,
    environment_changes,
    recorded_environment,
)


@pytest.fixture
def here(cpu: Hardware) -> Environment:
    return current_environment(cpu, num_processes=2)


def test_the_record_describes_this_process(here: Environment) -> None:
    assert here.num_threads == torch.get_num_threads()
    assert here.torch == torch.__version__
    assert (here.device, here.num_processes) == ("cpu", 2)
    assert here.num_workers == 2 * here.num_threads


def test_the_record_has_the_version_of_the_imported_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    triton = ModuleType("triton")
    triton.__dict__["__version__"] = "3.6.0+amd"
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setattr(resuming, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Instinct")
    gpu = Hardware(device=torch.device("cuda", 0), dtype=torch.bfloat16)
    assert current_environment(gpu, 1).instructions == "triton 3.6.0+amd"
    fp32 = replace(gpu, dtype=torch.float32)
    assert current_environment(fp32, 1).instructions == "none"


def test_a_logged_record_is_read_back(here: Environment) -> None:
    assert recorded_environment({"kind": "start", "computing": asdict(here)}) == here


@pytest.mark.parametrize(
    "damage", [{}, {"num_threads": "2"}, {"num_threads": True}, {"more": 1}]
)
def test_missing_records_of_an_older_log_are_none(
    here: Environment, damage: dict[str, object]
) -> None:
    content = asdict(here) | damage if damage else None
    assert recorded_environment({"computing": content}) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_threads", 9, "threads: 1 before, 9 now"),
        ("num_processes", 3, "processes: 2 before, 3 now"),
        ("instructions", "avx1", "now"),
        ("torch", "1.0", "1.0 now"),
        ("processor", "Abacus", "Abacus now"),
    ],
)
def test_changes_of_the_environment_are_reported(
    here: Environment, name: str, value: object, said: str
) -> None:
    found = environment_changes(here, replace(here, **{name: value}))
    assert found is not None
    assert said in found


def test_an_unchanged_environment_gives_no_report(here: Environment) -> None:
    assert environment_changes(here, here) is None


def test_threads_of_the_processor_do_not_count_on_a_gpu(here: Environment) -> None:
    gpu = replace(here, device="cuda", instructions="none")
    assert environment_changes(gpu, replace(gpu, num_threads=7)) is None
