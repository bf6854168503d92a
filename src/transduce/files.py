"""Files that survive bad input and crashes: bounded JSON, locks, atomic replacement."""

import ctypes
import errno
import json
import math
import os
import re
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from transduce.errors import (
    OVERWRITE,
    AccessError,
    CheckpointError,
    ConfigError,
    OverwriteError,
    TransduceError,
)
from transduce.settings import shown

MAX_BYTES = 2**26
"""Default limit on the size of a text file, in bytes."""
MAX_REASON = 200
"""Largest number of characters of an error's message within another."""

MADE_BY = ".made-by"
"""File of an output folder that names the command that wrote it, and its files.

The first line has the words of the command, each other line a name as JSON.
"""
COMMAND = re.compile("[a-z0-9-]+( [a-z0-9-]+){0,3}", re.ASCII)
"""Pattern of the words of a command."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of `renameat2`, from Linux's fcntl.h and fs.h."""

OWNER_ACCESS = stat.S_IRUSR | stat.S_IWUSR
"""Permissions of a file's owner to read and write it."""

LEFTOVERS = ".*.transduce-*"
"""Pattern of the names of files and folders that are being written or removed."""

MORE_FILES = "raise the limit of open files (ulimit -n)"
"""Remedy for too many open files."""
REMEDIES = {
    errno.EMFILE: MORE_FILES,
    errno.ENFILE: MORE_FILES,
    errno.ENOMEM: "free some memory",
    errno.EACCES: "allow this user to read it",
    errno.EPERM: "allow this user to read it",
}
"""Remedies for errors that say nothing about the content of a file."""

NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
"""Errors of disks that cannot force a folder to the disk, such as those of AFS."""

SYSTEM_ERROR = re.compile(r"\bos error (\d{1,4})\b")


