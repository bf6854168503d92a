"""Consoles and progress, on terminals of any width and without one."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions
from rich.progress import (
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table

from transduce.errors import counted
from transduce.files import (
    without_infinity,
)

LINE_SECONDS = 30.0
"""Seconds between progress lines without a terminal."""
SPEED_SECONDS = 3_600.0
"""Seconds of steps that the time left is estimated from; rich's 30 may have only one
step, and then no estimate."""
NARROWEST, USUAL, WIDEST = 20, 80, 1_000
"""Minimum, default and maximum width in columns. Rich never ends at one column, and
fills the memory at a billion."""
BAR_WIDTH, SHORT_BAR_WIDTH = 10, 4
"""Width of the progress bar in columns: minimum, and on a narrow terminal."""


class BoundedConsole(Console):
    """Console whose width is kept within bounds.

    A width of 0, by `COLUMNS=0` or a pseudo-terminal without a size, means unknown.
    """

    @property
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(min(max(width or USUAL, NARROWEST), WIDEST), height)

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


def plain_console() -> BoundedConsole:
    """Return a console on standard output that prints text unchanged."""
    return BoundedConsole(highlight=False, soft_wrap=True, markup=False, emoji=False)


def table_console() -> BoundedConsole:
    """Return a console on standard output that fits tables to the terminal."""
    return BoundedConsole(highlight=False)


def error_console() -> BoundedConsole:
    """Return a console on standard error, for progress."""
    return BoundedConsole(stderr=True, highlight=False)


def print_json(content: object) -> None:
    """Print JSON in ASCII, whatever the encoding of standard output.

    Infinity and NaN, which JSON lacks, become null; paths become text.
    """
    print(json.dumps(without_infinity(content), indent=2, default=os.fspath))


def program() -> str:
    """Return how this command was called, since it may not be on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "transduce" else "transduce"


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
            self.console.print(f"{what}: {'  '.join(figures)}")
