"""Runs of models with mixtures of experts, by the commands alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from transduce.architectures.config import architecture_of
from transduce.checkpoint import load_model
from transduce.experiments.presets import PRESETS

SETTINGS = {
    "moe-multi30k": (
        "tokenizer.vocab_size=360",
        "model.d_model=16",
        "model.cells=24",
        "model.experts.num_experts=4",
        "model.experts.d_ff=8",
    ),
    "moe-ffn-multi30k": (
        "tokenizer.vocab_size=360",
        "model.num_layers=1",
        "model.d_model=16",
        "model.num_heads=2",
        "model.d_k=8",
        "model.d_v=8",
        "model.experts.num_experts=4",
        "model.experts.d_ff=8",
    ),
}
COMMON = (
    "batching.source_tokens=150",
    "batching.target_tokens=150",
    "batching.batch_tokens=80",
    "training.steps=4",
    "training.warmup_steps=2",
    "training.checkpoint_steps=2",
    "training.keep_checkpoints=2",
)


def arguments(preset: str, corpus_files: tuple[Path, Path], out: Path) -> list[str]:
    source, target = map(str, corpus_files)
    return [
        *("train", "--preset", preset, "--source", source, "--target", target),
        *("--precision", "fp32", "--device", "cpu", "--out", str(out)),
        *("--set", *SETTINGS[preset], *COMMON),
    ]


@pytest.mark.parametrize("preset", SETTINGS)
def test_a_run_trains_resumes_averages_and_translates(
    succeeds, preset, corpus_files, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = arguments(preset, corpus_files, run)
    succeeds(*line)
    once = load_model(run).weights
    for folder in ("averaged", "checkpoints/step-00000004"):
        shutil.rmtree(run / folder)
    succeeds("train", "--out", run, "--resume", "--device", "cpu")
    again = load_model(run).weights
    assert all(torch.equal(again[name], weight) for name, weight in once.items())
    content = json.loads((run / "averaged" / "config.json").read_text())
    assert content["architecture"] == architecture_of(PRESETS[preset].model)
    assert content["model"]["experts"]["num_experts"] == 4
    found = succeeds("translate", run, "--device", "cpu", stdin=b"one two\n")
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize("preset", SETTINGS)
def test_wrong_experts_are_refused_by_train(
    refuses, preset, corpus_files, tmp_path: Path
) -> None:
    line = arguments(preset, corpus_files, tmp_path / "run")
    message = refuses(*line, "model.experts.top_k=9")
    assert "`model.experts.top_k` must be at most 4" in message
    message = refuses(*line, "model.experts.number=9")
    assert "there is no setting `model.experts.number`" in message


@pytest.mark.slow
@pytest.mark.parametrize("preset", SETTINGS)
def test_two_processes_train_the_same_model_as_one(
    succeeds, preset, corpus_files, tmp_path, monkeypatch
) -> None:
    # Updates have several batches, so that none is divided: gates of a batch and
    # noise, drawn for each batch, are then the same in any number of processes.
    settings = (
        *("model.dropout=0.1", "training.optimizer=adam", "training.epsilon=0.0001"),
    )
    succeeds(*arguments(preset, corpus_files, tmp_path / "1"), *settings)
    line = arguments(preset, corpus_files, tmp_path / "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    succeeds(*line, *settings, "--devices", "2")
    alone, both = (dict(load_model(tmp_path / each).weights) for each in "12")
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=1e-4)


def test_a_model_that_does_not_fit_in_memory_is_refused(
    refuses, corpus_files, tmp_path: Path
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target, "--out", tmp_path / "run")
    few = ("--device", "cpu", "--set", "tokenizer.vocab_size=360")
    message = refuses(
        *("train", "--preset", "moe-en-de", *files, *few),
        "model.experts.num_experts=65536",
    )
    assert "make `model.d_model`, `model.cells`, `model.encoder_layers` or " in message
    assert message.endswith("`model.experts.num_experts` smaller.")
