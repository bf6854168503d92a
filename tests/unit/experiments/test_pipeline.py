import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import average, load_model
from transduce.device import Hardware
from transduce.errors import CheckpointError, ConfigError
from transduce.experiments.pipeline import (
    DevScore,
    RunResult,
    RunStart,
    refuse_changed_settings,
    resume,
    train,
)
from transduce.experiments.preparation import CorpusFiles
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import RunFolder
from transduce.training.trainer import StepReport

TINY = replace(
    PRESETS["tiny"],
    training=replace(
        PRESETS["tiny"].training, steps=12, checkpoint_steps=4, keep_checkpoints=2
    ),
)
CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


class Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.steps: list[int] = []
        self.scores: list[DevScore] = []
        self.warnings: list[str] = []

    def started(self, start: RunStart) -> None:
        self.starts.append(start)

    def stepped(self, report: StepReport) -> None:
        self.steps.append(report.step)

    def scored(self, score: DevScore) -> None:
        self.scores.append(score)

    def warned(self, message: str) -> None:
        self.warnings.append(message)


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
    return out, train(files, TINY, out, CPU, notes), notes


def test_every_step_is_told_of_once(run: tuple[Path, RunResult, Notes]) -> None:
    _, _, notes = run
    assert notes.steps == list(range(1, 13))


def test_a_new_run_says_what_became_of_its_pairs(
    run: tuple[Path, RunResult, Notes],
) -> None:
    [start] = run[2].starts
    assert start.first_step == 0
    assert start.preparation is not None
    assert start.preparation.training.kept == 40


def test_the_vocabulary_is_the_size_of_the_tokenizer(
    run: tuple[Path, RunResult, Notes],
) -> None:
    [start] = run[2].starts
    model = load_model(run[0])
    assert start.config.model.vocab_size == model.tokenizer.vocab_size
    assert model.config == start.config.model


def test_each_checkpoint_and_the_average_are_scored(
    run: tuple[Path, RunResult, Notes],
) -> None:
    _, result, notes = run
    assert [score.step for score in notes.scores] == [4, 8, 12, 12]
    assert result.dev is notes.scores[-1]


def test_only_the_last_checkpoints_are_kept(
    run: tuple[Path, RunResult, Notes],
) -> None:
    names = [path.name for path in RunFolder(run[0]).checkpoints()]
    assert names == ["step-00000008", "step-00000012"]


def test_the_model_is_the_mean_of_the_checkpoints(
    run: tuple[Path, RunResult, Notes],
) -> None:
    out, result, _ = run
    members = [load_model(path) for path in RunFolder(out).checkpoints()]
    expected, found = average(members).weights, load_model(result.model).weights
    assert result.num_averaged == 2
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_best_checkpoint_is_the_one_of_highest_bleu(
    run: tuple[Path, RunResult, Notes],
) -> None:
    out, _, notes = run
    best = max(notes.scores[:-1], key=lambda score: score.bleu.score)
    assert load_model(out / "best").step == best.step


def test_the_log_holds_steps_and_scores(run: tuple[Path, RunResult, Notes]) -> None:
    log = list(RunFolder(run[0]).read_log())
    assert [(e["kind"], e["step"]) for e in log] == [
        ("dev", 4),
        ("dev", 8),
        ("step", 10),
        ("step", 12),
        ("dev", 12),
        ("averaged", 12),
    ]


def test_the_learning_curve_is_a_picture(run: tuple[Path, RunResult, Notes]) -> None:
    assert run[1].picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_done_is_left_as_it_is_when_resumed(
    run: tuple[Path, RunResult, Notes],
) -> None:
    out, result, _ = run
    before = load_model(result.model).weights
    log = (out / "log.jsonl").read_text()
    notes = Notes()
    resume(out, CPU, notes)
    after = load_model(result.model).weights
    assert notes.steps == []
    assert notes.starts[0].first_step == 12
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (out / "log.jsonl").read_text() == log


def test_settings_that_agree_are_not_refused(
    run: tuple[Path, RunResult, Notes],
) -> None:
    refuse_changed_settings(run[0], TINY)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "dropout", 0.3),
        ("training", "steps", 13),
        ("batching", "max_length", 3),
        ("search", "beam_size", 2),
        ("tokenizer", "vocab_size", 500),
    ],
)
def test_settings_that_differ_are_refused(
    run: tuple[Path, RunResult, Notes], part: str, name: str, value: float
) -> None:
    changed = replace(TINY, **{part: replace(getattr(TINY, part), **{name: value})})
    message = rf"`{part}\.{name}` of the run to resume is .*, but {value} is asked for"
    with pytest.raises(ConfigError, match=message):
        refuse_changed_settings(run[0], changed)


def test_a_run_that_is_not_there_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a run to resume"):
        resume(tmp_path, CPU, Notes())


def test_a_model_folder_is_all_that_translating_needs(
    run: tuple[Path, RunResult, Notes],
) -> None:
    names = {path.name for path in run[1].model.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads((run[1].model / "config.json").read_text())["step"] == 12
