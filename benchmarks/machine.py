"""Shared by the benchmarks: description of the run, and time of calls and trainings."""

import json
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from transduce.machine import describe_processor


def describe_machine() -> str:
    """Command, processor, versions and commit, as Markdown lines for below a table."""
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "tokenizers", "numpy"))
    return (
        f"- Command: `python {shlex.join([_script(), *sys.argv[1:]])}`\n"
        f"- Processor: {describe_processor()}\n"
        f"- Python {platform.python_version()}, {packages}\n"
        f"- Commit: {_commit()}\n"
    )


def seconds_of(call: Callable[[], object]) -> float:
    """Time of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def memory_of(pid: int, name: str = "Pss") -> int:
    """Bytes of memory of a process and its children, by a line of smaps_rollup.

    "Pss" counts shared memory once. A process that has ended counts 0.
    """
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [str(pid), *(each for path in children for each in _text(path).split())]
    texts = (_text(Path(f"/proc/{each}/smaps_rollup")) for each in pids)
    found = (re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE) for text in texts)
    return sum(1024 * int(each[1]) for each in found if each is not None)


def _text(path: Path) -> str:
    """Text of a file of a process; nothing if the process has ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def minutes_of(run: Path) -> float:
    """Minutes of a run's updates by its log, without scoring in between."""
    log = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [entry for entry in log if entry["kind"] == "step"]
    mean = sum(entry["seconds"] for entry in steps) / len(steps)
    return mean * steps[-1]["step"] / 60


def _script() -> str:
    """Path of the running script, from the repository's root if it is in there."""
    script, root = Path(sys.argv[0]).resolve(), Path(__file__).parents[1]
    return str(script.relative_to(root) if root in script.parents else script.name)


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
