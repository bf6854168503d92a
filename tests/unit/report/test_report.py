"""Every format of a report is complete, and no text breaks a format."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console

from transduce.report.chart import Chart, Series, draw
from transduce.report.report import (
    Column,
    MarkedText,
    Picture,
    Report,
    Section,
    Table,
    as_html,
    as_markdown,
    as_page,
    columns,
    write_markdown,
)
from transduce.report.terminal import show

NASTY = "<b>a|b</b> & *c* [d] _e_ `f`"
VOID = {"meta", "link", "br", "img"}


@pytest.fixture(scope="module")
def picture() -> Picture:
    points = Series(label="measured", x=[1, 2, 4], y=[1, 4, 16])
    line = Series(label="theory", x=[1, 4], y=[1, 16], colour=1, drawn="line")
    chart = Chart(
        name="growth",
        title="How it grows",
        x_label="n",
        y_label="seconds",
        series=(points, line),
        scale="log",
    )
    return draw(chart)


@pytest.fixture(scope="module")
def report(picture: Picture) -> Report:
    heads = (*columns("system", "BLEU"), Column(name="text", is_text=True))
    marked = MarkedText(words=(("ein", False), ("H|nd", True)))
    table = Table(
        title=f"Title {NASTY}", columns=heads, rows=((NASTY, "12.5", marked),)
    )
    section = Section(title=f"Section {NASTY}", parts=(NASTY, table, picture))
    return Report(title=f"Report {NASTY}", sections=(section,))


class Page(HTMLParser):
    """HTML parser that checks that each element is closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for name, value in attrs if name != "xmlns"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    parser = Page()
    parser.feed(as_page(report))
    parser.close()
    return parser


class TestPage:
    def test_every_element_is_closed(self, page: Page) -> None:
        assert page.open == []

    def test_a_page_shows_text_unchanged(self, page: Page) -> None:
        for text in (f"Report {NASTY}", f"Section {NASTY}", f"Title {NASTY}", NASTY):
            assert text in page.text

    def test_a_page_loads_nothing(self, page: Page, report: Report) -> None:
        assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
        addresses = [v for v in page.values if "//" in v]
        # XML namespaces of pictures are addresses, but nothing loads them.
        assert {a.split("/")[2] for a in addresses} <= {"www.w3.org"}
        assert "url(http" not in as_page(report)
        assert "@import" not in as_page(report)

    def test_a_page_has_styles_for_screens_and_print(self, report: Report) -> None:
        text = as_page(report)
        assert "prefers-color-scheme: dark" in text
        # A picture that is higher than a sheet would be cut within its rows.
        assert "max-height: 90vh" in text.partition("@media print")[2]
        assert 'name="viewport"' in text

    def test_marked_words_stand_out(self, report: Report) -> None:
        assert "ein <mark>H|nd</mark>" in as_page(report)

    def test_text_has_the_direction_of_its_script(self) -> None:
        columns_ = (Column(name="text", is_text=True), Column(name="BLEU"))
        table = Table(columns=columns_, rows=(("كلب (Peter).", "1.0"),))
        shown = as_html(Section(title="", parts=(table,)))
        assert '<td class="text" dir="auto">كلب (Peter).</td><td>1.0</td>' in shown

    def test_a_page_has_pictures_with_their_titles(self, report: Report) -> None:
        text = as_page(report)
        assert "<svg" in text
        assert "<figcaption>How it grows</figcaption>" in text
        # On a phone it scrolls, also by keyboard, as its text would be too small.
        assert '<div class="drawing" tabindex="0" role="group" aria-label="How' in text
        assert '<svg role="img" aria-label="How it grows"' in text

    def test_a_table_that_scrolls_has_a_name(self) -> None:
        unnamed = Table(columns=columns("a"), rows=(("b",),))
        named = replace(unnamed, title="Scores")
        shown = as_html(Section(title='"All"', parts=(named, unnamed)))
        names = re.findall(
            r'class="table" tabindex="0" role="group" aria-label="(.*?)"', shown
        )
        assert names == ["Scores", "&quot;All&quot;"]


