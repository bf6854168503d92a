"""Fixtures: an observer of downloads, and corpora with arbitrary files."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from file_server import unchecked
from transduce.data.named_corpora import NamedCorpus, RemoteFile


@dataclass
class Record:
    """Observer that records all calls."""

    received_bytes: list[tuple[int, int | None]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)

    def received(self, file: RemoteFile, num_bytes: int, total: int | None) -> None:
        self.received_bytes.append((num_bytes, total))

    def waiting(self, file: RemoteFile, reason: str, seconds: float) -> None:
        self.reasons.append(reason)

    def assembled(self, split: str, num_lines: int) -> None:
        self.lines.append((split, num_lines))


@pytest.fixture
def observer() -> Record:
    return Record()


@pytest.fixture
def without_checks() -> Callable[[NamedCorpus], NamedCorpus]:
    return unchecked


@pytest.fixture
def listed(tmp_path: Path) -> Callable[[], list[str]]:
    """Names of all files that exist now."""

    def names() -> list[str]:
        paths = (path for path in tmp_path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(tmp_path)) for path in paths)

    return names


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """Processes that the test has started."""
    found: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return found
