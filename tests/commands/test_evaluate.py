import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def reference(corpus_files: tuple[Path, Path]) -> Path:
    return corpus_files[1]


def scores(text: str) -> dict[str, float]:
    return {score["name"]: score["score"] for score in json.loads(text)}


def test_every_protocol_is_named_with_its_signature(
    succeeds: Callable[..., str], reference: Path
) -> None:
    files = ("--hypothesis", reference, "--reference", reference)
    found = json.loads(succeeds("evaluate", *files, "--json"))
    assert [score["score"] for score in found] == pytest.approx([100.0] * 3)
    assert found[0]["name"] == "sacreBLEU"
    assert "compound" in found[1]["signature"]
    assert found[2]["name"] == "chrF2"
    assert all(score["signature"].startswith("nrefs:1|") for score in found)


def test_a_line_of_text_for_each_protocol(
    succeeds: Callable[..., str], reference: Path
) -> None:
    files = ("--hypothesis", reference, "--reference", reference)
    lines = succeeds("evaluate", *files).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("sacreBLEU = 100.00 ")


def test_tokenized_text_has_the_score_of_its_words_too(
    succeeds: Callable[..., str], reference: Path
) -> None:
    files = ("--hypothesis", reference, "--reference", reference)
    found = json.loads(succeeds("evaluate", *files, "--tokenized", "--json"))
    assert len(found) == 4
    assert "tok:none" in found[0]["signature"]


def test_a_model_is_scored_by_what_it_translates(
    succeeds: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, reference = corpus_files
    search = ("--beam-size", 2, "--length-penalty", 1.0)
    files = ("--input", source, "--output", tmp_path / "out")
    succeeds("translate", model, *files, *search)
    of_text = succeeds(
        "evaluate", "--hypothesis", tmp_path / "out", "--reference", reference, "--json"
    )
    of_model = succeeds(
        *("evaluate", model, "--source", source, "--reference", reference),
        *(*search, "--json"),
    )
    assert of_model == of_text
    assert 0 < scores(of_text)["chrF2"] < 100


def test_the_language_decides_how_the_paper_splits_words(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("Nord-Süd ist gut\n")
    files = ("--hypothesis", tmp_path / "text", "--reference", tmp_path / "text")
    german = json.loads(succeeds("evaluate", *files, "--json"))[1]
    french = json.loads(succeeds("evaluate", *files, "--json", "--language", "fr"))[1]
    assert german["reference_length"] == french["reference_length"] + 2


@pytest.mark.parametrize("options", [(), ("--source",)], ids=["neither", "both"])
def test_either_a_model_or_its_translations_are_needed(
    refuses: Callable[..., str], model: Path, reference: Path, options: tuple[str, ...]
) -> None:
    both = (model, "--source", reference, "--hypothesis", reference)
    message = refuses("evaluate", *(both if options else ()), "--reference", reference)
    assert message.startswith("Either a model with --source or --hypothesis must be")


def test_a_model_without_a_source_is_refused(
    refuses: Callable[..., str], model: Path, reference: Path
) -> None:
    message = refuses("evaluate", model, "--reference", reference)
    assert message == "A --source and a model to translate it must go together."


def test_a_source_without_a_model_is_refused(
    refuses: Callable[..., str], reference: Path
) -> None:
    files = ("--source", reference, "--hypothesis", reference)
    refuses("evaluate", *files, "--reference", reference)


def test_unequal_numbers_of_lines_are_refused(
    refuses: Callable[..., str], reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("eins\n")
    files = ("--hypothesis", tmp_path / "short", "--reference", reference)
    message = refuses("evaluate", *files)
    assert "short:2: source and target must have equally many lines" in message


def test_no_lines_have_no_score(refuses: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    files = ("--hypothesis", tmp_path / "empty", "--reference", tmp_path / "empty")
    assert "at least 1, but is 0" in refuses("evaluate", *files)
