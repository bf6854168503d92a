"""User errors give one sentence, exit code 2, and no partial output."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from file_size import limited_file_size
from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.cli.export import Target
from transduce.cli.training_display import TrainingDisplay
from transduce.training.trainer import StepReport

TINY = ("train", "--preset", "tiny", "--precision", "fp32")
GOOD = b"one two\nthree\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good").write_bytes(GOOD)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def refuses_to_train(refuses: Callable[..., str], folder: Path) -> Callable[..., str]:
    """Check that training is refused and writes no file."""

    def run(*options: object) -> str:
        before = sorted(folder.rglob("*"))
        message = refuses(*TINY, "--out", folder / "run", *options)
        assert sorted(folder.rglob("*")) == before
        return message.replace(f"{folder}/", "")

    return run


def test_a_refused_run_leaves_no_parent_folder_either(
    refuses: Callable[..., str], folder: Path
) -> None:
    files = ("--source", folder / "good", "--target", folder / "missing")
    message = refuses(*TINY, *files, "--out", folder / "parent" / "run")
    assert message == (
        f"{folder}/missing: the file cannot be read (No such file or directory)."
    )
    assert not (folder / "parent").exists()


CORPORA = {
    "missing": (None, r"bad: the file cannot be read \(No such file or directory\)"),
    "empty": (b"", "bad:1: source and target must have equally many lines"),
    "a line too few": (b"one\n", "bad:2: .* but bad has 1 and good has 2"),
    "a line too many": (GOOD + b"x\n", "good:3: .* but good has 2 and bad has 3"),
    "Latin-1": (
        b"one\ntw\xf6\n",
        "bad:2: .*valid UTF-8, but byte 3 of this one is 0xf6",
    ),
    "UTF-16": ("eins\nzwei\n".encode("utf-16"), "bad:1: a line must be "),
    "NUL": (b"one\nt\0wo\n", "bad:2: a line must be text, but .* holds a NUL byte"),
    "long line": (b"one\n" + b"x" * 1_000_001 + b"\n", "bad:2: .* at most 1,000,000 b"),
    "blank": (
        b"\n \t\n",
        "good: (at least one pair .* but 0 of 2|a dev set must)",
    ),
    "cut gzip": (
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff",
        "bad: the gzip file is damaged or cut",
    ),
}


@pytest.mark.parametrize("side", ["training", "dev"])
@pytest.mark.parametrize(("content", "message"), CORPORA.values(), ids=list(CORPORA))
def test_a_faulty_corpus_is_refused(
    refuses_to_train: Callable[..., str],
    folder: Path,
    content: bytes | None,
    message: str,
    side: str,
) -> None:
    if content is not None:
        (folder / "bad").write_bytes(content)
    good, bad = folder / "good", folder / "bad"
    options = (
        ("--source", good, "--target", bad)
        if side == "training"
        else (
            *("--source", good, "--target", good),
            *("--dev-source", good, "--dev-target", bad),
        )
    )
    assert re.match(message, refuses_to_train(*options))


def test_an_empty_corpus_is_refused(
    refuses_to_train: Callable[..., str], folder: Path
) -> None:
    (folder / "empty").touch()
    files = ("--source", folder / "empty", "--target", folder / "empty")
    assert refuses_to_train(*files).startswith("empty: a corpus must have at least one")


def test_a_corpus_of_nothing_but_long_pairs_is_refused(
    refuses_to_train: Callable[..., str], folder: Path
) -> None:
    files = ("--source", folder / "good", "--target", folder / "good")
    message = refuses_to_train(*files, "--set", "batching.max_length=1")
    assert "0 of 2 pairs kept (0 empty and 2 overlong left out)" in message


@pytest.mark.parametrize("number", [99, 100, 1234])
def test_the_number_of_a_line_is_printed_as_it_is(
    refuses_to_train: Callable[..., str], folder: Path, number: int
) -> None:
    # Rich interprets ":100:" and ":1234:" as names of emoji.
    (folder / "bad").write_bytes(b"x\n" * (number - 1) + b"\xff\n")
    message = refuses_to_train("--source", folder / "bad", "--target", folder / "bad")
    assert message.startswith(f"bad:{number}: a line must be valid UTF-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--source good", "but only good is; add --target."),
        ("--target good", "but only good is; add --source."),
        ("", "A corpus must be given: --source FILE... --target FILE..."),
        (
            "--source good good --target good",
            "must have equally many files, but have 2",
        ),
        (
            "--source good --target good --dev-source good",
            "Both sides of a corpus must",
        ),
        ("--source folder --target good", "folder: a corpus must be a file"),
        ("--source good/x --target good", "good/x: the file cannot be read (Not a dir"),
        ("--source good --target good --config folder", "folder: the settings cannot"),
        (
            "--source good --target good --config no.toml",
            "no.toml: the settings cannot",
        ),
        ("--source good --target good --device tpu", '`device` must be "auto", "cpu"'),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    refuses_to_train: Callable[..., str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert message in refuses_to_train(*options.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("translate", "--", "model", "--input", "lines"), "--input must stand before"),
        (("translate", "model", "--", "--input=lines"), "--input must stand before"),
        (("average", "--", "model", "--out", "mean"), "--out must be given before"),
    ],
)
def test_an_option_after_two_dashes_is_told_to_stand_before_them(
    refuses: Callable[..., str], arguments: tuple[str, ...], said: str
) -> None:
    message = refuses(*arguments)
    assert message.startswith(f"{said} --, as all words after -- are arguments. ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("translate", "--", "model", "--bogus"), "Unknown option: --bogus. "),
        (
            ("translate", "--input", "a", "--", "model", "--input", "b"),
            'Unexpected argument: "--input", as all words after -- are arguments. ',
        ),
        (("train", "--", "--source", "a", "--target", "b"), "--out must be given. "),
    ],
)
def test_other_words_after_two_dashes_are_not_told_to_stand_before_them(
    refuses: Callable[..., str], arguments: tuple[str, ...], said: str
) -> None:
    assert refuses(*arguments).startswith(said)


def test_an_unknown_preset_names_the_nearest(
    refuses: Callable[..., str], folder: Path
) -> None:
    good, out = folder / "good", folder / "run"
    options = ("--preset", "tinny", "--source", good, "--target", good, "--out", out)
    assert refuses("train", *options).startswith(
        "There is no preset `tinny`; did you mean `tiny`? "
    )
    assert not out.exists()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.dropuot=0.2", "did you mean `model.dropout`?"),
        ("training.stepz=2", "did you mean `training.steps`?"),
        ("model.d_model=many", "`model.d_model` must be a whole number, but is 'many'"),
        ("model.d_model=33", "must be even for sinusoidal positions, but is 33"),
        ("model.dropout=1.0", "`model.dropout` must be at least 0 and below 1"),
        ("search.beam_size=0", "`search.beam_size` must be at least 1, but is 0"),
        ("tokenizer.vocab_size=3", "`tokenizer.vocab_size` must be above 259"),
        ("training.steps=0", "`training.steps` must be at least 1, but is 0"),
        ("training.beta1=2.0", "`training.beta1` must be"),
        ("training.epsilon=-1.0", "`training.epsilon` must be"),
        ("training.seed=-1", "`training.seed` must be"),
        ("model.vocab_size=7", "tokenizer.vocab_size"),
        ("model.d_model=1000000000000", "`model.d_model` must be at most 65,536"),
    ],
)
def test_an_impossible_setting_is_refused(
    refuses_to_train: Callable[..., str], folder: Path, assignment: str, message: str
) -> None:
    files = ("--source", folder / "good", "--target", folder / "good")
    assert message in refuses_to_train(*files, "--set", assignment)


def test_a_missing_device_is_refused(
    refuses_to_train: Callable[..., str],
    refuses: Callable[..., str],
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "has no CUDA; choose the device `cpu`."
    files = ("--source", folder / "good", "--target", folder / "good")
    assert message in refuses_to_train(*files, "--device", "cuda")
    assert message in refuses("translate", model, "--device", "cuda", stdin=b"one\n")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("full", "the output folder must be new or empty, but is not; choose another."),
        ("good", "the output folder must be new or empty, but is a file; choose"),
        ("good/x", "good is a file; choose another name."),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_impossible_output_folder_is_refused(
    refuses: Callable[..., str], folder: Path, out: str, message: str
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "mine").touch()
    files = ("--source", folder / "good", "--target", folder / "good")
    before = sorted(folder.rglob("*"))
    assert message in refuses(*TINY, *files, "--out", folder / out)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--preset big",
            "`tokenizer.vocab_size` of the run to resume is 400, but 37000",
        ),
        (
            "--preset tiny --set model.dropout=0.3",
            "resume is 0.1, but 0.3 is requested",
        ),
        ("--preset base", "of the run to resume is"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(
    refuses: Callable[..., str], run: Path, options: str, message: str
) -> None:
    resume = ("train", "--out", run, "--resume", "--precision", "fp32")
    assert message in refuses(*resume, *options.split())


@pytest.mark.parametrize("out", ["none", "folder", "good"])
@pytest.mark.parametrize("options", [(), ("--preset", "tiny")], ids=str)
def test_a_missing_run_is_not_resumed(
    refuses: Callable[..., str], folder: Path, out: str, options: tuple[str, ...]
) -> None:
    message = refuses("train", "--out", folder / out, "--resume", *options)
    assert message == (
        f"{folder / out}: must be a run to resume, but holds none; name another "
        "folder, or start a new run there, without resuming."
    )


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "cut weights": (
        "model.safetensors",
        lambda content: content[:-100],
        "the weights are missing or damaged",
    ),
    "no weights in the file": (
        "model.safetensors",
        lambda _: b"",
        "the weights are missing or damaged",
    ),
    "cut settings": (
        "config.json",
        lambda content: content[:30],
        "the file is missing or damaged",
    ),
    "settings that are a list": (
        "config.json",
        lambda _: b"[]",
        "must hold a JSON object, but does not",
    ),
    "settings that are no text": (
        "config.json",
        lambda _: b"\xff\xfe",
        "the file is missing or damaged",
    ),
    "cut tokenizer": (
        "tokenizer.json",
        lambda content: content[:-100],
        "the tokenizer is missing or damaged",
    ),
    "tokenizer of another make": (
        "tokenizer.json",
        lambda content: content.replace(b'"<s>"', b'"<t>"'),
        "must begin with <pad>, <s>, </s>, but does not",
    ),
    "tokenizer with a gap": (
        "tokenizer.json",
        lambda content: content.replace(b'"</s>":2,', b'"</s>":2,"new":999,'),
        "its ids must be 0, 1, 2 and so on, but some are missing",
    ),
}


@pytest.mark.parametrize(("file", "change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_is_refused(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    file: str,
    change: Callable[[bytes], bytes],
    message: str,
) -> None:
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_bytes(change(path.read_bytes()))
    refusal = refuses("translate", tmp_path / "model", stdin=b"one\n")
    assert refusal.startswith(f"{tmp_path}/model")
    assert message in refusal


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_that_lacks_a_file_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path, file: str
) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / file).unlink()
    assert file in refuses("translate", tmp_path / "model", stdin=b"one\n")


@pytest.mark.parametrize("name", ["averaged", "checkpoints/step-00000020"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_no_other_model_of_a_run_replaces_one_that_lacks_a_file(
    refuses: Callable[..., str], run: Path, tmp_path: Path, name: str, file: str
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for other in () if name == "averaged" else ("averaged", "best"):
        shutil.rmtree(copy / other)
    (copy / name / file).unlink()
    message = refuses("translate", copy, stdin=b"one\n")
    assert message.startswith(f"{copy / name / file}: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 7},
            "the format must be from 1 to 6, but is 7; the model was saved by another",
        ),
        ({"format": None}, "the format must be from 1 to 6, but is None"),
        (
            {"format": 6},
            '`precision` must be "int8" and the architecture "transformer" in a '
            'quantized model, but are None and "transformer"',
        ),
        (
            {"format": 6, "precision": "int8"},
            "the weights must fit the settings beside them",
        ),
        ({"model": None}, "`model` must be a table, but is not"),
        ({"model": {"colour": "red"}}, "but has 'colour'; the model was saved by"),
        ({"model": {"num_layers": 2}}, "the weights must fit the settings beside them"),
        ({"model": {"num_heads": -2}}, "`model.num_heads` must be at least 1"),
        ({"model": {"positions": "zig"}}, "`model.positions` must be"),
        ({"model": {"d_model": "wide"}}, "d_model"),
        ({"model": {"d_model": 32.0}}, "d_model"),
        ({"model": {"d_model": None}}, "d_model"),
        ({"model": {"dropout": "0.1"}}, "dropout"),
        ({"step": "last"}, "step"),
    ],
    ids=str,
)
def test_a_models_settings_are_checked(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    change: dict[str, object],
    message: str,
    unchecked_types: None,
) -> None:
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    inner = change.get("model")
    changed = config["model"] | inner if isinstance(inner, dict) else None
    path.write_text(
        json.dumps(config | change | ({"model": changed} if changed else {}))
    )
    refusal = refuses("translate", tmp_path / "model", stdin=b"one\n")
    assert message in refusal


@pytest.mark.parametrize(
    "path",
    ["none", "good", "folder", pytest.param("x" * 300, id="a name too long")],
)
@pytest.mark.parametrize("name", ["translate", "evaluate", "score", "average"])
def test_a_path_that_is_no_model_is_refused(
    refuses: Callable[..., str], folder: Path, name: str, path: str
) -> None:
    good = folder / "good"
    options = {
        "translate": (),
        "evaluate": ("--source", good, "--reference", good),
        "score": ("--source", good, "--target", good),
        "average": ("--out", folder / "out"),
    }[name]
    message = refuses(name, folder / path, *options)
    assert message.startswith(f"{folder / path}: ") or "File name too long" in message


def test_an_interruption_is_one_sentence(
    refuses: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.cli.translate.load", interrupt, raising=True)
    assert refuses("translate", model, stdin=b"one\n") == "Interrupted."


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
        ImportError("libtorch.so: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_one_sentence(
    refuses: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transduce.cli.translate.load", fail)
    message = refuses("translate", model, stdin=b"one\n")
    assert message.startswith("There is not enough memory; close other programs")


@pytest.mark.parametrize(
    ("error", "beginning"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "The GPU has too little free memory; close other programs",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
            "The GPU has too little free memory; close other programs",
        ),
        (
            RuntimeError("CUDA error: no kernel image is available for execution"),
            "The installed PyTorch has no kernels for this GPU; install a build",
        ),
    ],
)
def test_a_fault_of_the_gpu_is_one_sentence(
    refuses: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch,
    error: Exception, beginning: str,
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise error

    def fail_because_of_it(*_: object, **__: object) -> None:
        raise RuntimeError("A step failed.") from error

    for function in (fail, fail_because_of_it):
        monkeypatch.setattr("transduce.cli.translate.load", function)
        assert refuses("translate", model, stdin=b"one\n").startswith(beginning)


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('Invalid log settings: +bad, must be a list')",
        "number = int(os.environ['TORCH_FAULTY'])",
        "kind = {'good': 1}[os.environ['TORCH_FAULTY']]",
    ],
)
def test_an_environment_variable_that_a_library_refuses_is_one_sentence(
    refuses: Callable[..., str], model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, code: str,
) -> None:  # fmt: skip
    (tmp_path / "faulty_library.py").write_text(f"import os\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCH_FAULTY", "+bad")
    monkeypatch.setattr(
        "transduce.cli.translate.load", lambda *_, **__: import_module("faulty_library")
    )
    assert refuses("translate", model, stdin=b"one\n") == (
        "The environment variable TORCH_FAULTY must be what its library accepts, but "
        "is '+bad'; correct it, or unset it."
    )


def test_an_error_of_our_own_is_not_said_to_be_the_environments(
    command: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("bad")

    monkeypatch.setenv("TORCH_FAULTY", "bad")
    monkeypatch.setattr("transduce.cli.translate.load", fail)
    with pytest.raises(ValueError, match="bad"):
        command("translate", model, stdin=b"one\n")


def test_a_removed_current_folder_is_one_sentence(
    refuses: Callable[..., str], model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any],
) -> None:  # fmt: skip
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    expected = "The current folder must exist, but was removed; change to another"
    assert refuses("translate", model, stdin=b"one\n").startswith(expected)
    assert command("translate", "--help").code == 0


def test_the_current_folder_is_refused_for_a_run(
    refuses: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "folder")
    files = ("--source", folder / "good", "--target", folder / "good")
    message = refuses(*TINY, *files, "--out", ".")
    assert message.startswith(".: the output must be another folder than the current")
    assert not list(Path().iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="Names are Unicode elsewhere")
def test_a_library_that_needs_a_name_in_utf8_is_one_sentence(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / os.fsdecode(b"caf\xe9")
    message = refuses("export", model, "--to", "ctranslate2", "--out", out)
    assert "the names of files must be UTF-8 here" in message
    assert not list(tmp_path.iterdir())


def test_control_characters_of_a_name_are_escaped(
    refuses: Callable[..., str], model: Path
) -> None:
    message = refuses("translate", model, "--input", "one\ntwo\x1b[31m")
    assert message.startswith(r"one\ntwo\x1b[31m: the file cannot be read")


@pytest.fixture
def stopped_run(
    command: Callable[..., object],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Run that was interrupted soon after its first checkpoint."""
    source, target = corpus_files

    def stepped(_: TrainingDisplay, report: StepReport) -> None:
        if report.step == 11:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingDisplay, "stepped", stepped)
        files = ("--source", source, "--target", target)
        slow = ("--set", "training.learning_rate_scale=0.001")
        command(*TINY, *files, *slow, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-00000010").is_dir()
    return tmp_path / "run"


def resume(run: Path) -> tuple[object, ...]:
    return ("train", "--out", run, "--resume", "--precision", "fp32")


def test_a_disk_that_fills_up_costs_no_checkpoint(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    stopped_run: Path,
    run: Path,
) -> None:
    checkpoints = stopped_run / "checkpoints"
    before = load_file(checkpoints / "step-00000010" / "model.safetensors")
    with limited_file_size(60_000):
        message = refuses(*resume(stopped_run))
    assert message.startswith(f"{checkpoints}/step-00000020: cannot be saved (")
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000010"]
    after = load_file(checkpoints / "step-00000010" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    succeeds(*resume(stopped_run))
    found, expected = load_model(stopped_run).weights, load_model(run).weights
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_disk_that_fills_up_while_logging_is_one_sentence(
    refuses: Callable[..., str], succeeds: Callable[..., str], stopped_run: Path
) -> None:
    with limited_file_size(100):
        message = refuses(*resume(stopped_run))
    log = stopped_run / "log.jsonl"
    assert message == f"{log}: cannot be read or written (File too large)."
    succeeds(*resume(stopped_run))
    assert load_model(stopped_run).step == 20


def test_a_disk_too_small_for_a_run_leaves_nothing(
    refuses: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target)
    with limited_file_size(1_000):
        message = refuses(*TINY, *files, "--out", tmp_path / "run")
    assert message.startswith(f"{tmp_path}/run: cannot be saved (")
    assert not list(tmp_path.iterdir())


def test_a_disk_too_small_for_an_average_leaves_nothing(
    refuses: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    with limited_file_size(60_000):
        message = refuses("average", run, "--out", tmp_path / "model")
    assert "cannot be saved (File too large)" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unchecked_types")  # traced sizes are not Python integers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize("target", sorted({*get_args(Target)} - {"marian-npz"}))
def test_a_disk_too_small_for_an_export_leaves_nothing(
    refuses: Callable[..., str], model: Path, tmp_path: Path, target: str
) -> None:
    with limited_file_size(60_000):
        message = refuses("export", model, "--to", target, "--out", tmp_path / "new")
    assert message.startswith(f"{tmp_path}/new: cannot be saved (")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["score", "translate", "attention", "attention page", "clean"]
)
def test_a_full_output_is_one_sentence(
    model: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    good, place = str(folder / "good"), [str(model)]
    options = {
        "score": ["--source", good, "--target", good],
        "translate": ["--input", good],
        "attention": ["--source", "one", "--json"],
        "attention page": ["--source", "one", "--out", "-"],
        "clean": ["--source", good, "--target", good, "--json"],
    }[name]
    if name == "clean":
        place = ["--out", str(folder / "cleaned")]
        (folder / "other").write_text("eins zwei\ndrei\n")
        options[2:4] = ["--target", str(folder / "other")]
    with (
        monkeypatch.context() as patch,
        Path("/dev/full").open("w", buffering=1) as full,
    ):
        patch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as exit_:
            main([name.split()[0], *place, *options])
    assert exit_.value.code == 2
    message = "No space left on device); free some space and try again."
    assert message in capsys.readouterr().err


def test_a_fraction_among_whole_numbers_is_refused(
    refuses: Callable[..., str],
) -> None:
    message = refuses("reproduce", "table3", "--out", "new", "--seeds", 1, 2.5)
    assert '--seeds must be a whole number, but is "2.5". See' in message
