"""Charts of reports, as they are drawn."""

import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from transduce.report import chart
from transduce.report.chart import COLOURS, Chart, Series, draw


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that are drawn, in order."""
    drawn: list[Figure] = []
    make = chart.new_figure

    def new_figure(width: float, height: float) -> Figure:
        drawn.append(make(width, height))
        return drawn[-1]

    monkeypatch.setattr(chart, "new_figure", new_figure)
    return drawn


def logarithmic(*series: Series) -> Chart:
    return Chart(
        name="chart", title="", x_label="n", y_label="gradient", series=series,
        scale="log",
    )  # fmt: skip


@pytest.mark.parametrize("number", [1, 8])
def test_a_legend_covers_no_values(figures: list[Figure], number: int) -> None:
    draw(
        logarithmic(
            *(
                Series(
                    label=f"restricted self-attention: n^1.0{i}",
                    x=[1, 2, 4],
                    y=[1, 10, 100],
                    colour=i,
                )
                for i in range(number)
            )
        )
    )
    (figure,) = figures
    figure.draw_without_rendering()  # at the dots per inch of the figure
    (legend,) = figure.legends
    texts = [text.get_window_extent() for text in legend.get_texts()]
    (axes,) = figure.axes
    assert len(texts) == number
    assert min(text.y0 for text in texts) > axes.get_window_extent().y1
    assert max(text.x1 for text in texts) < figure.bbox.x1


def test_labels_are_no_formulas() -> None:
    label = "$PATH and $HOME"
    series = Series(label=label, x=[0], y=[1])
    drawn = draw(
        Chart(
            name="c", title="", x_label=label, y_label=label, series=(series,),
            names=(label,),
        )
    )  # fmt: skip
    assert drawn.svg.count(label) == 4


def test_labels_within_a_decade_are_short_numbers() -> None:
    svg = draw(
        logarithmic(Series(label="scaled", x=[4, 16, 64], y=[0.3, 0.2, 0.06]))
    ).svg
    labels = re.findall(r">([\d.e−-]+)</text>", svg)
    assert {"0.06", "0.1", "0.2", "0.3", "16"} <= set(labels)
    assert all(re.fullmatch(r"[\d.]+", label) for label in labels)


# Machado, Oliveira and Fernandes (2009), of full severity, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "without green": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "without red": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
}


def lab(linear: np.ndarray) -> np.ndarray:
    """Coordinates of a colour in CIELAB, in which distances are as seen."""
    to_xyz = [[0.412, 0.358, 0.181], [0.213, 0.715, 0.072], [0.019, 0.119, 0.951]]
    x, y, z = np.cbrt(to_xyz @ linear.clip(0, 1) / [0.951, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_differ_for_readers_of_any_sight(sight: str) -> None:
    linear = [np.array(to_rgb(colour)) ** 2.2 for colour in COLOURS]
    seen = [lab(SIGHT[sight] @ each) for each in linear]
    pairs = combinations(zip(seen, COLOURS, strict=True), 2)
    near = {(a, b): float(np.linalg.norm(x - y)) for (x, a), (y, b) in pairs}
    assert min(near.values()) > 15, min(near, key=near.__getitem__)


def test_colours_stand_out_from_pages() -> None:
    weights = [0.2126, 0.7152, 0.0722]
    for colour in COLOURS:
        light = float(np.array(to_rgb(colour)) ** 2.2 @ weights)
        assert 1.05 / (light + 0.05) > 3  # white
        assert (light + 0.05) / (0.0085 + 0.05) > 2.9  # the dark of pages
