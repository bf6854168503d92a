"""What commands print on, and how they show how far they are."""

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

LINE_SECONDS = 30.0
"""Between progress lines where there is no terminal to draw on."""
NARROWEST, USUAL, WIDEST = 20, 80, 1_000
"""Columns of a terminal: the least, the default and the most. Rich does not end at one
column, and fills memory at a billion."""
BAR_WIDTH, SHORT_BAR_WIDTH = 10, 4
"""Columns of the progress bar at least, and on a narrow terminal."""


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
    """Standard output, on which a text is printed as it is."""
    return BoundedConsole(highlight=False, soft_wrap=True, markup=False, emoji=False)


def table_console() -> BoundedConsole:
    """Console on standard output that fits tables into the terminal's width."""
    return BoundedConsole(highlight=False)


def error_console() -> BoundedConsole:
    """Console on standard error, for the progress of a command."""
    return BoundedConsole(stderr=True, highlight=False)


def program() -> str:
    """This very command as it was called: it need not be on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "transduce" else "transduce"


class ProgressLine(ProgressColumn):
    """Progress in one line: description, bar, figures and time.

    On a narrow terminal the figures are left out, the last first; then the bar gets
    shorter; then the description is cut to its numbers.
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
    """What is to be called for each line that is done: it keeps a count in sight.

    On the terminal of standard error, unless the lines themselves are on the screen.
    """
    console = error_console()
    progress = Progress(
        ProgressLine(console, TimeElapsedColumn(), has_bar=False),
        console=console,
        disable=is_on_screen or not console.can_animate,
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
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.console = plain_console()
        self._progress = Progress(
            ProgressLine(self.console, TimeRemainingColumn(), has_bar=True),
            console=self.console,
            disable=not self.console.can_animate,
            transient=True,
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
        """Count from here on, so that what was there before counts for no speed."""
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