class FileBusyError(ConfigError):
    """Another process is writing the same file."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from an untrusted file.

    Raises `CheckpointError` if the file is missing, damaged or too large, and
    `AccessError` if it cannot be opened.
    """
    try:
        content = parse_json(read_bounded(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the file is missing or damaged ({reason(error)}); restore it, or "
            "use another folder."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, but does not.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, which appears whole (`atomic_file`)."""
    with atomic_file(path) as new:
        new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def without_infinity(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by None, at any depth."""
    if isinstance(value, Mapping):
        return {name: without_infinity(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(each) for each in value]
    is_lacking = isinstance(value, float) and not math.isfinite(value)
    return None if is_lacking else value


def read_bounded(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of at most `max_bytes` bytes.

    Raises `OSError` if it is missing, `ValueError` if it is no regular file or larger,
    and `AccessError` as `access_errors` does.
    """
    return read_bounded_bytes(path, max_bytes).decode("utf-8")


def read_bounded_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file of at most `max_bytes` bytes.

    Raises `OSError` if it is missing, `ValueError` if it is no regular file or larger,
    and `AccessError` as `access_errors` does.
    """
    require_file(path)
    with access_errors(path), path.open("rb") as file:
        # A read of `max_bytes` would allocate as much, however small the file is.
        size = min(os.fstat(file.fileno()).st_size, max_bytes)
        content = file.read(size + 1)
        if len(content) > size:  # it has grown, or its file system tells no size
            content += file.read(max_bytes + 1 - len(content))
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content


def path_of(key: str, value: object) -> Path:
    """Return an argument as a path; `ConfigError` if no file can have that name.

    The system takes a NUL character for the end of a name, and encodes the others.
    """
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str):  # the path of a `PathLike` may be bytes
        raise ConfigError(f"`{key}` must be a path, but is {shown(value)}.")
    if name == "":  # `Path` would take the current folder
        raise ConfigError(f'`{key}` must be a path, but is empty; "." is this folder.')
    path = Path(name)
    require_file_name(key, str(path))
    return path


def require_file_name(key: str, name: str) -> None:
    """Raise `ConfigError` if no file can have a name, or if it begins with a ~ that a
    shell would replace by a home folder.

    A NUL character is in no name, nor one outside the system's encoding, such as half
    of a surrogate pair.
    """
    bad = "a NUL character" if "\0" in name else ""
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        bad = f"the character {name[error.start]!a}"
    if bad:
        raise ConfigError(
            f"`{key}` must be the name of a file or folder, but {shown(name)} holds "
            f"{bad}, which no name can have."
        )
    written = os.path.expanduser(name)
    if written != name and not os.path.lexists(name.partition(os.sep)[0]):
        raise ConfigError(
            f"`{key}` must be written out, as only a shell replaces ~ by a home "
            f"folder, but is {shown(name)}; write {written}."
        )


def require_other_folder(out: Path, inputs: Iterable[Path]) -> None:
    """Raise `ConfigError` if an output folder is one of the models that are read."""
    if any(real_path(out) == real_path(each) for each in inputs):
        raise ConfigError(
            f"{out}: the output folder must be another than the model's, but is the "
            "same; choose another."
        )


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links.

    Unlike `Path.resolve`, it raises no `RuntimeError` for a link that leads to itself,
    but keeps that link; opening it then raises `OSError`.
    """
    return Path(os.path.realpath(path))


def real_file(path: Path) -> Path:
    """Return the target of a symbolic link; any other path unchanged."""
    return real_path(path) if path.is_symlink() else path


def is_utf8(text: str) -> bool:
    """Return whether the name of a file or an option's value, as Python decodes it, is
    UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def require_file(path: Path) -> None:
    """Raise `OSError` if there is no file, `ValueError` if it is a pipe or a device,
    and `AccessError` as `access_errors` does.

    Opening a pipe that has no writer would block forever.
    """
    with access_errors(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a regular file")
        with path.open("rb"):  # libraries take an unreadable file for a missing one
            pass


@contextmanager
def access_errors(path: Path) -> Iterator[None]:
    """Raise `AccessError` for an error that says nothing about the content of a file.

    Such errors are missing rights, and limits of the process or the machine. Callers
    take other errors for damage, and may then set the file aside.
    """
    try:
        yield
    except TransduceError:
        raise
    except Exception as error:
        system = error if isinstance(error, OSError) else hidden_system_error(error)
        if system is None or system.errno not in REMEDIES:
            raise
        raise AccessError(
            f"{path}: cannot be read ({os.strerror(system.errno)}); "
            f"{REMEDIES[system.errno]} and try again."
        ) from None


def parse_json(text: str) -> Any:
    """Parse JSON; `ValueError` if it is damaged, nested too deep, or repeats a key."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return content


def reason(error: BaseException) -> str:
    """Format an error's message in one line, truncated to `MAX_REASON` characters."""
    # Python's own text of an `OSError` repeats the path, and its number says nothing.
    message = getattr(error, "strerror", None) or str(error)
    words = " ".join(message.split())
    words = words.encode("utf-8", "backslashreplace").decode("utf-8")
    return words if len(words) <= MAX_REASON else f"{words[:MAX_REASON]}..."


def require_new_folder(out: Path, *, overwrite: bool, made_by: str) -> None:
    """Raise `ConfigError` if an output folder holds files that would be lost.

    With `overwrite` it may be a folder that the same command wrote, never a run or an
    unknown folder. The file `.made-by` of such a folder has the words of the command,
    `made_by`. What others have put there is kept (`atomic_directory`).
    """
    is_there = out.is_symlink() or out.exists()
    if is_there and not out.is_dir():
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is a file; choose "
            "another name."
        )
    if is_there and any(out.iterdir()):
        _require_own(out, overwrite=overwrite, made_by=made_by)
        require_removable(out)
    require_place(out)


def folder_in_use(out: Path, *, is_own: bool = False) -> ConfigError:
    """Return the error of an output folder that is not empty.

    It is an `OverwriteError` if the contents are the command's own, which may be
    overwritten.
    """
    message = f"{out}: the output folder must be new or empty, but is not; choose "
    if is_own:
        return OverwriteError(f"{message}another, or {OVERWRITE}.")
    return ConfigError(f"{message}another.")


def _require_own(out: Path, *, overwrite: bool, made_by: str) -> None:
    """Raise `ConfigError` unless a folder with files may be overwritten."""
    maker = maker_of(out)
    if not overwrite:
        raise folder_in_use(out, is_own=maker == made_by)
    if maker != made_by:
        raise ConfigError(
            f"{out}: only a folder that the same command wrote can be overwritten, but "
            f"this one {_described(maker)}; choose another."
        )


def maker_of(out: Path) -> str | None:
    """Name of the command that wrote a folder; None if it is unknown."""
    return _read_made_by(out)[0]


def _read_made_by(out: Path) -> tuple[str | None, frozenset[str] | None]:
    """Return the command that wrote a folder and the names of its files there.

    Each is None if it is unknown.
    """
    try:
        text = read_bounded(out / MADE_BY).strip()
    except (OSError, ValueError):  # without the file, or damaged
        return None, None
    command, *lines = map(str.strip, text.split("\n"))  # Windows ends lines by "\r\n"
    try:
        names = frozenset(map(str, map(parse_json, lines)))
    except ValueError:
        return text, None
    return command, names or None


def _write_made_by(folder: Path, made_by: str) -> None:
    """Record the command that writes a folder, and its files there."""
    names = sorted({MADE_BY, *(path.name for path in folder.iterdir())})
    lines = "".join(f"{line}\n" for line in (made_by, *map(json.dumps, names)))
    (folder / MADE_BY).write_text(lines, encoding="utf-8")


def _keep_others(folder: Path, new: Path, own: Container[str] | None) -> set[str]:
    """Link what the project has not written into the folder that replaces it.

    `own` has the names of what the project has written; None if they are unknown, as in
    a folder without a list. Names of the new folder's files are the project's then.

    Returns the names of all entries. Raises `ConfigError` if the new folder has
    something else of the same name, and `AccessError` for a file of another user that
    this user cannot read.
    """
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in there:
        if own is not None and path.name in own:
            continue
        if not os.path.lexists(new / path.name):
            _link_or_copy(path, new / path.name)
        elif own is not None:
            raise ConfigError(
                f"{path}: the command must write a file of this name, but it did not "
                "write the one that is there; move it and try again."
            )
    _sync_folder(new)
    return {path.name for path in there}


def _link_or_copy(path: Path, copy: Path) -> None:
    """Give a file, or the files of a folder, a second name; links stay links.

    Only copies are forced to the disk: to do so for 100,000 links takes minutes.
    """
    with access_errors(path):
        if path.is_dir() and not path.is_symlink():
            copy.mkdir()
            for each in path.iterdir():
                _link_or_copy(each, copy / each.name)
            _sync_folder(copy)
            shutil.copystat(path, copy)
            return
        try:
            os.link(path, copy, follow_symlinks=False)
        except (OSError, NotImplementedError):  # a disk or a system without hard links
            shutil.copy2(path, copy, follow_symlinks=False)
            if not copy.is_symlink():
                _sync_file(copy)


def _require_untouched(folder: Path, made_by: str, *, overwrite: bool) -> None:
    """Raise `ConfigError` if another command has written the folder meanwhile.

    `require_new_folder` found it free, perhaps hours ago.
    """
    is_file = folder.exists() and not folder.is_dir()
    if not is_file and not (folder.is_dir() and any(folder.iterdir())):
        return
    if is_file or maker_of(folder) != made_by:
        raise ConfigError(
            f"{folder}: another command has written this folder meanwhile; choose "
            "another and try again."
        )
    if not overwrite:
        raise OverwriteError(
            f"{folder}: the output folder must be new or empty, but another command "
            f"has written it meanwhile; choose another, or {OVERWRITE}."
        )


def require_removable(folder: Path) -> None:
    """Raise `ConfigError` if a folder's content is protected from being removed.

    A folder that replaces it would leave the old content under a hidden name, and a
    disk that is mounted in it would be emptied.
    """
    protected: list[str] = []

    def unread(error: OSError) -> None:
        if isinstance(error, PermissionError):
            protected.append(error.filename)

    for place, folders, files in os.walk(folder, onerror=unread):
        if os.path.ismount(place):
            raise ConfigError(
                f"{folder}: the output folder must be one that can be replaced, but "
                f"{place} is a mount point; choose another, or unmount that."
            )
        if (folders or files) and not os.access(place, os.W_OK | os.X_OK):
            protected.append(place)
    if protected:
        raise ConfigError(
            f"{folder}: the output folder must be one that can be replaced, but "
            f"{protected[0]} is protected; choose another, or change its permissions."
        )


def require_unwritten(path: Path, *, overwrite: bool) -> None:
    """Raise `ConfigError` if another command has written a new file meanwhile.

    Empty files hold nothing to lose.
    """
    if overwrite or not path.is_file() or path.stat().st_size == 0:
        return
    raise OverwriteError(
        f"{path}: the output must be new or empty, but another command has written it "
        f"meanwhile; choose another name, or {OVERWRITE}."
    )


def require_place(out: Path) -> None:
    """Raise `ConfigError` if an output could not be put in its place.

    Commands call it first, so that they fail before their work and not after it.
    """
    for i, part in enumerate(out.parts):
        if part == ".." and not Path(*out.parts[:i]).is_dir():
            raise ConfigError(
                f"{out}: the output must be in a folder that is there, but "
                f"{Path(*out.parts[:i])} is not; leave it out of the name."
            )
    place, here = real_path(out), real_path(Path.cwd())
    if place.is_mount():
        other = f"a new folder in it, such as {out / 'new'}"
        raise ConfigError(
            f"{out}: the output must be something that can be replaced, but this is a "
            f"mount point; name {other if place.is_dir() else 'another file'}."
        )
    if place in (here, *here.parents):
        raise ConfigError(
            f"{out}: the output must be another folder than the current one, which "
            "cannot be replaced while it is in use; leave it (cd) and try again."
        )
    parent = next((each for each in place.parents if each.exists()), None)
    if parent is None:  # a drive of Windows; opening the output gives the reason
        return
    if not parent.is_dir():
        raise ConfigError(
            f"{out}: the output must be in a folder, but {parent} is a file; choose "
            "another name."
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{out}: the output must be in a folder that can be written, but {parent} "
            "cannot be; choose another, or change its permissions."
        )


def require_without(out: Path, inputs: Iterable[Path]) -> None:
    """Raise `ConfigError` if the output would replace a folder that holds an input."""
    for path in inputs:
        if real_path(out) in real_path(path).parents:
            raise ConfigError(
                f"{out}: the output must be a folder without the input in it, but "
                f"holds {path}, which it would replace; choose another."
            )


def _described(maker: str | None) -> str:
    """Describe a folder by the content of its file `MADE_BY`; None means no file."""
    if maker is None:
        return (
            f"has no file {MADE_BY} (or an older version wrote it: remove it yourself)"
        )
    if COMMAND.fullmatch(maker):
        return f"was written by `transduce {maker}`"
    return f"has a damaged file {MADE_BY}"


@contextmanager
def named_errors(path: Path, new: Path | None = None) -> Iterator[None]:
    """Name the file in an `OSError` of writing to it.

    Only an error of opening has a file name; a full disk would be reported without a
    place. The name of the temporary file `new`, which the user does not know, is
    replaced as well.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) == str(new):
            error.filename = str(path)
        raise


def are_too_many_open(error: OSError) -> bool:
    """Return whether the process or the machine has too many open files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_disk_full(error: OSError) -> bool:
    """Return whether the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_all(descriptor: int, content: bytes) -> None:
    """Write bytes to an open file, in one call if possible.

    Only a full disk accepts some of the bytes and refuses the rest.
    """
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


@contextmanager
def path_lock(
    path: Path, refusal: TransduceError, gone: TransduceError | None = None
) -> Iterator[tuple[int, ...]]:
    """Lock a folder or a file; raise `refusal` if another process holds the lock.

    If the path has been renamed or removed just before, `gone` is raised; by default
    `refusal`, as for a path that only the process with its lock renames. Yields the
    open file descriptors that hold the lock: none on Windows, which cannot open a
    folder, and on a network disk without locks. Child processes that inherit them keep
    the lock until they end.
    """
    if os.name == "nt":
        yield ()
        return
    try:
        descriptor = _opened_to_lock(path)
    except FileNotFoundError:
        raise (gone or refusal) from None
    try:
        is_locked = lock_file(descriptor, refusal)
        if not is_open_as(descriptor, path):
            raise gone or refusal
        yield (descriptor,) if is_locked else ()
    finally:
        os.close(descriptor)


def _opened_to_lock(path: Path) -> int:
    """Open a folder or a file for its lock.

    NFS locks only a file that is open for writing.
    """
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise
    except OSError:  # a folder, or without the right to write
        return os.open(path, os.O_RDONLY)


def lock_file(descriptor: int, refusal: TransduceError) -> bool:
    """Lock an open file; raise `refusal` if another process has locked it.

    Returns whether the file is locked: Windows and some network disks have no locks.
    """
    if os.name == "nt":
        return False
    import fcntl  # missing on Windows

    with suppress(OSError):  # not every network disk supports locks
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        return True
    return False


@contextmanager
def atomic_file(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield the path of a new file, which replaces `path` if the block succeeds.

    After an error or a crash, `path` is as it was before. A symbolic link stays, and
    its target is replaced; the permissions of an existing file are kept. Raises
    `OSError` if the file cannot be written, `FileBusyError` if another process is
    writing it, and `ConfigError` if another has written it and `overwrite` is false.
    """
    path = real_file(path)
    new = path.with_name(f".{path.name}.transduce-new")
    refusal = FileBusyError(
        f"{path}: another process is writing this file; wait for it to end, or choose "
        "another name."
    )
    with named_errors(path, new):
        try:
            new.touch(mode_of_new(path))
        except PermissionError:
            if new.exists():
                raise _unwritable(path, new, refusal) from None
            raise
        with path_lock(new, refusal):
            try:
                take_permissions(new, path, added=OWNER_ACCESS)
                require_unwritten(path, overwrite=overwrite)
                yield new
                _sync_file(new)  # so that the rename cannot outrun it
                take_permissions(new, path)
                require_unwritten(path, overwrite=overwrite)
                new.replace(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise


def mode_of_new(path: Path) -> int:
    """Return the permissions with which a file that will replace `path` is created.

    A private file is private before anything is in it, and its owner can write it.
    """
    if not path.exists():
        return 0o666
    return stat.S_IMODE(path.stat().st_mode) | OWNER_ACCESS


def take_permissions(new: Path, path: Path, *, added: int = 0) -> None:
    """Give a file the permissions of `path`, if that exists, and further ones.

    Only a file's owner may do so, but nothing is done if it has them already.
    """
    if not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode) | added
    if stat.S_IMODE(new.stat().st_mode) != mode:
        new.chmod(mode)


def _unwritable(path: Path, new: Path, refusal: TransduceError) -> TransduceError:
    """Return the error of a temporary file or folder that this user cannot change.

    It is `refusal` if the command that made it is running. Only its owner can open a
    private one and find out whether it is locked.
    """
    is_left = False
    try:
        with path_lock(new, refusal) as lock:
            is_left = bool(lock)
    except TransduceError as error:
        return error
    except OSError:
        pass
    if is_left:
        message = (
            f"{path}: cannot be written, as another command was killed and left {new}, "
            "which this user cannot change; remove it and try again."
        )
    else:
        message = (
            f"{path}: cannot be written, as another user's command is writing {new}, "
            "or was killed and left it; wait for that command to end, remove what it "
            "left, or choose another name."
        )
    kind = ConfigError if isinstance(refusal, ConfigError) else CheckpointError
    return kind(message)


def is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def atomic_directory(
    folder: Path,
    made_by: str | None = None,
    *,
    overwrite: bool = False,
    own: Container[str] | None = None,
) -> Iterator[Path]:
    """Yield a new directory, and put it in place of `folder` if the block succeeds.

    `made_by` has the words of the command that writes it, such as "export --to onnx",
    for `require_new_folder`. With `made_by`, a folder that holds files is replaced only
    with `overwrite`, and only if the same command wrote it. Files and folders in it
    that the command did not write are kept: they get a second name in the new one.

    Without `made_by`, any folder is replaced. Entries whose names are not in `own` are
    kept then; by default none are. A file is never replaced by a folder.

    After an error or a crash, `folder` is as it was before. (Where the system cannot
    exchange two directories at once, a crash between two renames leaves the old one
    under a hidden name, from which `clear_leftovers` restores it.) The permissions of
    an existing folder are kept, but not those of its content. Raises `CheckpointError`
    if the disk is full, or if another process is writing the same folder, and
    `ConfigError` if another command has written it meanwhile, or if it is protected.
    """
    folder = real_path(folder)  # replace a link's target, not the link
    missing_parents = [parent for parent in folder.parents if not parent.exists()]
    new = folder.with_name(f".{folder.name}.transduce-new")
    refusal = CheckpointError(
        f"{folder}: another process is writing this folder; wait for it, or name "
        "another folder."
    )
    try:
        new.mkdir(parents=True, exist_ok=True)
        with path_lock(new, refusal):
            try:
                _restore(folder)
                if made_by is not None:
                    _require_untouched(folder, made_by, overwrite=overwrite)
                _prepare(new, folder)
                with _system_errors():
                    yield new
                if made_by is not None:
                    _require_untouched(folder, made_by, overwrite=overwrite)
                    _write_made_by(new, made_by)
                    own = _read_made_by(folder)[1]
                _replace(folder, new, own, keeps=made_by is not None or own is not None)
            finally:
                _remove(new)
    except OSError as error:
        raise _unsaved(folder, new, error, refusal) from None
    finally:
        for parent in missing_parents:
            with suppress(OSError):  # it is in use
                parent.rmdir()


def _replace(
    folder: Path, new: Path, own: Container[str] | None, *, keeps: bool
) -> None:
    """Put a complete new directory in place, with what it keeps of the old one."""
    _apply_umask(new)
    sync(new)
    replaced = _keep_others(folder, new, own) if keeps else None
    _put_in_place(new, folder, replaced)


def _restore(folder: Path) -> None:
    """Undo the first of two renames if a crash came before the second."""
    old = _old(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def _old(folder: Path) -> Path:
    """Return the hidden name of a folder that is being replaced."""
    return folder.with_name(f".{folder.name}.transduce-old")


def _prepare(new: Path, folder: Path) -> None:
    """Empty a new directory, which gets the permissions of the one it replaces."""
    _clear(new)  # leftovers of a crash
    if folder.is_dir():
        require_removable(folder)
        new.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)


def _unsaved(
    folder: Path, new: Path, error: OSError, refusal: TransduceError
) -> TransduceError:
    """Return the error of a folder that cannot be written."""
    if isinstance(error, PermissionError) and new.exists():
        return _unwritable(folder, new, refusal)
    remedy = "free some space" if is_disk_full(error) else "correct that"
    return CheckpointError(
        f"{folder}: cannot be saved ({error.strerror or error}); {remedy} and try "
        "again. What was saved before is still there."
    )


def remove_folder(folder: Path, own: Container[str] | None = None) -> None:
    """Remove a folder; after a crash, no part of it is left under its name.

    A symbolic link is followed: its target is removed and the link stays. Entries whose
    names are not in `own` move to a folder of the name `NAME-kept` beside it; by
    default there are none.
    """
    folder = real_path(folder)
    if own is not None:
        _set_aside(others_in(folder, own), folder.with_name(f"{folder.name}-kept"))
    going = folder.with_name(f".{folder.name}.transduce-gone")
    _remove(going)
    folder.rename(going)
    _remove(going)


def others_in(folder: Path, own: Container[str]) -> list[Path]:
    """Return the entries of a folder whose names are not in `own`.

    Leftovers of interrupted writes are not among them.
    """
    there = set(folder.iterdir()) - set(folder.glob(LEFTOVERS))
    return sorted(path for path in there if path.name not in own)


def _set_aside(paths: Iterable[Path], folder: Path) -> None:
    """Move files and folders to a folder, under a new name where one is taken."""
    for path in paths:
        folder.mkdir(exist_ok=True)
        names = chain([path.name], (f"{path.name}-{i}" for i in count(2)))
        free = (folder / name for name in names if not os.path.lexists(folder / name))
        path.rename(next(free))


def clear_written(folder: Path, made_by: str) -> None:
    """Remove the files that a command wrote into a folder.

    The folder goes, too, unless it holds anything else. `made_by` is as in
    `atomic_directory`.
    """
    with atomic_directory(folder, made_by, overwrite=True):
        pass
    if not others_in(folder, {MADE_BY}):
        remove_folder(folder)


def clear_leftovers(parent: Path) -> None:
    """Complete or undo replacements and removals in `parent` that a crash interrupted.

    No other process may be writing there.
    """
    for left in list(parent.glob(LEFTOVERS)):
        name, _, kind = left.name[1:].rpartition(".transduce-")
        folder = left.with_name(name)
        if kind == "old" and not folder.exists():
            left.rename(folder)
        elif left.is_file():
            left.unlink()
        else:
            _remove(left)


def _put_in_place(new: Path, folder: Path, replaced: Container[str] | None) -> None:
    """Rename a new folder, and replace the old one; `OSError` for a file there.

    What was put into the old one at the last moment, which is not in `replaced`, moves
    to the new one; None means that all of the old one goes.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file has this name")
    old = _old(folder)
    if folder.exists() and _exchange(new, folder):
        _move_late(new, folder, replaced)
        _sync_folder(folder.parent)
        _remove(old)
        return
    if folder.exists():
        _remove(old)
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    if old.exists():
        _move_late(old, folder, replaced)
    _sync_folder(folder.parent)
    _remove(old)


def _move_late(old: Path, folder: Path, replaced: Container[str] | None) -> None:
    """Move entries from an old folder that are not among those that are replaced."""
    for path in old.iterdir():
        if replaced is None or path.name in replaced:
            continue
        if not os.path.lexists(folder / path.name):
            path.rename(folder / path.name)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories atomically; return False where that is impossible.

    Linux does it since 3.15 on most file systems (`renameat2` with RENAME_EXCHANGE).
    """
    if sys.platform != "linux":
        return False
    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is None:  # an old C library
        return False
    paths = os.fsencode(one), os.fsencode(other)
    done = function(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE)
    return bool(done == 0)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _remove(path)
        else:
            path.unlink()


def _remove(folder: Path) -> None:
    """Remove a folder, or at least free its name.

    NFS keeps a removed file that a process has open, under a name such as .nfs0001, and
    with it the folder. The folder is then renamed, for `clear_leftovers` to remove.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.is_dir():
        return
    name, _, _ = folder.name.removeprefix(".").partition(".transduce-")
    names = (f".{name}.transduce-gone-{number}" for number in count(1))
    for rest in map(folder.with_name, names):
        shutil.rmtree(rest, ignore_errors=True)
        if rest == folder or not rest.exists():
            with suppress(OSError):  # where the rest cannot be renamed either
                folder.rename(rest)
            return


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise the `OSError` that a library, such as one in Rust, hides in its text."""
    try:
        yield
    except (OSError, TransduceError):
        raise
    except Exception as error:
        if (hidden := hidden_system_error(error)) is None:
            raise
        raise hidden from None


def hidden_system_error(error: Exception) -> OSError | None:
    """Return the system's error that a library in Rust has only in its message."""
    found = SYSTEM_ERROR.search(str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


def _apply_umask(folder: Path) -> None:
    """Give the folder's files the permissions of any other new file.

    Libraries that write a private file and rename it, such as safetensors, leave it
    readable for its owner alone. The permissions of a new file are found by making one,
    since a folder's access control list may replace the umask.
    """
    probe = folder / ".transduce-permissions"
    probe.touch()
    file_mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    folder_mode = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        status = path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        is_shared = status.st_nlink > 1  # with another run, by a hard link
        if is_folder or (stat.S_ISREG(status.st_mode) and not is_shared):
            mode = folder_mode if is_folder else file_mode
            if stat.S_IMODE(status.st_mode) != mode:  # not every disk knows `chmod`
                path.chmod(mode)


def sync(folder: Path) -> None:
    """Force the folder's files to the disk, so that a rename cannot outrun them."""
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            _sync_folder(path)
        elif stat.S_ISREG(mode):  # opening a pipe would block, a link may lead nowhere
            _sync_file(path)
    _sync_folder(folder)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
