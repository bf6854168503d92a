"""Runs with a vocabulary of words: commands replace and keep what they need to."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import transduce
from transduce.cli import main
from transduce.metrics.scores import corpus_chrf

SOURCES = ["der Hund schläft", "die Katze schläft", "der Hund bellt", "ein Hund"] * 6
TARGETS = ["the dog sleeps", "the cat sleeps", "the dog barks", "a dog"] * 6
SETTINGS = (
    "tokenizer.vocab_size=8",  # three words; all others are unknown
    "model.d_model=8",
    "model.embedding_width=8",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "training.steps=40",
    "training.warmup_steps=5",
    "training.checkpoint_steps=20",
    "training.keep_checkpoints=2",
    "search.min_length=2",
    "batching.source_tokens=60",
    "batching.target_tokens=60",
    "batching.batch_tokens=60",
)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def words_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of Deep-Att whose translations are mostly unknown words. Do not change it."""
    folder = tmp_path_factory.mktemp("words")
    source = write(folder / "train.de", SOURCES)
    target = write(folder / "train.en", TARGETS)
    run = folder / "runs" / "run"
    main([*map(str, training(source, target, run))])
    return run


def training(source: Path, target: Path, run: Path, *settings: str) -> list[object]:
    """Arguments of a run with a dev corpus."""
    given = dict(each.split("=", 1) for each in (*SETTINGS, *settings))
    return [
        *("train", "--preset", "deep-att-multi30k", "--device", "cpu", "--out", run),
        *("--source", source, "--target", target),
        *("--dev-source", source, "--dev-target", target),
        *("--set", *(f"{name}={value}" for name, value in given.items())),
    ]


def test_translations_have_translated_or_copied_words_for_unknown_ones(
    words_run: Path, succeeds: Callable[..., str]
) -> None:
    lines = "der Hund schläft\nder Vogel schläft\n"
    arguments = ("translate", words_run, "--jsonl")
    out = succeeds(*arguments, stdin=lines.encode())
    found = [json.loads(line) for line in out.splitlines()]
    tokens = json.dumps(found)
    assert "<unk>" in tokens  # the model's own tokens
    texts = [each["text"] for line in found for each in line["hypotheses"]]
    assert all(texts)
    assert "<unk>" not in " ".join(texts)
    words = set(" ".join(texts).split())
    assert words <= {"the", "dog", "sleeps", "der", "Hund", "schläft", "Vogel"}


def test_development_scores_are_those_of_replaced_words(words_run: Path) -> None:
    log = (words_run / "log.jsonl").read_text().splitlines()
    [final] = [each for each in map(json.loads, log) if each["kind"] == "final"]
    translator = transduce.load(words_run, device="cpu")
    translations = translator.translate(SOURCES)
    assert any("<unk>" in "".join(each.hypotheses[0].tokens) for each in translations)
    texts = [each.text for each in translations]
    assert corpus_chrf(texts, TARGETS).score == pytest.approx(final["chrf"])


def test_models_of_a_run_keep_its_dictionary(
    words_run: Path, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    words = json.loads((words_run / "dictionary.json").read_text())["words"]
    assert words["Katze"] == "cat"
    checkpoints = sorted((words_run / "checkpoints").iterdir())
    succeeds("average", *checkpoints, "--out", tmp_path / "mean")
    for folder in (tmp_path / "mean", words_run / "averaged", *checkpoints):
        kept = json.loads((folder / "dictionary.json").read_text())["words"]
        assert kept == words


def test_a_model_without_a_dictionary_copies_unknown_words(
    words_run: Path, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    copy = shutil.copytree(words_run / "averaged", tmp_path / "model")
    (copy / "dictionary.json").unlink()
    arguments = ("translate", copy)
    assert "<unk>" not in succeeds(*arguments, stdin=b"Vogel Vogel\n")


def test_a_damaged_dictionary_is_refused(
    words_run: Path, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    copy = shutil.copytree(words_run / "averaged", tmp_path / "model")
    (copy / "dictionary.json").write_text("{")
    message = refuses("translate", copy, stdin=b"der Hund\n")
    assert "the dictionary is damaged" in message


def test_another_run_on_the_same_text_shares_the_dictionary(
    words_run: Path, command: Callable[..., object]
) -> None:
    folder, out = words_run.parent.parent, words_run.parent / "second"
    files = folder / "train.de", folder / "train.en"
    command(*training(*files, out, "training.steps=1"))
    for name in ("dictionary.json", "averaged/dictionary.json"):
        assert (out / name).read_bytes() == (words_run / name).read_bytes()


def test_an_export_of_a_vocabulary_of_words_is_refused(
    words_run: Path, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    refuses("export", words_run, "--to", "marian", "--out", tmp_path / "out")


def test_text_without_spaces_is_refused(
    tmp_path: Path, refuses: Callable[..., str]
) -> None:
    source = write(tmp_path / "train.zh", ["我们在这里测试没有学过的汉字"] * 4)
    target = write(tmp_path / "train.en", ["We test characters here."] * 4)
    message = refuses(
        *("train", "--preset", "deep-att-multi30k", "--out", tmp_path / "run"),
        *("--source", source, "--target", target),
    )
    assert message.startswith('`tokenizer.kind` "word" must have text with spaces')
    assert not (tmp_path / "run").exists()


def test_a_student_keeps_the_dictionary_of_its_teacher(
    words_run: Path, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    source = write(tmp_path / "mono.de", sorted({*SOURCES, "ein Hund bellt"}))
    succeeds(
        *("distill", words_run, "--source", source, "--out", tmp_path / "out"),
        *("--preset", "tiny", "--device", "cpu", "--max-ratio", "9"),
        *("--set", "evaluation.hold_out=false", "training.steps=2"),
    )
    student = tmp_path / "out" / "student"
    for folder in (student, student / "averaged"):
        kept = (folder / "dictionary.json").read_bytes()
        assert kept == (words_run / "dictionary.json").read_bytes()
