"""Terminals and standard streams: consoles, progress, closed and lost streams."""

import atexit
import codecs
import json
import os
import re
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn, Self, TextIO, cast

from cyclopts import Parameter
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.progress import (
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from transduce.errors import TransduceWarning, counted, duration
from transduce.files import without_infinity

LINE_SECONDS = 30.0
"""Seconds between progress lines without a terminal."""
SPEED_SECONDS = 3_600.0
"""Seconds of steps that the time left is estimated from; rich's 30 may have only one
step, and then no estimate."""
NARROWEST, DEFAULT_WIDTH, WIDEST = 20, 80, 1_000
"""Minimum, default and maximum width in columns. Rich never ends at one column, and
fills the memory at a billion."""
BAR_WIDTH, SHORT_BAR_WIDTH = 10, 4
"""Width of the progress bar in columns: minimum, and on a narrow terminal."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would obey."""
PROGRAM = "TRANSDUCE_PROGRAM"
"""Environment variable with the name of the command that started this process."""
OUTPUT_LOST = 2
"""Exit code if output could not be written."""
OUTPUT_DESCRIPTOR, ERROR_DESCRIPTOR = 1, 2
"""File descriptors of the standard streams."""


class BoundedConsole(Console):
    """Console whose width is kept within bounds.

    A width of 0, by `COLUMNS=0` or a pseudo-terminal without a size, means unknown.
    """

    @property
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(
            min(max(width or DEFAULT_WIDTH, NARROWEST), WIDEST), height
        )

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, where Rich would end the process itself."""
        raise BrokenPipeError

    @property
    def can_animate(self) -> bool:
        """Whether output can be redrawn: not in files and dumb terminals."""
        return self.is_terminal and not self.is_dumb_terminal and self.file.isatty()

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Return a line with a spinner, which a file or a dumb terminal does not get.

        With `FORCE_COLOR`, as in the logs of CI, Rich itself would draw it into files.
        """
        return StatusLine(self, status, **options)


class StatusLine(Status):
    """Spinner with a text, which is not read as markup."""

    def __init__(
        self, console: BoundedConsole, status: RenderableType, **options: Any
    ) -> None:
        super().__init__(_unmarked(status), console=console, **options)
        self._is_shown = console.can_animate

    def update(self, status: RenderableType | None = None, **options: Any) -> None:
        super().update(_unmarked(status) if status else None, **options)

    def start(self) -> None:
        if self._is_shown:
            super().start()


def _unmarked(status: RenderableType) -> RenderableType:
    return Text(_in_one_line(status)) if isinstance(status, str) else status


def plain_console() -> BoundedConsole:
    """Return a console on standard output that prints text unchanged."""
    return BoundedConsole(highlight=False, soft_wrap=True, markup=False, emoji=False)


def table_console() -> BoundedConsole:
    """Return a console on standard output that fits tables to the terminal."""
    return BoundedConsole(highlight=False)


def error_console() -> BoundedConsole:
    """Return a console on standard error, for progress."""
    return BoundedConsole(stderr=True, highlight=False)


Json = Annotated[bool, Parameter(name="--json")]
"""Option to print JSON instead of text."""


def print_json(content: object) -> None:
    """Print JSON in ASCII, whatever the encoding of standard output.

    Infinity and NaN, which JSON lacks, become null; paths become text.
    """
    print(json.dumps(without_infinity(content), indent=2, default=os.fspath))


def program() -> str:
    """Return how a shell calls this command: by name, or by path if not on the PATH."""
    if PROGRAM in os.environ:
        return os.environ[PROGRAM]
    called = Path(sys.argv[0])
    if called.name != "transduce":
        return "transduce"
    # Linux starts a script found on the PATH by its whole path.
    found = shutil.which("transduce")
    is_found = found is not None and called.exists() and called.samefile(found)
    return "transduce" if is_found else shlex.quote(str(called))


class ProgressLine(ProgressColumn):
    """Progress in one line: description, bar, figures and time.

    On a narrow terminal, first the figures are dropped, last ones first; then the bar
    gets shorter; then the description is cut to its numbers.
    """

    def __init__(self, console: Console, time: ProgressColumn, *, has_bar: bool):
        self._console = console
        self._time = time
        self._has_bar = has_bar
        super().__init__()

    def render(self, task: Task) -> Table:
        shown_time = str(self._time.render(task))
        what, figures = task.description, list(task.fields["figures"])
        bar = BAR_WIDTH if self._has_bar else 0

        def room() -> int:
            """Columns left for the bar."""
            return self._console.width - sum(
                len(text) + 1 for text in (what, *figures, shown_time)
            )

        while figures and room() < bar:
            figures.pop()
        if room() < min(bar, SHORT_BAR_WIDTH):
            numbers = (word for word in what.split() if word[:1].isdigit())
            what = " ".join(numbers) or what
        grid = Table.grid(padding=(0, 1, 0, 0))
        cells: list[ProgressBar | str] = [what, *figures, shown_time]
        if self._has_bar and room() > 0:
            cells.insert(1, self._bar(task, room()))
        for _ in cells:
            grid.add_column(no_wrap=True)
        grid.add_row(*cells)
        return grid

    @staticmethod
    def _bar(task: Task, width: int) -> ProgressBar:
        return ProgressBar(
            total=task.total,
            completed=task.completed,
            width=width,
            pulse=task.total is None,
            animation_time=task.get_time(),
        )


@contextmanager
def counted_lines(is_on_screen: bool) -> Iterator[Callable[[], None]]:
    """Yield a function to call for each finished line; it displays their number.

    The count is on standard error's terminal, unless the lines are on the screen.
    """
    console = error_console()
    if is_on_screen or not console.can_animate:
        yield lambda: None
        return
    progress = Progress(
        ProgressLine(console, TimeElapsedColumn(), has_bar=False),
        console=console,
        redirect_stdout=False,
        transient=True,
    )
    started = time.monotonic()
    task = progress.add_task("", total=None, figures=())
    done = count(1)

    def count_line() -> None:
        number = next(done)
        rate = number / max(time.monotonic() - started, 1e-9)
        progress.update(
            task,
            completed=number,
            description=counted(number, "line"),
            figures=(f"{rate:,.0f} a second",),
        )

    with progress:
        yield count_line


class ProgressDisplay:
    """Progress bar on a terminal; occasional progress lines elsewhere."""

    def __init__(self) -> None:
        self.console = plain_console()
        self._progress = Progress(
            ProgressLine(self.console, TimeRemainingColumn(), has_bar=True),
            console=self.console,
            disable=not self.console.can_animate,
            transient=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._task = self._progress.add_task("", figures=(), visible=False)
        self._line_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, completed: int, total: int | None) -> None:
        """Start counting, so that earlier work does not affect the speed."""
        self._progress.start()
        self._progress.reset(self._task, completed=completed, total=total, visible=True)

    def show(self, what: str, figures: Sequence[str], completed: int) -> None:
        """Show progress and some figures, the most important first."""
        self._progress.update(
            self._task, completed=completed, description=what, figures=figures
        )
        is_time = time.monotonic() - self._line_at > LINE_SECONDS
        if is_time and not self.console.can_animate:
            self._line_at = time.monotonic()
            self.console.print(f"{what}: {'  '.join([*figures, *self._time_left()])}")

    def _time_left(self) -> Iterator[str]:
        [task] = self._progress.tasks
        if not task.finished and task.time_remaining is not None:
            yield f"{duration(task.time_remaining)} left"


def open_closed_streams() -> bool:
    """Open closed standard streams on the null device.

    Python sets a closed stream to None. The next opened file would get the stream's
    descriptor, and libraries would write into it. Returns whether standard output was
    closed.
    """
    is_closed = sys.stdout is None
    if sys.stderr is None:
        sys.stderr = _null_stream(ERROR_DESCRIPTOR)
    if is_closed:
        sys.stdout = _null_stream(OUTPUT_DESCRIPTOR)
    return is_closed


def escape_output() -> None:
    """Let standard output escape the characters that its encoding lacks.

    The names of files need not be UTF-8, nor need the terminal be.
    """
    output = sys.stdout
    if not isinstance(output, TextIOWrapper):
        return
    # In the locale C, Python's handler passes the bytes of names through, but refuses
    # letters outside ASCII.
    lacks_letters = codecs.lookup(output.encoding).name != "utf-8"
    if output.errors == "strict" or (
        output.errors == "surrogateescape" and lacks_letters
    ):
        output.reconfigure(errors="backslashreplace")


def _null_stream(descriptor: int) -> TextIO:
    """Return a stream that writes to the null device by this file descriptor."""
    _discard(descriptor)
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def _discard(descriptor: int) -> None:
    """Redirect a file descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print the package's warnings by `warn`, without the code that gives them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", TransduceWarning)
        show_other = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *place: Any, **to: Any
        ) -> None:
            if issubclass(category, TransduceWarning):
                warn(message)
            else:
                show_other(message, category, *place, **to)

        warnings.showwarning = show
        yield


def warn(message: object) -> None:
    """Print a warning on standard error, like a message."""
    print_message(f"Warning: {message}")


def print_message(message: str) -> None:
    """Print a message on one line of standard error, ignoring failures."""
    try:
        print(_in_one_line(message), file=sys.stderr, flush=True)
    except OSError:
        _discard(ERROR_DESCRIPTOR)


def _in_one_line(text: str) -> str:
    """Escape control characters, such as a line end in the name of a file."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class _LastingStream:
    """Stream that discards its text once writing has failed."""

    def __init__(self, stream: TextIO, name: str, errors: TextIO | None) -> None:
        self._stream = stream
        self._name = name
        self._errors = errors
        """Stream on which the failure is reported; None for no report."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        errors, self._errors = self._errors, None
        _discard(self._stream.fileno())
        if errors is not None:
            print(
                f"Warning: {self._name} cannot be written ({error.strerror}); the "
                "command continues without it.",
                file=errors,
                flush=True,
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams(*, is_output_progress: bool) -> Iterator[None]:
    """Continue after the terminal or the reader of a pipe has closed.

    The loss of standard error never ends a command. The loss of standard output ends
    it, unless the output is only progress of work whose results are in files.
    """
    output, errors = sys.stdout, sys.stderr
    lasting_errors = cast(TextIO, _LastingStream(errors, "Standard error", None))
    sys.stderr = lasting_errors
    if is_output_progress:
        lasting = _LastingStream(output, "Standard output", lasting_errors)
        sys.stdout = cast(TextIO, lasting)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = output, errors


@contextmanager
def exiting_at_once_if_distributed() -> Iterator[None]:
    """Exit immediately after the block if it joined a process group.

    PyTorch keeps gloo's threads until the process ends. A thread that still runs during
    the interpreter's shutdown may abort it, which turns success into failure.
    """
    if _is_distributed():
        yield
        return
    code = 0
    try:
        yield
    except BaseException as error:
        if not _is_distributed():
            raise
        code = _exit_code_of(error)
    if _is_distributed():
        _exit_at_once(code)


def _exit_at_once(code: int) -> NoReturn:
    """End the process without the interpreter's shutdown, but with exit functions."""
    code = _code_after_flush(code)
    try:
        atexit._run_exitfuncs()
    except Exception as error:
        code = code or _exit_code_of(error)
    os._exit(_code_after_flush(code))


def _code_after_flush(code: int) -> int:
    """Flush the output; return the exit code, `OUTPUT_LOST` if only that failed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as with `head`
        discard_output()
    except OSError as error:
        print_message(f"transduce: The output: cannot be written ({error.strerror}).")
        discard_output()
        return code or OUTPUT_LOST
    return code


def discard_output() -> None:
    """Discard unwritten output, so that Python does not fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _is_distributed() -> bool:
    """Return whether this process joined a group, without importing PyTorch."""
    module = sys.modules.get("transduce.training.data_parallel")
    return module is not None and module.HAS_PROCESS_GROUP.is_set()


def _exit_code_of(error: BaseException) -> int:
    """Print what Python prints for an exception; return the exit code."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
