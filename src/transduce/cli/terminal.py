"""What commands print on, and how they show how far they are."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 30.0
"""Between progress lines where there is no terminal to draw on."""


def plain_console() -> Console:
    """Standard output, on which a text is printed as it is."""
    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def program() -> str:
    """This very command as it was called: it need not be on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "transduce" else "transduce"


@contextmanager
def counted_lines(is_on_screen: bool) -> Iterator[Callable[[], None]]:
    """What is to be called for each line that is done: it keeps a count in sight.

    On the terminal of standard error, unless the lines themselves are on the screen.
    """
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.completed:,} lines"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        disable=is_on_screen or not console.is_terminal,
        redirect_stdout=False,
        transient=True,
    )
    started = time.monotonic()
    task = progress.add_task("", total=None, rate="")
    done = count(1)

    def count_line() -> None:
        number = next(done)
        rate = number / max(time.monotonic() - started, 1e-9)
        progress.update(task, completed=number, rate=f"{rate:,.0f} a second")

    with progress:
        yield count_line


class ProgressDisplay:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.console = plain_console()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", figures="", visible=False)
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

    def show(self, what: str, figures: str, completed: int) -> None:
        """How far it is, and some figures of it."""
        self._progress.update(
            self._task, completed=completed, description=what, figures=figures
        )
        is_time = time.monotonic() - self._line_at > LINE_SECONDS
        if is_time and not self.console.is_terminal:
            self._line_at = time.monotonic()
            self.console.print(f"{what}: {figures}")
