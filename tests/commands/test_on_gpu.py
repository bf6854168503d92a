"""The script for GPUs ends with a report whatever fails."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_gpu.py"


def command(out: Path, *arguments: str) -> list[str]:
    small = ["--small", "--device", "cpu", "--out", str(out)]
    return [sys.executable, str(SCRIPT), *small, *arguments]


def test_each_part_leaves_its_section_and_a_failed_one_its_output(tmp_path: Path):
    done = subprocess.run(
        command(tmp_path, "--only", "machine"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| Machine | succeeded |" in report
    assert "TFLOP/s" in report


@pytest.mark.skipif(torch.cuda.is_available(), reason="the part would not fail")
def test_a_failed_part_is_named_in_the_report(tmp_path: Path):
    arguments = command(tmp_path, "--only", "machine")
    arguments[arguments.index("cpu")] = "cuda"
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 1
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| Machine | failed with exit code 1 |" in report
    assert "has no CUDA" in report


def test_parts_without_time_are_named_in_the_report(tmp_path: Path):
    done = subprocess.run(
        command(tmp_path, "--only", "machine", "tests", "--limit", "0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert report.count("not started: no time was left") == 2


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_ending_the_script_ends_the_running_part(tmp_path: Path):
    process = subprocess.Popen(command(tmp_path, "--only", "loss"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(600):
        if child := children.read_text(encoding="ascii").split():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    # A child that has ended exists until init has collected it.
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child[0]}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
