import errno
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from transduce.checkpoint import Checkpoint, average, load_model
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.errors import CheckpointError, ConfigError
from transduce.experiments import run_corpus
from transduce.experiments.dev_corpus import (
    UNRELATED_CHRF,
    DevCorpus,
    DevHistory,
    DevScore,
    Quality,
)
from transduce.experiments.pipeline import Consent, RunResult, RunStart, resume, train
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.resuming import current_environment, refuse_changed_settings
from transduce.experiments.run_folder import RunFolder
from transduce.training.config import BestBy
from transduce.training.loss import BatchLoss
from transduce.training.memory import SAFE_SHARE, MicroBatchSize, find_micro_batch
from transduce.training.optimizer import scheduled_rate
from transduce.training.trainer import (
    DivergedError,
    StepReport,
    Trainer,
    Validation,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_trials", "no_type_checks"),
]

TINY = replace(
    PRESETS["tiny"],
    training=replace(
        PRESETS["tiny"].training, steps=12, checkpoint_steps=4, keep_checkpoints=2
    ),
    # An untrained model's translations are endless, so they are cut off.
    search=replace(PRESETS["tiny"].search, beam_size=2, extra_length=1),
)
NEVER_RIGHT = replace(TINY.search, max_length=1)
"""Search whose translations are too short for a 4-gram."""
CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw only the learning curve of the shared `run`: it takes as long as steps."""
    monkeypatch.setattr(
        "transduce.analysis.figures.draw_learning_curve", lambda *_: None
    )


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the trial of memory and time, which other tests here leave out."""
    monkeypatch.setattr("transduce.training.trainer.find_micro_batch", find_micro_batch)


