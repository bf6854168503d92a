"""Output of records, one for each item of the input, that can be resumed.

A command writes to `OUTPUT.part`, which holds only whole records, however the process
ends. The first line of the record file, `OUTPUT.part.record`, holds model and options;
each further line holds the end of a record and checksums of its input and of itself.
With these, `--resume` continues only if the result equals that of an uninterrupted
command.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import transduce
from transduce.cli.files import (
    STANDARD_OUTPUT,
    is_standard_output,
    replaceable,
    require_new,
    unwritable_as_data_error,
    writer,
)
from transduce.cli.terminal import print_message, warn
from transduce.errors import (
    OVERWRITE,
    ConfigError,
    DataError,
    OverwriteError,
    TransduceError,
    counted,
)
from transduce.files import (
    OWNER_ACCESS,
    is_disk_full,
    is_open_as,
    lock_file,
    mode_of_new,
    path_lock,
    real_file,
    require_unwritten,
    take_permissions,
    write_all,
)
from transduce.settings import flattened

Origin = Mapping[str, Any]
"""Everything that the records depend on besides the input's lines, as JSON."""
Item = TypeVar("Item")

FORMAT = 4
"""Format of the record file; an output begun in another one is not resumed."""
CHECKSUMS = {
    "models": "other models",
    "shortlist": "another shortlist",
    "glossary": "another glossary",
}
"""Values of an `Origin` that are checksums, with the meaning of another checksum."""
PART, RECORD = ".part", ".part.record"
STANDARD_INPUT_FILE = Path("/dev/stdin")
"""Name of the file that the shell opens as standard input, if it opens one."""
KEY_BYTES = 8
"""Size in bytes of the checksum of an input line, or of a record."""


class RecordOutput(Protocol):
    """Output of records, one for each item of the input, in its order."""

    @property
    def num_done(self) -> int:
        """Number of records written by an earlier command."""

    @property
    def notes(self) -> list[Any]:
        """Notes of the records written by an earlier command."""

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        """Items without a record yet; `DataError` if earlier ones have changed.

        Every stream of input must be read through this method.
        """

    def write(self, record: str, note: Any = None) -> None:
        """Write the record of the next item, and keep a note with it."""

    def write_end(self, text: str) -> None:
        """Write text that follows all records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Output file, or None for standard output, and whether to overwrite or resume."""

    output: Path | None
    force: bool = False
    resume: bool = False

    def require_usable(self, *inputs: Path | None) -> None:
        """Raise `ConfigError` if a file would be overwritten or cannot be resumed."""
        require_new(self.output, force=self.force, others=inputs)
        if (output := self._resumable_file) is None:
            if self.resume:
                raise ConfigError(
                    "--resume must have an interrupted output file to continue; name "
                    "it by --output."
                )
            return
        part, record = _beside(output, PART), _beside(output, RECORD)
        for each in (part, record):  # which are overwritten as well, force or not
            require_new(each, force=True, others=(*inputs, STANDARD_INPUT_FILE))
        if self.resume and not part.is_file():
            raise ConfigError(
                f"{part}: --resume needs the output of an interrupted command, but this"
                " file is missing; leave out --resume to begin."
            )
        if part.exists():
            _require_own_and_free(part)
            self.require_part_replaceable(part)
        elif record.exists() and not self.force:
            raise ConfigError(
                f"{record}: must not exist before the output is begun, but does; remove"
                f" it, or {OVERWRITE}."
            )

    def require_part_replaceable(self, part: Path) -> None:
        """Raise `ConfigError` if an interrupted output would be lost."""
        if not self.resume and not self.force:
            raise ConfigError(
                f"{part}: holds the output of an interrupted command; continue it by "
                f"--resume, or {OVERWRITE}."
            )

    @property
    def is_on_screen(self) -> bool:
        """Whether the output appears on a terminal."""
        return self.output in (None, STANDARD_OUTPUT) and sys.stdout.isatty()

    @property
    def _resumable_file(self) -> Path | None:
        """Output file, links followed; None for a stream, which cannot be resumed."""
        if self.output is None or is_standard_output(self.output):
            return None
        if not replaceable(self.output):
            return None
        return real_file(self.output)

    @contextmanager
    def opened(
        self, origin: Callable[[], Origin], batch_items: int = 1
    ) -> Iterator[RecordOutput]:
        """Open the output; a file gets its name when everything is written.

        Resuming starts after a whole number of batches of `batch_items` items, since
        results may depend on the other items of a batch.
        """
        if (output := self._resumable_file) is None:
            with writer(self.output, overwrite=self.force) as file:
                yield _StreamOutput(file)
            return
        with unwritable_as_data_error(output):
            head = {"format": FORMAT, "version": transduce.__version__, **origin()}
            with _Part.opened(output, head, self, batch_items) as part:
                with _keeping(part, output):
                    yield part
                    part.sync()
                part.finish(output, overwrite=self.force)


