"""Learning curves show what each kind of run has logged."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
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
SETS = [
    {"kind": "dev set", "step": n, "loss": 4 / n, "bleu": 9.0, "name": f"{i:040}"}
    for n in (1, 2)
    for i in range(20)
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


def test_every_dev_set_has_a_look_of_its_own(drawn: list[Figure]) -> None:
    draw_learning_curve([*STEPS, *DEV, *SETS], Path("unwritten.png"))
    for axes in drawn[0].axes:
        lines = axes.get_lines()
        looks = {(line.get_color(), line.get_marker()) for line in lines}
        assert len(looks) == len(lines) >= 21


def test_legends_of_several_dev_sets_cover_nothing(drawn: list[Figure]) -> None:
    draw_learning_curve([*STEPS, *DEV, *FINAL, *SETS], Path("unwritten.png"))
    [figure] = drawn
    figure.draw_without_rendering()
    places = [axes.get_window_extent() for axes in figure.axes]
    legends = [axes.get_legend() for axes in figure.axes]
    texts = [
        text.get_window_extent()
        for legend in legends
        if legend is not None
        for text in legend.get_texts()
    ]
    assert max(text.y1 for text in texts) < min(place.y0 for place in places)
    assert min(text.y0 for text in texts) > 0
    assert max(text.x1 for text in texts) < figure.bbox.x1
    assert max(text.x1 for text in texts[:22]) < places[1].x0


@pytest.mark.parametrize(
    ("losses", "marked"),
    [([5.0], [0]), ([None, 3.0, None, 2.0, 1.0], [1]), ([3.0, 2.0], [])],
    ids=["one step", "between others", "a line"],
)
def test_a_value_without_a_neighbour_is_a_point(
    drawn: list[Figure], losses: list[float | None], marked: list[int]
) -> None:
    log = [{"kind": "step", "step": n, "loss": x} for n, x in enumerate(losses)]
    draw_learning_curve(log, Path("unwritten.png"))
    [line] = drawn[0].axes[0].get_lines()
    assert line.get_marker() == ("." if marked else "")
    assert line.get_markevery() == marked


@pytest.mark.parametrize("last", [1, 7, 600_000])
def test_steps_are_whole_numbers_that_fit(drawn: list[Figure], last: int) -> None:
    log = [{"kind": "step", "step": n, "loss": 1.0} for n in {1, last}]
    draw_learning_curve(log, Path("unwritten.png"))
    [figure] = drawn
    figure.draw_without_rendering()
    ticks = [each.label1 for each in figure.axes[0].xaxis.get_major_ticks()]
    shown = [each for each in ticks if each.get_text()]
    assert all(re.fullmatch("−?[\\d,]+", each.get_text()) for each in shown)
    places = [each.get_window_extent() for each in shown]
    assert all(one.x1 < other.x0 for one, other in pairwise(places))


def test_a_reward_that_is_no_number_is_left_out(drawn: list[Figure]) -> None:
    rewards = [{"kind": "step", "step": 3, "loss": 1.0, "reward": None}]
    draw_learning_curve([*SAMPLED, *rewards], Path("unwritten.png"))
    [line] = drawn[0].axes[1].get_lines()
    assert list(line.get_ydata()) == [25]  # type: ignore[arg-type]
