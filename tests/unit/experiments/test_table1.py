"""Report on Table 1 for given measurements."""

from dataclasses import replace

import pytest

from transduce.analysis.cost import (
    Growth,
    LayerSizes,
    PathLength,
    Scaling,
    SequentialOperations,
    share_of_term,
)
from transduce.experiments.table1 import (
    LENGTHS,
    ROWS,
    SWEEPS,
    Table1,
    as_report,
)
from transduce.report.report import Report, Table, plain


def power(sweep) -> Growth:
    """Growth whose exponent differs a little from the theory."""
    seconds = tuple(1e-6 * value**sweep.theory for value in sweep.values)
    return Growth(sweep=sweep, seconds=seconds, exponent=sweep.theory - 0.04)


TABLE = Table1(
    machine="1 x Abacus",
    load=0.1,
    scaling=Scaling(
        growths=tuple(power(sweep) for sweep in SWEEPS), rounds=7, is_steady=True
    ),
    sequential=tuple(
        SequentialOperations(
            layer=layer,
            n=LENGTHS,
            counts=tuple(3 * n + 2 if layer == "recurrent" else 4 for n in LENGTHS),
        )
        for layer in ROWS
    ),
    paths=tuple(
        PathLength(
            layer=layer, sizes=LayerSizes(n=n, d=8, k=3, r=4), measured=n, theory=n
        )
        for layer in ROWS
        for n in LENGTHS
    ),
)


def tables(report: Report) -> list[Table]:
    parts = (part for section in report.sections for part in section.parts)
    return [part for part in parts if isinstance(part, Table)]


def row(table: Table, name: str) -> list[str]:
    return next(
        [plain(cell) for cell in cells] for cells in table.rows if cells[0] == name
    )


def text(report: Report) -> str:
    parts = (part for section in report.sections for part in section.parts)
    return "\n".join(part for part in parts if isinstance(part, str))


@pytest.fixture(scope="module")
def report() -> Report:
    return as_report(TABLE)


def test_measurements_are_shown_beside_the_papers_rows(report: Report) -> None:
    summary = tables(report)[0]
    assert row(summary, "self-attention") == [
        "self-attention", "O(n²·d)", "n^1.96 · d^0.96", "O(1): 4", "O(1): 64"
    ]  # fmt: skip
    assert row(summary, "recurrent")[3] == "O(n): 3 n + 2"
    assert row(summary, "convolutional, contiguous")[2] == "as above"


def test_separable_convolutions_of_the_text_have_a_row(report: Report) -> None:
    cells = row(tables(report)[0], "separable convolutional")
    assert cells[1:3] == ["O(k·n·d + n·d²)", "k^0.96 · n^0.96 · d^1.96"]
    assert cells[4] == "O(log_k(n)): 64"


def test_an_exponent_is_shown_beside_its_theory(report: Report) -> None:
    growths = tables(report)[1]
    assert [plain(cell) for cell in growths.rows[0]] == [
        "self-attention", "n", "2,048", "6,144", "d=64", "94%", "2", "1.96"
    ]  # fmt: skip
    assert len(growths.rows) == len(SWEEPS)


def test_the_report_has_the_machine_and_the_rounds(report: Report) -> None:
    assert "1 x Abacus" in text(report)
    assert "medians of 7 rounds" in text(report)
    assert "steady" not in text(report)
    assert "Other programs" not in text(report)


@pytest.mark.usefixtures("undrawn")
def test_the_report_warns_of_unreliable_figures() -> None:
    scaling = replace(TABLE.scaling, is_steady=False)
    said = text(as_report(replace(TABLE, load=2.25, scaling=scaling)))
    assert "had not converged after 7 rounds" in said
    assert "Other programs were running (load 2.2); the" in said


@pytest.mark.usefixtures("undrawn")
def test_the_report_compares_paths_with_the_formulas(report: Report) -> None:
    assert row(tables(report)[3], "recurrent")[-1] == "equal"
    wrong = replace(TABLE.paths[-1], measured=1)
    other = as_report(replace(TABLE, paths=(*TABLE.paths[:-1], wrong)))
    layer = wrong.layer
    assert row(tables(other)[3], layer)[-1] == "different"


@pytest.mark.usefixtures("undrawn")
def test_counts_that_are_not_linear_are_marked() -> None:
    counted = replace(TABLE.sequential[0], counts=(1, 2, 3, 9))
    table = replace(TABLE, sequential=(counted, *TABLE.sequential[1:]))
    assert row(tables(as_report(table))[0], counted.layer)[3] == "O(1): not linear in n"


def test_the_report_draws_times_and_paths(report: Report) -> None:
    names = [picture.name for picture in report.pictures()]
    assert names == [
        "table1-time-n",
        "table1-time-d",
        "table1-time-kr",
        "table1-paths",
    ]
    assert "recurrent: n^0.96" in report.pictures()[0].svg


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_the_formulas_term_has_most_of_the_products(sweep) -> None:
    shares = [share_of_term(sweep.layer, sizes, sweep.letter) for sizes in sweep.sizes]
    assert min(shares) > 0.85


def test_every_size_of_every_term_is_swept() -> None:
    swept = {(sweep.layer, sweep.letter): sweep.theory for sweep in SWEEPS}
    assert swept == {
        ("self-attention", "n"): 2,
        ("self-attention", "d"): 1,
        ("recurrent", "n"): 1,
        ("recurrent", "d"): 2,
        ("convolutional", "k"): 1,
        ("convolutional", "n"): 1,
        ("convolutional", "d"): 2,
        ("separable convolutional", "k"): 1,
        ("separable convolutional", "n"): 1,
        ("separable convolutional", "d"): 2,
        ("restricted self-attention", "r"): 1,
        ("restricted self-attention", "n"): 1,
        ("restricted self-attention", "d"): 1,
    }
