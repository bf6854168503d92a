import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from marian_folder import change_settings


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


def test_a_model_is_scored_by_its_translations(
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


def test_an_ensemble_is_scored_by_its_translations(
    succeeds: Callable[..., str],
    model: Path,
    other_model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, reference = corpus_files
    models = (model, "--ensemble", other_model)
    out = tmp_path / "out"
    succeeds("translate", *models, "--input", source, "--output", out)
    of_text = succeeds(
        "evaluate", "--hypothesis", out, "--reference", reference, "--json"
    )
    files = ("--source", source, "--reference", reference, "--json")
    assert succeeds("evaluate", *models, *files) == of_text
    assert succeeds("evaluate", model, *files) != of_text


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
    end = "both are; leave one out." if options else "neither is; add one."
    assert message == (
        f"Either a model with --source or --hypothesis must be given, but {end}"
    )


@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_and_a_source_are_needed_together(
    refuses: Callable[..., str], model: Path, reference: Path, has_model: bool
) -> None:
    files = ("--source", reference, "--hypothesis", reference)
    given = (model,) if has_model else files
    assert refuses("evaluate", *given, "--reference", reference) == (
        "A model and --source must be given together, but only one of them is."
    )


def test_unequal_numbers_of_lines_are_refused(
    refuses: Callable[..., str], reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("eins\n")
    files = ("--hypothesis", tmp_path / "short", "--reference", reference)
    message = refuses("evaluate", *files)
    assert "short:2: hypothesis and reference must have equally many lines" in message


REFERENCES = {"one": "ein Hund\nzwei Katzen\n", "two": "der Hund\n2 Katzen\n"}
"""References of the hypotheses "der Hund" and "zwei Katzen"."""


@pytest.fixture
def several(tmp_path: Path) -> tuple[object, ...]:
    for name, text in {"out": "der Hund\nzwei Katzen\n", **REFERENCES}.items():
        (tmp_path / name).write_text(text)
    references = [tmp_path / name for name in REFERENCES]
    return ("evaluate", "--hypothesis", tmp_path / "out", "--reference", *references)


def test_each_file_of_all_sentences_is_a_reference(
    succeeds: Callable[..., str], several: tuple[object, ...]
) -> None:
    found = json.loads(succeeds(*several, "--tokenized", "--json"))
    assert len(found) == 4
    for score in found:
        assert score["signature"].startswith("nrefs:2|")
    texts = [text.splitlines() for text in REFERENCES.values()]
    expected = sacrebleu.corpus_bleu(["der Hund", "zwei Katzen"], texts, force=True)
    assert found[1]["score"] == expected.score
    assert found[1]["precisions"][:2] == [100, 100]


def test_files_that_follow_each_other_may_be_parts_of_a_reference(
    succeeds: Callable[..., str], several: tuple[object, ...], tmp_path: Path
) -> None:
    parts = []
    for number, line in enumerate(["ein Hund", "zwei Katzen", "der Hund", "2 Katzen"]):
        parts.append(tmp_path / f"part.{number}")
        parts[-1].write_text(line + "\n")
    command = (*several[:-2], *parts)
    assert succeeds(*command, "--json") == succeeds(*several, "--json")
    [bleu, *_] = json.loads(succeeds(*command[:-2], "--json"))
    assert bleu["signature"].startswith("nrefs:1|")


@pytest.mark.parametrize("text", ["", "eins\n", "eins\nzwei\ndrei\n"])
def test_references_of_other_numbers_of_lines_are_refused(
    refuses: Callable[..., str],
    several: tuple[object, ...],
    tmp_path: Path,
    text: str,
) -> None:
    (tmp_path / "other").write_text(text)
    message = refuses(*several, tmp_path / "other")
    number = text.count("\n")
    assert message.startswith("Reference files must have 2 lines each, or together")
    assert f"two has 2 and {tmp_path / 'other'} has {number}." in message


def test_a_blank_second_reference_is_refused(
    refuses: Callable[..., str], several: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "blank").write_text("\n\n")
    message = refuses(*several, tmp_path / "blank")
    assert message.endswith("blank: at least one line must have text, but none has.")


def test_an_empty_corpus_has_no_score(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    files = ("--hypothesis", tmp_path / "empty", "--reference", tmp_path / "empty")
    message = refuses("evaluate", *files)
    assert message.endswith("empty: at least one line must have text, but none has.")


@pytest.mark.parametrize("blank", ["source", "reference"])
def test_a_text_of_blank_lines_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path, blank: str
) -> None:
    texts = {"source": "a dog\n\n", "reference": "ein Hund\n\n", blank: " \n\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = [option for name in texts for option in (f"--{name}", tmp_path / name)]
    message = refuses("evaluate", model, *files)
    path = tmp_path / blank
    assert message == f"{path}: at least one line must have text, but none has."


def test_translations_that_are_all_blank_have_a_score_of_zero(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "blank").write_text("\n\n")
    (tmp_path / "reference").write_text("ein Hund\neine Katze\n")
    files = ("--hypothesis", tmp_path / "blank", "--reference", tmp_path / "reference")
    bleu, *_ = json.loads(succeeds("evaluate", *files, "--json"))
    assert bleu["score"] == 0


SENTENCES = {
    "zh": ("我们的邻居今天需要那座大房子。", "老师昨天买了三本书。"),
    "ja": ("私は毎日図書館へ行きます。", "彼は昨日本を三冊買いました。"),
    "ko": ("저는 매일 도서관에 갑니다.", "그는 어제 책을 세 권 샀습니다."),
    "th": ("ฉันไปห้องสมุดทุกวัน", "เมื่อวานครูซื้อหนังสือสามเล่ม"),
    "km": ("ខ្ញុំទៅបណ្ណាល័យរាល់ថ្ងៃ", "គ្រូបានទិញសៀវភៅបីក្បាលម្សិលមិញ"),
}
TOKENIZERS = {
    "zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab", "th": "char", "km": "char"
}  # fmt: skip


@pytest.mark.parametrize("name", ["test.{}", "test.{}.gz", "{}", "test.txt"])
@pytest.mark.parametrize("language", SENTENCES)
def test_text_of_any_script_against_itself_scores_100(
    succeeds: Callable[..., str], tmp_path: Path, language: str, name: str
) -> None:
    path = tmp_path / name.format(language)
    content = "\n".join(SENTENCES[language]).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    out = succeeds("evaluate", "--hypothesis", path, "--reference", path)
    first, *others = out.splitlines()
    assert first.startswith("sacreBLEU = 100.00 ")
    assert f", tokenizer {TOKENIZERS[language]}" in first
    is_named = name.startswith("test.{}")
    assert ("as the references are in the script of" in first) is not is_named
    # Moses' words are separated by spaces, and only German compounds are split.
    kinds = [line.split(" = ")[0] for line in others]
    if language == "ko":
        assert kinds == ["BLEU, tokenized (Vaswani et al., 2017)", "chrF2"]
    else:
        assert kinds == ["chrF2"]


@pytest.mark.parametrize(
    ("options", "tokenizer"),
    [
        (("--target-language", "zh-Hans"), "zh"),
        (("--language", "ZH"), "zh"),
        (("--tokenize", "char"), "char"),
        (("--tokenize", "zh"), "zh"),
    ],
)
def test_an_option_names_the_tokenizer(
    succeeds: Callable[..., str],
    tmp_path: Path,
    options: tuple[str, ...],
    tokenizer: str,
) -> None:
    path = tmp_path / "text.de"
    path.write_text("\n".join(SENTENCES["zh"]), encoding="utf-8")
    files = ("--hypothesis", path, "--reference", path)
    [bleu, *_] = json.loads(succeeds("evaluate", *files, *options, "--json"))
    assert bleu["tokenizer"] == tokenizer
    assert f"|tok:{tokenizer}|" in bleu["signature"]


def test_the_language_of_the_model_comes_before_that_of_the_file(
    command: Callable[..., Any],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    named = shutil.copytree(model, tmp_path / "model")
    change_settings(named / "config.json", target_language="zh")
    source, target = corpus_files
    reference = shutil.copy(target, tmp_path / "reference.de")
    files = ("--source", source, "--reference", reference)
    for chosen, tokenizer in ((named, "zh"), (model, "13a")):
        given = command("evaluate", chosen, *files, "--json")
        assert given.code == 0
        assert ("its target is zh and here de" in given.err) is (chosen == named)
        assert json.loads(given.out)[0]["tokenizer"] == tokenizer


def test_only_german_is_split_at_hyphens(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    said = {}
    for ending in ("de", "de-AT.gz", "fr", "ru"):
        path = tmp_path / f"text.{ending}"
        text = "Nord-Süd ist gut\n".encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        out = succeeds("evaluate", "--hypothesis", path, "--reference", path)
        said[ending] = "compound-split" in out
    assert said == {"de": True, "de-AT.gz": True, "fr": False, "ru": False}


def test_a_malformed_language_tag_is_refused(
    refuses: Callable[..., str], reference: Path
) -> None:
    files = ("--hypothesis", reference, "--reference", reference)
    said = refuses("evaluate", *files, "--target-language", "Chinese")
    assert said.endswith("but is 'Chinese'; did you mean 'zh'?")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--length-penalty", "0"),
        ("--length-penalty", "2"),
        ("--processes", "0"),
        ("--processes", "2"),
        ("--beam-size", "0"),
        ("--beam-size", "2"),
        ("--precision", "fp32"),
        ("--precision", "bf16"),
    ],
)
def test_given_translations_have_no_search_and_no_precision(
    refuses: Callable[..., str], reference: Path, option: str, value: str
) -> None:
    files = ("--hypothesis", reference, "--reference", reference)
    assert refuses("evaluate", *files, option, value) == (
        f"{option} is for a model's search, but there is no model; leave it out, or "
        "give a model with --source."
    )
