"""Runs on a mixture of corpora: resumed, and in two processes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.cli import main

pytestmark = pytest.mark.usefixtures("quick_runs", "no_trials")

STAGES = "stages=[{steps=6, weights={a=3, b=1}}, {weights={a=1, b=1}}]"
SETTINGS = (
    "training.steps=14",
    "training.checkpoint_steps=2",
    "training.keep_checkpoints=8",
    "batching.source_tokens=200",
    "batching.target_tokens=200",
    "batching.batch_tokens=60",
    "model.dropout=0.3",
    # Where a gradient is only rounding error, Adam divides by its epsilon.
    "training.epsilon=0.0001",
    "training.learning_rate_scale=0.1",
)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpora")
    options = []
    for name, number in (("a", 50), ("b", 20)):
        for side in ("en", "de"):
            lines = [f"{name} {i} {side} " + "x y " * (i % 4) for i in range(number)]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text)
        options += ["--corpus", name, f"{folder}/{name}.en", f"{folder}/{name}.de"]
    fixed = ("--preset", "tiny", "--no-dev", "--device", "cpu", "--precision", "fp32")
    return ["train", *options, "tag=bt", *fixed, "--set", STAGES, *SETTINGS]


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    main([*arguments, "--out", str(run)])
    return run


def log_of(run: Path) -> list[dict[str, Any]]:
    """Lines of the log without what depends on time."""
    entries = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    kinds = ("seconds", "waited", "computing")
    return [
        {name: value for name, value in entry.items() if name not in kinds}
        for entry in entries
        if entry["kind"] != "start"
    ]


@pytest.mark.parametrize("step", [4, 6, 8])
def test_a_run_resumed_within_or_between_stages_is_the_same(
    whole: Path, tmp_path: Path, step: int
):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "averaged")
    for later in (run / "checkpoints").iterdir():
        if later.name > f"step-{step:08}":
            shutil.rmtree(later)
    main(["train", "--out", str(run), "--resume", "--device", "cpu"])
    expected, found = load_model(whole).weights, load_model(run).weights
    for name, weight in expected.items():
        assert torch.equal(found[name], weight)
    assert log_of(run) == log_of(whole)
    [first, last] = [entry for entry in log_of(run) if entry["kind"] == "step"]
    assert (first["stage"], last["stage"]) == (2, 2)
    assert last["shares"]["a"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_two_processes_train_the_same_mixture_as_one(
    arguments: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit, match="^0$"):
        main([*arguments, "--devices", "2", "--out", str(run)])
    alone, both = (dict(load_model(each).weights) for each in (whole, run))
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=1e-4)
    shares = [
        [entry["shares"] for entry in log_of(each) if entry["kind"] == "step"]
        for each in (whole, run)
    ]
    assert shares[0] == shares[1]
