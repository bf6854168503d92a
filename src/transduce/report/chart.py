"""Lines and points over numbers, as a picture of a report."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from transduce.report.content import Picture

INK = "#1f2328"
"""Of text and axes on white; on a page it becomes the page's own."""
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#b8860b")
"""Told apart on white and on black, and by most who see colours differently."""
STYLE: dict[Any, Any] = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "transduce",
}

NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""To be said of a drawing in itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one thing; those of one colour belong together."""

    label: str
    """In the legend; not there if empty."""
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Which of `COLOURS`."""
    drawn: Literal["points", "line"] = "points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over one pair of axes."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    scale: Literal["linear", "log"] = "linear"
    names: tuple[str, ...] = ()
    """Of x = 0, 1, and so on, instead of numbers."""


def draw(chart: Chart) -> Picture:
    """The same bytes for the same chart."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(6, 4)
        _draw_on(figure.subplots(), chart)
        return picture_of(figure, chart.name, chart.title)


def new_figure(width: float, height: float) -> Figure:
    """An empty drawing, in inches, that needs no screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def picture_of(figure: Figure, name: str, title: str) -> Picture:
    """A drawing as a picture of a report; the same bytes for the same drawing."""
    vector, pixels = StringIO(), BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(vector, format="svg", transparent=True, metadata=NOTHING)
        figure.savefig(pixels, format="png", dpi=150, facecolor="white")
    return Picture(
        name=name,
        title=title,
        svg=_part_of_a_page(vector.getvalue()),
        png=pixels.getvalue(),
    )


def _part_of_a_page(svg: str) -> str:
    """Without what only a file has, and names that another picture may have too."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return re.sub(r' id="[\w.]+_\d+"', "", svg).rstrip()


def _draw_on(axes: Axes, chart: Chart) -> None:
    for series in chart.series:
        axes.plot(
            series.x,
            series.y,
            color=COLOURS[series.colour],
            label=series.label or None,
            linestyle="--" if series.drawn == "line" else "",
            linewidth=1.2,
            marker="o" if series.drawn == "points" else "",
            markersize=5,
        )
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(visible=True, alpha=0.2)
    if chart.scale == "log":
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_locator(LogLocator(base=2))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter("{x:g}")
    if chart.names:
        axes.set_xticks(range(len(chart.names)), chart.names, rotation=90)
    axes.legend(frameon=False)
