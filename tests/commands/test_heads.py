import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.checkpoint import Checkpoint, save_model


def test_the_built_in_corpus_gives_a_full_survey(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "heads"
    printed = succeeds("heads", model, "--out", out, "--sentences", "20")
    for heading in (
        "Heads that follow positions",
        "Statistics of the heads",
        "Pronouns and syntax",
        "Alignment",
        "Pruning",
    ):
        assert f"\n{heading}\n" in printed
    found = json.loads((out / "heads.json").read_text(encoding="utf-8"))
    assert found["num_pairs"] == 20
    assert len(found["statistics"]) == len(found["pruned"]) == 12
    assert len(found["alignment"]) == 30
    for name in ("heads.md", "heads.html", "positions.png", "pruning.png"):
        assert (out / name).is_file()


def test_a_users_corpus_gives_a_survey_without_grammar(
    succeeds: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    files = ("--source", corpus_files[0], "--target", corpus_files[1])
    printed = succeeds("heads", model, *files, "--out", tmp_path / "heads")
    assert printed.startswith(f"The heads of {model} on 40 pairs")
    assert "\nPruning\n" in printed
    assert "Alignment" not in printed


@pytest.mark.parametrize("given", [False, True], ids=["built in", "a treebank"])
def test_a_parser_is_surveyed_over_trees(
    succeeds: Callable[..., str], parsing_model: Path, tmp_path: Path, given: bool
) -> None:
    treebank = tmp_path / "trees"
    treebank.write_text("(S (NP-SBJ (PRP it)) (VP (VBZ is)))\n" * 3)
    options = ("--trees", treebank) if given else ()
    out = tmp_path / "heads"
    printed = succeeds("heads", parsing_model, *options, "--out", out, "--sentences", 2)
    where = treebank if given else "the built-in corpus"
    title = " ".join(printed.partition("\n\n")[0].split())
    assert title == f"The heads of {parsing_model} on 2 trees of {where}"
    found = json.loads((out / "heads.json").read_text(encoding="utf-8"))
    assert len(found["pruned"]) == 6
    assert "alignment" not in found


def test_a_corpus_for_another_task_is_refused(
    refuses: Callable[..., str], model: Path, parsing_model: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "heads")
    assert refuses("heads", model, "--trees", "bank", *out) == (
        "bank: the corpus of a model that translates must be given by --source and "
        "--target, but this file is given by another option."
    )
    pairs = ("--source", "text", "--target", "text")
    assert refuses("heads", parsing_model, *pairs, *out) == (
        "text: the corpus of a model that parses must be given by --trees, but this "
        "file is given by another option."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sentences", str(10**20)), "`--sentences` must be at most 1,000,000, but"),
        (("--sentences", "0"), "`--sentences` must be at least 1, but is 0."),
        (
            ("--source", "no"),
            "Both sides of a corpus must be given, but only no is; add",
        ),
        (("--source", "no", "--target", "no"), "no: the file cannot be read"),
        (
            ("--source", "empty", "--target", "empty"),
            "empty: at least one line must have text, but none has.",
        ),
        (("--out", "."), ".: the output folder must be new or empty, but is not"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_a_mistake_ends_with_one_sentence_and_writes_nothing(
    refuses: Callable[..., str],
    model: Path,
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    out = () if "--out" in options else ("--out", "heads")
    assert refuses("heads", model, *options, *out).startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_model_of_other_languages_than_the_built_in_ones_needs_text(
    refuses: Callable[..., str], trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    languages = {"source_language": "fr", "target_language": "es"}
    save_model(replace(trained_checkpoint, **languages), tmp_path / "model")
    refusal = refuses("heads", tmp_path / "model", "--out", tmp_path / "heads")
    assert "but the model translates French into Spanish; give source and" in refusal
    assert not (tmp_path / "heads").exists()


def test_an_interrupted_survey_says_that_it_starts_anew(
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    tmp_path: Path,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.cli.heads.survey_heads", interrupt)
    out = tmp_path / "heads"
    assert refuses("heads", model, "--out", out, "--sentences", 2) == (
        f"Interrupted. Nothing was written to {out}: the same command starts from the "
        "beginning."
    )
    assert not out.exists()
