"""`transduce reproduce table3`, killed in the middle and repeated."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.named_corpora import named_corpus
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.experiment import locked
from waiting import wait_until

SMALL = (
    *("--scale", "0.125", "--steps", "60", "--device", "cpu", "--precision", "fp32"),
    *("--resamples", "50", "--shuffles", "50"),
    *("--set", "model.num_layers=1", "batching.source_tokens=60"),
    *("batching.target_tokens=60", "tokenizer.vocab_size=400"),
    *("training.checkpoint_steps=60", "training.learning_rate_scale=0.1"),
)
Options = tuple[object, ...]


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> Options:
    source, target = corpus_files
    dev = ("--dev-source", source, "--dev-target", target)
    return ("--source", source, "--target", target, *dev)


def is_free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except ConfigError:
        return False


def steps(run: Path) -> list[int]:
    """Entries of the log."""
    path = run / "log.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return [entry["step"] for entry in entries if entry["kind"] == "step"]


def times(folder: Path) -> dict[Path, int]:
    """Modification time of each file."""
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def killed(files: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experiment that was killed after one run and in the middle of the next."""
    out = tmp_path_factory.mktemp("table3") / "out"
    command = ("reproduce", "table3", "--out", out, *files, *SMALL, "--rows", "A-h1")
    with subprocess.Popen(
        [sys.executable, "-m", "transduce", *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: bool(steps(out / "runs" / "A-h1-seed1")))
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: is_free(out))  # its training has saved and ended
    return out


@pytest.mark.usefixtures("forked_runs")
def test_a_killed_experiment_continues_and_adds_a_seed(
    killed: Path, files: Options, succeeds: Callable[..., str]
) -> None:
    done, begun = killed / "runs" / "base-seed1", killed / "runs" / "A-h1-seed1"
    assert (done / "dev_translations.txt").is_file()
    assert not (begun / "dev_translations.txt").exists()
    assert 0 < steps(begun)[-1] < 60
    before = times(done)

    options = (*files, *SMALL, "--rows", "A-h1", "--seeds", 1, 2)
    printed = succeeds("reproduce", "table3", "--out", killed, *options)

    assert "Table 3: variations of the base model" in printed
    assert times(done) == before
    log = (killed / "logs" / "A-h1-seed1.log").read_text()
    assert log.count("Training pairs:") == 1
    assert "Continuing after step" in log
    assert steps(begun) == [10, 20, 30, 40, 50, 60]
    shared = (killed / "logs" / "A-h1-seed2.log").read_text()
    assert "Prepared corpus, shared with other runs:" in shared
    figures = json.loads((killed / "report" / "table3.json").read_text())
    base, row = figures["rows"]
    assert (base["row"], row["row"]) == ("base", "A-h1")
    assert base["seeds"] == row["seeds"] == [1, 2]
    assert base["bleu"]["bootstrap_p"] is None
    assert 0 < row["bleu"]["bootstrap_p"] <= 1
    assert row["parameters"] == base["parameters"]
    assert figures["failures"] == {}