class Notes:
    """Observer that records all calls."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.steps: list[int] = []
        self.scores: list[DevScore] = []
        self.warnings: list[str] = []
        self.returns: list[int] = []
        self.results: list[RunResult] = []

    def started(self, start: RunStart) -> None:
        self.starts.append(start)

    def stepped(self, report: StepReport) -> None:
        self.steps.append(report.step)

    def scored(self, score: DevScore) -> None:
        self.scores.append(score)

    def warned(self, message: str) -> None:
        self.warnings.append(message)

    def went_back(self, step: int) -> None:
        self.returns.append(step)

    def finished(self, result: RunResult) -> None:
        self.results.append(result)


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> CorpusFiles:
    source, target = ((path,) for path in corpus_files)
    return CorpusFiles(
        source=source, target=target, dev_source=source, dev_target=target
    )


@pytest.fixture(scope="module")
def run(
    files: CorpusFiles, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RunResult, Notes]:
    out, notes = tmp_path_factory.mktemp("pipeline") / "run", Notes()
    train(files, TINY, out, CPU, notes)
    return out, notes.results[0], notes


def test_every_step_is_reported_once(run: tuple[Path, RunResult, Notes]) -> None:
    _, _, notes = run
    assert notes.steps == list(range(1, 13))


def test_a_new_run_reports_its_pairs(
    run: tuple[Path, RunResult, Notes],
) -> None:
    [start] = run[2].starts
    assert start.steps_done == 0
    assert start.corpus is not None
    assert start.corpus.training.kept == 40


@pytest.mark.parametrize("is_resumed", [False, True])
def test_threads_start_only_after_they_share_one_arena(
    files: CorpusFiles,
    run: tuple[Path, RunResult, Notes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_resumed: bool,
) -> None:
    events = []
    start = Thread.start
    monkeypatch.setattr(
        "transduce.experiments.pipeline.use_one_arena", lambda: events.append("arena")
    )
    monkeypatch.setattr(
        Thread, "start", lambda self: (events.append("thread"), start(self))[1]
    )
    if is_resumed:
        folder = shutil.copytree(run[0], tmp_path / "run")
        resume(folder, CPU, Notes(), steps=TINY.training.steps + 1)
    else:
        train(files, with_training(steps=1), tmp_path / "run", CPU, Notes())
    assert events[0] == "arena"
    assert events.count("arena") == 1
    assert "thread" in events


def test_the_vocabulary_is_the_size_of_the_tokenizer(
    run: tuple[Path, RunResult, Notes],
) -> None:
    [start] = run[2].starts
    model = load_model(run[0])
    assert start.config.model.vocab_size == model.tokenizer.vocab_size
    assert model.config == start.config.model
    assert model.search == start.config.search


def test_each_checkpoint_and_the_average_are_scored(
    run: tuple[Path, RunResult, Notes],
) -> None:
    _, result, notes = run
    assert [score.step for score in notes.scores] == [4, 8, 12]
    assert result.dev is not None
    assert (result.dev.step, result.dev.num_averaged) == (12, result.num_averaged)


def test_only_the_last_checkpoints_are_kept(
    run: tuple[Path, RunResult, Notes],
) -> None:
    names = [path.name for path in RunFolder(run[0]).checkpoints()]
    assert names == ["step-00000008", "step-00000012"]


def test_the_model_is_the_mean_of_the_checkpoints(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out, notes = tmp_path / "run", Notes()
    train(replace(files, dev_source=(), dev_target=()), TINY, out, CPU, notes)
    [result] = notes.results
    members = [load_model(path) for path in RunFolder(out).checkpoints()]
    expected, found = average(members).weights, load_model(result.model).weights
    assert result.model == out / "averaged"
    assert (result.num_averaged, result.dev) == (2, None)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def with_training(**settings: object) -> RunConfig:
    return replace(TINY, training=replace(TINY.training, **settings))


def spoiled_average(members: Sequence[Checkpoint]) -> Checkpoint:
    mean = average(members)
    weights = {name: -weight for name, weight in mean.weights.items()}
    return replace(mean, weights=weights)


def test_an_average_clearly_worse_than_a_checkpoint_is_dropped(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.experiments.run_training.average", spoiled_average)
    out, notes = tmp_path / "run", Notes()
    train(files, with_training(best_by="loss"), out, CPU, notes)
    [result] = notes.results
    assert result.model == out / "best"
    assert result.num_averaged == 1
    assert not (out / "averaged").exists()
    assert load_model(out).step == 12
    [warning] = notes.warnings
    assert warning.startswith(
        "The average of the last 2 checkpoints does worse on the dev corpus (sacreBLEU "
    )
    assert "than the checkpoint of step 12 alone (" in warning
    assert result.dev is not None
    assert result.dev.loss == pytest.approx(notes.scores[-1].loss)


def test_the_log_names_every_dev_set_but_a_main_one_without_a_name() -> None:
    quality = Quality(metric="bleu", name="BLEU", score=4.0, details="", log={})
    score = DevScore(step=1, loss=2.0, perplexity=9.0, quality=quality)
    assert "name" not in score.entry()
    assert replace(score, name="home").entry()["name"] == "home"
    assert replace(score, is_main=False).entry()["name"] == "dev"


def test_the_warning_says_in_what_a_kept_average_is_worse() -> None:
    def score(bleu: float, loss: float, count: int = 1) -> DevScore:
        quality = Quality(metric="bleu", name="BLEU", score=bleu, details="", log={})
        return DevScore(
            step=30, loss=loss, perplexity=9.0, quality=quality, num_averaged=count
        )

    mean = score(42.0, 2.59, count=2)
    assert mean.kept_despite(score(42.0, 2.5), by_loss=False) == (
        "The average of the last 2 checkpoints has a higher loss on the dev corpus "
        "(BLEU 42.00, loss 2.590) than the checkpoint of step 30 alone (BLEU 42.00, "
        "loss 2.500), but its score is not lower, so the average is kept."
    )
    assert mean.kept_despite(score(43.0, 2.59), by_loss=False) == (
        "The average of the last 2 checkpoints has a lower score on the dev corpus "
        "(BLEU 42.00, loss 2.590) than the checkpoint of step 30 alone (BLEU 43.00, "
        "loss 2.590), but its loss is not clearly higher, so the average is kept."
    )
    assert mean.kept_despite(score(42.0, 2.586), by_loss=False) is None
    mean = score(0.0, 5.3, count=2)
    assert mean.kept_despite(score(1.0, 5.2), by_loss=True) == (
        "The average of the last 2 checkpoints has a higher loss on the dev corpus "
        "(BLEU 0.00, loss 5.300) than the checkpoint of step 30 alone (BLEU 1.00, "
        "loss 5.200), but such low scores are not compared, so the average is kept."
    )
    assert mean.kept_despite(score(1.0, 5.299), by_loss=True) is None


@pytest.mark.parametrize(
    ("best_by", "entries", "expected"),
    [
        ("auto", [{"chrf": 11.0}, {"chrf": 0.0}], True),
        ("auto", [{"chrf": 25.0}, {"chrf": 0.0}], False),
        ("auto", [{"f1": 1.0}, {"f1": 0.0}], False),
        ("loss", [{"chrf": 25.0}, {"chrf": 30.0}], True),
        ("chrf", [{"chrf": 11.0}, {"chrf": 0.0}], False),
    ],
)
def test_low_scores_are_ranked_by_loss(
    best_by: BestBy, entries: list[dict[str, float]], expected: bool
) -> None:
    history = DevHistory(entries=[], best_by=best_by)
    assert history.ranks_by_loss(entries[0], entries[1]) is expected


@pytest.mark.parametrize(
    ("bleu", "loss", "expected"),
    [
        (42.2, 2.58, True),
        (42.2, 2.589, False),
        (42.2, 2.60, False),
        (42.0, 2.58, False),
    ],
)
def test_the_best_checkpoint_must_beat_the_average_by_loss_too(
    bleu: float, loss: float, expected: bool
) -> None:
    history = DevHistory(entries=[], best_by="bleu")
    mean = {"bleu": 42.1, "loss": 2.59}
    assert history.beats_clearly({"bleu": bleu, "loss": loss}, mean) is expected


def test_an_average_kept_despite_a_worse_loss_causes_a_warning(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.experiments.run_training.average", spoiled_average)
    config = replace(with_training(keep_checkpoints=3), search=NEVER_RIGHT)
    out, notes = tmp_path / "run", Notes()
    train(files, config, out, CPU, notes)
    assert max(score.quality.log["chrf"] for score in notes.scores) < UNRELATED_CHRF
    [warning] = notes.warnings
    assert "checkpoints has a higher loss on the dev corpus (" in warning
    assert warning.endswith(
        ", but such low scores are not compared, so the average is kept."
    )
    assert load_model(out / "averaged").step == 12


def by_reward(**settings: object) -> RunConfig:
    return with_training(
        reward="gleu", reward_steps=4, reward_samples=2, checkpoint_steps=2, **settings
    )


def test_only_checkpoints_after_updates_by_reward_are_averaged(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out, notes = tmp_path / "run", Notes()
    files = replace(files, dev_source=(), dev_target=())
    train(files, by_reward(keep_checkpoints=5), out, CPU, notes)
    [result] = notes.results
    steps = [load_model(path).step for path in RunFolder(out).checkpoints()]
    assert steps == [4, 6, 8, 10, 12]
    members = [load_model(path) for path in RunFolder(out).checkpoints()[-2:]]
    expected, found = average(members).weights, load_model(result.model).weights
    assert result.num_averaged == 2
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("bleu", "chosen", "step"), [(31.0, "best", 10), (30.0, "averaged", 12)]
)
def test_the_score_alone_chooses_after_updates_by_reward(
    files: CorpusFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bleu: float,
    chosen: str,
    step: int,
) -> None:
    """The best checkpoint has a higher loss than the average."""
    scores, score = {10: bleu, 12: 30.0}, DevCorpus.score

    def scored(dev: DevCorpus, checkpoint: Checkpoint, *others: Any) -> DevScore:
        found = score(dev, checkpoint, *others)
        quality = replace(found.quality, score=scores.get(checkpoint.step, 40.0))
        return replace(found, quality=quality, loss=20.0 - checkpoint.step)

    monkeypatch.setattr(DevCorpus, "score", scored)
    notes = Notes()
    train(files, by_reward(best_by="bleu"), tmp_path / "run", CPU, notes)
    [result] = notes.results
    assert result.model.name == chosen
    assert load_model(tmp_path / "run").step == step


def test_patience_counts_only_checkpoints_after_updates_by_reward(
    files: CorpusFiles, tmp_path: Path
) -> None:
    config = by_reward(patience=1, learning_rate_scale=1e-9)
    training = replace(config.training, steps=20, reward_steps=8)
    notes = Notes()
    train(files, replace(config, training=training), tmp_path / "run", CPU, notes)
    # The first checkpoint of the phase is a gain, and the second is none.
    assert notes.steps[-1] == 12 + 2 * 2


def test_a_run_ends_although_its_best_checkpoint_is_lost(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out, notes = tmp_path / "run", Notes()
    train(files, TINY, out, CPU, notes)
    for lost in (out / "best", out / "averaged"):
        shutil.rmtree(lost)
    again = Notes()
    resume(out, CPU, again)
    assert any(
        "Keeping the average: the best checkpoint" in each for each in again.warnings
    )
    [result] = again.results
    assert load_model(out / "averaged").step == 12
    assert result.model == out / "averaged"


def test_the_best_checkpoint_is_not_scored_again_if_no_other_is_kept(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, score = [], DevCorpus.score

    def counted(dev: DevCorpus, checkpoint: Checkpoint, *others: Any) -> DevScore:
        scored.append(checkpoint.step)
        return score(dev, checkpoint, *others)

    monkeypatch.setattr(DevCorpus, "score", counted)
    notes = Notes()
    config = with_training(best_by="loss", keep_checkpoints=1)
    train(files, config, tmp_path / "run", CPU, notes)
    assert scored == [4, 8, 12, 12]
    [result] = notes.results
    assert result.model == tmp_path / "run" / "averaged"


def test_a_run_ends_when_its_patience_is_spent(
    files: CorpusFiles, tmp_path: Path
) -> None:
    # The learning rate is so low that the first checkpoint stays the best.
    config = with_training(
        steps=60, checkpoint_steps=2, patience=3, learning_rate_scale=1e-9
    )
    out, notes = tmp_path / "run", Notes()
    train(files, config, out, CPU, notes)
    assert notes.steps[-1] == 2 * (1 + 3)
    assert len(notes.results) == 1
    # The last update is logged, though its number is no multiple of ten.
    assert RunFolder(out).log.entries("step")[-1]["step"] == notes.steps[-1]
    again = Notes()
    resume(out, CPU, again)
    assert again.steps == []
    assert len(again.results) == 1


def test_a_resumed_run_keeps_its_spent_patience(
    files: CorpusFiles, tmp_path: Path
) -> None:
    class Killed(Notes):
        def stepped(self, report: StepReport) -> None:
            super().stepped(report)
            if report.step == 5:
                raise KeyboardInterrupt

    # As above: by then there are two checkpoints, the second without a gain.
    config = with_training(
        steps=60, checkpoint_steps=2, patience=3, learning_rate_scale=1e-9
    )
    with pytest.raises(KeyboardInterrupt):
        train(files, config, tmp_path / "run", CPU, Killed())
    notes = Notes()
    resume(tmp_path / "run", CPU, notes)
    assert notes.steps == [5, 6, 7, 8]


def test_a_terminated_preparation_leaves_no_files(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(run_corpus, "prepare", terminated)
    with pytest.raises(SystemExit):
        train(files, TINY, tmp_path / "runs" / "run", CPU, Notes())
    assert not list(tmp_path.glob("runs/*"))


def test_patience_without_a_dev_corpus_is_refused(
    files: CorpusFiles, tmp_path: Path
) -> None:
    without = replace(files, dev_source=(), dev_target=())
    with pytest.raises(ConfigError, match="`training.patience` needs a dev corpus"):
        train(without, with_training(patience=3), tmp_path / "run", CPU, Notes())
    assert not (tmp_path / "run").exists()


def test_a_diverged_run_restarts_from_a_checkpoint_at_a_lower_rate(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    added_loss[7] = math.nan
    out, notes = tmp_path / "run", Notes()
    train(files, TINY, out, CPU, notes)
    assert notes.steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10, 11, 12]
    assert notes.returns == [4]
    assert notes.warnings[0] == (
        "The loss must be a number, but is nan at step 7. Going back to step 4, and "
        "continuing at 0.5 times the learning rate."
    )
    [logged] = [e for e in RunFolder(out).log.read() if e["step"] == 10]
    assert logged["learning_rate"] == pytest.approx(
        0.5 * scheduled_rate(10, 32, TINY.training)
    )
    [back] = RunFolder(out).log.entries("went back")
    assert back == {"kind": "went back", "step": 4, "rate_factor": 0.5}


def test_a_run_that_goes_back_to_its_beginning_keeps_the_entry_of_its_start(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    added_loss[3] = math.nan
    train(files, TINY, tmp_path / "run", CPU, Notes())
    kinds = [(e["kind"], e["step"]) for e in RunFolder(tmp_path / "run").log.read()]
    assert kinds[:2] == [("start", 0), ("went back", 0)]


def test_a_run_that_is_killed_as_it_goes_back_resumes_at_the_full_rate(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    class Killed(Notes):
        def went_back(self, step: int) -> None:
            raise InterruptedError

    added_loss[7] = math.nan
    out = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train(files, TINY, out, CPU, Killed())
    assert len(RunFolder(out).log.entries("went back")) == 1
    added_loss.clear()
    resume(out, CPU, Notes())
    assert RunFolder(out).log.entries("went back") == []
    [logged] = [e for e in RunFolder(out).log.read() if e["step"] == 10]
    rate = scheduled_rate(10, 32, TINY.training)
    assert logged["learning_rate"] == pytest.approx(rate)


def test_a_diverged_run_restarts_before_the_loss_rose(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    added_loss |= {7: 10.0, 8: 10.0, 9: 100.0}
    out, notes = tmp_path / "run", Notes()
    train(files, TINY, out, CPU, notes)
    assert notes.returns == [4]
    assert notes.steps[-8:] == [5, 6, 7, 8, 9, 10, 11, 12]
    spoiled = out / "checkpoints" / "step-00000008"
    assert notes.warnings[0] == (
        f"{spoiled}: was saved when the loss had begun to rise. Continuing from the "
        "previous checkpoint."
    )
    assert (out / "checkpoints" / "damaged-step-00000008").is_dir()
    assert load_model(spoiled).step == 8  # a new one


def test_a_diverged_run_without_an_older_checkpoint_restarts_from_the_newest(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    added_loss |= {2: 20.0, 9: 100.0}
    out, notes = tmp_path / "run", Notes()
    train(files, TINY, out, CPU, notes)
    assert notes.returns == [8]
    assert notes.steps[-4:] == [9, 10, 11, 12]
    assert not list(out.glob("checkpoints/damaged-*"))


def test_a_run_that_diverges_again_is_stopped(
    files: CorpusFiles, tmp_path: Path, added_loss: dict[int, float]
) -> None:
    added_loss |= {3: math.nan, 9: math.nan}
    with pytest.raises(DivergedError, match="at a reduced learning rate; start anothe"):
        train(files, TINY, tmp_path / "run", CPU, Notes())
    [diverged] = RunFolder(tmp_path / "run").log.entries("diverged")
    assert diverged["step"] == 9
    # The resumed run is still at the reduced rate.
    added_loss[10] = math.nan
    with pytest.raises(DivergedError, match="at a reduced learning rate; start anothe"):
        resume(tmp_path / "run", CPU, Notes())


def test_the_best_checkpoint_is_the_one_of_highest_bleu(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out, notes = tmp_path / "run", Notes()
    train(files, with_training(best_by="bleu"), out, CPU, notes)
    best = max(notes.scores, key=lambda score: (score.quality.score, -score.loss))
    assert load_model(out / "best").step == best.step


def test_a_stopped_run_translates_with_its_best_checkpoint(
    files: CorpusFiles, tmp_path: Path
) -> None:
    class Killed(Notes):
        def stepped(self, report: StepReport) -> None:
            super().stepped(report)
            if report.step == 10:
                raise KeyboardInterrupt

    out, notes = tmp_path / "run", Killed()
    config = replace(with_training(learning_rate_scale=0.1), search=NEVER_RIGHT)
    with pytest.raises(KeyboardInterrupt):
        train(files, config, out, CPU, notes)
    assert [score.quality.score for score in notes.scores] == [0, 0]
    assert notes.scores[1].loss < notes.scores[0].loss
    assert load_model(out).step == 8


def test_patience_is_not_spent_while_the_loss_falls(
    files: CorpusFiles, tmp_path: Path
) -> None:
    config = with_training(checkpoint_steps=2, patience=1, learning_rate_scale=0.1)
    notes = Notes()
    train(files, replace(config, search=NEVER_RIGHT), tmp_path / "run", CPU, notes)
    assert {score.quality.score for score in notes.scores} == {0}
    assert notes.steps[-1] == 12


def entry(
    loss: float | None, bleu: float = 0.0, chrf: float = 0.0, matched: int = 0
) -> dict[str, Any]:
    return {"loss": loss, "bleu": bleu, "chrf": chrf, "matched_4_grams": matched}


FALLING = [entry(5.4), entry(4.2), entry(3.0)]
TOO_FEW = [entry(3.0, 8.1, 30.0, 9), entry(2.9, 7.9, 34.0, 9), entry(2.8, 8.0, 33.0, 9)]
ENOUGH = [
    entry(3.0, 8.1, 30.0, 99),
    entry(2.9, 9.0, 34.0, 100),
    entry(2.8, 8.0, 35.0, 99),
]
OLDER = [{"loss": 3.0, "bleu": 8.1}, {"loss": 3.1, "bleu": 8.2}]


@pytest.mark.parametrize(
    ("best_by", "entries", "best", "since_best"),
    [
        # The loss decides among equal scores.
        ("bleu", FALLING, 2, 0),
        ("bleu", [*FALLING, entry(3.0)], 2, 1),
        ("bleu", [*FALLING, entry(3.5), entry(None)], 2, 2),
        ("bleu", [entry(3.0, 5.0), entry(2.0, 4.9)], 0, 1),
        ("chrf", [entry(3.0, 5.0, 20.0), entry(2.0, 4.9, 20.0)], 1, 0),
        ("chrf", TOO_FEW, 1, 1),
        ("loss", TOO_FEW, 2, 0),
        ("f1", [{"loss": 3.0, "f1": 0.0}, {"loss": 2.0, "f1": 0.0}], 1, 0),
        # The first meaningful metric of BLEU, chrF and loss decides.
        ("auto", FALLING, 2, 0),
        ("auto", [entry(3.0, 0.0, 19.0), entry(2.0, 0.0, 12.0)], 1, 0),
        ("auto", TOO_FEW, 1, 0),
        ("auto", [*TOO_FEW, entry(2.9, 7.0, 32.0, 9)], 1, 1),
        ("auto", ENOUGH, 1, 1),
        ("auto", OLDER, 1, 0),
        ("auto", [{"loss": 3.0, "f1": 0.0}, {"loss": 2.0, "f1": 0.0}], 1, 0),
    ],
)
def test_the_best_checkpoint_is_chosen_by_score_and_then_by_loss(
    best_by: Any, entries: list[dict[str, Any]], best: int, since_best: int
) -> None:
    kept = -1
    for number, each in enumerate(entries):
        history = DevHistory(entries=entries[:number], best_by=best_by)
        kept = number if history.is_best(each) else kept
        assert history.is_best(each) == all(
            history.beats(each, other) for other in entries[:number]
        )
    assert kept == best
    assert DevHistory(entries=entries, best_by=best_by).since_best() == since_best


def test_a_loss_within_the_tolerance_is_no_improvement() -> None:
    entries = [entry(3.0), entry(2.999)]
    assert DevHistory(entries=entries, best_by="auto").since_best() == 1
    assert DevHistory(entries=entries, best_by="loss").since_best() == 0
    assert DevHistory(entries=entries[:1], best_by="auto").is_best(entries[1])


def test_the_log_holds_steps_and_scores(run: tuple[Path, RunResult, Notes]) -> None:
    log = list(RunFolder(run[0]).log.read())
    assert [(e["kind"], e["step"]) for e in log] == [
        ("start", 0),
        ("saved", 4),
        ("dev", 4),
        ("saved", 8),
        ("dev", 8),
        ("step", 10),
        ("step", 12),
        ("saved", 12),
        ("dev", 12),
        ("final", 12),
    ]


def test_the_log_has_the_environment_of_the_run(
    run: tuple[Path, RunResult, Notes],
) -> None:
    [start] = [e for e in RunFolder(run[0]).log.read() if e["kind"] == "start"]
    fit = run[2].starts[0].micro_batch
    assert start == {
        "kind": "start",
        "step": 0,
        "device": "cpu",
        "precision": "fp32",
        "num_processes": 1,
        "max_positions": fit.max_positions,
        "unit": "positions",
        "was_cut": False,
        "computing": asdict(current_environment(CPU, 1)),
    }


def test_the_learning_curve_is_a_picture(run: tuple[Path, RunResult, Notes]) -> None:
    assert run[1].picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "drawn"), [(0.0, [4, 8, 12, 12]), (3600.0, [12])])
def test_the_learning_curve_is_drawn_not_too_often_and_at_the_end(
    files: CorpusFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    drawn: list[int],
) -> None:
    found: list[int] = []

    def draw(log: Iterable[dict[str, int]], _: Path) -> None:
        found.append([*log][-1]["step"])

    monkeypatch.setattr("transduce.analysis.figures.draw_learning_curve", draw)
    monkeypatch.setattr("transduce.experiments.pipeline.DRAWN_SECONDS", seconds)
    train(files, TINY, tmp_path / "run", CPU)
    assert found == drawn


def test_a_learning_curve_that_cannot_be_drawn_leaves_the_earlier_one(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        if picture.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(b"whole")

    picture = tmp_path / "run" / "learning_curve.png"
    monkeypatch.setattr("transduce.analysis.figures.draw_learning_curve", draw)
    monkeypatch.setattr("transduce.experiments.pipeline.DRAWN_SECONDS", 0.0)
    with pytest.raises(OSError, match="No space left") as full:
        train(files, TINY, tmp_path / "run", CPU)
    assert full.value.filename == str(picture)
    assert picture.read_bytes() == b"whole"


def test_resuming_a_finished_run_changes_nothing(
    run: tuple[Path, RunResult, Notes],
) -> None:
    out, result, _ = run
    before = load_model(result.model).weights
    log = (out / "log.jsonl").read_text()
    notes = Notes()
    resume(out, CPU, notes)
    after = load_model(result.model).weights
    assert notes.steps == []
    assert notes.starts[0].steps_done == 12
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (out / "log.jsonl").read_text() == log


class Impatient(Notes):
    """Observer that stops the run by an error."""

    def stepped(self, report: StepReport) -> None:
        super().stepped(report)
        if report.step == 5:
            raise RuntimeError("Enough.")


@pytest.mark.usefixtures("trial")
def test_a_resumed_run_keeps_its_micro_batch(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("transduce.training.memory.free_memory", lambda _: 0.0)
        with pytest.raises(RuntimeError, match="Enough"):
            train(files, TINY, out, CPU, Impatient())
    with pytest.raises(RuntimeError, match="Enough"):
        resume(out, CPU, Impatient())
    starts = [each for each in RunFolder(out).log.read() if each["kind"] == "start"]
    assert [each["step"] for each in starts] == [0, 4]
    assert [each["was_cut"] for each in starts] == [True, True]
    assert starts[0]["max_positions"] == starts[1]["max_positions"]


@pytest.mark.parametrize(
    ("unit", "positions", "reason"),
    [
        (None, 30, None),
        (None, 50, "Parts of batches are counted in tokens, and were in positions"),
        ("tokens", 50, "Less memory is free than when the run was interrupted,"),
    ],
)
def test_a_resumed_run_tells_why_its_micro_batches_are_smaller(
    files: CorpusFiles,
    tmp_path: Path,
    unit: str | None,
    positions: int,
    reason: str | None,
) -> None:
    """Earlier versions counted positions for packed sentences, without a unit."""

    def fit(batch_loss: BatchLoss, *_: object) -> MicroBatchSize:
        batch_loss.train()
        return MicroBatchSize(
            max_positions=40, was_cut=True, seconds=1e-6, peak_bytes=0, unit="tokens"
        )

    out, notes = tmp_path / "run", Impatient()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("transduce.training.trainer.find_micro_batch", fit)
        with pytest.raises(RuntimeError, match="Enough"):
            train(files, TINY, out, CPU, Impatient())
        log = out / "log.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        [start] = [each for each in entries if each["kind"] == "start"]
        assert (start["max_positions"], start["unit"]) == (40, "tokens")
        start["max_positions"] = positions
        start["unit"] = unit
        if unit is None:
            del start["unit"]
        log.write_text("".join(json.dumps(each) + "\n" for each in entries))
        with pytest.raises(RuntimeError, match="Enough"):
            resume(out, CPU, notes)
    assert [each["max_positions"] for each in RunFolder(out).log.entries("start")] == [
        positions,
        min(positions, 40),
    ]
    warnings = [each for each in notes.warnings if "bit for bit" in each]
    assert len(warnings) == (reason is not None)
    assert reason is None or warnings[0].startswith(reason)


@pytest.mark.parametrize(
    ("factors", "is_kept"), [((0, 100), True), ((100, 55), True), ((100, 0), False)]
)
def test_a_resumed_run_keeps_its_micro_batch_by_reward_if_it_fits(
    files: CorpusFiles, tmp_path: Path, factors: tuple[int, int], is_kept: bool
) -> None:
    """The first number of batches fits in memory at the start, the other later."""
    out, training = tmp_path / "run", TINY.training
    by_reward = replace(training, reward="gleu", reward_steps=2, reward_samples=200)

    def growing(*given: Any) -> MicroBatchSize:
        return replace(find_micro_batch(*given), growth_bytes=1_000)

    def run(factor: int, function: Callable[..., None], *given: Any) -> list[str]:
        notes = Impatient()
        with pytest.MonkeyPatch.context() as patched:
            free = factor * 1_000 / SAFE_SHARE
            patched.setattr(Hardware, "free_bytes", lambda *_: free)
            patched.setattr("transduce.training.trainer.find_micro_batch", growing)
            with pytest.raises(RuntimeError, match="Enough"):
                function(*given, CPU, notes)
        return notes.warnings

    run(factors[0], train, files, replace(TINY, training=by_reward), out)
    warnings = run(factors[1], resume, out)
    starts = RunFolder(out).log.entries("start")
    assert [each["step"] for each in starts] == [0, 4]
    first, later = (each["reward_positions"] for each in starts)
    assert (later == first) is is_kept
    assert any("Less memory is free" in each for each in warnings) is not is_kept


def test_resuming_with_the_same_settings_is_accepted(
    run: tuple[Path, RunResult, Notes],
) -> None:
    refuse_changed_settings(run[0], TINY)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "dropout", 0.3),
        ("training", "warmup_steps", 13),
        ("batching", "max_length", 3),
        ("search", "beam_size", 3),
        ("tokenizer", "vocab_size", 500),
    ],
)
def test_resuming_with_other_settings_is_refused(
    run: tuple[Path, RunResult, Notes], part: str, name: str, value: float
) -> None:
    changed = replace(TINY, **{part: replace(getattr(TINY, part), **{name: value})})
    message = rf"`{part}\.{name}` of the run to resume is .*, but {value} is requested"
    with pytest.raises(ConfigError, match=message):
        refuse_changed_settings(run[0], changed)


def test_a_missing_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a run to resume"):
        resume(tmp_path, CPU, Notes())


def test_a_model_folder_has_everything_for_translation(
    run: tuple[Path, RunResult, Notes],
) -> None:
    names = {path.name for path in run[1].model.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads((run[1].model / "config.json").read_text())["step"] == 12


def test_default_settings_must_fit_the_corpus(
    files: CorpusFiles, tmp_path: Path
) -> None:
    base = replace(PRESETS["base"], model=TINY.model)
    with pytest.raises(
        ConfigError,
        match="the preset multi30k with `training.steps` set to 3000 fits it",
    ):
        train(
            files,
            base,
            tmp_path / "a" / "run",
            CPU,
            Notes(),
            consent=Consent(is_chosen=False),
        )
    assert not list(tmp_path.iterdir())


LONG = with_training(steps=10**9)
"""Settings by which training takes months."""


@pytest.mark.usefixtures("trial")
def test_default_settings_must_train_within_a_week(
    files: CorpusFiles, tmp_path: Path
) -> None:
    class Interrupted(Notes):
        def stepped(self, report: StepReport) -> None:
            raise KeyboardInterrupt

    out, notes = tmp_path / "run", Notes()
    with pytest.raises(ConfigError, match="must end within a week, but would take"):
        train(files, LONG, out, CPU, notes, consent=Consent(is_chosen=False))
    assert not out.exists()
    assert not notes.starts
    with pytest.raises(KeyboardInterrupt):
        train(files, LONG, out, CPU, Interrupted())
    train(files, TINY, tmp_path / "short", CPU, notes, consent=Consent(is_chosen=False))
    assert notes.results


@pytest.mark.parametrize(
    ("is_chosen", "is_length_chosen", "weeks"),
    [(False, False, 1), (False, True, 1), (True, False, 2), (True, True, math.inf)],
)
def test_the_longest_training_follows_from_what_the_user_chose(
    is_chosen: bool, is_length_chosen: bool, weeks: float
) -> None:
    consent = Consent(is_chosen=is_chosen, is_length_chosen=is_length_chosen)
    assert consent.max_weeks == weeks


@pytest.mark.usefixtures("trial")
def test_a_preset_must_train_within_two_weeks_unless_its_length_is_chosen(
    files: CorpusFiles, tmp_path: Path
) -> None:
    out, notes = tmp_path / "run", Notes()
    message = (
        "would take about .* here; choose the preset multi30k with "
        "`training.steps` set to 3000, set fewer steps .* or accept any length"
    )
    base = replace(PRESETS["base"], model=TINY.model, training=LONG.training)
    with pytest.raises(ConfigError, match=message):
        train(files, base, out, CPU, notes, consent=Consent(is_length_chosen=False))
    assert not out.exists()
    assert not notes.starts


def test_an_observer_learns_of_the_trial_before_the_start(
    files: CorpusFiles, tmp_path: Path
) -> None:
    num_starts = []

    class Trying(Notes):
        def trying(self) -> None:
            num_starts.append(len(self.starts))

    train(files, TINY, tmp_path / "run", CPU, Trying())
    assert num_starts == [0]


def test_default_settings_are_trained_if_they_fit(
    files: CorpusFiles, tmp_path: Path
) -> None:
    notes = Notes()
    train(files, TINY, tmp_path / "run", CPU, notes, consent=Consent(is_chosen=False))
    assert notes.results


def test_a_run_begins_with_warnings_about_its_corpus(
    files: CorpusFiles, tmp_path: Path
) -> None:
    notes = Notes()
    train(files, TINY, tmp_path / "run", CPU, notes)
    problems = [str(advice) for advice in notes.starts[0].advice]
    assert problems[0].startswith("dev sources that are also in training: 40 (40 with")
    resume(tmp_path / "run", CPU, notes)
    assert notes.starts[1].advice == ()


class KeepsRates(Notes):
    """Observer that records the learning rates, and may stop the run."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.rates: dict[int, float] = {}
        self._stop_after = stop_after

    def stepped(self, report: StepReport) -> None:
        self.rates[report.step] = report.learning_rate

    def scored(self, score: DevScore) -> None:
        if score.step == self._stop_after:
            raise KeyboardInterrupt


