"""Runs of recurrent models, by the commands alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import load_model

SMALLER = {
    "gnmt-multi30k": (
        "model.encoder_layers=2",
        "model.decoder_layers=2",
        "model.residual_from=none",
    ),
    "rnnsearch-multi30k": ("model.embedding_width=16", "model.readout_width=16"),
}
COMMON = (
    "tokenizer.vocab_size=360",
    "model.d_model=16",
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
        *("--device", "cpu", "--out", str(out), "--set", *SMALLER[preset], *COMMON),
    ]


@pytest.mark.parametrize("preset", SMALLER)
def test_a_run_trains_resumes_averages_and_translates(
    succeeds, preset, corpus_files, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeeds(*arguments(preset, corpus_files, run), "--precision", "fp32")
    once = load_model(run).weights
    first, second = sorted((run / "checkpoints").iterdir())
    for name, weight in once.items():
        both = [load_model(each).weights[name] for each in (first, second)]
        torch.testing.assert_close(weight, sum(both) / 2)
    for folder in (run / "averaged", second):
        shutil.rmtree(folder)
    succeeds("train", "--out", run, "--resume", "--device", "cpu")
    again = load_model(run).weights
    assert all(torch.equal(again[name], weight) for name, weight in once.items())
    content = json.loads((run / "averaged" / "config.json").read_text())
    assert content["architecture"] == "recurrent"
    assert content["model"]["d_model"] == 16
    options = ("--coverage-penalty", "0.2", "--beam-size", "3")
    found = succeeds("translate", run, "--device", "cpu", *options, stdin=b"one two\n")
    assert len(found.splitlines()) == 1


def test_a_run_trains_in_bf16(succeeds, corpus_files, tmp_path: Path) -> None:
    line = arguments("gnmt-multi30k", corpus_files, tmp_path / "run")
    succeeds(*line, "training.clip_norm=5.0", "--precision", "bf16")
    weights = load_model(tmp_path / "run").weights
    assert all(weight.isfinite().all() for weight in weights.values())
    found = succeeds(
        "translate", tmp_path / "run", "--precision", "bf16", stdin=b"one two\n"
    )
    assert len(found.splitlines()) == 1


def test_wrong_settings_of_a_recurrent_model_are_refused(
    refuses, corpus_files, tmp_path: Path
) -> None:
    line = arguments("gnmt-multi30k", corpus_files, tmp_path / "run")
    assert "`model.residual_from` must be at least 3" in refuses(
        *line, "model.residual_from=2"
    )
    assert "there is no setting `model.num_heads`" in refuses(
        *line, "model.num_heads=2"
    )
    assert not (tmp_path / "run").exists()


def test_the_settings_of_a_recurrent_preset_are_listed(succeeds) -> None:
    listed = succeeds("settings", "gnmt-multi30k")
    assert "* model.attention_query=current" in listed
    assert "model.num_heads" not in listed
