"""TensorBoard reads the figures that `transduce train --tensorboard` writes."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.errors import missing_package

pytestmark = pytest.mark.usefixtures("no_trials")
TINY = ("--preset", "tiny", "--set", "training.steps=8", "training.checkpoint_steps=4")


@pytest.fixture
def files(corpus_files: tuple[Path, Path]) -> list[object]:
    source, target = corpus_files
    options = ("--source", source, "--target", target)
    return [*options, "--dev-source", source, "--dev-target", target]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "tensorboard")).Reload()
    names = read.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in read.Scalars(name)] for name in names}


def test_the_figures_of_the_log_are_written(
    succeeds: Callable[..., str], files: list[object], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeeds("train", "--out", run, *files, *TINY, "--tensorboard")
    shown = scalars(run)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    by_kind = {entry["kind"]: entry for entry in log}
    assert [step for step, _ in shown["training/loss"]] == list(range(1, 9))
    assert shown["training/loss"][-1][1] == pytest.approx(by_kind["step"]["loss"])
    assert [step for step, _ in shown["dev/bleu"]] == [4, 8]
    assert shown["dev/loss"][-1][1] == pytest.approx(by_kind["dev"]["loss"])


def test_a_resumed_run_goes_on_where_its_weights_do(
    succeeds: Callable[..., str], files: list[object], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeeds("train", "--out", run, *files, *TINY, "--tensorboard")
    # As if the run had been interrupted after step 4.
    (run / "checkpoints" / "step-00000008").rename(tmp_path / "lost")
    succeeds("train", "--out", run, "--resume", "--tensorboard")
    assert [step for step, _ in scalars(run)["training/loss"]] == list(range(1, 9))


def test_steps_that_a_diverged_run_took_back_are_not_shown(
    succeeds: Callable[..., str],
    files: list[object],
    tmp_path: Path,
    added_loss: dict[int, float],
) -> None:
    added_loss[6] = math.nan
    run = tmp_path / "run"
    succeeds("train", "--out", run, *files, *TINY, "--tensorboard")
    assert not added_loss
    shown = scalars(run)
    assert [step for step, _ in shown["training/loss"]] == list(range(1, 9))


def test_a_run_without_the_option_writes_no_log(
    succeeds: Callable[..., str], files: list[object], tmp_path: Path
) -> None:
    succeeds("train", "--out", tmp_path / "run", *files, *TINY)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_missing_tensorboard_is_reported_before_training(
    refuses: Callable[..., str],
    files: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert refuses(
        "train", "--out", tmp_path / "run", *files, *TINY, "--tensorboard"
    ) == missing_package("`--tensorboard`", "tensorboard", "tensorboard")
    assert not (tmp_path / "run").exists()
