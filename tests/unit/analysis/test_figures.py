"""Figures of attention: every word can be read, whatever its length or script."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.text
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from transduce.analysis import figures
from transduce.analysis.figures import (
    HEAD_COLOURS,
    LabelledHeads,
    draw_heads,
    draw_lines,
    draw_maps,
    draw_overview,
    write_figure,
)
from transduce.model.config import ATTENTION_KINDS
from transduce.report import chart
from transduce.report.chart import Fonts, advice, fonts_for
from transduce.report.report import Section, as_html

SENTENCES = {
    "one": ["Hi"],
    "usual": ["The", "dog", "that", "barks", "sleeps", ".", "</s>"],
    "long words": [
        "Donaudampfschifffahrtsgesellschaft" * 3,
        "x",
        "http://a.b/" + "c" * 90,
    ],
    "right to left": ["القطة", "על", "השטיח", "."],
    "formulas": ["$x$", "a_b^c", "\\frac", "100%"],
    "a hundred": [f"word{i}" for i in range(100)],
}


def labelled(
    queries: Sequence[str], keys: Sequence[str], num_layers: int = 1, num_heads: int = 2
) -> LabelledHeads:
    weights = torch.rand(num_layers, num_heads, len(queries), len(keys))
    weights /= weights.sum(dim=-1, keepdim=True)
    return LabelledHeads(weights=weights, queries=tuple(queries), keys=tuple(keys))


def texts(figure: Figure) -> list[matplotlib.text.Text]:
    figure.draw_without_rendering()  # places texts as drawing does, in half the time
    found = figure.findobj(matplotlib.text.Text)
    return [each for each in found if each.get_visible() and each.get_text()]


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.parametrize("view", ["lines", "maps", "overview"])
def test_every_text_of_a_figure_is_within_it(name: str, view: str) -> None:
    heads = labelled(SENTENCES[name], SENTENCES[name])
    figure = {
        "lines": lambda: draw_lines(heads, 1, [1, 2]),
        "maps": lambda: draw_maps(heads, 1, [1, 2]),
        "overview": lambda: draw_overview(heads),
    }[view]()
    width, height = figure.canvas.get_width_height()
    assert max(figure.get_size_inches()) <= figures.MAX_INCHES
    for text in texts(figure):
        box = text.get_window_extent()
        assert -1 <= box.x0 <= box.x1 <= width + 1, text.get_text()
        assert -1 <= box.y0 <= box.y1 <= height + 1, text.get_text()


@pytest.mark.parametrize("name", ["one", "usual", "long words", "a hundred"])
def test_words_of_a_figure_do_not_overlap(name: str) -> None:
    figure = draw_lines(labelled(SENTENCES[name], SENTENCES[name]), 1, [1, 2])
    boxes = [text.get_window_extent() for text in texts(figure)]
    assert not [
        (one, other)
        for place, one in enumerate(boxes)
        for other in boxes[:place]
        if one.shrunk(0.5, 0.9).overlaps(other.shrunk(0.5, 0.9))
    ]


def test_a_legend_shows_the_colour_of_each_head() -> None:
    figure = draw_lines(labelled(["a", "b"], ["c"], 2, 8), 2, [1, 3, 8])
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "layer 2"
    assert [text.get_text() for text in legend.get_texts()] == [
        "head 1",
        "head 3",
        "head 8",
    ]
    colours = [line.get_color() for line in legend.get_lines()]
    assert colours == [HEAD_COLOURS[0], HEAD_COLOURS[2], HEAD_COLOURS[7]]


def test_heat_maps_have_a_colour_bar() -> None:
    for figure in (
        draw_maps(labelled(["a"], ["b"], 1, 8), 1, range(1, 9)),
        draw_overview(labelled(["a"], ["b"], 6, 8)),
    ):
        assert "weight" in [text.get_text() for text in texts(figure)]


def test_a_long_word_is_shortened_in_the_middle() -> None:
    figure = draw_lines(labelled(["a" * 30 + "b" * 30], ["c" * 24]), 1, [1])
    written = [text.get_text() for text in texts(figure)]
    assert "a" * 11 + "…" + "b" * 11 in written
    assert "c" * 24 in written


def test_letters_without_a_font_become_code_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chart, "installed_fonts", lambda: ())
    figure = draw_lines(labelled(["我们", "é"], ["猫a"]), 1, [1])
    written = [text.get_text() for text in texts(figure)]
    assert {"[6211][4EEC]", "é", "[732B]a"} <= {*written}


def test_an_svg_figure_of_any_text_is_xml(tmp_path: Path) -> None:
    figure = draw_lines(labelled(["a\x01b", "\ufffe"], ["<b>&", "$"]), 1, [1])
    write_figure(figure, tmp_path / "figure.svg", overwrite=False)
    drawn = ElementTree.parse(tmp_path / "figure.svg")
    written = "".join(drawn.getroot().itertext())
    assert "a\ufffdb" in written
    assert "<b>&" in written


def test_other_fonts_are_searched_for_missing_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # DejaVu Sans has none of them, the first font a bracket, and the second both.
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    installed = {"One": "STIXSizOneSymReg", "Two": "STIXGeneral", "Three": "cmr10"}
    monkeypatch.setattr(
        chart,
        "installed_fonts",
        lambda: [
            (name, str(fonts / f"{each}.ttf")) for name, each in installed.items()
        ],
    )
    found = fonts_for(["\u23b4\u1d81 ab", "\u200b龘"])
    assert found.families == (chart.DEFAULT_FONT, "One", "Two")
    assert found.missing == {"龘"}
    assert fonts_for(["plain text"]) == Fonts(
        families=(chart.DEFAULT_FONT,), missing=frozenset()
    )
    assert "1 of the picture's characters (龘)" in advice(found.missing)


def test_the_last_resort_font_is_never_chosen() -> None:
    names = [name for name, _ in chart.installed_fonts()]
    assert chart.DEFAULT_FONT in names
    assert not [name for name in names if name.startswith(chart.LAST_RESORT)]


def values_drawn(*values: float) -> list[str]:
    """Texts of the cells of a picture of one layer."""
    picture = draw_heads("name", "title", {"encoder": np.array([values])})
    return re.findall(r">([−–\d.-]*[–.][−\d]*)</text>", picture.svg)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, -0.001, math.nan], ["0.50", "0.00", "–"]),
        ([math.nan, 0.0123, -0.0123], ["–", "0.012", "-0.012"]),
        ([4e-7, -4e-7], ["0.0000", "0.0000"]),
        ([0.0, math.nan], ["0.00", "–"]),
    ],
    ids=["usual", "small", "tiny", "zero"],
)
def test_values_of_heads_have_digits_and_no_negative_zero(
    values: list[float], shown: list[str]
) -> None:
    assert values_drawn(*values) == shown


def test_a_value_is_legible_on_its_cell() -> None:
    values = np.array([[0.62, 1.0, 0.1]])
    svg = draw_heads("name", "title", {"encoder": values}).svg
    cells = re.findall(r"fill: (#\w+)[^>]*>(\d\.\d\d)<", svg)
    dark = figures.DARK  # white has a contrast of 3.3 there
    assert cells == [(dark, "0.62"), ("#ffffff", "1.00"), (dark, "0.10")]


def test_sixteen_heads_have_lines_that_differ() -> None:
    heads = labelled(["a", "b"], ["c", "d"], num_heads=16)
    figure = draw_lines(heads, 1, range(1, 17))
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert legend.get_window_extent().width < figure.bbox.width
    lines = legend.get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 16
    drawn = figure.axes[0].collections
    styles = {(tuple(c.get_color()[0][:3]), str(c.get_linestyle())) for c in drawn}
    assert len(styles) == 16


@pytest.mark.parametrize("num_heads", [1, 3, 4, 5, 6, 8, 16])
def test_digits_of_many_heads_are_legible_on_a_page(num_heads: int) -> None:
    grids = dict.fromkeys(ATTENTION_KINDS, np.full((1, num_heads), 0.5))
    picture = draw_heads("name", "title", grids)
    shown = as_html(Section(title="Heads", parts=(picture,)))
    found = re.search(r'width="([\d.]+)pt"', picture.svg)
    assert found is not None
    is_wide = 'class="drawing wide"' in shown
    pixels = (60 if is_wide else 40) * 16
    assert 8.33 * pixels / float(found[1]) > 9  # the size of digits in pixels
    assert is_wide == (num_heads in {4, 5, 16})  # others are legible in a column