def test_a_resumed_run_lowers_its_rate_like_an_uninterrupted_one(
    files: CorpusFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(
        TINY.training,
        steps=12,
        checkpoint_steps=2,
        schedule="plateau",
        learning_rate=0.5,
        learning_rate_scale=1.0,
        warmup_steps=1,
        optimizer="sgd",
        min_learning_rate=0.01,
    )
    config = replace(TINY, training=training, search=NEVER_RIGHT)
    losses = {2: 3.0, 4: 3.0, 6: 2.0, 8: 2.5}

    def validate(trainer: Trainer, _: object) -> Validation:
        return Validation(loss=losses[trainer.progress.step], perplexity=9.0)

    monkeypatch.setattr(Trainer, "validate", validate)
    whole = KeepsRates()
    train(files, config, tmp_path / "whole", CPU, whole)
    expected = [0.5] * 4 + [0.05] * 4  # the next would be below the least rate
    assert list(whole.rates.values()) == pytest.approx(expected)
    for stop_after in (4, 8):
        first, second = KeepsRates(stop_after), KeepsRates()
        out = tmp_path / str(stop_after)
        with pytest.raises(KeyboardInterrupt):
            train(files, config, out, CPU, first)
        resume(out, CPU, second)
        assert first.rates | second.rates == whole.rates


def test_the_forecast_includes_the_samples_of_updates_by_reward() -> None:
    training = replace(TINY.training, steps=10, reward="gleu", reward_steps=4)
    fitting = MicroBatchSize(max_positions=9, was_cut=False, seconds=0.5, peak_bytes=0)

    def seconds(steps_done: int, config: RunConfig) -> float:
        start = RunStart(
            config=config,
            corpus=None,
            num_parameters=1,
            hardware=CPU,
            num_processes=2,
            update_tokens=(60, 40),
            micro_batch=fitting,
            steps_done=steps_done,
        )
        return start.seconds_left / (0.5 * 100 / 2)

    config = replace(TINY, training=training)
    assert seconds(0, config) == 10 + 4 * 15
    assert seconds(8, config) == 2 + 2 * 15
    # The trial had two passes over a batch, of which updates by reward have one.
    twice = replace(config, training=replace(training, consistency=3.0))
    assert seconds(0, twice) == 6 + 4 * 16 / 2
    likelihood = replace(training, reward="none", reward_steps=None)
    assert seconds(0, replace(config, training=likelihood)) == 10
