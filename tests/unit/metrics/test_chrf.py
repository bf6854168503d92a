"""chrF against figures worked out by hand, and against sacreBLEU."""

import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import DataError
from transduce.metrics.scores import (
    BleuScore,
    ChrfScore,
    corpus_bleu,
    corpus_chrf,
    paper_bleu,
    tokenized_bleu,
)

lines = st.text("ab äB.", max_size=12)
corpora = st.lists(st.tuples(lines, lines), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("ab", "ac", 25),  # precision and recall: 1/2 of letters, 0 of pairs
        ("ab", "abab", 100 * 25 / 53),  # precision 1, recall (1/2 + 1/3) / 2
        ("a b", "ab", 100),  # spaces do not count
        ("", "ab", 0),
    ],
)
def test_chrf_equals_an_f_score_computed_by_hand(
    hypothesis: str, reference: str, expected: float
):
    assert corpus_chrf([hypothesis], [reference]).score == pytest.approx(expected)


@settings(deadline=None)
@given(corpora)
def test_chrf_equals_sacrebleus(corpus: list[tuple[str, str]]):
    hypotheses, references = [pair[0] for pair in corpus], [pair[1] for pair in corpus]
    expected = sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert corpus_chrf(hypotheses, references).score == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(lines, lines, lines), min_size=1, max_size=4))
def test_chrf_of_two_references_equals_sacrebleus(corpus: list[tuple[str, str, str]]):
    hypotheses, *references = map(list, zip(*corpus, strict=True))
    expected = sacrebleu.corpus_chrf(hypotheses, references).score
    first, second = references
    found = corpus_chrf(hypotheses, first, more_references=[second])
    assert found.score == pytest.approx(expected)
    assert found.signature.startswith("nrefs:2|")


def test_score_name_and_signature_equal_those_of_sacrebleus_command(tmp_path: Path):
    (tmp_path / "hypotheses").write_text("Ein Haus.\nEin Hund\n", encoding="utf-8")
    (tmp_path / "references").write_text("Das Haus.\nEin Huhn\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "--input", "hypotheses"]
    printed = subprocess.run(
        [*command, "--metrics", "chrf", "--width", "6"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    expected = json.loads(printed.stdout)
    score = corpus_chrf(["Ein Haus.", "Ein Hund"], ["Das Haus.", "Ein Huhn"])
    assert score.score == pytest.approx(expected["score"], abs=1e-6)
    assert score.name == expected["name"]
    assert score.signature == expected["signature"]


def test_a_score_prints_as_one_line():
    assert str(corpus_chrf(["ab"], ["ac"])) == (
        "chrF2 = 25.00 nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no"
        f"|version:{version('sacrebleu')}"
    )


def test_an_empty_list_of_hypotheses_is_an_error():
    message = r"^The number of hypotheses must be at least 1, but is 0\.$"
    with pytest.raises(DataError, match=message):
        corpus_chrf([], [])


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("position", range(3))
def test_one_string_in_place_of_a_list_is_refused(position: int):
    texts: list[Any] = [["a"], ["a"], ["a"]]
    texts[position] = "a"
    hypotheses, references, more = texts
    with pytest.raises(DataError, match="must be a list of strings, but is str"):
        corpus_chrf(hypotheses, references, more_references=[more])


def test_unequal_numbers_of_lines_are_an_error():
    message = (
        r"^The number of references must be 2, that of the hypotheses, but is 1\.$"
    )
    with pytest.raises(DataError, match=message):
        corpus_chrf(["a", "b"], ["a"])


# Vietnamese in NFD, and letters of Hindi and Bengali that NFC writes as two characters.
@pytest.mark.parametrize(
    "text",
    [
        "Tô\u0301i là ngươ\u0300i Viê\u0323t",
        "ब\u095cा घो\u095cा यहाँ है",
        "এটা হ\u09dfে গেছে আজ",
    ],
)
@pytest.mark.parametrize(
    "score", [corpus_bleu, tokenized_bleu, paper_bleu, corpus_chrf]
)
def test_a_reference_in_another_normal_form_is_the_same_text(
    text: str, score: Callable[..., BleuScore | ChrfScore]
):
    composed = unicodedata.normalize("NFC", text)
    assert composed != text
    found = score([composed], [text])
    assert found.score == pytest.approx(100)
    assert "|nfc:yes|" in found.signature
    assert "nfc" not in score([composed], [composed]).signature
    longer = [composed + " and more"]
    assert score(longer, [text]).score == score(longer, [composed]).score