@dataclass(frozen=True, slots=True)
class _StreamOutput:
    """Output that cannot be resumed: standard output, a pipe or a device."""

    _file: TextIO
    num_done: int = 0
    notes: list[Any] = field(default_factory=list)

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        return iter(items)

    def write(self, record: str, note: Any = None) -> None:
        self._file.write(record)
        self._file.flush()

    def write_end(self, text: str) -> None:
        self.write(text)


class _Part:
    """Partial output file and its record."""

    def __init__(self, path: Path, part: int, record: int) -> None:
        self.path = path
        self.num_done = 0
        self.num_written = 0
        """Number of records, including those of an earlier command."""
        self.notes: list[Any] = []
        self._part, self._record = part, record
        self._end = 0
        """Size of all whole records in bytes."""
        self._keys: list[deque[str]] = []
        """Checksums of the items that have no record yet, by stream."""
        self._done_keys: list[tuple[str, ...]] = []
        """Checksums of the items whose records an earlier command wrote."""

    @classmethod
    @contextmanager
    def opened(
        cls, output: Path, origin: Origin, destination: "Destination", batch_items: int
    ) -> Iterator["_Part"]:
        """Open the files; the first line of the record holds the `origin`."""
        path, record = _beside(output, PART), _beside(output, RECORD)
        flags = os.O_RDWR | os.O_CREAT
        refusal, mode = _busy(path), mode_of_new(output)
        with ExitStack() as stack:
            # Lock first, so that another command's output is not touched.
            descriptor = os.open(path, flags, mode)
            stack.callback(os.close, descriptor)
            # A signal may end the command from this point on.
            stack.callback(_remove_empty, path, record, descriptor)
            lock_file(descriptor, refusal)
            # The other command may have ended, and renamed its file, since the opening.
            if not is_open_as(descriptor, path):
                raise refusal
            # Both are free when the command starts, but it may have loaded for minutes.
            require_unwritten(output, overwrite=destination.force)
            if os.fstat(descriptor).st_size > 0:
                destination.require_part_replaceable(path)
            record_descriptor = os.open(record, flags, mode)
            stack.callback(os.close, record_descriptor)
            for each in (path, record):  # private before anything is in them
                take_permissions(each, output, added=OWNER_ACCESS)
            part = cls(path, descriptor, record_descriptor)
            if destination.resume:
                part._resume(record, origin, batch_items)
            else:
                part._begin(origin)
            yield part

    def _begin(self, origin: Origin) -> None:
        os.ftruncate(self._part, 0)
        os.ftruncate(self._record, 0)
        write_all(self._record, _json_line(origin))

    def _resume(self, record: Path, origin: Origin, batch_items: int) -> None:
        """Read an earlier command's record, and cut off partial records."""
        recorded = _read_record(record)
        _require_same_origin(self.path, recorded.origin, origin)
        sound = list(takewhile(self._is_sound, recorded.lines))
        whole = sound[: len(sound) - len(sound) % batch_items]
        if len(sound) < recorded.num_lines:
            warn(
                f"{self.path}: the result of line {len(sound) + 1:,} of the input is "
                f"damaged; those from line {len(whole) + 1:,} on are computed again."
            )
        self.num_done = self.num_written = len(whole)
        self.notes = [line.note for line in whole]
        self._done_keys = [line.keys for line in whole]
        if whole:
            self._end = whole[-1].end
        os.ftruncate(self._part, self._end)
        os.lseek(self._part, 0, os.SEEK_END)
        os.ftruncate(self._record, whole[-1].record_end if whole else recorded.head_end)
        os.lseek(self._record, 0, os.SEEK_END)

    def _is_sound(self, line: "_Line") -> bool:
        """Return whether a record of the output and its line are as they were written.

        A crash of the machine may leave zeros in their place, or a shorter output.
        """
        if line.end > os.fstat(self._part).st_size:
            return False
        os.lseek(self._part, line.begin, os.SEEK_SET)
        content = os.read(self._part, line.end - line.begin)
        return (
            _record_checksum(content, line.end, line.keys, line.note) == line.checksum
        )

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        number, keys, rest = len(self._keys), deque[str](), iter(items)
        self._keys.append(keys)

        def read() -> Iterator[Item]:
            for place, done in enumerate(self._done_keys, start=1):
                item = next(rest, None)
                key = None if item is None else _key(text(item))
                if number >= len(done) or key != done[number]:
                    raise _OtherInputError(
                        f"{self.path}: line {place} of the input has changed since the "
                        "output was begun; give the same input, or start over with "
                        "--force."
                    )
            for item in rest:
                keys.append(_key(text(item)))
                yield item

        return read()

    def write(self, record: str, note: Any = None) -> None:
        content = record.encode("utf-8")
        write_all(self._part, content)
        self._end += len(content)
        keys = [each.popleft() for each in self._keys]
        checksum = _record_checksum(content, self._end, keys, note)
        write_all(self._record, _json_line([self._end, keys, note, checksum]))
        self.num_written += 1

    def write_end(self, text: str) -> None:
        write_all(self._part, text.encode("utf-8"))

    def sync(self) -> None:
        """Force the file to the disk, so that the rename cannot outrun it."""
        os.fsync(self._part)

    def finish(self, output: Path, *, overwrite: bool) -> None:
        """Rename the complete file to the output's name, with its permissions.

        Raises `ConfigError`, and keeps the file, if another command has written the
        output meanwhile and it must not be overwritten.
        """
        try:
            require_unwritten(output, overwrite=overwrite)
        except OverwriteError as error:
            kept = (
                f"The complete output is in {self.path}: rename it, or give the same "
                "command with --resume --force."
            )
            raise OverwriteError(f"{error} {kept}") from None
        take_permissions(self.path, output)
        self.path.replace(output)
        _beside(output, RECORD).unlink()

    def cut_short(self) -> bool:
        """Cut off a partial record; return whether any whole records are left."""
        os.ftruncate(self._part, self._end)
        return self.num_written > 0


