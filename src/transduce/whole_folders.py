"""Folders that appear whole or not at all, whatever stops a process or a machine."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from transduce.claims import claim
from transduce.errors import CheckpointError, TransduceError

Made = TypeVar("Made")

SYSTEM_ERROR = re.compile(r"\bos error (\d{1,4})\b")


def write_folder(folder: Path, write: Callable[[Path], Made]) -> Made:
    """Let `write` fill a new folder, then put it in place of the old; what it returns.

    `CheckpointError` if the disk is full, or another process is writing the same
    folder; what was there before stays.
    """
    # Follow a link: its target is written.
    folder = Path(os.path.realpath(folder))
    missing_parents = [parent for parent in folder.parents if not parent.exists()]
    new = folder.with_name(f".{folder.name}.transduce-new")
    try:
        new.mkdir(parents=True, exist_ok=True)
        refusal = CheckpointError(
            f"{folder}: must be written by one process at a time, but another one is "
            "at it; wait for it, or name another folder."
        )
        with claim(new, refusal):
            try:
                _clear(new)  # a crash may have left something
                with _system_errors():
                    made = write(new)
                _apply_umask(new)
                _sync(new)
                _put_in_place(new, folder)
                return made
            finally:
                _remove(new)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if full else "mend that"
        raise CheckpointError(
            f"{folder}: cannot be saved ({error.strerror or error}); {remedy} and try "
            "again. What was saved before is still there."
        ) from None
    finally:
        for parent in missing_parents:
            with suppress(OSError):  # it is in use
                parent.rmdir()


def remove_folder(folder: Path) -> None:
    """Remove a folder at once; a crash on the way leaves none of that name."""
    going = folder.with_name(f".{folder.name}.transduce-gone")
    _remove(going)
    folder.rename(going)
    _remove(going)


def clear_leftovers(parent: Path) -> None:
    """Undo or complete what a crash has cut short; nobody else may write there."""
    for left in list(parent.glob(".*.transduce-*")):
        name, _, kind = left.name[1:].rpartition(".transduce-")
        folder = left.with_name(name)
        if kind == "old" and not folder.exists():
            left.rename(folder)
        else:
            _remove(left)


def _put_in_place(new: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.transduce-old")
    if old.exists() and not folder.exists():
        old.rename(folder)  # a crash came between the two moves below
    if folder.exists():
        _remove(old)
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    _sync_folder(folder.parent)
    _remove(old)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _remove(path)
        else:
            path.unlink()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise the `OSError` that a library, such as one in Rust, hides in its text."""
    try:
        yield
    except (OSError, TransduceError):
        raise
    except Exception as error:
        hidden = SYSTEM_ERROR.search(str(error))
        if hidden is None:
            raise
        raise OSError(int(hidden[1]), os.strerror(int(hidden[1]))) from None


def _apply_umask(folder: Path) -> None:
    """Give the folder's files the permissions of any other new file.

    Libraries that write a private file and rename it, such as safetensors, leave it
    readable for its owner alone. The permissions of a new file are found by making one,
    since a folder's access control list may replace the umask.
    """
    probe = folder / ".transduce-permissions"
    probe.touch()
    of_files = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    of_folders = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        status = path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        is_shared = status.st_nlink > 1  # with another run, by a hard link
        if is_folder or (stat.S_ISREG(status.st_mode) and not is_shared):
            path.chmod(of_folders if is_folder else of_files)


def _sync(folder: Path) -> None:
    """Force the folder's files to the disk, so that a rename cannot outrun them."""
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
