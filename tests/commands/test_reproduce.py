import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.analysis.cost import LayerSizes
from transduce.experiments.tables import table1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers whose times are soon measured, and say nothing."""
    others = LayerSizes(n=16, d=8, k=2, r=4)
    sweeps = [
        replace(sweep, values=(4, 8), others=others, batch=1) for sweep in table1.SWEEPS
    ]
    monkeypatch.setattr(table1, "SWEEPS", tuple(sweeps))
    monkeypatch.setattr(table1, "LENGTHS", (4, 8))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))


@pytest.mark.usefixtures("small")
def test_table_1_is_measured_and_written(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "table1"
    printed = succeeds("reproduce", "table1", "--out", out, "--max-rounds", 2)
    assert printed.startswith("Table 1: what layers cost\n")
    assert "O(log_k(n))" in printed
    assert "1 thread" in printed
    joined = "".join(printed.split())
    assert joined.endswith(f"Thereportisin{out}:table1.md,table1.html,table1.json.")
    assert {path.name for path in out.iterdir()} == {
        "table1.md", "table1.html", "table1.json", "table1-paths.png",
        "table1-time-n.png", "table1-time-d.png", "table1-time-kr.png",
    }  # fmt: skip
    figures = json.loads((out / "table1.json").read_text())
    assert figures["scaling"]["rounds"] == 2
    assert figures["load"] == 0.1
    assert [each["measured"] for each in figures["paths"][:4]] == [1, 1, 4, 8]
    assert "<svg" in (out / "table1.html").read_text(encoding="utf-8")


def test_a_folder_that_holds_something_is_left_alone(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    for out in (tmp_path, tmp_path / "mine"):
        refusal = refuses("reproduce", "table1", "--out", out)
        assert refusal == (
            f"{out}: the output folder must be new or empty, but is not; choose "
            "another."
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("table1", "--max-rounds", "0", "--out", "o"),
            "`max_rounds` must be at least",
        ),
        (("table1",), "--out requires an argument"),
        (("table5",), 'Unknown command "table5"'),
    ],
    ids=str,
)
def test_a_mistake_ends_with_one_sentence(
    refuses: Callable[..., str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refuses("reproduce", *arguments)


def test_its_parts_are_listed(succeeds: Callable[..., str]) -> None:
    assert "Measure what layers cost" in succeeds("reproduce")
