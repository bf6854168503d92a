"""What a figure was measured on: processor, versions, commit."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from transduce.machine import describe_processor


def describe_machine() -> str:
    """A few lines of Markdown to stand under a table."""
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "tokenizers", "numpy"))
    return (
        f"- Processor: {describe_processor()}\n"
        f"- Python {platform.python_version()}, {packages}\n"
        f"- Commit: {_commit()}\n"
    )


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
