"""Table 4: the paper's rows and ours."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from transduce.data.treebank import read_gold
from transduce.decoding.parser import Parse
from transduce.errors import DataError, RequestError
from transduce.experiments.table4 import (
    PAPER_ROWS,
    Table4,
    as_report,
    our_parses,
    our_rows,
)
from transduce.report.report import Table
from transduce.search_config import SearchConfig
from transduce.trees.linearization import STYLES, delinearize
from transduce.trees.trees import Tree

GOLD = """\
(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))
( (S (NP-SBJ (PRP I)) (VP (VBP run) (NP (-NONE- *))) (. .)))
"""
PARSES = """\
(TOP (S (NP (XX the)) (VP (XX dog) (XX barks)) (XX .)))
(TOP (S (NP (XX I)) (VP (XX run)) (XX .)))
"""


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    (tmp_path / "gold").write_text(GOLD, encoding="utf-8")
    return tmp_path / "gold"


@pytest.fixture
def parses(tmp_path: Path) -> Path:
    (tmp_path / "parses").write_text(PARSES, encoding="utf-8")
    return tmp_path / "parses"


def test_only_the_parsers_named_in_the_text_beat_the_papers() -> None:
    # All earlier parsers but the Recurrent Neural Network Grammar (section 6.3).
    alone = {row.parser: row.f1 for row in PAPER_ROWS if "WSJ only" in row.training}
    assert alone["Transformer (4 layers)"] == 91.3
    assert [name for name, f1 in alone.items() if f1 > 91.3] == ["Dyer et al. (2016)"]
    trained = [row for row in PAPER_ROWS if row.training == "semi-supervised"]
    assert max(trained, key=lambda row: row.f1).parser == "Transformer (4 layers)"
    assert len(PAPER_ROWS) == 12


def test_parses_are_scored_without_traces_and_by_gold_tags(
    gold: Path, parses: Path
) -> None:
    row = our_parses("WSJ only", gold, parses)
    # Each tree has three brackets; one of the first is right and all of the second.
    assert (row.figures.matched, row.figures.gold, row.figures.predicted) == (4, 6, 6)
    assert row.figures.f1 == pytest.approx(200 / 3)
    assert row.mended is None


def test_trees_over_other_words_are_refused(gold: Path, parses: Path) -> None:
    parses.write_text(PARSES.replace("run", "ran"), encoding="utf-8")
    with pytest.raises(DataError, match="parses:2: a tree must have the words of the"):
        our_parses("WSJ only", gold, parses)


def test_a_sentence_of_punctuation_alone_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    path.write_text(f"{GOLD}(TOP (FRAG (: ...)))\n", encoding="utf-8")
    figures = our_parses("WSJ only", path, path).figures
    assert (figures.f1, figures.valid, figures.skipped) == (100, 2, 1)


def test_a_file_of_gold_trees_is_read_once_for_all_models(
    gold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model:
        search = SearchConfig()

        def parser(self) -> "Model":
            return self

        def parse_stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[Parse]:
            for words in sentences:
                tree, repairs = delinearize([], words, STYLES["xx"])
                yield Parse(tree=tree, repairs=repairs, score=0.0)

    monkeypatch.setattr("transduce.experiments.table4.load", lambda *_, **__: Model())
    read: list[Path] = []

    def read_and_note(path: Path) -> list[Tree]:
        read.append(path)
        return read_gold(path)

    monkeypatch.setattr("transduce.experiments.table4.read_gold", read_and_note)
    one, two = our_rows([("WSJ only", gold, tmp_path)] * 2, "cpu")
    assert one == two
    assert (one.figures.valid, one.mended) == (2, 100)
    assert read == [gold]


def test_a_refused_tree_of_several_lines_is_named_by_number(
    gold: Path, parses: Path
) -> None:
    changed = PARSES.replace("run", "ran").replace(" (S ", "\n (S ")
    parses.write_text(changed, encoding="utf-8")
    with pytest.raises(DataError, match="parses, tree 2: a tree must have the words"):
        our_parses("WSJ only", gold, parses)


def test_fewer_trees_are_refused(gold: Path, parses: Path) -> None:
    parses.write_text(PARSES.splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="parses: there must be as many trees as in"):
        our_parses("semi-supervised", gold, parses)


def test_files_are_read_before_a_model_parses(
    gold: Path, parses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    class Loaded:
        def parser(self) -> None:
            return None  # it cannot parse

    def load(path: Path, device: str) -> Loaded:
        opened.append(path)
        return Loaded()

    monkeypatch.setattr("transduce.experiments.table4.load", load)
    model, missing = tmp_path / "model", tmp_path / "missing"
    model.mkdir()
    for other in ((missing, parses), (gold, missing), (missing, model)):
        given = [("WSJ only", gold, model), ("semi-supervised", *other)]
        with pytest.raises(DataError, match="missing: the file cannot be read"):
            our_rows(given, "cpu")
    assert opened == [model]


def test_a_model_that_translates_is_named(
    gold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loaded:
        def parser(self) -> None:
            raise RequestError("It must parse, but translates.")

    monkeypatch.setattr("transduce.experiments.table4.load", lambda *_, **__: Loaded())
    with pytest.raises(RequestError, match=f"^{tmp_path}: It must parse, but trans"):
        our_rows([("WSJ only", gold, tmp_path)], "cpu")


def test_our_rows_are_shown_beside_the_papers_of_the_same_setting(
    gold: Path, parses: Path
) -> None:
    ours = tuple(
        our_parses(setting, gold, parses) for setting in ("WSJ only", "semi-supervised")
    )
    report = as_report(Table4(ours=ours, treebank="Small Bank", split="its end"))
    paper, told = (
        part
        for section in report.sections
        for part in section.parts
        if isinstance(part, Table)
    )
    assert ("Dyer et al. (2016)", "generative", "93.3") in paper.rows
    assert [row[1:4] for row in told.rows] == [
        ("WSJ only", "66.67", "91.3"),
        ("semi-supervised", "66.67", "92.7"),
    ]
    assert "Treebank: Small Bank; split: its end. F1 is counted as EVALB" in str(report)
