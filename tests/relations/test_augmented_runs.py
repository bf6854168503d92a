"""Runs with changed pairs resume bit for bit, and do not depend on processes."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.experiments.pipeline import RunStart, resume, train
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import RunFolder
from transduce.text.pair_changes import TextAugmentationConfig
from transduce.training.trainer import StepReport, TrainingStoppedError

pytestmark = pytest.mark.usefixtures("quick_runs")

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)
TINY = PRESETS["tiny"]
# Four updates an epoch, so that most steps are in the middle of one.
CONFIG = replace(
    TINY,
    batching=BatchingConfig(source_tokens=50, target_tokens=50, batch_tokens=30),
    training=replace(TINY.training, steps=10, checkpoint_steps=5, keep_checkpoints=2),
    augmentation=TextAugmentationConfig(
        upper=0.2, typos=0.3, joined=0.2, subword_dropout=0.2
    ),
)


class Stops:
    """Observer that raises a signal after a step, and keeps the losses."""

    def __init__(self, at_step: int | None = None) -> None:
        self._at_step = at_step
        self.losses: list[float] = []

    scored = warned = went_back = finished = lambda *_: None

    def started(self, start: RunStart) -> None: ...

    def stepped(self, report: StepReport) -> None:
        self.losses.append(report.loss)
        if report.step == self._at_step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def files(corpus_files: tuple[Path, Path]) -> CorpusFiles:
    source, target = ((path,) for path in corpus_files)
    return CorpusFiles(source=source, target=target)


def test_an_augmented_run_resumed_in_an_epoch_equals_an_uninterrupted_one(
    files: CorpusFiles, tmp_path: Path
) -> None:
    whole, first, rest = Stops(), Stops(at_step=6), Stops()
    train(files, CONFIG, tmp_path / "whole", CPU, whole)
    with pytest.raises(TrainingStoppedError):
        train(files, CONFIG, tmp_path / "stopped", CPU, first)
    resume(tmp_path / "stopped", CPU, rest)
    assert first.losses + rest.losses == whole.losses
    expected, found = (
        load_model(tmp_path / name).weights for name in ("whole", "stopped")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    starts = RunFolder(tmp_path / "stopped").log.entries("start")
    assert [each["augmentation"] for each in starts] == [CONFIG.augmentation.used] * 2


@pytest.mark.slow
def test_two_processes_train_an_augmented_model_like_one(
    corpus_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(str, corpus_files)
    settings = (
        *("model.dropout=0.3", "batching.source_tokens=200", "training.steps=6"),
        *("batching.target_tokens=200", "batching.batch_tokens=60"),
        *("training.checkpoint_steps=6", "training.epsilon=0.0001"),
        *("augmentation.lower=0.3", "augmentation.typos=0.3"),
        "augmentation.subword_dropout=0.2",
    )
    command = (
        *("train", "--preset", "tiny", "--source", source, "--target", target),
        *("--device", "cpu", "--precision", "fp32", "--no-dev", "--set", *settings),
    )
    main([*command, "--out", str(tmp_path / "one")])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit, match="^0$"):
        main([*command, "--out", str(tmp_path / "two"), "--devices", "2"])
    one, two = (load_model(tmp_path / name).weights for name in ("one", "two"))
    torch.testing.assert_close(dict(two), dict(one), atol=1e-5, rtol=1e-4)
