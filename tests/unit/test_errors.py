"""Phrases that many messages share."""

import inspect
import os
import warnings
from pathlib import Path

import pytest

from transduce import errors
from transduce.errors import (
    TransduceWarning,
    counted,
    duration,
    in_seconds,
    listed_lines,
    percent,
    shortened,
)
from transduce.search_config import SearchConfig


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (1_000, "1,000 lines")],
)
def test_a_noun_follows_its_number(number: int, expected: str) -> None:
    assert counted(number, "line") == expected


def test_a_noun_may_have_another_plural() -> None:
    assert [counted(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_the_only_line_of_a_list_is_not_counted() -> None:
    assert listed_lines([1_000]) == "line 1,000"
    assert listed_lines([2, 5]) == "2 lines, the first of them line 2"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "less than a minute"),
        (29, "less than a minute"),
        (31, "1 minute"),
        (89, "1 minute"),
        (91, "2 minutes"),
        (59.4 * 60, "59 minutes"),
        (59.6 * 60, "1 hour"),
        (3_600, "1 hour"),
        (5_400, "1.5 hours"),
        (47 * 3_600, "47.0 hours"),
        (72 * 3_600, "3.0 days"),
        (27.9 * 86_400, "27.9 days"),
        (5_127.9 * 3_600, "31 weeks"),
    ],
)
def test_a_duration_has_a_suitable_precision(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("share", "digits", "expected"),
    [
        (0.0, 0, "0%"), (1.0, 0, "100%"), (0.256, 0, "26%"), (0.256, 1, "25.6%"),
        (0.0017, 0, "0.2%"), (0.00001, 0, "0.001%"), (0.00001, 1, "0.001%"),
        (0.9971, 0, "99.7%"), (0.99999, 0, "99.999%"), (1.003, 0, "100.3%"),
        (1e-12, 0, "0%"), (1.5, 0, "150%"),
    ],
)  # fmt: skip
def test_a_share_is_rounded_neither_to_nothing_nor_to_all(
    share: float, digits: int, expected: str
) -> None:
    assert percent(share, digits) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1.0, "1 second"), (0.5, "0.5 seconds"), (30, "30 seconds")],
)
def test_a_limit_of_time_is_written_exactly(number: float, expected: str) -> None:
    assert in_seconds(number) == expected


@pytest.mark.parametrize(
    ("length", "shown"), [(80, "x" * 80), (81, "x" * 79 + "…")], ids=str
)
def test_a_text_that_is_too_long_for_a_line_is_shortened(
    length: int, shown: str
) -> None:
    assert shortened("x" * length) == f"'{shown}'"


def test_a_warning_is_given_at_the_line_that_calls_the_package() -> None:
    own = SearchConfig(num_best=2)
    with pytest.warns(TransduceWarning, match="num_best") as caught:
        own.given({})
    line = inspect.getsourcelines(
        test_a_warning_is_given_at_the_line_that_calls_the_package
    )[1]
    [warning] = caught
    assert Path(warning.filename) == Path(__file__)
    assert warning.lineno == line + 3


def test_a_warning_while_a_module_is_imported_is_given_at_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "package" / "warning_at_import.py"
    inside.parent.mkdir()
    inside.write_text("from transduce.errors import warn_caller\nwarn_caller('old')\n")
    monkeypatch.setattr(errors, "PACKAGE_FOLDER", f"{inside.parent}{os.sep}")
    monkeypatch.syspath_prepend(inside.parent)
    with pytest.warns(TransduceWarning, match="old") as caught:
        import warning_at_import  # noqa: F401
    [warning] = caught
    assert Path(warning.filename) == Path(__file__)


def test_python_shows_a_warning_once_for_each_line_of_the_program() -> None:
    own = SearchConfig(num_best=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            own.given({})
        own.given({})
    assert len(caught) == 2