def test_an_experiment_goes_on_where_another_precision_would_be_chosen(
    killed: Path,
    files: Options,
    succeeds: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert choose_hardware("cpu", width=64).precision == "bf16"
    before = times(killed / "runs" / "base-seed1")
    automatic = [each for each in SMALL if each not in ("--precision", "fp32")]
    options = (*files, *automatic, "--rows", "base")
    printed = succeeds("reproduce", "table3", "--out", killed, *options)
    assert "Matrix products in fp32." in " ".join(printed.split())
    assert times(killed / "runs" / "base-seed1") == before


def test_a_failed_row_is_reported_and_does_not_lose_the_others(
    killed: Path, files: Options, command: Callable[..., Any]
) -> None:
    in_the_way = killed / "runs" / "E-learned-seed1"
    in_the_way.mkdir()
    (in_the_way / "mine").touch()
    before = times(killed / "runs" / "base-seed1")

    options = (*files, *SMALL, "--rows", "E-learned")
    outcome = command("reproduce", "table3", "--out", killed, *options)

    why = "the output folder must be new or empty, but is not"
    assert outcome.code == 2
    assert outcome.err.startswith(
        "transduce: All runs must be done, but 1 of 2 failed; the first is "
        f"E-learned-seed1: {in_the_way}: {why}"
    )
    assert times(killed / "runs" / "base-seed1") == before
    report = killed / "report"
    figures = json.loads((report / "table3.json").read_text())
    assert [row["row"] for row in figures["rows"]] == ["base"]
    assert why in figures["failures"]["E-learned-seed1"]
    assert {path.name for path in report.iterdir()} == {
        "table3.md", "table3.html", "table3.json", ".made-by",
    }  # fmt: skip
    assert why in (report / "table3.html").read_text(encoding="utf-8")


def test_another_experiment_in_its_folder_is_refused(
    killed: Path, files: Options, refuses: Callable[..., str]
) -> None:
    options = (*files, *SMALL, "--rows", "base")
    arguments = ("reproduce", "table3", "--out", killed, *options)
    refusal = refuses(*arguments, "--set", "model.dropout=0.3")
    assert refusal == (
        f"{killed}: `model.dropout` of the experiment in this folder is 0.1, but 0.3 "
        "is requested; give the same settings, or choose another folder."
    )


def test_a_run_with_other_settings_than_its_row_is_refused(
    killed: Path, files: Options, refuses: Callable[..., str]
) -> None:
    run = killed / "runs" / "base-seed1"
    before = (run / "config.json").read_text()
    record = json.loads(before)
    record["settings"]["training"]["checkpoint_steps"] = 30
    (run / "config.json").write_text(json.dumps(record))
    options = (*files, *SMALL, "--rows", "base")
    refusal = refuses("reproduce", "table3", "--out", killed, *options)
    (run / "config.json").write_text(before)
    assert refusal.startswith(
        f"{run}: `training.checkpoint_steps` of the run to resume is 30, but 60 is "
        "requested; give the same settings, or remove this folder"
    )


def test_a_named_corpus_is_fetched_into_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    asked = []

    def assemble(corpus: object, folder: Path, display: object) -> None:
        asked.append((corpus, folder))
        raise ConfigError("There is no network, but there must be one.")

    monkeypatch.setattr("transduce.cli.experiments.assemble", assemble)
    out = tmp_path / "out"
    message = refuses("reproduce", "table3", "--out", out, "--corpus", "wmt14-en-de")
    assert message == "There is no network, but there must be one."
    assert asked == [(named_corpus("wmt14-en-de"), out / "corpus")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rows", "A-h2"), "There is no row `A-h2`; did you mean `A-h"),
        (("--scale", "0"), "`scale` must be a multiple of 1/8 from 1/8 to 1, but is 0"),
        (("--steps", "0"), "`training.steps` must be at least 1, but is 0."),
        (("--seeds", "-1"), "`training.seed` must be at least 0, but is -1."),
        (("--parallel", "0"), "`parallel` must be at least 1, but is 0."),
        (("--resamples", "0"), "`resamples` must be at least 1, but is 0."),
        (("--set", "model.dropuot=0.2"), "there is no setting `model.dropuot`; did"),
        (("--set", "model.num_layers=1"), "`num_layers` of row C-N2 must be a whole"),
        (("--corpus", "multi30k"), "must be given, but both are; leave one out."),
    ],
    ids=str,
)
def test_a_mistake_ends_with_one_sentence(
    refuses: Callable[..., str],
    files: Options,
    tmp_path: Path,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    out = tmp_path / "out"
    assert sentence in refuses("reproduce", "table3", "--out", out, *files, *options)
    assert not out.exists()


def test_a_corpus_without_one_of_its_sides_is_refused(
    refuses: Callable[..., str], files: Options, tmp_path: Path
) -> None:
    out = ("reproduce", "table3", "--out", tmp_path / "out")
    assert refuses(*out) == (
        "Either a named --corpus or files (--source, --target, --dev-source and "
        "--dev-target) must be given, but neither is; add one."
    )
    assert "Both sides of a corpus and of its held-out part" in refuses(
        *out, *files[:-2]
    )
    missing = tmp_path / "missing"
    assert refuses(*out, *files[:-1], missing) == (
        f"{missing}: a corpus must be a file, but is none."
    )
    assert "did you mean `multi30k`" in refuses(*out, "--corpus", "multi30")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_left_alone(
    refuses: Callable[..., str], files: Options, tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    refusal = refuses("reproduce", "table3", "--out", tmp_path, *files)
    assert refusal.startswith(f"{tmp_path}: the output folder must be new or a repro")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["", "wmt14-en-de"], ids=["files", "named"])
def test_a_row_with_impossible_settings_is_refused_before_all_trainings(
    tmp_path: Path,
    files: Options,
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.delattr("transduce.cli.experiments.assemble")  # of a download
    text = ("--corpus", name) if name else files
    options = ("--rows", "E-learned", *SMALL, "batching.max_length=1500")
    refusal = refuses("reproduce", "table3", "--out", tmp_path / "out", *text, *options)
    assert refusal.startswith("E-learned: `model.max_positions` must be at least")
    assert not (tmp_path / "out").exists()


def test_a_row_that_does_not_fit_in_memory_is_refused_before_all_trainings(
    tmp_path: Path,
    files: Options,
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Base, of about 90,000 parameters, fits.
    monkeypatch.setattr("transduce.device.Hardware.memory_bytes", lambda _: 4_000_000)
    options = ("--rows", "big", *SMALL)
    out = tmp_path / "out"
    refusal = refuses("reproduce", "table3", "--out", out, *files, *options)
    assert refusal.startswith("big: Training must fit in the 0.0 GB of memory")
    assert not (out / "runs").exists()
