"""Charts of reports, as they are drawn."""

import re

import pytest
from matplotlib.figure import Figure

from transduce.report import chart
from transduce.report.chart import Chart, Series, draw


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


def test_labels_within_a_decade_are_short_numbers() -> None:
    svg = draw(
        logarithmic(Series(label="scaled", x=[4, 16, 64], y=[0.3, 0.2, 0.06]))
    ).svg
    labels = re.findall(r">([\d.e−-]+)</text>", svg)
    assert {"0.06", "0.1", "0.2", "0.3", "16"} <= set(labels)
    assert all(re.fullmatch(r"[\d.]+", label) for label in labels)
