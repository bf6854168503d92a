"""JSON files from untrusted sources: bounded in size and depth, each key once.

A model folder may come from anywhere. Reading a pipe could block for ever, a huge file
would fill the memory, and deeply nested lists would overflow Python's stack.
"""

import json
import stat
from pathlib import Path
from typing import Any

from transduce.errors import CheckpointError

MOST_BYTES = 2**26
"""Bytes of a file at most, by default."""


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Read a JSON object; `CheckpointError` if missing, damaged or too large."""
    try:
        content = parse_json(read_bounded(path, most_bytes))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the file is missing or damaged ({reason(error)}); use another "
            "checkpoint."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, but does not.")
    return content


def read_bounded(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Read a text file; `OSError` or `ValueError` if it is no file, or too long."""
    require_file(path)
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return content.decode("utf-8")


def require_file(path: Path) -> None:
    """Raise `OSError` if there is no file; `ValueError` for a pipe or another device.

    Opening a pipe without a writer would block for ever.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")


def parse_json(text: str) -> Any:
    """Parse JSON; `ValueError` if it is damaged, nested too deep, or repeats a key."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return content


def reason(error: BaseException, longest: int = 200) -> str:
    """Message of an error in one line, truncated if long."""
    words = " ".join(str(error).split())
    words = words.encode("utf-8", "backslashreplace").decode("utf-8")
    return words if len(words) <= longest else f"{words[:longest]}..."
