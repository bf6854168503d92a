"""Outputs of one record for each line of input, kept when the command is cut short.

While `OUTPUT` is being written it is `OUTPUT.part`, with whole records only, whatever
ends the process. Beside it, `OUTPUT.part.record` says in its first line what the part
was begun with, and in a line for each record where that ends and which input it is of:
so `--resume` goes on only where the result will be that of a command which was never
interrupted.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
from cyclopts import Parameter

import transduce
from transduce.claims import claim_file
from transduce.cli.ending import say_on_errors
from transduce.cli.output import (
    is_standard_output,
    real_file,
    replaceable,
    require_new,
    told_if_unwritable,
    writer,
)
from transduce.errors import ConfigError, DataError, TransduceError
from transduce.model_folder import CONFIG, WEIGHTS, find_model
from transduce.parsing.vocabulary import SYMBOLS_FILE
from transduce.text.tokenizer import TOKENIZER_FILE

Resume = Annotated[bool, Parameter(negative="")]
"""Whether a command goes on with its output that was cut short."""

Origin = Mapping[str, Any]
"""All that the records depend on besides the lines of input, as JSON has it."""
Item = TypeVar("Item")

FORMAT = 1
PART, RECORD = ".part", ".part.record"
KEY_BYTES = 8
"""Of the sum that stands for a line of input."""
SUMMED_WORDS = 1 << 17
"""Of a file of weights, in one sum: all of them are read as fast as memory is."""


class RecordOutput(Protocol):
    """Where records are written, one for each item of the input, in its order."""

    @property
    def num_done(self) -> int:
        """Records that an earlier command has written."""

    @property
    def notes(self) -> list[Any]:
        """What was noted with each of these."""

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        """The items that have no record yet; `DataError` if those before have changed.

        Each stream of input must be read through this.
        """

    def write(self, record: str, note: Any = None) -> None:
        """Write the record of the next item, and note something with it."""

    def write_end(self, text: str) -> None:
        """Write what follows all records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The file that is asked for, or none for standard output, and how to begin it."""

    output: Path | None
    force: bool = False
    resume: bool = False

    def require_usable(self, *inputs: Path | None) -> None:
        """`ConfigError` if a file would be overwritten, or cannot be gone on with."""
        require_new(self.output, force=self.force, others=inputs)
        if self.resume and self._in_parts is None:
            raise ConfigError(
                "`--resume` must go on with a file that was cut short, but the output "
                "is none; name it by --output."
            )
        if self._in_parts is None:
            return
        part = _beside(self._in_parts, PART)
        if self.resume and not part.is_file():
            raise ConfigError(
                f"{part}: must be what an interrupted command has written, but there "
                "is none; leave out --resume to begin."
            )
        if part.exists() and not self.resume and not self.force:
            raise ConfigError(
                f"{part}: holds what an interrupted command has written; go on with it "
                "by --resume, or overwrite it with --force."
            )

    @property
    def _in_parts(self) -> Path | None:
        """The file, if it can be written in parts; of a link, what it leads to."""
        if self.output is None or is_standard_output(self.output):
            return None
        if not replaceable(self.output):
            return None
        return real_file(self.output)

    @contextmanager
    def opened(
        self, origin: Callable[[], Origin], batch_items: int = 1
    ) -> Iterator[RecordOutput]:
        """Where to write; a file has its name when all is written.

        Where results depend on the items beside them, a number of `batch_items` is
        computed together, and only whole ones are gone on from.
        """
        if (output := self._in_parts) is None:
            with writer(self.output) as file:
                yield _PassingOutput(file.write, file.flush)
            return
        with told_if_unwritable(output):
            begun = {"format": FORMAT, "version": transduce.__version__, **origin()}
            with _Part.opened(output, begun, self.resume, batch_items) as part:
                with _keeping(part, output):
                    yield part
                part.finish(output)


@dataclass(frozen=True, slots=True)
class _PassingOutput:
    """Standard output, a pipe or a device: nothing of it can be gone on with."""

    _write: Callable[[str], object]
    _flush: Callable[[], object]
    num_done: int = 0
    notes: list[Any] = field(default_factory=list)

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        return iter(items)

    def write(self, record: str, note: Any = None) -> None:
        self._write(record)
        self._flush()

    def write_end(self, text: str) -> None:
        self.write(text)


class _Part:
    """A file that is being written, and the record of it."""

    def __init__(self, path: Path, part: int, record: int) -> None:
        self.path = path
        self.num_done = 0
        self.num_written = 0
        """Records, those of an earlier command among them."""
        self.notes: list[Any] = []
        self._part, self._record = part, record
        self._end = 0
        """Bytes of whole records."""
        self._keys: list[deque[str]] = []
        """Of each stream, those of the items that are read and have no record yet."""
        self._done_keys: list[tuple[str, ...]] = []
        """Of the items that had a record before."""

    @classmethod
    @contextmanager
    def opened(
        cls, output: Path, begun: Origin, resume: bool, batch_items: int
    ) -> Iterator["_Part"]:
        path, record = _beside(output, PART), _beside(output, RECORD)
        flags = os.O_RDWR | os.O_CREAT
        refusal = ConfigError(
            f"{path}: must be written by one command at a time, but another one is at "
            "it; wait for it to end, or choose another name."
        )
        with ExitStack() as stack:
            # The claim first, so that what another command writes is not touched.
            descriptor = os.open(path, flags, 0o666)
            stack.callback(os.close, descriptor)
            claim_file(descriptor, refusal)
            of_record = os.open(record, flags, 0o666)
            stack.callback(os.close, of_record)
            part = cls(path, descriptor, of_record)
            if resume:
                part._go_on(record, begun, batch_items)
            else:
                try:
                    part._begin(begun)
                except OSError:
                    path.unlink()
                    record.unlink()
                    raise
            yield part

    def _begin(self, begun: Origin) -> None:
        os.ftruncate(self._part, 0)
        os.ftruncate(self._record, 0)
        _write_all(self._record, json.dumps(begun) + "\n")

    def _go_on(self, record: Path, begun: Origin, batch_items: int) -> None:
        """Read what an earlier command has done, and cut off what is not whole."""
        head, lines = _read_record(record)
        _require_same(self.path, head, begun)
        size = os.fstat(self._part).st_size
        whole = [line for line in lines if line.end <= size]
        whole = whole[: len(whole) - len(whole) % batch_items]
        self.num_done = self.num_written = len(whole)
        self.notes = [line.note for line in whole]
        self._done_keys = [line.keys for line in whole]
        if whole:
            self._end = whole[-1].end
        os.ftruncate(self._part, self._end)
        os.lseek(self._part, 0, os.SEEK_END)
        os.ftruncate(self._record, whole[-1].record_end if whole else head.record_end)
        os.lseek(self._record, 0, os.SEEK_END)

    def reading(
        self, items: Iterable[Item], text: Callable[[Item], str] = str
    ) -> Iterator[Item]:
        number, keys = len(self._keys), deque[str]()
        self._keys.append(keys)
        return self._read(iter(items), text, number, keys)

    def _read(
        self,
        items: Iterator[Item],
        text: Callable[[Item], str],
        number: int,
        keys: deque[str],
    ) -> Iterator[Item]:
        for place, done in enumerate(self._done_keys, start=1):
            item = next(items, None)
            if item is None or number >= len(done) or _key(text(item)) != done[number]:
                raise _OtherInputError(
                    f"{self.path}: line {place} of the input must be what it was when "
                    "the output was begun, but is another; give the same input, or "
                    "begin anew with --force."
                )
        for item in items:
            keys.append(_key(text(item)))
            yield item

    def write(self, record: str, note: Any = None) -> None:
        self._end += _write_all(self._part, record)
        line = [self._end, [keys.popleft() for keys in self._keys], note]
        _write_all(self._record, json.dumps(line) + "\n")
        self.num_written += 1

    def write_end(self, text: str) -> None:
        _write_all(self._part, text)

    def finish(self, output: Path) -> None:
        """Give the file its name."""
        os.fsync(self._part)
        self.path.replace(output)
        _beside(output, RECORD).unlink()

    def cut_short(self) -> bool:
        """Leave whole records, or nothing if there is none; whether there are any."""
        os.ftruncate(self._part, self._end)
        return self.num_written > 0


@contextmanager
def _keeping(part: _Part, output: Path) -> Iterator[None]:
    """When writing ends early, keep what is done, and say so."""
    try:
        yield
    except BaseException as error:
        if not part.cut_short():
            part.path.unlink()
            _beside(output, RECORD).unlink()
            raise
        kept = (
            f"What is done, {part.num_written:,} of the input's lines, is kept in "
            f"{part.path}: the same command with --resume goes on."
        )
        match error:
            case KeyboardInterrupt():
                raise OutputKeptError(f"Interrupted. {kept}") from None
            case SystemExit():
                say_on_errors(f"transduce: {kept}")
            case _OtherInputError():
                raise
            case TransduceError():
                raise type(error)(f"{error} {kept}") from None
            case OSError():
                raise DataError(
                    f"{output}: cannot be written ({error.strerror}). {kept}"
                ) from None
        raise


class OutputKeptError(TransduceError):
    """A command was interrupted, and can be gone on with."""


class _OtherInputError(DataError):
    """A command goes on with an output, but with another input."""


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


def _key(text: str) -> str:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
    return digest.hexdigest()


def _write_all(descriptor: int, text: str) -> int:
    """Write a text at once, so that it is there whole if it is there at all; its bytes.

    Only a disk that is full takes a part of it, and refuses the rest.
    """
    content = memoryview(text.encode("utf-8"))
    left = content
    while left:
        left = left[os.write(descriptor, left) :]
    return len(content)


@dataclass(frozen=True, slots=True)
class _Line:
    """What the record says of one record of the output."""

    end: int
    keys: tuple[str, ...]
    note: Any
    record_end: int
    """Where the line itself ends."""


@dataclass(frozen=True, slots=True)
class _Head:
    begun: Origin
    record_end: int


def _read_record(path: Path) -> tuple[_Head, list[_Line]]:
    """`DataError` if the head is damaged; what is not whole at the end is left out."""
    head, *rest = path.read_bytes().splitlines(keepends=True) or [b""]
    try:
        begun = json.loads(head)
    except (ValueError, RecursionError):
        begun = None
    if not isinstance(begun, dict) or not head.endswith(b"\n"):
        raise DataError(
            f"{path}: must tell what {path.with_suffix('').name} was begun with, but "
            "is missing or damaged; begin anew with --force."
        )
    lines: list[_Line] = []
    place, end = len(head), 0
    for line in rest:
        place += len(line)
        found = _line(line, place)
        if found is None or found.end < end:
            break
        lines.append(found)
        end = found.end
    return _Head(begun, len(head)), lines


def _line(text: bytes, place: int) -> _Line | None:
    try:
        end, keys, note = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    is_sound = type(end) is int and isinstance(keys, list) and text.endswith(b"\n")
    return _Line(end, tuple(map(str, keys)), note, place) if is_sound else None


def _require_same(path: Path, head: _Head, begun: Origin) -> None:
    """`ConfigError` if a part was begun with anything else."""
    then, now = dict(_flat(head.begun)), dict(_flat(json.loads(json.dumps(begun))))
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            raise ConfigError(
                f"{path}: must be gone on with as it was begun, but {name} was "
                f"{then.get(name)!r} and is {now.get(name)!r}; give the same models, "
                "options and version of transduce, or begin anew with --force."
            )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def model_sum(path: Path) -> str:
    """A sum that stands for a model: its settings, vocabulary and weights."""
    folder, digest = find_model(path), blake2b(digest_size=KEY_BYTES)
    for name in (CONFIG, TOKENIZER_FILE, SYMBOLS_FILE):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    weights = np.memmap(folder / WEIGHTS, dtype=np.uint8, mode="r")
    whole = len(weights) - len(weights) % np.dtype(np.uint64).itemsize
    words = weights[:whole].view(np.uint64)
    # Far faster than a cryptographic sum; any one weight that differs changes it.
    starts = np.arange(0, len(words), SUMMED_WORDS)
    digest.update(np.add.reduceat(words, starts).tobytes() if len(words) else b"")
    digest.update(weights[whole:].tobytes() + len(weights).to_bytes(8, "little"))
    return digest.hexdigest()
