"""Learning curves show what each kind of run has logged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from transduce.analysis.figures import draw_learning_curve

STEPS = [{"kind": "step", "step": n, "loss": 5 / n} for n in (1, 2)]
BLEU = {"bleu": 20.0, "gleu": 30.0, "signature": "nrefs:1|case:mixed|tok:zh|v:2"}
DEV = [{"kind": "dev", "step": n, "loss": 4 / n, **BLEU} for n in (1, 2)]
FINAL = [{"kind": "final", "step": 2, "bleu": 21.0}]
NAMED = [
    each
    for n in (1, 2)
    for each in (
        {"kind": "dev", "step": n, "loss": 4 / n, "bleu": 20.0, "name": "home"},
        {"kind": "dev set", "step": n, "loss": 4 / n, "bleu": 10.0, "name": "news"},
    )
]
PARSING = [
    {"kind": "dev", "step": 2, "loss": 2.0, "f1": 60.0},
    {"kind": "final", "step": 2, "f1": 70.0},
]
SAMPLED = [{"kind": "step", "step": 2, "loss": 2.5, "reward": 0.25}]

Curves = dict[str, dict[str, list[float]]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were drawn, without the time that their pictures would take."""
    figures: list[Figure] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure)
    )
    return figures


@pytest.mark.parametrize(
    ("log", "title", "quality"),
    [
        (STEPS, "sacreBLEU", {}),
        (
            STEPS + DEV + FINAL,
            "sacreBLEU (zh)",
            {
                "dev, greedy": [20, 20],
                "final model, beam search": [21],
                "dev GLEU, greedy": [30, 30],
            },
        ),
        (
            STEPS + NAMED,
            "sacreBLEU",
            {"home, greedy": [20, 20], "news, greedy": [10, 10]},
        ),
        (
            STEPS + PARSING,
            "labelled bracket F1",
            {"dev, greedy": [60], "final model, beam search": [70]},
        ),
        (STEPS[:1] + SAMPLED, "sacreBLEU", {"reward of samples": [25]}),
    ],
    ids=["no dev set", "BLEU", "named dev sets", "F1", "rewards"],
)
def test_a_learning_curve_shows_loss_and_quality(
    drawn: list[Figure],
    log: Sequence[Mapping[str, Any]],
    title: str,
    quality: dict[str, list[float]],
) -> None:
    draw_learning_curve(log, Path("unwritten.png"))
    [figure] = drawn
    losses, scores = figure.axes
    found = {
        str(line.get_label()): list(line.get_ydata())  # type: ignore[arg-type]
        for line in scores.get_lines()
    }
    assert found == quality
    assert scores.get_title(loc="left") == title
    steps = [each["loss"] for each in log if each["kind"] == "step"]
    [training, *others] = losses.get_lines()
    assert list(training.get_ydata()) == steps  # type: ignore[arg-type]
    sets = {each.get("name") for each in log if each["kind"] in {"dev", "dev set"}}
    assert len(others) == len(sets)
    assert losses.get_legend() is not None
    assert (scores.get_legend() is None) is (quality == {})
