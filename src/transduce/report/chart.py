"""Charts of points and lines as pictures of a report, and the fonts for them."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO, StringIO
from typing import Any, Literal

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import LogFormatter, LogLocator, NullFormatter

from transduce.report.report import Picture, xml_text

INK = "#1f2328"
"""Colour of text and axes on white; a web page replaces it by its text colour."""
COLOURS = (
    "#3b76af", "#f06858", "#487020", "#8818f8", "#b09000", "#00a090", "#f01070",
    "#8878f8",
)  # fmt: skip
"""Colours that differ for colour-blind readers, too, and stand out from white and from
the dark of pages."""
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

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Leaves out the metadata that would differ from one drawing to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Series of values; series of the same colour belong together."""

    label: str
    """Label in the legend; an empty one is left out."""
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Index in `COLOURS`."""
    drawn: Literal["points", "line", "curve"] = "points"
    """Points, a dashed line, or points joined by a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series on one pair of axes."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    scale: Literal["linear", "log", "log x"] = "linear"
    """Scale of both axes, or of x alone."""
    names: tuple[str, ...] = ()
    """Tick labels of x = 0, 1, …, instead of numbers."""


def draw(chart: Chart) -> Picture:
    """Draw a chart; the same chart gives the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(6, 4)
        _draw_on(figure.subplots(), chart)
        # Inside the axes the legend would cover values.
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        return picture_of(figure, chart.name, chart.title)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure, sized in inches, that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def picture_of(figure: Figure, name: str, title: str) -> Picture:
    """Render a figure for a report; the same figure gives the same bytes."""
    vector, pixels = StringIO(), BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(vector, format="svg", transparent=True, metadata=NO_METADATA)
        figure.savefig(pixels, format="png", dpi=150, facecolor="white")
    return Picture(
        name=name,
        title=title,
        svg=_part_of_a_page(vector.getvalue(), name, title),
        png=pixels.getvalue(),
    )


def _part_of_a_page(svg: str, name: str, title: str) -> str:
    """Remove the file header, name the picture, and give it ids of its own.

    Two pictures may have the same marks, and then the same ids for them.
    """
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", svg).rstrip()


def literal(text: str) -> str:
    """Return text so that Matplotlib draws it as it is.

    Dollar signs, between which Matplotlib reads formulas, are escaped, and characters
    that XML lacks are replaced.
    """
    return xml_text(text).replace("$", r"\$")


class _ShortNumbers(LogFormatter):
    """Labels some values of a logarithmic axis, as 0.2 rather than 2e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _draw_on(axes: Axes, chart: Chart) -> None:
    for series in chart.series:
        axes.plot(
            series.x,
            series.y,
            color=COLOURS[series.colour],
            label=literal(series.label) or None,
            linestyle={"line": "--", "curve": "-"}.get(series.drawn, ""),
            linewidth=1.2,
            marker={"points": "o", "curve": "."}.get(series.drawn, ""),
            markersize=5,
        )
    axes.set(xlabel=literal(chart.x_label), ylabel=literal(chart.y_label))
    axes.grid(visible=True, alpha=0.2)
    if chart.scale == "log":
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_locator(LogLocator(base=2))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter("{x:g}")
        # Values within a decade have labels between the powers of ten.
        axes.yaxis.set_minor_formatter(_ShortNumbers(minor_thresholds=(1, 0.4)))
    if chart.scale == "log x":
        axes.set(xscale="log")
    if chart.names:
        axes.set_xticks(range(len(chart.names)), map(literal, chart.names), rotation=90)


DEFAULT_FONT = "DejaVu Sans"
PREFERRED = ("Noto Sans", "Source Han Sans", "WenQuanYi", "Microsoft YaHei", "PingFang")
"""Beginnings of the names of preferred fonts, best first."""

CJK = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]")
"""Characters of Chinese, Japanese and Korean."""
LAST_RESORT = "Last Resort"
"""Name of a font that draws boxes with the name of a character's Unicode block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fonts:
    """Font families for given texts, tried in order, and the characters they lack."""

    families: tuple[str, ...]
    missing: frozenset[str]
    """Characters that no font has."""

    def shown(self, text: str) -> str:
        """Replace missing characters by their code points."""
        if self.missing.isdisjoint(text):
            return text
        return "".join(
            f"[{ord(character):04X}]" if character in self.missing else character
            for character in text
        )


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Find fonts of this machine that have the characters of all texts."""
    wanted = {
        character for text in texts for character in text if not character.isspace()
    }
    wanted -= {"\u200b", "\u200c", "\u200d", "\ufe0e", "\ufe0f"}
    missing = wanted - _characters_of(font_manager.findfont(DEFAULT_FONT))
    families = [DEFAULT_FONT]
    for name, path in installed_fonts() if missing else ():
        if found := missing & _characters_of(path):
            families.append(name)
            missing -= found
        if not missing:
            break
    return Fonts(families=tuple(families), missing=frozenset(missing))


@contextmanager
def drawn_in(fonts: Fonts) -> Iterator[None]:
    """Draw with these fonts inside the block."""
    with matplotlib.rc_context({"font.family": list(fonts.families)}):
        yield


def advice(missing: Collection[str]) -> str:
    """Message about characters that no installed font has."""
    some = "".join(sorted(missing)[:8])
    font = "Noto Sans CJK" if any(map(CJK.match, missing)) else "one of the Noto fonts"
    return (
        f"No installed font has {len(missing):,} of the picture's characters ({some}), "
        f"so their code points are drawn; install a font that has them, such as "
        f"{font}, or write a page (`transduce attention --out`), which uses the "
        "browser's fonts."
    )


@cache
def installed_fonts() -> tuple[tuple[str, str], ...]:
    """Name and file of each upright font of regular weight, preferred ones first."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:  # installed since matplotlib made its list
            # It cannot draw some fonts, such as a colour emoji font.
            with suppress(OSError, RuntimeError, UnicodeDecodeError):
                font_manager.fontManager.addfont(path)
    fonts = {
        (entry.name, entry.fname)
        for entry in font_manager.fontManager.ttflist
        if not entry.name.startswith(LAST_RESORT)
        and entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
    }
    return tuple(sorted(fonts, key=_rank))


def _rank(font: tuple[str, str]) -> tuple[int, bool, str, str]:
    name, path = font
    places = (place for place, start in enumerate(PREFERRED) if name.startswith(start))
    return next(places, len(PREFERRED)), "Mono" in name, name, path


@cache
def _characters_of(path: str) -> frozenset[str]:
    """Characters that a font has; empty if matplotlib cannot draw it."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(map(chr, font.get_charmap()))
