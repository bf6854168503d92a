import pytest
import torch

from transduce import machine as machine_module
from transduce.benchmark.measurement import Machine, describe_machine
from transduce.machine import describe_processor

CPU_INFO = """\
processor\t: 0
model name\t: Some Processor @ 2.50GHz
flags\t\t: fpu avx2 avx512f amx_bf16 clflush

processor\t: 1
model name\t: Some Processor @ 2.50GHz
flags\t\t: fpu avx2 avx512f amx_bf16 clflush
vmx flags\t: vnmi ept
"""


def test_a_processor_is_described_by_number_name_and_matrix_instructions(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(machine_module, "PROC", tmp_path)
    (tmp_path / "cpuinfo").write_text(CPU_INFO)
    found = "2 x Some Processor @ 2.50GHz (avx2, avx512f, amx_bf16)"
    assert describe_processor() == found


@pytest.mark.parametrize("text", [None, "processor\t: 0\nBogoMIPS\t: 50.00\n"])
def test_a_processor_without_a_name_is_described(monkeypatch, tmp_path, text):
    monkeypatch.setattr(machine_module, "PROC", tmp_path)
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert describe_processor()


def test_missing_packages_are_not_listed():
    machine = describe_machine(("torch", "no-such-package"), torch.device("cpu"))
    assert set(machine.versions) == {"Python", "torch"}
    assert machine.versions["torch"] == torch.__version__
    assert machine.accelerator is None
    assert machine.num_threads == torch.get_num_threads()


def test_a_gpu_is_described_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some {device}")
    assert describe_machine((), torch.device("cuda")).accelerator == "Some cuda"


@pytest.mark.parametrize(
    ("accelerator", "num_threads", "text"),
    [
        (None, 1, "A, 1 thread; Python 3, torch 2"),
        ("B", 8, "A, 8 threads, B; Python 3, torch 2"),
    ],
)
def test_a_machine_is_one_line(accelerator, num_threads, text):
    machine = Machine(
        processor="A",
        accelerator=accelerator,
        num_threads=num_threads,
        versions={"Python": "3", "torch": "2"},
    )
    assert str(machine) == text
