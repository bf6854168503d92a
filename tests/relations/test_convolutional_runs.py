"""Runs of ConvS2S and ByteNet end in models that translate, and can be resumed."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transduce.architectures.config import ByteNetConfig, ConvolutionalConfig
from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.errors import ConfigError
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import RunResult, RunStart, resume, train
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.search_config import SearchConfig
from transduce.settings import apply_assignments
from transduce.text.vocabulary import TokenizerConfig
from transduce.training.config import TrainingConfig
from transduce.training.trainer import StepReport, TrainingStoppedError

pytestmark = pytest.mark.usefixtures("quick_runs")

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)
# An untrained model does not end its translations.
SEARCH = SearchConfig(beam_size=2, max_length=6)
TRAINING = TrainingConfig(
    steps=12, warmup_steps=4, checkpoint_steps=4, keep_checkpoints=2
)
CONVS2S = replace(
    PRESETS["convs2s-multi30k"],
    tokenizer=TokenizerConfig(vocab_size=300),
    model=ConvolutionalConfig(
        encoder_blocks="2x16k3", d_embedding=16, d_output=None, shared_embedding=True
    ),
    batching=BatchingConfig(source_tokens=100, target_tokens=100, batch_tokens=60),
    training=replace(
        TRAINING,
        optimizer="nesterov",
        momentum=0.99,
        clip_norm=0.1,
        schedule="plateau",
        learning_rate=0.25,
    ),
    search=SEARCH,
)
BYTENET = replace(
    PRESETS["bytenet-multi30k"],
    tokenizer=TokenizerConfig(kind="character", vocab_size=300),
    model=ByteNetConfig(num_blocks=2, d_hidden=8, dropout=0.1),
    batching=BatchingConfig(source_tokens=100, target_tokens=100, batch_tokens=100),
    training=replace(TRAINING, schedule="constant", learning_rate=3e-4),
    search=SEARCH,
)
CONFIGS = {"convs2s": CONVS2S, "bytenet": BYTENET}


class Observer:
    """Observer that may stop the training after a step."""

    def __init__(self, last: int | None = None) -> None:
        self._last = last

    def started(self, start: RunStart) -> None: ...

    def stepped(self, report: StepReport) -> None:
        if report.step == self._last:
            os.kill(os.getpid(), signal.SIGINT)

    def scored(self, score: DevScore) -> None: ...

    def warned(self, message: str) -> None: ...

    def went_back(self, step: int) -> None: ...

    def finished(self, result: RunResult) -> None: ...


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_resumed_run_equals_an_uninterrupted_one_and_translates(
    config: RunConfig, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = ((path,) for path in corpus_files)
    # Each side is its own dev corpus.
    files = CorpusFiles(
        source=source, target=target, dev_source=source, dev_target=target
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(files, config, whole, CPU, Observer())
    with pytest.raises(TrainingStoppedError):
        train(files, config, resumed, CPU, Observer(last=6))
    resume(resumed, CPU, Observer())
    models = [load_model(run) for run in (whole, resumed)]
    for name, weight in models[0].weights.items():
        assert torch.equal(weight, models[1].weights[name]), name
    out = tmp_path / "out"
    main(["translate", str(whole), "--input", str(source[0]), "--output", str(out)])
    lines = source[0].read_text(encoding="utf-8").splitlines()
    assert len(out.read_text(encoding="utf-8").splitlines()) == len(lines)


def test_too_few_positions_are_refused(
    corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = ((path,) for path in corpus_files)
    config = replace(CONVS2S, model=replace(CONVS2S.model, max_positions=255))
    with pytest.raises(ConfigError, match="`model.max_positions` must be at least"):
        train(
            CorpusFiles(source=source, target=target),
            config,
            tmp_path / "run",
            CPU,
            Observer(),
        )


def test_blocks_are_set_by_options() -> None:
    settings = ["model.encoder_blocks=2x8k3,4k1", "model.decoder_blocks=none"]
    model = apply_assignments(CONVS2S, settings).model
    assert isinstance(model, ConvolutionalConfig)
    assert model.decoder_convolutions == ((8, 3), (8, 3), (4, 1))
    with pytest.raises(ConfigError, match="must be blocks as in .* but is '8x'"):
        apply_assignments(CONVS2S, ["model.encoder_blocks=8x"])
    with pytest.raises(ConfigError, match="`model.encoder_blocks` must be a string"):
        apply_assignments(CONVS2S, ["model.encoder_blocks=8"])
