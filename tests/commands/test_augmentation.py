"""Augmentation is set by `--set`, shown, and refused where it makes no sense."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("no_trials")
TINY = ("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["augmentation.subword_alpha=0.2"],
            "`augmentation.subword_alpha` samples from the unigram models of a "
            "SentencePiece tokenizer, but this one has none; set it to 0, or "
            "`augmentation.subword_dropout` for byte-pair encoding.",
        ),
        (
            ["augmentation.subword_dropout=0.1", "tokenizer.kind=word-piece"],
            "`augmentation.subword_dropout` drops merges of byte-pair encoding, but "
            "this tokenizer has none; set it to 0.",
        ),
        (
            ["augmentation.typos=0.1", "tokenizer.kind=word"],
            "`augmentation.typos` needs a vocabulary of sub-words or characters, as "
            "most changed words would be unknown, but this one is of words; set it to "
            '0, or `tokenizer.kind` to "bpe".',
        ),
        (
            ["augmentation.upper=2"],
            "`augmentation.upper` must be at most 1, but is 2.0.",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    refuses: Callable[..., str],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    settings: list[str],
    message: str,
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target, "--out", tmp_path / "run")
    assert refuses(*TINY, *files, "--set", *settings) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [(*TINY, "--out", "run"), ("check",)])
def test_a_corpus_too_small_for_merges_is_refused_and_leaves_no_run(
    refuses: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    # No two letters stand beside each other twice, which a merge without spaces needs.
    (tmp_path / "a.ja").write_text("日本\n", encoding="utf-8")
    (tmp_path / "a.zh").write_text("漢字\n", encoding="utf-8")
    files = ("--source", "a.ja", "--target", "a.zh")
    message = refuses(*command, *files, "--set", "augmentation.subword_dropout=0.1")
    assert message == (
        "`augmentation.subword_dropout` drops merges of byte-pair encoding, but this "
        "tokenizer has none; set it to 0."
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.ja", "a.zh"]


def test_augmentation_of_text_is_refused_for_trees(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (PRP it)) (VP (VBZ is)))\n" * 3, encoding="utf-8")
    message = refuses(
        *("train", "--preset", "parsing-quickstart", "--trees", trees),
        *("--out", tmp_path / "run", "--set", "augmentation.upper=0.1"),
    )
    assert message == (
        "`augmentation.upper` changes text, but this run trains on trees; leave it "
        "out, or set `treebank.augmentation.copies` for variants of the trees."
    )
    assert list(tmp_path.iterdir()) == [trees]


def test_a_run_tells_its_augmentation(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    settings = (
        *("training.steps=2", "training.warmup_steps=1", "augmentation.upper=0.25"),
        *("augmentation.subword_dropout=0.1", "augmentation.subword_sides=source"),
    )
    out = succeeds(
        *(*TINY, "--source", source, "--target", target, "--no-dev"),
        *("--out", tmp_path / "run", "--set", *settings),
    )
    said = "Augmentation: upper 25%, subword_dropout 0.1, new in each epoch"
    assert said in out.splitlines()
    log = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(log[0])["augmentation"] == {
        "upper": 0.25,
        "subword_dropout": 0.1,
    }


def test_settings_list_augmentation_with_its_defaults(
    succeeds: Callable[..., str],
) -> None:
    settings = {
        each["name"]: each for each in json.loads(succeeds("settings", "--json"))
    }
    names = [name for name in settings if name.startswith("augmentation.")]
    assert names == [
        f"augmentation.{name}"
        for name in (
            *("upper", "title", "lower", "typos", "no_end", "joined"),
            *("subword_dropout", "subword_alpha", "subword_sides"),
        )
    ]
    assert {settings[name]["value"] for name in names} == {0.0, "both"}
