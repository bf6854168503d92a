"""A run that is trained longer equals one that was to be as long from the start."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.errors import ConfigError, TransduceWarning
from transduce.experiments.pipeline import resume, train
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.resuming import lengthen
from transduce.experiments.run_folder import RunFolder, settings_of
from transduce.model_folder import SHORTLIST_FILE, change_search, find_model
from transduce.search_config import SearchConfig
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.trainer import TrainingStoppedError
from waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("quick_runs", "no_trials")

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


def tiny(**training: Any) -> RunConfig:
    """Settings of a run with a checkpoint every five of ten updates."""
    settings = PRESETS["tiny"]
    batching = replace(
        settings.batching, source_tokens=50, target_tokens=50, batch_tokens=30
    )
    changes = {"steps": 10, "checkpoint_steps": 5, "keep_checkpoints": 2, **training}
    return replace(
        settings, batching=batching, training=replace(settings.training, **changes)
    )


class Warnings:
    """Observer that keeps the warnings, and may stop the run at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.messages: list[str] = []
        self._stop_at = stop_at

    def started(self, start: object) -> None: ...
    def stepped(self, report: Any) -> None:
        if report.step == self._stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    def scored(self, score: object) -> None: ...
    def warned(self, message: str) -> None:
        self.messages.append(message)

    def went_back(self, step: int) -> None: ...
    def finished(self, result: object) -> None: ...


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> CorpusFiles:
    sides = [(path,) for path in corpus_files]
    return CorpusFiles(
        source=sides[0], target=sides[1], dev_source=sides[0], dev_target=sides[1]
    )


