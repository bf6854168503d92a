"""A run from a model resumes bit for bit, wherever it was stopped or killed."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.data.corpus_files import CorpusFiles, DevSet
from transduce.device import Hardware
from transduce.errors import CheckpointError, ConfigError
from transduce.experiments.pipeline import resume, train
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.experiments.start_model import StartModel, open_start, settings_from
from transduce.text.vocabulary import BOS
from transduce.training.trainer import TrainingStoppedError

pytestmark = pytest.mark.usefixtures("quick_runs", "no_trials")

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


class Stops:
    """Observer that sends a signal to this process after an event."""

    def __init__(self, event: str = "", number: int = signal.SIGINT) -> None:
        self._event = event
        self._number = number
        self.warnings: list[str] = []

    def started(self, start: object) -> None:
        self._happened("started")

    def stepped(self, report: Any) -> None:
        self._happened(f"stepped {report.step}")

    def scored(self, score: Any) -> None:
        self._happened(f"scored {score.step} {score.name}")

    def warned(self, message: str) -> None:
        self.warnings.append(message)

    def went_back(self, step: int) -> None: ...
    def finished(self, result: object) -> None: ...

    def _happened(self, event: str) -> None:
        if event == self._event:
            os.kill(os.getpid(), self._number)


@pytest.fixture(scope="module")
def files(
    corpus_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> CorpusFiles:
    source, target = corpus_files
    short = [tmp_path_factory.mktemp("dev") / path.name for path in corpus_files]
    for path, long in zip(short, corpus_files, strict=True):
        lines = long.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:4]), encoding="utf-8")
    dev = DevSet(name="home", source=short[0], target=short[1])
    other = replace(dev, name="other")
    files = CorpusFiles(source=(source,), target=(target,))
    return files.with_dev_sets([dev, other])


def settings(start: StartModel, **training: Any) -> RunConfig:
    """Settings of ten updates with dropout, and a checkpoint every four."""
    config = settings_from(start)
    batching = replace(
        config.batching, source_tokens=80, target_tokens=80, batch_tokens=50
    )
    changes = {"steps": 10, "checkpoint_steps": 4, "warmup_steps": 2, **training}
    return replace(
        config, batching=batching, training=replace(config.training, **changes)
    )


@pytest.fixture(scope="module")
def imported(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported model with a SentencePiece tokenizer, biases and dropout."""
    from transduce.interop.marian_import import import_model

    out = tmp_path_factory.mktemp("imported") / "model"
    import_model(marian_folder, out, ["The dog runs."])
    return out


