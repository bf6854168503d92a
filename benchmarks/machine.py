"""Shared by the benchmarks: description of the machine, and time of a training run."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from transduce.machine import describe_processor


def describe_machine() -> str:
    """Processor, versions and commit, as Markdown lines for below a table."""
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "tokenizers", "numpy"))
    return (
        f"- Processor: {describe_processor()}\n"
        f"- Python {platform.python_version()}, {packages}\n"
        f"- Commit: {_commit()}\n"
    )


def minutes_of(run: Path) -> float:
    """Minutes of a run's updates by its log, without scoring in between."""
    log = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [entry for entry in log if entry["kind"] == "step"]
    mean = sum(entry["seconds"] for entry in steps) / len(steps)
    return mean * steps[-1]["step"] / 60


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()

    changed = " with uncommitted changes" if git("status", "--porcelain") else ""
    return git("rev-parse", "--short", "HEAD") + changed