@pytest.fixture(scope="module")
def finished(files: CorpusFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished run of ten updates."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(files, tiny(), out, CPU)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def equal(one: Path, other: Path) -> bool:
    ours, theirs = load_model(one).weights, load_model(other).weights
    return all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def kinds(run: Path) -> list[str]:
    return [entry["kind"] for entry in RunFolder(run).log.read()]


def test_a_finished_run_trained_longer_equals_a_longer_one(files, run, tmp_path):
    train(files, tiny(steps=20), tmp_path / "longer", CPU)
    resume(run, CPU, steps=20)
    assert settings_of(run) == settings_of(tmp_path / "longer")
    for name in ("averaged", "checkpoints/step-00000020"):
        assert equal(run / name, tmp_path / "longer" / name)
    assert kinds(run).count("final") == 1
    assert kinds(run).count("earlier final") == 1


def test_a_stopped_run_may_end_where_it_is(files, tmp_path):
    with pytest.raises(TrainingStoppedError):
        train(files, tiny(), tmp_path / "run", CPU, Warnings(stop_at=7))
    result = transduce.resume(tmp_path / "run", steps=7, device="cpu")
    assert load_model(result.model).step == 7
    steps = [path.name for path in RunFolder(tmp_path / "run").checkpoints()]
    assert steps == ["step-00000005", "step-00000007"]
    scored = [entry["step"] for entry in RunFolder(tmp_path / "run").log.entries("dev")]
    assert scored == [5, 7]


def test_a_delayed_process_does_not_stop_the_others_from_training_longer(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Barrier(2)

    class Threads(ProcessGroup):
        """Process group of two threads."""

        def barrier(self) -> None:
            together.wait(timeout=PATIENCE_S)

        def all_reduce_min(self, value: float, device: torch.device) -> float:
            return value  # both have the same checkpoint

    def trainer(_: object, __: object, config: TrainingConfig, *___: object) -> None:
        raise TrainingStoppedError(f"Stopped before {config.steps} updates.")

    def resumed(rank: int) -> None:
        sleep(0.3 * rank)  # the second reads the record late
        with pytest.raises(TrainingStoppedError, match="before 15 updates"):
            resume(run, CPU, processes=Threads(rank=rank, world_size=2), steps=15)

    monkeypatch.setattr("transduce.experiments.run_training.Trainer", trainer)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(resumed, range(2)))


def test_another_number_of_updates_is_warned_of(run, tmp_path, capsys) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[training]\nsteps = 11\n")
    main(["train", "--out", str(run), "--resume", "--config", str(settings)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "updates of the run (`training.steps`) changes from 10 to 11." in printed


def test_the_average_of_the_end_before_is_kept_but_no_longer_the_model(
    run: Path,
) -> None:
    tuned = SearchConfig(beam_size=7)
    change_search(run / "averaged", lambda _: tuned)
    stopped = Warnings(stop_at=17)
    with pytest.raises(TrainingStoppedError):
        resume(run, CPU, stopped, steps=20)
    assert load_model(run / "averaged-00000010").step == 10
    assert find_model(run) == run / "best"
    resume(run, CPU, Warnings())
    assert find_model(run) == run / "averaged"
    found = load_model(run / "averaged")
    assert (found.step, found.search) == (20, tuned)


def test_the_search_of_the_last_model_is_kept_not_that_of_an_earlier_end(
    run: Path,
) -> None:
    resume(run, CPU, Warnings(), steps=20)
    shutil.rmtree(run / "averaged")  # as if the best checkpoint were the model
    tuned = SearchConfig(beam_size=7)
    change_search(run / "best", lambda _: tuned)
    resume(run, CPU, Warnings())
    assert load_model(run / "averaged").search == tuned


def test_a_damaged_shortlist_does_not_lose_the_tuned_search(run: Path) -> None:
    tuned = SearchConfig(beam_size=7)
    change_search(run / "averaged", lambda _: tuned)
    (run / "averaged" / SHORTLIST_FILE).write_bytes(b"damaged")
    with pytest.warns(TransduceWarning, match="does without it"):
        resume(run, CPU, Warnings())
    found = load_model(run / "averaged")
    assert (found.search, found.shortlist) == (tuned, None)


def test_another_number_of_updates_has_the_type_of_a_number(run: Path) -> None:
    before = (run / "config.json").read_bytes()
    message = r"`training.steps` must be a whole number, but is 30\.0"
    with pytest.raises(ConfigError, match=message):
        transduce.resume(run, steps=30.0)  # type: ignore[arg-type]
    assert (run / "config.json").read_bytes() == before
    transduce.resume(run, steps=np.int64(15))  # type: ignore[arg-type]
    assert settings_of(run).training.steps == 15


def test_all_scores_at_the_end_are_renamed_when_a_run_is_trained_longer(run) -> None:
    folder = RunFolder(run)
    for kind in ("final dev set", "start model"):
        folder.log.append(kind, step=10)
    folder.lengthen(10, tiny(), tiny(steps=12))
    assert not {"final", "final dev set", "start model"} & set(kinds(run))
    for kind in ("final", "final dev set", "start model"):
        assert kinds(run).count(f"earlier {kind}") == 1


def test_scores_at_the_end_that_a_crash_cut_short_are_not_logged_twice(run) -> None:
    folder = RunFolder(run)
    [final] = folder.log.entries("final")
    folder.log.append("start model", step=0)  # by an older version, before a crash
    folder.log.append_results([{"kind": "start model", "step": 0}, final])
    assert kinds(run)[-2:] == ["start model", "final"]
    assert kinds(run).count("start model") == kinds(run).count("final") == 1


def test_fewer_updates_than_made_are_refused(run):
    before = (run / "config.json").read_text(), kinds(run)
    with pytest.raises(ConfigError, match=r"at least 10, the number of .* but is 9;"):
        resume(run, CPU, steps=9)
    assert ((run / "config.json").read_text(), kinds(run)) == before


def test_a_run_ended_by_its_patience_is_trained_longer(files, tmp_path):
    # Its rate is so low that no checkpoint is a gain after the first.
    config = tiny(steps=50, patience=2, learning_rate_scale=1e-9)
    train(files, config, tmp_path / "run", CPU)
    last = RunFolder(tmp_path / "run").checkpoints()[-1]
    assert last.name == "step-00000015"
    resume(tmp_path / "run", CPU, steps=60)
    last = RunFolder(tmp_path / "run").checkpoints()[-1]
    assert last.name == "step-00000025"  # two more without a gain


def test_a_rise_of_the_learning_rate_is_warned_of(files, tmp_path):
    train(files, tiny(cooldown_share=0.5), tmp_path / "run", CPU)
    warnings = Warnings()
    resume(tmp_path / "run", CPU, warnings, steps=20)
    [message] = [each for each in warnings.messages if "learning rate" in each]
    assert message.startswith("The learning rate rises from 0.0")
    assert "at step 11, as the cooldown" in message


def test_a_setting_that_fewer_updates_leave_without_effect_is_warned_of(run) -> None:
    halving = {"schedule": "halving", "learning_rate": 0.1, "decay_steps": 1}
    config = tiny(steps=20, decay_from=15, **halving)
    warnings = lengthen(RunFolder(run), config, 12)
    assert "`training.decay_from` is 15, which has no effect on" in warnings[-1]


@pytest.mark.parametrize(
    "planned",
    [
        {"warmup_steps": 10},  # the rate of step 2 is twice that of step 1
        {
            "schedule": "constant",
            "learning_rate": 1e-3,
            "sgd_from_step": 2,
            "sgd_learning_rate": 0.5,
        },
    ],
)
def test_a_planned_rise_of_the_learning_rate_is_not_warned_of(files, tmp_path, planned):
    with pytest.raises(TrainingStoppedError):
        train(files, tiny(**planned), tmp_path / "run", CPU, Warnings(stop_at=1))
    warnings = Warnings()
    resume(tmp_path / "run", CPU, warnings, steps=12)
    assert not [each for each in warnings.messages if "learning rate" in each]


def test_updates_added_to_those_by_reward_are_by_reward(files, tmp_path):
    config = tiny(reward="gleu", reward_steps=3, reward_samples=2)
    train(files, config, tmp_path / "run", CPU)
    resume(tmp_path / "run", CPU, steps=12)
    training = settings_of(tmp_path / "run").training
    assert (training.steps, training.reward_steps) == (12, 5)


def test_updates_by_reward_must_come_after_those_made(files, tmp_path):
    config = tiny(steps=20, reward="gleu", reward_steps=5, reward_samples=2)
    with pytest.raises(TrainingStoppedError):
        train(files, config, tmp_path / "run", CPU, Warnings(stop_at=8))
    with pytest.raises(ConfigError, match=r"5 updates by reward .* take 13 at least"):
        resume(tmp_path / "run", CPU, steps=10)


def test_a_plateau_that_has_ended_a_run_is_reported(files, tmp_path):
    config = tiny(
        schedule="plateau", learning_rate=1e-3, min_learning_rate=9e-4, steps=50
    )
    train(files, config, tmp_path / "run", CPU)
    state = tmp_path / "run/checkpoints"
    [newest] = sorted(state.glob("step-*"))[-1:]
    progress = json.loads((newest / "training.json").read_text())
    progress["plateau_factor"] = 0.1
    (newest / "training.json").write_text(json.dumps(progress))
    with pytest.raises(ConfigError, match="the schedule plateau has ended the run"):
        resume(tmp_path / "run", CPU, steps=60)


def test_the_command_trains_longer(run: Path, capsys: Callable[..., Any]) -> None:
    main(["train", "--out", str(run), "--resume", "--set", "training.steps=15"])
    assert "Continuing after step 10." in capsys.readouterr().out
    assert load_model(run / "checkpoints/step-00000015").step == 15
    assert settings_of(run).training.steps == 15