@contextmanager
def _keeping(part: _Part, output: Path) -> Iterator[None]:
    """Keep whole records when writing ends early, and print a message."""
    try:
        yield
    except BaseException as error:
        if not part.cut_short():
            raise
        kept = (
            f"The results of {counted(part.num_written, 'line')} of the input are kept "
            f"in {part.path}: the same command with --resume continues."
        )
        match error:
            case KeyboardInterrupt():
                raise OutputKeptError(f"Interrupted. {kept}") from None
            case SystemExit():
                print_message(f"transduce: {kept}")
            case _OtherInputError():
                raise
            case TransduceError():
                raise type(error)(f"{error} {kept}") from None
            case OSError():
                remedy = "; free some space" if is_disk_full(error) else ""
                raise DataError(
                    f"{output}: cannot be written ({error.strerror}){remedy}. {kept}"
                ) from None
        raise


class OutputKeptError(TransduceError):
    """A command was interrupted, and --resume can continue its output."""


class _OtherInputError(DataError):
    """A command resumes an output with a different input."""


def _remove_empty(path: Path, record: Path, descriptor: int) -> None:
    """Remove a partial output without any record, unless another command writes it."""
    with suppress(ConfigError, FileNotFoundError):
        lock_file(descriptor, ConfigError("Another command is writing this file."))
        status = os.fstat(descriptor)
        if status.st_size == 0 and os.path.samestat(status, path.stat()):
            path.unlink()
            record.unlink()


