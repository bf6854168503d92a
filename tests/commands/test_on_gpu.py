"""The script for GPUs ends with a report whatever fails."""

import argparse
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from waiting import PATIENCE_S, runs, wait_until

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "benchmarks" / "on_gpu.py"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = spec_from_file_location("on_gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "on_gpu", module)
    spec.loader.exec_module(module)
    return module


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
    # Not git, which runs before it.
    wait_until(lambda: (tmp_path / "running.md").exists())
    wait_until(lambda: bool(children.read_text(encoding="ascii").split()))
    child = children.read_text(encoding="ascii").split()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| Loss of 200 updates | was ended by a signal |" in report
    assert not (tmp_path / "running.md").exists()
    wait_until(lambda: not runs(int(child[0])))


def test_ctrl_c_leaves_a_report_with_the_section_of_the_running_part(
    on_gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(command: list[str], *_: object) -> str:
        section = Path(command[command.index("--section") + 1])
        section.write_text("12 TFLOP/s", encoding="utf-8")
        signal.raise_signal(signal.SIGINT)
        return "not reached"

    monkeypatch.setattr(on_gpu, "_end_of", interrupted)
    options = argparse.Namespace(
        out=tmp_path, only=["machine", "tests"], limit=600.0, device="cpu", small=True
    )
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    try:
        with pytest.raises(SystemExit, match="130"):
            on_gpu.run_all(options)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| Machine | was ended by a signal |" in report
    assert "12 TFLOP/s" in report
    assert not (tmp_path / "running.md").exists()


class Killed(BaseException):
    """End of a killed script, in which no handler runs."""


def test_a_killed_script_leaves_the_section_of_the_running_part(
    on_gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def kill(command: list[str], *_: object) -> str:
        section = Path(command[command.index("--section") + 1])
        section.write_text("12 TFLOP/s", encoding="utf-8")
        seen.extend(each.name for each in tmp_path.iterdir())
        raise Killed

    monkeypatch.setattr(on_gpu, "_end_of", kill)
    part, report = on_gpu.PARTS[0], on_gpu.Report(tmp_path, "on-gpu")
    options = argparse.Namespace(out=tmp_path, device="cpu", small=True)
    with pytest.raises(Killed):
        on_gpu.run_part(part, options, 1.0, report)
    left = (tmp_path / "running.md").read_text(encoding="utf-8")
    assert left == "12 TFLOP/s"


def test_an_unknown_part_is_refused(
    on_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["on-gpu", "--only", "tets"])
    with pytest.raises(SystemExit, match="2"):
        on_gpu.main()
    assert "invalid choice: 'tets'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "is_all_used"),
    [(["tests"], True), (["machine", "tests"], True), (None, False)],
)
def test_few_parts_share_all_of_the_time(
    on_gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    only: list[str] | None,
    *,
    is_all_used: bool,
):
    found: list[float] = []

    def run(_part: object, _options: object, seconds: float, _report: object) -> str:
        found.append(seconds)
        return "succeeded"

    monkeypatch.setattr(on_gpu, "run_part", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = argparse.Namespace(out=tmp_path, only=only, limit=600.0)
    on_gpu.run_all(options)
    seconds = [p.seconds for p in on_gpu.PARTS if not only or p.name in only]
    together = sum(seconds) if is_all_used else on_gpu.LIMIT_S
    assert (sum(seconds) <= on_gpu.LIMIT_S) is is_all_used
    expected = [600 * each / together for each in seconds]
    assert found[:2] == pytest.approx(expected[:2], rel=1e-3)


def fails() -> None:
    raise ValueError("of this")


@pytest.mark.parametrize(
    ("outcomes", "section"),
    [
        ([("setup", None), ("call", None), ("teardown", None)], ""),
        ([("setup", None), ("call", fails)], "- failure: `a`: ValueError: of this\n"),
        ([("setup", fails)], "- error: `a`: ValueError: of this\n"),
        (
            [("setup", lambda: pytest.skip("no GPU"))],
            "- skipped: `a`: Skipped: no GPU\n",
        ),
    ],
    ids=["passed", "failed", "error", "skipped"],
)
def test_a_test_that_does_not_pass_is_in_the_report_at_once(
    on_gpu: ModuleType,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    outcomes: list[tuple[Any, Callable[[], None] | None]],
    section: str,
):
    task = on_gpu.Task(tmp_path, tmp_path / "running.md", "cpu", is_small=True)
    task.write("Begin")
    results = on_gpu.TestResults(task)
    for when, run in outcomes:
        call = pytest.CallInfo.from_call(run or (lambda: None), when)
        report = pytest.TestReport.from_item_and_call(request.node, call)
        report.nodeid = "a"
        results.pytest_runtest_logreport(report)
    assert task.section.read_text(encoding="utf-8") == f"Begin\n{section}"
    assert str(results).startswith(f"passed: {int(not section)}, ")


def test_a_file_that_is_skipped_as_a_whole_is_in_the_report(
    on_gpu: ModuleType, tmp_path: Path
):
    task = on_gpu.Task(tmp_path, tmp_path / "running.md", "cpu", is_small=True)
    results = on_gpu.TestResults(task)
    reason = ("test_a.py", 3, "Skipped: could not import 'triton'")
    report = pytest.CollectReport("test_a.py", "skipped", reason, result=None)
    results.pytest_collectreport(report)
    section = task.section.read_text(encoding="utf-8")
    assert section == "- skipped: `test_a.py`: Skipped: could not import 'triton'\n"
    assert str(results).endswith("skipped: 1.")


def test_tests_can_run_without_checks_of_types(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "beartype", None)
    monkeypatch.delitem(sys.modules, "quick_types")
    runpy.run_path(str(TESTS / "conftest.py"))
    assert "quick_types" not in sys.modules