@pytest.fixture(scope="module")
def whole(
    imported: Path, files: CorpusFiles, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Uninterrupted run from the imported model."""
    out = tmp_path_factory.mktemp("whole") / "run"
    start = open_start(imported)
    train(files, settings(start), out, CPU, start=start)
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(run / "averaged").weights)


def logged(run: Path) -> list[dict[str, Any]]:
    """Entries of a log that do not depend on time."""
    entries = RunFolder(run).log.read()
    changing = ("seconds", "waited")
    return [
        {name: value for name, value in entry.items() if name not in changing}
        for entry in entries
        if entry["kind"] != "start"
    ]


def assert_equal(run: Path, whole: Path) -> None:
    ours, theirs = weights(run), weights(whole)
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert logged(run) == logged(whole)


def test_the_score_before_the_first_update_and_that_of_the_start_have_equal_losses(
    whole: Path,
) -> None:
    folder = RunFolder(whole)
    for first, end in (("dev", "start model"), ("dev set", "start model")):
        earliest, *_ = folder.log.entries(first, "loss")
        [start] = [e for e in folder.log.entries(end) if e["name"] == earliest["name"]]
        assert earliest["step"] == start["step"] == 0
        assert earliest["loss"] == start["loss"]
        assert earliest["perplexity"] == start["perplexity"]


def test_a_stopped_run_from_a_model_resumes_bit_for_bit(
    imported: Path, files: CorpusFiles, whole: Path, tmp_path: Path
) -> None:
    start, run = open_start(imported), tmp_path / "run"
    with pytest.raises(TrainingStoppedError):
        train(files, settings(start), run, CPU, Stops("stepped 7"), start=start)
    resume(run, CPU)
    assert_equal(run, whole)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("event", ["scored 0 home", "stepped 3", "scored 4 other"])
def test_a_killed_run_from_a_model_resumes_bit_for_bit(
    imported: Path, files: CorpusFiles, whole: Path, tmp_path: Path, event: str
) -> None:
    start, run = open_start(imported), tmp_path / "run"
    if (child := os.fork()) == 0:
        kills = Stops(event, signal.SIGKILL)
        train(files, settings(start), run, CPU, kills, start=start)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resume(run, CPU)
    assert_equal(run, whole)


def test_a_run_needs_the_copy_of_its_model_only_before_the_first_checkpoint(
    imported: Path, files: CorpusFiles, whole: Path, tmp_path: Path
) -> None:
    start, early, late = open_start(imported), tmp_path / "early", tmp_path / "late"
    for run, event in ((early, "stepped 3"), (late, "stepped 7")):
        with pytest.raises(TrainingStoppedError):
            train(files, settings(start, steps=12), run, CPU, Stops(event), start=start)
        shutil.rmtree(run / "start")
    shutil.rmtree(early / "stopped")
    message = r"early/start: .* starts from this model and has no checkpoint yet"
    with pytest.raises(CheckpointError, match=message):
        resume(early, CPU)
    notes = Stops()
    resume(late, CPU, notes)
    assert any("started from is not scored" in each for each in notes.warnings)


def test_an_optimizer_is_continued_as_if_the_run_had_gone_on(
    imported: Path, files: CorpusFiles, tmp_path: Path
) -> None:
    # An epoch is one update, so that the order of the pairs does not matter.
    def config(start: StartModel, steps: int) -> RunConfig:
        run = settings(start, steps=steps, warmup_steps=1, checkpoint_steps=3)
        batching = replace(run.batching, source_tokens=9_999, target_tokens=9_999)
        model = replace(run.model, dropout=0.0)
        return replace(run, batching=batching, model=model)

    start = open_start(imported)
    train(files, config(start, 6), tmp_path / "six", CPU, start=start)
    train(files, config(start, 3), tmp_path / "three", CPU, start=start)
    kept = open_start(tmp_path / "three", keep_optimizer=True)
    train(files, config(kept, 3), tmp_path / "kept", CPU, start=kept)
    anew = open_start(tmp_path / "three/checkpoints/step-00000003")
    train(files, config(anew, 3), tmp_path / "anew", CPU, start=anew)
    last = load_model(tmp_path / "six/checkpoints/step-00000006").weights
    distances = {
        name: max(
            (weight - last[key]).abs().max().item()
            for key, weight in load_model(
                tmp_path / name / "checkpoints/step-00000003"
            ).weights.items()
            if not key.endswith("bias")  # those of keys have only rounding errors
        )
        for name in ("kept", "anew")
    }
    assert distances["kept"] < 2e-5
    assert distances["anew"] > 5e-5


def test_a_start_token_that_is_no_longer_learned_has_zeros_as_its_embedding(
    files: CorpusFiles, whole: Path, tmp_path: Path
) -> None:
    def config(start: StartModel) -> RunConfig:
        run = settings(start, steps=2, checkpoint_steps=2)
        return replace(run, model=replace(run.model, learned_start=False))

    start, notes = open_start(whole), Stops()
    assert start.model.weights["embedding.weight"][BOS].any()
    train(files, config(start), tmp_path / "run", CPU, notes, start=start)
    row = weights(tmp_path / "run")["embedding.weight"][BOS]
    assert not row.any()
    assert any(each.startswith("`model.learned_start` is") for each in notes.warnings)
    continued = open_start(whole, keep_optimizer=True)
    with pytest.raises(ConfigError, match="moments would change the embedding"):
        train(files, config(continued), tmp_path / "kept", CPU, start=continued)


@pytest.mark.usefixtures("forked_processes")
def test_two_processes_train_a_model_further_like_one(
    imported: Path, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = map(str, corpus_files)
    settings = (
        "batching.source_tokens=200", "batching.target_tokens=200",
        "batching.batch_tokens=60", "training.steps=4", "training.checkpoint_steps=2",
        "training.warmup_steps=1", "training.epsilon=0.0001",
    )  # fmt: skip
    command = (
        *("train", "--from", str(imported), "--source", source, "--target", target),
        *("--dev", "home", source, target, "--dev", "other", source, target),
        *("--device", "cpu", "--precision", "fp32", "--set", *settings),
    )
    main([*command, "--out", str(tmp_path / "one")])
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path / "two"), "--devices", "2"])
    assert ended.value.code == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-6)
    record = json.loads((tmp_path / "two/config.json").read_text())
    assert record["start"]["path"] == str(imported)