def _busy(part: Path) -> ConfigError:
    """Return the error of a partial output that another command is writing."""
    return ConfigError(
        f"{part}: another command is writing this file; wait for it to end, or choose "
        "another name."
    )


def _require_own_and_free(part: Path) -> None:
    """Raise `ConfigError` if another command is writing a partial output, or if it is
    another user's and cannot be changed."""
    if not part.is_file():
        return
    if os.access(part, os.R_OK):
        with path_lock(part, _busy(part)):
            pass
    if not os.access(part, os.R_OK | os.W_OK):
        raise ConfigError(
            f"{part}: holds the output of another user's command, which this user "
            "cannot change; choose another name."
        )


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


def _json_line(content: Any) -> bytes:
    return f"{json.dumps(content)}\n".encode("ascii")


def _key(text: str) -> str:
    return _checksum(text.encode("utf-8", "surrogatepass"))


def _record_checksum(content: bytes, end: int, keys: Sequence[str], note: Any) -> str:
    """Return a checksum of a record and of the values of its line."""
    return _checksum(content + _json_line([end, list(keys), note]))


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=KEY_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class _Line:
    """Line of the record file about one record of the output."""

    begin: int
    """Offset of the record in the output, where the one before ends."""
    end: int
    keys: tuple[str, ...]
    note: Any
    checksum: str
    """Checksum of the record, `end`, `keys` and `note`."""
    record_end: int
    """Offset of the line's own end in the record file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Content of a record file."""

    origin: Origin
    """Models and options of the command that began the output."""
    head_end: int
    """Offset of the end of the first line, which holds the origin."""
    lines: list[_Line]
    """Lines about the records of the output, up to the first damaged one."""
    num_lines: int
    """Number of all these lines, except a last one that was cut short."""


def _read_record(path: Path) -> _Record:
    """Read a record file; `DataError` if its first line is damaged."""
    head, *rest = path.read_bytes().splitlines(keepends=True) or [b""]
    try:
        origin = json.loads(head)
    except (ValueError, RecursionError):
        origin = None
    if not isinstance(origin, dict) or not head.endswith(b"\n"):
        raise DataError(
            f"{path}: the record of {path.with_suffix('').name} is missing or damaged; "
            "start over with --force."
        )
    lines: list[_Line] = []
    place, end = len(head), 0
    for line in rest:
        place += len(line)
        found = _line(line, end, place)
        if found is None:
            break
        lines.append(found)
        end = found.end
    num_lines = sum(line.endswith(b"\n") for line in rest)
    return _Record(origin=origin, head_end=len(head), lines=lines, num_lines=num_lines)


def _line(text: bytes, begin: int, place: int) -> _Line | None:
    """Read a line about a record that begins at an offset; None if it is damaged."""
    try:
        end, keys, note, checksum = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    is_end = type(end) is int and end >= begin
    if not is_end or not isinstance(keys, list) or not text.endswith(b"\n"):
        return None
    return _Line(begin, end, tuple(map(str, keys)), note, str(checksum), place)


def _require_same_origin(path: Path, recorded: Origin, origin: Origin) -> None:
    """Raise `ConfigError` if a part was begun with other models or options."""
    then, now = flattened(recorded), flattened(json.loads(json.dumps(origin)))
    # A model's checksum includes its shortlist, which is the plainer reason.
    for name in sorted({*then, *now}, key=lambda name: (name == "models", name)):
        if then.get(name) != now.get(name):
            reason = (
                f"it was begun with {CHECKSUMS[name]}"
                if name in CHECKSUMS
                else f"{name} was {then.get(name)!r} and is now {now.get(name)!r}"
            )
            raise ConfigError(
                f"{path}: cannot be resumed, as {reason}; give the same models, "
                "options and version of transduce, or start over with --force."
            )
