"""Output of commands on terminals of any width, and without one."""

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

from transduce.cli.files import finish_report
from transduce.cli.terminal import (
    BoundedConsole,
    ProgressDisplay,
    ProgressLine,
    error_console,
    escape_output,
    print_json,
    program,
    warn,
    warnings_as_sentences,
)
from transduce.errors import CheckpointError, TransduceWarning
from transduce.report.report import Report, Section

FIGURES = ("loss 5.123", "perplexity 168.0", "12,345 tokens/s")


@pytest.fixture
def pseudo_terminal() -> Iterator[int]:
    """Terminal without a size."""
    first, second = os.openpty()
    yield second
    os.close(first)
    os.close(second)


@pytest.mark.parametrize(
    ("folder", "called"),
    [("", "transduce"), ("elsewhere", "{}/transduce"), ("a b", "'{}/transduce'")],
)
def test_a_message_calls_the_command_by_name_if_the_shell_finds_it_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, called: str
) -> None:
    for place in (tmp_path, tmp_path / folder):
        place.mkdir(exist_ok=True)
        (place / "transduce").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / folder / "transduce"), "check"])

    assert program() == called.format(tmp_path / folder)


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        *(("0", 80), ("1", 20), ("2", 20), ("19", 20), ("20", 20), ("200", 200)),
        *(("1000000000", 1_000), ("", 80), ("wide", 80), ("-5", 80)),
    ],
)
def test_the_width_of_a_terminal_is_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    with monkeypatch.context() as patch:  # not while pytest reports
        patch.setenv("COLUMNS", columns)
        patch.setattr(os, "get_terminal_size", lambda _: (80, 25))
        assert BoundedConsole().width == width
        assert BoundedConsole().options.max_width == width


def test_a_terminal_without_a_size_has_the_usual_width(
    monkeypatch: pytest.MonkeyPatch, pseudo_terminal: int
) -> None:
    with monkeypatch.context() as patch:  # not while pytest reports
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(os, "get_terminal_size", lambda _: (0, 0))
        assert BoundedConsole().width == 80


def drawn(
    width: int, what: str, *, total: int | None = 100_000, has_bar: bool = True
) -> str:
    """Line shown on a terminal with this number of columns."""
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    time = TimeRemainingColumn() if has_bar else TimeElapsedColumn()
    line = ProgressLine(console, time, has_bar=has_bar)
    progress = Progress(line, console=console)
    progress.add_task(what, total=total, completed=50_000, figures=FIGURES)
    console.print(progress.get_renderable())
    return re.sub(r"\x1b\[[\d;?]*\w", "", file.getvalue()).rstrip("\n")


@pytest.mark.parametrize("width", [30, 40, 50, 80, 200])
def test_progress_shows_step_bar_and_time_at_any_width(width: int) -> None:
    line = drawn(width, "step 50,000/100,000")
    assert "\n" not in line
    assert len(line) <= width
    assert "50,000/100,000" in line
    assert line.count("\u2501") + line.count("\u2578") + line.count("\u257a") >= 4
    assert line.rstrip().endswith("-:--:--")


@pytest.mark.parametrize(
    ("width", "figures"),
    [(30, 0), (45, 0), (50, 1), (60, 1), (80, 2), (100, 3), (200, 3)],
)
def test_figures_are_shown_as_far_as_the_width_allows(width: int, figures: int) -> None:
    line = drawn(width, "step 50,000/100,000")
    assert [figure in line for figure in FIGURES] == [
        i < figures for i in range(len(FIGURES))
    ]


def test_a_bar_takes_the_remaining_width() -> None:
    assert len(drawn(200, "step 1/2").rstrip()) in (198, 199, 200)


@pytest.mark.parametrize("width", [20, 30, 80])
def test_a_count_of_lines_has_no_bar(width: int) -> None:
    line = drawn(width, "12,345 lines", total=None, has_bar=False)
    assert "\n" not in line
    assert len(line) <= width
    assert line.startswith("12,345 ")
    assert ("lines" in line) == (width > 20)
    assert line.rstrip().endswith("0:00:00") or line.rstrip().endswith("-:--:--")