class TestMarkdown:
    def test_text_cannot_break_a_cell(self, report: Report) -> None:
        rows = [
            line for line in as_markdown(report).splitlines() if line.startswith("|")
        ]
        assert rows[0] == "| system | BLEU | text |"
        assert rows[1] == "| --- | ---: | --- |"
        assert rows[2].replace(r"\|", "").count("|") == 4
        assert rows[2].endswith(r"| 12.5 | ein **H\|nd** |")

    def test_text_is_escaped(self, report: Report) -> None:
        escaped = r"\<b\>a\|b\</b\> & \*c\* \[d\] \_e\_ \`f\`"
        lines = as_markdown(report).splitlines()
        assert lines[0] == f"# Report {escaped}"
        assert f"## Section {escaped}" in lines
        assert f"Title {escaped}:" in lines
        assert escaped in lines

    def test_text_that_looks_like_an_entity_is_shown_unchanged(self) -> None:
        text = as_markdown(Report(title="a &lt; b&#38; & c&d;", sections=()))
        assert text == "# a \\&lt; b\\&\\#38; & c\\&d;\n"

    def test_line_breaks_in_text_become_spaces(self) -> None:
        section = Section(title="a\nb", parts=("c\n# d",))
        text = as_markdown(Report(title="t", sections=(section,)))
        assert text == "# t\n\n## a b\n\nc \\# d\n"

    def test_pictures_are_written_beside_the_markdown(
        self, report: Report, tmp_path
    ) -> None:
        write_markdown(report, tmp_path, "report")
        text = (tmp_path / "report.md").read_text(encoding="utf-8")
        assert text == as_markdown(report)
        assert "![How it grows](growth.png)" in text
        assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


class TestTerminal:
    def test_everything_but_pictures_is_printed(self, report: Report) -> None:
        output = io.StringIO()
        show(report, Console(file=output, width=120))
        printed = output.getvalue()
        for text in (f"Report {NASTY}", f"Section {NASTY}", f"Title {NASTY}", "12.5"):
            assert text in printed
        assert "ein H|nd" in printed
        assert "svg" not in printed

    def test_marked_words_stand_out(self, report: Report) -> None:
        output = io.StringIO()
        show(report, Console(file=output, width=120, force_terminal=True))
        assert "\x1b[1;33mH|nd\x1b[0m" in output.getvalue()

    @pytest.mark.parametrize("width", [20, 40, 200])
    def test_no_cell_is_cut_off(self, width: int) -> None:
        cells = ("convolutional", "a sentence of some words", "1,234,567", "x" * 30)
        table = Table(columns=columns("a", "b", "c", "d"), rows=(cells,))
        section = Section(title="", parts=(table,))
        output = io.StringIO()
        console = Console(file=output, width=width)
        show(Report(title="", sections=(section,)), console)
        for cell in cells:
            rest = iter(output.getvalue())
            assert all(letter in rest for letter in cell.replace(" ", ""))

    # A wide character takes two cells of a terminal.
    @pytest.mark.parametrize("word", ["self-attention", "注意力机制"])
    def test_words_are_not_broken_if_the_table_fits(self, word: str) -> None:
        rows = ((word, "many words that may well be parted " * 3),)
        table = Table(columns=columns("a", "b"), rows=rows)
        section = Section(title="", parts=(table,))
        output = io.StringIO()
        show(Report(title="", sections=(section,)), Console(file=output, width=60))
        assert word in output.getvalue()

    def test_only_the_longest_words_are_broken_in_a_narrow_table(self) -> None:
        names = ("system", "BLEU", "95 %", "difference", "p bootstrap", "p shuffles")
        row = ("translations.of.a.system.de", "100.00", "±0.00", "+0.00", "1", "1")
        table = Table(
            columns=columns(*names, "verdict"), rows=((*row, "not significant"),)
        )
        section = Section(title="", parts=(table,))
        output = io.StringIO()
        show(Report(title="", sections=(section,)), Console(file=output, width=80))
        for word in ("difference", "bootstrap", "shuffles", "significant"):
            assert word in output.getvalue()


