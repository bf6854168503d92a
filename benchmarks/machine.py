"""What a figure was measured on: processor, versions, commit."""

import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

MATRIX_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def describe_machine() -> str:
    """A few lines of Markdown to stand under a table."""
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "tokenizers", "numpy"))
    return (
        f"- Processor: {_processor()}\n"
        f"- Python {platform.python_version()}, {packages}\n"
        f"- Commit: {_commit()}\n"
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.processor()
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"model name\s*: (.*)", text)
    flags = set(re.findall(r"flags\s*: (.*)", text)[0].split())
    found = [flag for flag in MATRIX_FLAGS if flag in flags]
    return f"{len(names)} x {names[0]} ({', '.join(found)})"


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
