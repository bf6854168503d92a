"""Runs of Table 3 as processes, here small programs that train nothing."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from transduce import machine
from transduce.cli.experiments import require_all_done
from transduce.data.corpus_files import CorpusFiles
from transduce.errors import ConfigError, DataError
from transduce.experiments.experiment import (
    ExperimentProgress,
    PresetRun,
    ReproductionStoppedError,
    Run,
    RunsFailedError,
    Workers,
    make_slots,
    read_references,
    run_all,
    translated_lines,
)
from transduce.experiments.table3 import RowRun, Table3Experiment, row_runs, scaled_base

DOES = "from pathlib import Path; import os, sys, time; out = Path(sys.argv[1]); "
DOES += "out.parent.mkdir(exist_ok=True); "
WRITES = f"{DOES} out.write_text(os.environ.get('PLACE', ''))"
FAILS = f"{DOES} print('Epoch 1'); sys.exit('transduce: It must be even, but is odd.')"
IS_KILLED = f"{DOES} os.kill(os.getpid(), 9)"
DOES_NOTHING = DOES
WAITS = f"{DOES} out.with_suffix('.begun').touch(); time.sleep(600)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs(Table3Experiment):
    """Runs whose training and translation is a small program."""

    of_row: dict[str, str]

    def next_command(self, run: Run) -> list[str] | None:
        assert isinstance(run, RowRun)
        if run.is_done:
            return None
        return [sys.executable, "-c", self.of_row[run.row], str(run.translations)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.experiments.experiment.POLL_SECONDS", 0.01)


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., Programs]:
    def make(**of_row: str) -> Programs:
        (tmp_path / "corpus").mkdir()
        text = tmp_path / "corpus" / "text"
        text.write_text("a dog\n")
        experiment = Programs(
            folder=tmp_path,
            files=CorpusFiles(source=(text,), target=(text,)),
            base=scaled_base(0.125, 50),
            of_row=of_row,
        )
        experiment.begin()
        return experiment

    return make


def prepared(experiment: Table3Experiment) -> None:
    """Write the files of a run that has prepared the corpus."""
    (experiment.folder / "runs" / "other").mkdir()
    (experiment.folder / "runs" / "other" / "config.json").touch()


def carried_out(
    experiment: Table3Experiment,
    runs: Sequence[RowRun],
    at: Sequence[dict[str, str]] = ({},),
) -> tuple[dict[str, str], list[ExperimentProgress]]:
    told: list[ExperimentProgress] = []
    failures = run_all(runs, Workers(experiment, at), told.append)
    return failures, told


def test_unfinished_runs_are_continued_and_finished_ones_are_not(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=FAILS, big=WRITES)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    runs[0].path.mkdir()
    runs[0].translations.write_text("mine")
    failures, told = carried_out(experiment, runs)
    assert failures == {}
    assert runs[0].translations.read_text() == "mine"
    assert runs[1].is_done
    assert told[-1] == ExperimentProgress(num_ended=2, steps=50 + 150, working=())


def test_finished_runs_count_from_the_start_wherever_they_are_in_the_order(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=WRITES, big=FAILS)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    runs[1].path.mkdir()
    runs[1].translations.write_text("mine")
    _, told = carried_out(experiment, runs)
    assert (told[0].num_ended, told[-1].num_ended) == (1, 2)
    assert all(runs[1].name not in each for one in told for each in one.working)


def test_runs_that_are_all_done_are_reported(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=FAILS)
    runs = row_runs(experiment.folder, experiment.base, ["base"], [1])
    runs[0].path.mkdir()
    runs[0].translations.write_text("mine")
    assert carried_out(experiment, runs) == (
        {},
        [ExperimentProgress(num_ended=1, steps=50, working=())],
    )


def test_a_failed_run_does_not_stop_the_others(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=FAILS, big=WRITES)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1, 2])
    failures, told = carried_out(experiment, runs)
    assert failures == dict.fromkeys(
        ("base-seed1", "base-seed2"), "It must be even, but is odd."
    )
    assert [run.is_done for run in runs] == [False, True, False, True]
    assert told[-1].num_ended == 4


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (IS_KILLED, "It was killed (SIGKILL)."),
        (DOES_NOTHING, "It ended without a result."),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_the_reason_of_a_failure_is_reported(
    programs: Callable[..., Programs], program: str, why: str
) -> None:
    experiment = programs(base=program)
    failures, _ = carried_out(
        experiment, row_runs(experiment.folder, experiment.base, ["base"], [1])
    )
    assert failures == {"base-seed1": why}


def test_each_slot_has_a_process(programs: Callable[..., Programs]) -> None:
    meets = (
        f"{DOES} begun = out.with_suffix('.begun'); begun.touch()\n"
        "while len(list(out.parent.parent.glob('*/*.begun'))) < 2: time.sleep(0.01)\n"
        "out.write_text(os.environ['PLACE'])"
    )
    experiment = programs(base=meets, big=meets)
    prepared(experiment)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    failures, _ = carried_out(experiment, runs, [{"PLACE": "a"}, {"PLACE": "b"}])
    assert failures == {}
    assert {run.translations.read_text() for run in runs} == {"a", "b"}


def test_the_first_run_prepares_the_corpus_before_others_start(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=WAITS, big=WAITS)
    workers = Workers(experiment, [{}, {}])
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    assert workers.can_start
    workers.start(runs[0])
    assert not workers.can_start
    prepared(experiment)
    assert workers.can_start
    workers.start(runs[1])
    assert not workers.can_start
    workers.stop()


def test_stopping_ends_every_process(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=WAITS, big=WRITES)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    workers = Workers(experiment, [{}])

    def stop(progress: ExperimentProgress) -> None:
        if list(experiment.folder.glob("runs/*/*.begun")):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ReproductionStoppedError, match="stopped, and is saved; the sa"):
        run_all(runs, workers, stop)
    assert [worker.process.poll() for worker in workers.running] == [-signal.SIGTERM]
    assert not runs[1].is_done


def test_a_run_that_diverged_twice_is_not_tried_again(
    programs: Callable[..., Programs],
) -> None:
    experiment = programs(base=WRITES, big=WRITES)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    runs[0].path.mkdir()
    (runs[0].path / "log.jsonl").write_text('{"kind": "diverged", "step": 7}\n')
    failures, told = carried_out(experiment, runs)
    assert failures == {
        "base-seed1": "The loss diverged twice, the second time at a reduced learning "
        "rate, so the run is not tried again; lower `training.learning_rate_scale` in "
        f"another folder, or remove {runs[0].path} to train it anew."
    }
    assert told[-1].num_ended == 2
    assert [run.is_done for run in runs] == [False, True]
    for others, again in (
        ({}, "to train it anew."),
        (
            {"big-seed1": "It was killed."},
            "The same command tries those again that did not diverge twice.",
        ),
    ):
        with pytest.raises(RunsFailedError) as refusal:
            require_all_done(runs, {**failures, **others})
        assert str(refusal.value).endswith(again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainings(Programs):
    """Runs that are trained by small programs, and do not translate."""

    def next_command(self, run: Run) -> list[str] | None:
        assert isinstance(run, RowRun)
        if run.is_trained:
            return None
        log = str(run.path / "log.jsonl")
        return [sys.executable, "-c", self.of_row[run.row], log]


TRAINS = f"""{DOES} out.write_text('{{"kind": "final", "step": 50}}\\n')"""
DAMAGES = f"{DOES} out.write_text('damaged\\n')"


def test_a_damaged_log_does_not_stop_the_other_runs(
    programs: Callable[..., Programs],
) -> None:
    made = programs(**{"base": TRAINS, "A-h1": DAMAGES, "big": TRAINS})
    experiment = Trainings(
        folder=made.folder, files=made.files, base=made.base, of_row=made.of_row
    )
    runs = row_runs(experiment.folder, experiment.base, ["base", "A-h1", "big"], [1])
    runs[0].path.mkdir()
    log = runs[0].path / "log.jsonl"
    log.write_text('{"kind": "step", "step": 10}\n\0\0\n')
    failures, told = carried_out(experiment, runs)
    assert {name: why.partition(";")[0] for name, why in failures.items()} == {
        "base-seed1": f"{log}:2: this line of the run's log is damaged",
        "A-h1-seed1": f"{runs[1].path}/log.jsonl:1: this line of the run's log is "
        "damaged",
    }
    assert runs[2].is_trained
    assert (told[-1].num_ended, told[-1].steps) == (3, 10 + 0 + 50)
    with pytest.raises(RunsFailedError, match=r"The same command tries them again\.$"):
        require_all_done(runs, failures)


def test_the_steps_of_a_run_without_translations_are_read_from_a_damaged_log(
    tmp_path: Path,
) -> None:
    run = PresetRun(
        row="base", preset="base", seed=1, config=scaled_base(), folder=tmp_path
    )
    run.path.mkdir(parents=True)
    (run.path / "log.jsonl").write_text('damaged\n{"kind": "step", "step": 10}\n')
    assert run.steps_made == 10


def test_progress_is_read_from_the_logs(programs: Callable[..., Programs]) -> None:
    experiment = programs(base=WAITS, big=WRITES)
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [1])
    for run, whole in zip(runs, (20, 130), strict=True):
        run.path.mkdir()
        entries = [{"kind": "step", "step": n} for n in range(0, whole + 1, 10)]
        text = "".join(f"{json.dumps(entry)}\n" for entry in entries)
        # As the machine lost its power, the last lines were damaged, or cut short.
        damage = "" if run is runs[0] else "\0\0\n[]\n"
        (run.path / "log.jsonl").write_text(f"{text}{damage}{{'kind")
    told: list[ExperimentProgress] = []

    def stop(progress: ExperimentProgress) -> None:
        told.append(progress)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ReproductionStoppedError):
        run_all(runs, Workers(experiment, [{}]), stop)
    assert told == [
        ExperimentProgress(num_ended=0, steps=150, working=("base-seed1 20/50",))
    ]


def test_the_processor_has_one_slot_by_default() -> None:
    assert make_slots("cpu", None) == [{}]
    assert make_slots("cpu", 1) == [{}]


def test_the_slots_share_the_processors_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.setattr(machine, "num_physical_cores", lambda: None)
    for name in machine.READ_BY_PYTORCH:
        monkeypatch.delenv(name, raising=False)
    two, one = (
        {"MKL_NUM_THREADS": each, "OMP_NUM_THREADS": each} for each in ("2", "1")
    )
    assert make_slots("cpu", 3) == [two] * 3
    assert make_slots("cpu", 20) == [one] * 20


def test_slots_keep_the_users_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert make_slots("cpu", 2) == [{}, {}]


@pytest.mark.parametrize(
    ("visible", "parallel", "numbers"),
    [
        (None, None, ["0", "1"]),
        (None, 3, ["0", "1", "0"]),
        (None, 1, ["0"]),
        ("5,3", None, ["5", "3"]),
    ],
)
def test_each_gpu_has_one_slot_by_default(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    parallel: int | None,
    numbers: list[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert make_slots("auto", parallel) == [
        {"CUDA_VISIBLE_DEVICES": n} for n in numbers
    ]


def test_zero_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="`parallel` must be at least 1, but is 0"):
        make_slots("cpu", 0)


@pytest.mark.parametrize("shorter", ["source", "references"])
def test_sources_and_references_of_unequal_numbers_are_named(
    tmp_path: Path, shorter: str
) -> None:
    source, references = tmp_path / "source", tmp_path / "references"
    for path in (source, references):
        path.write_text("one\ntwo\n")
    assert read_references(source, references) == ["one", "two"]
    (tmp_path / shorter).write_text("one\n")
    message = f"^{tmp_path / shorter}:2: source and references must have equally many"
    with pytest.raises(DataError, match=message):
        read_references(source, references)


@pytest.mark.parametrize("content", ["", "one\n", "one\ntwo\nthr"])
def test_translations_of_another_number_of_lines_are_named(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "translations.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=f"^{path}: .*; remove the file, and the same"):
        translated_lines(path, 2)
    path.write_text("one\n\n")
    assert translated_lines(path, 2) == ["one", ""]
