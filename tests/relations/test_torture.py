"""Runs that are killed many times, also during saves, lose nothing."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.checkpoint import load_model
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.experiments.pipeline import resume, train
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("quick_runs", "no_trials")

KILLS = 30
KILLS_OF_A_RUN = 15
"""Kills that a run survives on average."""
CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)
TINY = PRESETS["tiny"]
# Checkpoints are so frequent that saving takes about half of the time.
CONFIG = replace(
    TINY,
    model=replace(TINY.model, dropout=0.2),
    batching=replace(
        TINY.batching, source_tokens=80, target_tokens=80, batch_tokens=40
    ),
    training=replace(TINY.training, steps=150, checkpoint_steps=2, keep_checkpoints=3),
)


def go_on(files: CorpusFiles, out: Path) -> None:
    """Start the run, or resume it, as a user would."""
    if (out / "config.json").exists():
        resume(out, CPU)
    else:
        train(files, CONFIG, out, CPU)


def is_done_within(files: CorpusFiles, out: Path, seconds: float) -> bool:
    """Whether the run ends by itself in time; otherwise it is killed."""
    child = os.fork()
    if child == 0:
        code = 1
        # A forked process does not have the threads of OpenMP.
        torch.set_num_threads(1)
        try:
            go_on(files, out)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def logged(run: Path) -> list[tuple[str, int]]:
    entries = RunFolder(run).log.read()
    return [(e["kind"], e["step"]) for e in entries if e["kind"] != "start"]


def names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_runs_killed_thirty_times_end_at_the_same_weights(
    corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = ((path,) for path in corpus_files)
    files = CorpusFiles(source=source, target=target)
    # At first each run is alone in its folder, so that the corpus is not shared.
    whole, killed = tmp_path / "one" / "whole", tmp_path / "other" / "killed"
    started = time.monotonic()
    assert is_done_within(files, whole, 600.0)
    duration = time.monotonic() - started
    random = np.random.default_rng()
    num_kills = 0
    while num_kills < KILLS:
        # Long enough to reach a checkpoint sometimes, too short to get far.
        seconds = random.uniform(0, 2 * duration / KILLS_OF_A_RUN)
        if is_done_within(files, killed, seconds):
            # The run ended early: the remaining kills hit a new run.
            killed.rename(killed.with_name(f"done-{num_kills}"))
            continue
        num_kills += 1
    assert is_done_within(files, killed, 100 * duration)
    for run in killed.parent.iterdir():
        assert run == killed or run.name.startswith("done-")
        found, wanted = load_model(run), load_model(whole)
        assert found.step == wanted.step == CONFIG.training.steps
        assert [
            name
            for name, weight in wanted.weights.items()
            if not torch.equal(weight, found.weights[name])
        ] == []
        assert logged(run) == logged(whole)
        assert names(run) == names(whole)
