"""`transduce reproduce table2 --train`, repeated with another system."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = (
    *("--train", "--size", "small", "--scale", "0.125", "--steps", "8"),
    *("--device", "cpu", "--precision", "fp32", "--resamples", "50"),
    *("--set", "batching.source_tokens=60", "batching.target_tokens=60"),
    *("tokenizer.vocab_size=400", "training.checkpoint_steps=4"),
)
Options = tuple[object, ...]


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> Options:
    source, target = corpus_files
    dev = ("--dev-source", source, "--dev-target", target)
    return ("--source", source, "--target", target, *dev, "--test", source, target)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_systems_are_trained_and_added(
    tmp_path: Path, files: Options, succeeds: Callable[..., str]
) -> None:
    out = tmp_path / "trained"
    command = ("reproduce", "table2", "--out", out, *files, *SMALL)
    printed = succeeds(*command, "--systems", "base", "--seeds", 1, 2)
    assert "Transformer (base model) Ensemble" in printed
    run = out / "runs" / "base-seed1"
    before = (run / "log.jsonl").stat().st_mtime_ns

    succeeds(*command, "--systems", "base", "gnmt-rl", "bytenet")
    assert (run / "log.jsonl").stat().st_mtime_ns == before
    figures = json.loads((out / "report" / "table2.json").read_text())
    bytenet, gnmt, base = figures["results"]
    assert [each["system"] for each in (bytenet, gnmt)] == ["bytenet", "gnmt-rl"]
    assert gnmt["parameters"] == pytest.approx(base["parameters"], rel=0.15)
    assert [bytenet["architecture"], gnmt["architecture"]] == ["bytenet", "recurrent"]
    assert [point["step"] for point in base["curve"]] == [4, 8]
    assert base["flops"] > 0
    assert [each["encoder"] for each in figures["paths"]["base"]] == [1, 1, 1]
    assert {path.name for path in (out / "report").iterdir()} == {
        *("table2.md", "table2.html", "table2.json", ".made-by"),
        *("table2-bits.png", "table2-bleu.png"),
    }
    log = (out / "logs" / "gnmt-rl-seed1.log").read_text()
    assert "Training pairs:" in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--systems", "lstm"), "There is no system `lstm`; known are bytenet, "),
        (("--steps", "0"), "`--steps` must be at least 1"),
        (("--set", "model.dropout=0"), "use --size, --scale and --match"),
        (("--set", "model={dropout=0}"), "`model.dropout` must not be changed by --"),
        (("--set", "training.seed=2"), "`training.seed` must not be changed by --set"),
        (("--presets-typo",), "presets-typo"),
        (("--test", "a", "b", "a", "b"), "--test must have no value twice, but a b"),
        (("--tflops", "3"), "--tflops has no effect with --train"),
        (("--tokenize", "intl"), "--tokenize has no effect with --train"),
        (("--language", "de"), "--target-language has no effect with --train"),
        (("--devices", "2"), "--devices has no effect with --train"),
        # Each contradicts the preset of a system that is not trained first.
        (("--set", "training.steps=9"), "gnmt-rl: `training.reward_steps` must be at"),
        (("--set", "batching.max_length=400"), "convs2s: `model.max_positions` must"),
    ],
)
def test_options_are_checked_before_training(
    tmp_path: Path,
    files: Options,
    refuses: Callable[..., str],
    options: Options,
    message: str,
) -> None:
    out = tmp_path / "trained"
    command = ("reproduce", "table2", "--train", "--out", out, *files)
    assert message in refuses(*command, *options)
    assert not (out / "runs").exists()


def test_a_system_that_cannot_learn_the_language_is_refused_before_training(
    tmp_path: Path,
    corpus_files: tuple[Path, Path],
    files: Options,
    refuses: Callable[..., str],
) -> None:
    _, target = corpus_files
    chinese = tmp_path / "train.zh"
    chinese.write_text("我们在这里\n" * len(target.read_text("utf-8").splitlines()))
    options = [chinese if option == target else option for option in files]
    out = tmp_path / "trained"
    message = refuses("reproduce", "table2", "--train", "--out", out, *options)
    assert message.startswith('deep-att: `tokenizer.kind` "word" must have text with')
    assert not (out / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "training.bogus=1"), "there is no setting `training.bogus`"),
        (("--seeds", "-1"), "`training.seed` must be at least 0, but is -1."),
        (("--scale", "0.02", "--size", "small"), "`tokenizer.vocab_size` must be"),
        (("--set", "search.coverage_penalty=1"), "bytenet: `search.coverage_penalty`"),
    ],
)
def test_options_are_checked_before_a_download(
    tmp_path: Path,
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    options: Options,
    message: str,
) -> None:
    monkeypatch.delattr("transduce.cli.experiments.assemble")
    out = tmp_path / "trained"
    command = ("reproduce", "table2", "--train", "--corpus", "wmt14-en-de")
    assert message in refuses(*command, "--out", out, *options)
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        ("a dog\n", "ein Hund\neine Katze\n", "must have equally many lines"),
        ("\n", "ein Hund\n", "source.en: at least one line must have text, but none"),
        ("a dog\n", " \n", "reference.de: at least one line must have text, but none"),
        (None, "ein Hund\n", "source.en: the file cannot be read"),
    ],
    ids=["unequal", "blank source", "blank reference", "missing"],
)
def test_faults_of_test_texts_are_found_before_training(
    tmp_path: Path,
    files: Options,
    refuses: Callable[..., str],
    source: str | None,
    reference: str,
    message: str,
) -> None:
    paths = (tmp_path / "source.en", tmp_path / "reference.de")
    for path, text in zip(paths, (source, reference), strict=True):
        if text is not None:
            path.write_text(text)
    out = tmp_path / "trained"
    command = ("reproduce", "table2", "--train", "--out", out, *files)
    assert message in refuses(*command[:-3], "--test", *paths)
    assert not out.exists()


def test_test_texts_of_the_same_name_are_refused(
    tmp_path: Path, files: Options, refuses: Callable[..., str]
) -> None:
    tests: list[Path] = []
    for year in ("2016", "2017"):
        (tmp_path / year).mkdir()
        for side in ("en", "de"):
            tests.append(tmp_path / year / f"test.{side}")
            tests[-1].write_text(f"{year}\n")
    out = tmp_path / "trained"
    command = ("reproduce", "table2", "--train", "--out", out, *files)
    refusal = refuses(*command[:-3], "--test", *tests)
    assert refusal == (
        "Test texts must have different names, but two are named test; rename the "
        "files of one."
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("--steps", 5), ("--seeds", 2), ("--scale", 0.5), ("--set", "training.steps=9")],
)
def test_training_options_have_no_effect_without_training(
    tmp_path: Path, refuses: Callable[..., str], option: str, value: object
) -> None:
    command = ("reproduce", "table2", "--out", tmp_path / "t", option, value)
    assert f"{option} has no effect without --train" in refuses(*command)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--reference", "a.de"), ("--target-language", "de"), ("--tokenize", "intl")],
)
def test_options_of_the_score_have_no_effect_without_runs(
    tmp_path: Path, refuses: Callable[..., str], option: str, value: str
) -> None:
    command = ("reproduce", "table2", "--out", tmp_path / "t", option, value)
    assert f"{option} has no effect without runs" in refuses(*command)


def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, files: Options, refuses: Callable[..., str]
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").touch()
    refusal = refuses("reproduce", "table2", "--train", "--out", out, *files)
    assert "must be new or a training of Table 2" in refusal