def test_a_dumb_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dumb terminal cannot be redrawn, so it gets lines."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("transduce.cli.terminal.LINE_SECONDS", -1.0)
    with ProgressDisplay() as display:
        display.begin(0, 10)
        display.show("step 1/10", ("loss 1.000", "2 tokens/s"), 1)
    assert capsys.readouterr().out == "step 1/10: loss 1.000  2 tokens/s\n"


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_logs_have_no_spinner(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    """A log with colours is a file all the same, in which no line can be redrawn."""
    monkeypatch.setenv(variable, "1")
    with error_console().status("Comparing...") as status:
        status.update("Still comparing...")
    assert capsys.readouterr().err == ""


def test_a_status_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConsole, "can_animate", True)
    file = StringIO()
    console = BoundedConsole(file=file, force_terminal=True, color_system=None)
    with console.status("Reading a[/b]\x1b..."):
        pass
    with console.status("Starting...") as status:
        status.update("Translating with x[/y]...")
    assert "Reading a[/b]\\x1b..." in file.getvalue()
    assert "Translating with x[/y]..." in file.getvalue()


def test_steps_of_a_minute_have_a_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, made = [0.0], list[Progress]()

    class Timed(Progress):
        def __init__(self, *columns: Any, **options: Any) -> None:
            super().__init__(*columns, get_time=lambda: now[0], **options)
            made.append(self)

    monkeypatch.setattr("transduce.cli.terminal.Progress", Timed)
    monkeypatch.setattr("transduce.cli.terminal.LINE_SECONDS", -1.0)
    with ProgressDisplay() as display:
        display.begin(0, 100)
        for step in range(1, 11):
            now[0] += 60.0
            display.show(f"step {step}/100", ("loss 5.000",), step)
        [task] = made[0].tasks
        assert task.time_remaining == 90 * 60
        display.show("step 100/100", ("loss 4.000",), 100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 1/100: loss 5.000"
    assert lines[-2:] == [
        "step 10/100: loss 5.000  1.5 hours left",
        "step 100/100: loss 4.000",
    ]


def test_a_report_that_cannot_be_written_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    section = Section(title="Importance", parts=("All of them matter.",))
    report = Report(title="Heads of a model", sections=(section,))
    with pytest.raises(CheckpointError, match="cannot be saved"):
        finish_report(report, {}, tmp_path / "file" / "out", "heads", overwrite=False)
    assert "All of them matter." in capsys.readouterr().out


def test_json_is_ascii_and_has_null_for_what_is_no_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"losses": (1.5, math.nan, -math.inf), "file": Path("zwölf")})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"losses": [1.5, None, None], "file": "zwölf"}


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("ascii", "strict", rb"caf\xe9 \udcff"),
        ("ascii", "surrogateescape", rb"caf\xe9 \udcff"),  # the locale C
        ("latin-1", "strict", b"caf\xe9 \\udcff"),
        ("utf-8", "strict", b"caf\xc3\xa9 \\udcff"),
        ("utf-8", "surrogateescape", b"caf\xc3\xa9 \xff"),
    ],
)
def test_output_escapes_letters_that_the_locale_lacks(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, written: bytes
) -> None:
    content = BytesIO()
    output = TextIOWrapper(content, encoding=encoding, errors=errors)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        escape_output()
    output.write("caf\xe9 \udcff")
    output.flush()
    assert content.getvalue() == written


def test_a_warning_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with warnings_as_sentences():
        warnings.warn("a file\nis old.", TransduceWarning, stacklevel=1)
    warn("a file\x1b is old.")
    assert capsys.readouterr().err == (
        "Warning: a file\\nis old.\nWarning: a file\\x1b is old.\n"
    )
