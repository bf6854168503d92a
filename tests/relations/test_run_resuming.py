"""A resumed run equals an uninterrupted run, bit for bit."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.data.corpus_files import CorpusFiles
from transduce.data.treebank import (
    TreeAugmentationConfig,
    TreebankConfig,
    TreebankFiles,
)
from transduce.device import Hardware
from transduce.errors import AccessError, CheckpointError, ConfigError, VersionError
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import RunResult, RunStart, resume, train
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.run_corpus import RunFiles
from transduce.experiments.run_folder import RunFolder
from transduce.grammar.corpus import training_trees
from transduce.model_folder import newest_first
from transduce.search_config import SearchConfig
from transduce.training.trainer import StepReport, TrainingStoppedError

pytestmark = pytest.mark.usefixtures("quick_runs")

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)
STEPS, CHECKPOINT_STEPS = 20, 5
TINY = PRESETS["tiny"]
# Four updates an epoch, so that most steps are in the middle of one.
CONFIG = replace(
    TINY,
    batching=replace(
        TINY.batching, source_tokens=50, target_tokens=50, batch_tokens=30
    ),
    training=replace(
        TINY.training,
        steps=STEPS,
        checkpoint_steps=CHECKPOINT_STEPS,
        keep_checkpoints=2,
    ),
)


class SendsSignal:
    """Observer that raises a signal in the middle of a step."""

    def __init__(self, at_step: int | None = None, number: int = signal.SIGINT) -> None:
        self._at_step = at_step
        self._number = number
        self.warnings: list[str] = []
        self.first_step = -1
        self.epochs: set[int] = set()

    def started(self, start: RunStart) -> None:
        self.first_step = start.steps_done

    def stepped(self, report: StepReport) -> None:
        self.epochs.add(report.epoch)
        if report.step == self._at_step:
            os.kill(os.getpid(), self._number)

    def scored(self, score: DevScore) -> None: ...

    def warned(self, message: str) -> None:
        self.warnings.append(message)

    def went_back(self, step: int) -> None: ...

    def finished(self, result: RunResult) -> None: ...


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> CorpusFiles:
    source, target = ((path,) for path in corpus_files)
    return CorpusFiles(source=source, target=target)


@pytest.fixture(scope="module")
def uninterrupted(files: CorpusFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(files, CONFIG, out, CPU, SendsSignal())
    return out


def start_and_stop(
    files: RunFiles,
    out: Path,
    step: int,
    number: int = signal.SIGINT,
    config: RunConfig = CONFIG,
) -> None:
    with pytest.raises(
        TrainingStoppedError, match=rf"was stopped after step {step} of \d+, and is sav"
    ):
        train(files, config, out, CPU, SendsSignal(step, number))


StopAt = Callable[[int, Path], None]


@pytest.fixture(scope="module")
def stop_at(files: CorpusFiles, tmp_path_factory: pytest.TempPathFactory) -> StopAt:
    """Function that makes a run stopped after a step, by copying the first such run."""
    folder = tmp_path_factory.mktemp("stopped")

    def copy(step: int, out: Path) -> None:
        if not (folder / str(step)).exists():
            start_and_stop(files, folder / str(step), step)
        shutil.copytree(folder / str(step), out)

    return copy


def last_checkpoint(run: Path) -> Path:
    return RunFolder(run).checkpoints()[-1]


def newest(run: Path) -> Path:
    """Checkpoint from which a resumed run continues."""
    stopped = RunFolder(run).stopped
    return stopped if stopped.exists() else last_checkpoint(run)


def assert_same_weights(model: Path, expected: Path) -> None:
    found, wanted = load_model(model), load_model(expected)
    assert found.step == wanted.step
    assert found.weights.keys() == wanted.weights.keys()
    differences = {
        name: float((weight - found.weights[name]).abs().max())
        for name, weight in wanted.weights.items()
        if not torch.equal(weight, found.weights[name])
    }
    assert differences == {}


def assert_logs_agree(run: Path, expected: Path) -> None:
    def lines(path: Path) -> list[tuple[str, int, float | None]]:
        log = [e for e in RunFolder(path).log.read() if e["kind"] != "start"]
        return [(e["kind"], e["step"], e.get("loss")) for e in log]

    assert lines(run) == lines(expected)


def test_a_repeated_run_ends_at_the_same_weights(
    files: CorpusFiles, uninterrupted: Path, tmp_path: Path
) -> None:
    observer = SendsSignal()
    train(files, CONFIG, tmp_path / "run", CPU, observer)
    assert_same_weights(tmp_path / "run", uninterrupted)
    assert observer.epochs == set(range(STEPS // 4))


@pytest.mark.parametrize("step", [1, 7, 12])
def test_a_run_stopped_at_any_step_ends_at_the_same_weights(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path, step: int
) -> None:
    stop_at(step, tmp_path / "run")
    observer = SendsSignal()
    resume(tmp_path / "run", CPU, observer)
    assert observer.first_step == step
    assert_same_weights(
        last_checkpoint(tmp_path / "run"), last_checkpoint(uninterrupted)
    )
    assert_logs_agree(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("step", [10, 17])
def test_a_run_stopped_at_any_step_ends_at_the_same_average(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path, step: int
) -> None:
    stop_at(step, tmp_path / "run")
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run", uninterrupted)


def test_a_run_resumed_with_as_many_threads_gives_no_warning(
    stop_at: StopAt, tmp_path: Path
) -> None:
    stop_at(7, tmp_path / "run")
    observer = SendsSignal()
    resume(tmp_path / "run", CPU, observer)
    assert observer.warnings == []
    log = list(RunFolder(tmp_path / "run").log.read())
    starts = [entry["computing"] for entry in log if entry["kind"] == "start"]
    assert [each["num_threads"] for each in starts] == [1, 1]
    waits = [entry["waited"] for entry in log if entry["kind"] == "step"]
    assert waits
    assert all(0 <= each < 1 for each in waits)


def test_a_run_resumed_with_more_threads_gives_a_warning(
    files: CorpusFiles, tmp_path: Path, two_threads: None
) -> None:
    torch.set_num_threads(1)
    start_and_stop(files, tmp_path / "run", 7)
    torch.set_num_threads(2)
    observer = SendsSignal(8)  # the warning comes at the start
    with pytest.raises(TrainingStoppedError):
        resume(tmp_path / "run", CPU, observer)
    [warning] = observer.warnings
    assert "not be bit for bit those of an uninterrupted run" in warning
    assert "(threads: 1 before, 2 now)" in warning


def test_a_run_of_an_older_version_is_resumed_without_a_warning(
    stop_at: StopAt, tmp_path: Path
) -> None:
    stop_at(7, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    entries = list(folder.log.read())
    for entry in entries:
        entry.pop("computing", None)
        entry.pop("waited", None)
    lines = [json.dumps(entry) + "\n" for entry in entries]
    (tmp_path / "run" / "log.jsonl").write_text("".join(lines), encoding="utf-8")
    observer = SendsSignal()
    resume(tmp_path / "run", CPU, observer)
    assert observer.warnings == []


def with_dev(files: CorpusFiles) -> CorpusFiles:
    return replace(files, dev_source=files.source, dev_target=files.target)


def test_scoring_a_dev_corpus_does_not_change_training(
    files: CorpusFiles, uninterrupted: Path, tmp_path: Path
) -> None:
    train(with_dev(files), CONFIG, tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run" / "averaged", uninterrupted / "averaged")


def test_a_run_with_a_dev_corpus_ends_at_the_same_weights_when_resumed(
    files: CorpusFiles, tmp_path: Path
) -> None:
    train(with_dev(files), CONFIG, tmp_path / "whole", CPU, SendsSignal())
    start_and_stop(with_dev(files), tmp_path / "run", 10)
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run", tmp_path / "whole")
    assert_logs_agree(tmp_path / "run", tmp_path / "whole")


def test_a_run_stopped_many_times_ends_at_the_same_weights(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    stop_at(3, tmp_path / "run")
    for step in (4, 13):
        with pytest.raises(TrainingStoppedError, match=f"after step {step} of 20"):
            resume(tmp_path / "run", CPU, SendsSignal(step))
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(
        last_checkpoint(tmp_path / "run"), last_checkpoint(uninterrupted)
    )
    assert_logs_agree(tmp_path / "run", uninterrupted)


def test_a_run_in_bf16_ends_at_the_same_weights_when_resumed(
    files: CorpusFiles, tmp_path: Path
) -> None:
    bf16 = Hardware(device=torch.device("cpu"), dtype=torch.bfloat16)
    train(files, CONFIG, tmp_path / "whole", bf16, SendsSignal())
    with pytest.raises(TrainingStoppedError):
        train(files, CONFIG, tmp_path / "run", bf16, SendsSignal(7))
    resume(tmp_path / "run", bf16, SendsSignal())
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_sigterm_is_a_request_to_stop_too(files: CorpusFiles, tmp_path: Path) -> None:
    start_and_stop(files, tmp_path / "run", 6, signal.SIGTERM)
    assert load_model(newest(tmp_path / "run")).step == 6


def test_a_signal_at_the_last_step_does_not_stop_the_run(
    files: CorpusFiles, uninterrupted: Path, tmp_path: Path
) -> None:
    train(files, CONFIG, tmp_path / "run", CPU, SendsSignal(STEPS))
    assert_same_weights(tmp_path / "run" / "averaged", uninterrupted)


class ResumesToo(SendsSignal):
    """Observer that also tries to train the same run meanwhile."""

    def __init__(self, run: Path) -> None:
        super().__init__()
        self._run = run

    def stepped(self, report: StepReport) -> None:
        with pytest.raises(ConfigError, match="by one command at a time, but another"):
            resume(self._run, CPU, SendsSignal())


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_a_run_is_trained_by_one_command_at_a_time(
    files: CorpusFiles, uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(files, CONFIG, run, CPU, ResumesToo(run))
    last_checkpoint(run).rename(tmp_path / "last")
    resume(run, CPU, ResumesToo(run))
    assert_same_weights(run, uninterrupted)
    assert_logs_agree(run, uninterrupted)


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "training.safetensors", "training.json"],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path, file: str
) -> None:
    stop_at(12, tmp_path / "run")
    damaged = newest(tmp_path / "run") / file
    damaged.write_bytes(damaged.read_bytes()[:-20])
    observer = SendsSignal()
    resume(tmp_path / "run", CPU, observer)
    assert observer.first_step == 10
    [warning] = observer.warnings
    assert str(damaged) in warning
    assert warning.endswith("Continuing from the previous checkpoint.")
    assert_same_weights(tmp_path / "run", uninterrupted)
    assert_logs_agree(tmp_path / "run", uninterrupted)


def test_no_previous_checkpoint_is_announced_where_all_are_damaged(
    stop_at: StopAt, tmp_path: Path
) -> None:
    stop_at(12, tmp_path / "run")
    saved = newest_first(tmp_path / "run")
    for checkpoint in saved:
        (checkpoint / "model.safetensors").write_bytes(b"")
    observer = SendsSignal()
    message = "no checkpoint can be used; .* restore one, or start the run over[.]"
    with pytest.raises(CheckpointError, match=message):
        resume(tmp_path / "run", CPU, observer)
    goes_on = [each.endswith("the previous checkpoint.") for each in observer.warnings]
    assert goes_on == [True] * (len(saved) - 1) + [False]


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("config.json", None),
        ("model.safetensors", None),
        ("training.safetensors", None),
        ("training.json", None),
        ("training.json", STEPS + 5),
    ],
)
def test_a_checkpoint_that_cannot_be_opened_is_not_set_aside(
    files: CorpusFiles,
    stop_at: StopAt,
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    steps: int | None,
) -> None:
    run, opened = tmp_path / "run", Path.open
    stop_at(12, run)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == file and path.parent.name == "stopped":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as limited:
        limited.setattr(Path, "open", refuse)
        with pytest.raises(AccessError, match=f"stopped/{file}: .*Too many open files"):
            resume(run, CPU, SendsSignal(), steps=steps)
    assert not list(run.glob("checkpoints/damaged-*"))
    observer = SendsSignal()
    resume(run, CPU, observer)
    assert observer.first_step == 12
    assert observer.warnings == []
    assert_same_weights(run, uninterrupted)


def test_a_model_that_cannot_be_opened_at_the_end_does_not_change_the_result(
    stop_at: StopAt,
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, opened = tmp_path / "run", Path.open
    name = "checkpoints/step-00000015"
    stop_at(17, run)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        is_end = (run / "checkpoints" / "step-00000020").exists()
        if is_end and path == run / name / "model.safetensors" and args == ("rb",):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as limited:
        limited.setattr(Path, "open", refuse)
        with pytest.raises(AccessError, match=f"{name}/model.safetensors: .*allow"):
            resume(run, CPU, SendsSignal())
    resume(run, CPU, SendsSignal())
    assert_same_weights(run, uninterrupted)
    assert_logs_agree(run, uninterrupted)


def test_a_state_that_lacks_tensors_is_skipped_with_a_warning(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    stop_at(10, tmp_path / "run")
    folder = last_checkpoint(tmp_path / "run")
    # The file is sound, but its tensors are those of a model.
    (folder / "training.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()
    )
    observer = SendsSignal()
    resume(tmp_path / "run", CPU, observer)
    assert len(observer.warnings) == 1
    assert_same_weights(tmp_path / "run", uninterrupted)


def test_a_run_whose_only_checkpoint_is_damaged_is_not_restarted(
    stop_at: StopAt, tmp_path: Path
) -> None:
    stop_at(2, tmp_path / "run")
    (newest(tmp_path / "run") / "training.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint can be used; all are set"):
        resume(tmp_path / "run", CPU, SendsSignal())
    with pytest.raises(CheckpointError, match="must hold the run's newest checkpoint"):
        resume(tmp_path / "run", CPU, SendsSignal())
    aside = tmp_path / "run" / "checkpoints" / "damaged-stopped"
    assert (aside / "model.safetensors").is_file()


@pytest.mark.parametrize("steps", [None, STEPS + 5])
def test_a_run_whose_checkpoints_were_removed_is_not_restarted(
    uninterrupted: Path, tmp_path: Path, steps: int | None
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="must hold the run's newest checkpoint"):
        resume(run, CPU, SendsSignal(), steps=steps)
    for name in ("log.jsonl", "config.json"):
        assert (run / name).read_text() == (uninterrupted / name).read_text()
    assert_same_weights(run, uninterrupted)


def test_a_run_killed_before_its_first_checkpoint_is_restarted(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    for name in ("checkpoints", "averaged"):
        shutil.rmtree(run / name)
    log = (run / "log.jsonl").read_text()
    before, saved = log.partition('{"kind": "saved", "step": 5}\n')[:2]
    (run / "log.jsonl").write_text(before + saved)
    resume(run, CPU, SendsSignal())
    assert_same_weights(run, uninterrupted)


def test_a_checkpoint_of_another_version_is_not_changed(
    stop_at: StopAt, tmp_path: Path
) -> None:
    stop_at(7, tmp_path / "run")
    config = newest(tmp_path / "run") / "config.json"
    config.write_text(config.read_text().replace('"format": 5', '"format": 7'))
    with pytest.raises(VersionError, match="the format must be from 1 to 6, but is 7"):
        resume(tmp_path / "run", CPU, SendsSignal())
    assert config.is_file()


def test_a_partly_removed_checkpoint_does_not_prevent_the_average(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    stop_at(17, tmp_path / "run")
    last = CONFIG.training.keep_checkpoints
    oldest = RunFolder(tmp_path / "run").checkpoints()[-last]
    left = oldest.with_name("step-00000001")
    shutil.copytree(oldest, left)
    (left / "config.json").unlink()
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run", uninterrupted)


def test_a_run_does_not_resume_from_a_stopped_state_older_than_its_checkpoint(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stop_at(12, run)
    shutil.copytree(RunFolder(run).stopped, tmp_path / "stopped")
    with pytest.raises(TrainingStoppedError):
        resume(run, CPU, SendsSignal(16))
    shutil.rmtree(RunFolder(run).stopped)
    # The process was killed after a checkpoint, before `stopped` was removed.
    (tmp_path / "stopped").rename(RunFolder(run).stopped)
    observer = SendsSignal()
    resume(run, CPU, observer)
    assert observer.first_step == 15
    assert_same_weights(run, uninterrupted)
    assert not RunFolder(run).stopped.exists()


def test_leftovers_of_a_killed_save_are_removed(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stop_at(17, run)
    last, checkpoints = last_checkpoint(run), run / "checkpoints"
    shutil.copytree(last, checkpoints / ".step-00000018.transduce-new")
    shutil.copytree(last, checkpoints / ".step-00000005.transduce-gone")
    shutil.copytree(last, run / ".averaged.transduce-new")
    shutil.copytree(last, checkpoints / "step-00000001")
    last.rename(checkpoints / f".{last.name}.transduce-old")
    resume(run, CPU, SendsSignal())
    assert_same_weights(run, uninterrupted)
    found, expected = (
        {str(path.relative_to(out)) for path in out.rglob("*")}
        for out in (run, uninterrupted)
    )
    assert found == expected


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lost_member_of_the_average_is_reported(
    files: CorpusFiles, uninterrupted: Path, tmp_path: Path, is_there: bool
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    lost = RunFolder(run).checkpoints()[-CONFIG.training.keep_checkpoints]
    weights = lost / "model.safetensors"
    if is_there:
        weights.write_bytes(weights.read_bytes()[:-20])
    else:
        shutil.rmtree(lost)
    message = f"^{lost}: must be averaged with the other checkpoints, but is missing,"
    with pytest.raises(CheckpointError, match=message):
        resume(run, CPU, SendsSignal())
    assert_same_weights(run, uninterrupted)
    assert_same_weights(last_checkpoint(run), last_checkpoint(uninterrupted))


def test_a_run_without_logged_checkpoints_averages_those_that_exist(
    stop_at: StopAt, uninterrupted: Path, tmp_path: Path
) -> None:
    stop_at(17, tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"saved"' not in line))
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run", uninterrupted)


PARSING = replace(
    CONFIG,
    training=replace(CONFIG.training, best_by="f1"),
    search=SearchConfig(beam_size=2, extra_length=5),
    treebank=TreebankConfig(
        guidance=0.5, augmentation=TreeAugmentationConfig(copies=1)
    ),
)


@pytest.fixture(scope="module")
def treebank_files(tmp_path_factory: pytest.TempPathFactory) -> TreebankFiles:
    trees = tmp_path_factory.mktemp("treebank") / "trees"
    trees.write_text("\n".join(map(str, islice(training_trees(seed=6), 12))))
    return TreebankFiles(trees=(trees,), dev_trees=(trees,))


@pytest.fixture(scope="module")
def parser(
    treebank_files: TreebankFiles, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("parser") / "run"
    train(treebank_files, PARSING, out, CPU, SendsSignal())
    return out


def test_a_resumed_parser_equals_an_uninterrupted_one(
    treebank_files: TreebankFiles, parser: Path, tmp_path: Path
) -> None:
    start_and_stop(treebank_files, tmp_path / "run", 7, config=PARSING)
    resume(tmp_path / "run", CPU, SendsSignal())
    assert_same_weights(tmp_path / "run", parser)
    assert_logs_agree(tmp_path / "run", parser)


class KeepsReport(SendsSignal):
    """Observer that also keeps the report of the step."""

    def stepped(self, report: StepReport) -> None:
        super().stepped(report)
        self.report = report


def test_the_loss_of_guidance_is_proportional_to_its_weight(
    treebank_files: TreebankFiles, tmp_path: Path
) -> None:
    def first_step(weight: float) -> StepReport:
        config = replace(PARSING, treebank=replace(PARSING.treebank, guidance=weight))
        observer = KeepsReport(at_step=1)
        with pytest.raises(TrainingStoppedError):
            train(treebank_files, config, tmp_path / str(weight), CPU, observer)
        return observer.report

    free, half, whole = map(first_step, (0.0, 0.5, 1.0))
    assert half.loss > free.loss + 0.1
    assert whole.loss - free.loss == pytest.approx(2 * (half.loss - free.loss), 1e-4)
    assert whole.perplexity == pytest.approx(free.perplexity, 1e-5)
