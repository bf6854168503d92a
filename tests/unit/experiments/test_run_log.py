"""Log of a run: entries that are read back, cut short, or dropped."""

from pathlib import Path

import pytest

from transduce.experiments.run_folder import RunLog


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return RunLog(tmp_path / "log.jsonl")


def test_a_log_returns_its_entries(log: RunLog) -> None:
    log.append("step", step=1, loss=0.5)
    log.append("dev", step=1, bleu=3.0)
    assert list(log.read()) == [
        {"kind": "step", "step": 1, "loss": 0.5},
        {"kind": "dev", "step": 1, "bleu": 3.0},
    ]


def test_a_run_without_a_log_has_an_empty_one(log: RunLog) -> None:
    assert list(log.read()) == []


def test_a_truncated_last_line_is_skipped(log: RunLog) -> None:
    log.append("step", step=1)
    with log.path.open("a") as file:
        file.write('{"kind": "step", "st')
    assert [entry["step"] for entry in log.read()] == [1]


def test_entries_that_will_be_logged_again_are_dropped(log: RunLog) -> None:
    for step in (10, 20, 30):
        log.append("step", step=step)
    log.forget_after(20)
    assert [entry["step"] for entry in log.read()] == [10, 20]


def test_a_start_without_updates_is_dropped(log: RunLog) -> None:
    for kind, step in [("start", 0), ("step", 10), ("start", 10), ("step", 20)]:
        log.append(kind, step=step)
    log.forget_after(10)
    kept = [(entry["kind"], entry["step"]) for entry in log.read()]
    assert kept == [("start", 0), ("step", 10)]