class TestChart:
    def test_the_same_chart_gives_the_same_bytes(self) -> None:
        series = (Series(label="a", x=[1, 2], y=[3, 4]),)
        chart = Chart(name="c", title="t", x_label="x", y_label="y", series=series)
        assert draw(chart) == draw(chart)

    def test_a_picture_takes_the_text_colour_of_its_page(
        self, picture: Picture
    ) -> None:
        assert "currentColor" in picture.svg
        assert "#1f2328" not in picture.svg

    def test_labels_are_text(self, picture: Picture) -> None:
        for label in ("measured", "theory", ">n<", "seconds"):
            assert label in picture.svg

    def test_ticks_may_have_names(self) -> None:
        series = (Series(label="a", x=[0, 1], y=[3, 4]),)
        names = ("first row", "second row")
        chart = Chart(
            name="c", title="t", x_label="x", y_label="y", series=series, names=names
        )
        for name in names:
            assert f">{name}<" in draw(chart).svg

    def test_a_chart_has_no_characters_that_xml_lacks(self) -> None:
        odd = "a\x01\ud800b"
        series = (Series(label=odd, x=[0], y=[3]),)
        chart = Chart(
            name="c", title="t", x_label=odd, y_label=odd, series=series, names=(odd,)
        )
        assert draw(chart).svg.count("a\ufffd\ufffdb</text>") == 4
        assert draw(chart).svg.encode()

    def test_two_pictures_of_a_page_have_no_common_ids(self, picture: Picture) -> None:
        series = (Series(label="a", x=[1, 2], y=[3, 4], drawn="curve"),)
        one, other = (
            draw(Chart(name=name, title="t", x_label="x", y_label="y", series=series))
            for name in ("one", "other")
        )
        ids = re.findall(r' id="(.*?)"', one.svg + other.svg)
        assert len(ids) == len(set(ids)) > 0
        used = re.findall(r'(?:href="|url\()#(.*?)["\)]', one.svg + other.svg)
        assert set(used) == set(ids)
        assert picture.svg.startswith("<svg")
        assert picture.svg.endswith("</svg>")


def test_control_characters_are_shown_as_escapes() -> None:
    """A terminal would obey them, and a page must not have them."""
    odd = "a\x1b[2J\x9bb\x07"
    marked = MarkedText(words=((odd, True),))
    table = Table(title=odd, columns=columns(odd, "b"), rows=((odd, marked),))
    report = Report(title=odd, sections=(Section(title=odd, parts=(odd, table)),))
    output = io.StringIO()
    show(report, Console(file=output, width=200))
    for text in (output.getvalue(), as_page(report), as_markdown(report)):
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) is None
        assert text.replace("\\[", "[").count(r"a\x1b[2J\x9bb\x07") >= 6


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_columns_are_straight_in_any_encoding(encoding: str) -> None:
    rows = (("注意力机制.out", "±1.20"), ("café.out", "±1.20"), ("base.out", "±0.10"))
    table = Table(columns=columns("system", "95 %"), rows=rows)
    content = io.BytesIO()
    file = io.TextIOWrapper(content, encoding=encoding, errors="backslashreplace")
    console = Console(file=file, width=40)
    show(Report(title="T", sections=(Section(title="", parts=(table,)),)), console)
    file.flush()
    text = content.getvalue().decode(encoding)
    lines = [line for line in text.splitlines() if ".out" in line or "0 " in line]
    assert len({cell_len(line) for line in lines}) == 1 < len(lines)


def test_a_table_has_a_cell_for_each_column() -> None:
    with pytest.raises(AssertionError):
        Table(columns=columns("a", "b"), rows=(("1",),))


@pytest.mark.parametrize("width", [20, 30, 50])
def test_a_row_becomes_a_list_if_the_terminal_is_too_narrow(width: int) -> None:
    names = ("system", "BLEU", "difference", "p bootstrap", "p shuffles", "verdict")
    row = ("baseline.de", "31.25", "+1.20", "0.0010", "0.0020", "significant")
    table = Table(title="Scores", columns=columns(*names), rows=(row, row))
    report = Report(title="T", sections=(Section(title="S", parts=(table,)),))
    output = io.StringIO()
    show(report, Console(file=output, width=width))
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    expected = [f"{name}: {cell}" for name, cell in zip(names, row, strict=True)]
    assert lines[lines.index("Scores") + 1 :] == [*expected, "", *expected, ""]


@pytest.mark.parametrize(
    ("width", "head"),
    [(25, " parameters   perplexity "), (24, " parameter   perplexit ")],
)
def test_a_table_breaks_no_word_if_it_is_as_wide_as_the_terminal(
    width: int, head: str
) -> None:
    table = Table(columns=columns("parameters", "perplexity"), rows=(("a b", "9.9"),))
    report = Report(title="T", sections=(Section(title="S", parts=(table,)),))
    output = io.StringIO()
    show(report, Console(file=output, width=width))
    assert head in output.getvalue().splitlines()
