"""Reproduction of Table 3: the folder of its runs, and the processes that train them.

Each training and each translation is a process of its own. The state of a run is what
its processes have written, so an experiment can be killed and resumed at any time.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.data.corpus_files import CorpusFiles
from transduce.data.prepared_corpus import DEV, DEV_SOURCE, DEV_TARGET
from transduce.errors import CheckpointError, ConfigError, TransduceError
from transduce.experiments.presets import TABLE_3, RunConfig
from transduce.experiments.run_folder import LOG, RUN_CONFIG, RunFolder
from transduce.experiments.table3_rows import changes, row_config, settings
from transduce.files import atomic_file, file_lock, read_json
from transduce.interruption import stop_on_signal
from transduce.machine import Precision, num_cores
from transduce.search_config import SearchConfig
from transduce.settings import require_between

EXPERIMENT_FORMAT = 2
EXPERIMENT, CORPUS, RUNS, LOGS = "experiment.json", "corpus", "runs", "logs"
TRANSLATIONS = "dev_translations.txt"


@dataclass(frozen=True, kw_only=True)
class RowRun:
    """Run of one row with one seed, in a folder of its own."""

    row: str
    seed: int
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.row}-seed{self.seed}"

    @property
    def path(self) -> Path:
        return self.folder / RUNS / self.name

    @property
    def log(self) -> Path:
        """Output of the run's processes."""
        return self.folder / LOGS / f"{self.name}.log"

    @property
    def translations(self) -> Path:
        """Translations of the dev text, written when the run is done."""
        return self.path / TRANSLATIONS

    @property
    def references(self) -> Path:
        return self.path / DEV / DEV_TARGET

    @property
    def has_begun(self) -> bool:
        return (self.path / RUN_CONFIG).is_file()

    @property
    def is_trained(self) -> bool:
        return any(e["kind"] == "final" for e in RunFolder(self.path).read_log())

    @property
    def is_done(self) -> bool:
        return self.translations.is_file()

    def last_entry(self, kind: Literal["step", "dev"], *needed: str) -> dict[str, Any]:
        """Newest log entry of a kind.

        Raises `CheckpointError` if there is none, or if it lacks a needed value.
        """
        entries = RunFolder(self.path).entries(kind, *needed)
        if not entries:
            raise CheckpointError(
                f"{self.path}: the log of the run must have lines of kind {kind!r}, "
                "but has none; remove the run to train it again."
            )
        return entries[-1]

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """Assignments that turn the row's preset into the run's settings."""
        changed = changes(self.config, TABLE_3[self.row])
        return tuple(f"{name}={_in_toml(value)}" for name, value in changed.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs of Table 3's rows on one corpus, in one folder."""

    folder: Path
    files: CorpusFiles
    base: RunConfig
    device: str = "auto"
    precision: Precision = "fp32"
    """Precision of all rows; "auto" could give wide and narrow rows different ones."""

    def begin(self) -> None:
        """Record the settings; `ConfigError` if the folder has other ones."""
        record = {
            "format": EXPERIMENT_FORMAT,
            "files": self.files.absolute_names(),
            "precision": self.precision,
            "settings": settings(self.base),
        }
        path = self.folder / EXPERIMENT
        if path.is_file():
            _require_same(self.folder, read_json(path), record)
            return
        for name in (RUNS, LOGS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as new:
            new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    @property
    def is_prepared(self) -> bool:
        """Whether a run has prepared the corpus, which all others then share."""
        return any((self.folder / RUNS).glob(f"*/{RUN_CONFIG}"))

    def next_command(self, run: RowRun) -> list[str] | None:
        """Command that continues a run; None if the run is done."""
        if run.is_done:
            return None
        options = self._translation(run) if run.is_trained else self._training(run)
        return [sys.executable, "-m", "transduce", *options, "--device", self.device]

    def _training(self, run: RowRun) -> list[str]:
        out = ["train", "--out", str(run.path), "--precision", self.precision]
        if run.has_begun:
            return [*out, "--resume"]
        return [
            *out,
            *("--preset", run.row, "--set", *run.overrides),
            *_files_option("--source", self.files.source),
            *_files_option("--target", self.files.target),
            *_files_option("--dev-source", self.files.dev_source),
            *_files_option("--dev-target", self.files.dev_target),
        ]

    def _translation(self, run: RowRun) -> list[str]:
        """Options to translate the dev text by the last checkpoint, not averaged."""
        checkpoint = RunFolder(run.path).checkpoint(run.last_entry("dev")["step"])
        options = ["translate", str(checkpoint)]
        options += ["--input", str(run.path / DEV / DEV_SOURCE)]
        # Start over after an interruption, as the dev text is short.
        options += ["--output", str(run.translations), "--force"]
        for field in fields(SearchConfig):
            value = getattr(run.config.search, field.name)
            if field.name != "num_best" and value is not None:
                options += [f"--{field.name.replace('_', '-')}", str(value)]
        return options


def row_runs(
    folder: Path, base: RunConfig, rows: Sequence[str], seeds: Sequence[int]
) -> list[RowRun]:
    """Runs of all rows, ordered by seed, so that the first whole table is done early.

    Raises `ConfigError` if a row or a seed is impossible.
    """
    return [
        RowRun(
            row=row,
            seed=seed,
            config=_with_seed(row_config(base, row), seed),
            folder=folder,
        )
        for seed in seeds
        for row in rows
    ]


def refuse_other_contents(folder: Path) -> None:
    """Raise `ConfigError` if a folder holds anything but a reproduction of Table 3."""
    if not folder.exists() or (folder / EXPERIMENT).is_file():
        return
    if not folder.is_dir() or any(p.name != CORPUS for p in folder.iterdir()):
        raise ConfigError(
            f"{folder}: the output folder must be new or a reproduction of Table 3, "
            "but is neither; choose another."
        )


def locked(folder: Path) -> AbstractContextManager[tuple[int, ...]]:
    """Lock a folder; `ConfigError` if another command has locked it.

    The lock is an open file, to be left open in child processes: it lasts until the
    last of them has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return file_lock(
        folder,
        ConfigError(
            f"{folder}: one command at a time may use this folder, but another one, or "
            "a process that it started, is using it; wait for it to end."
        ),
    )


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, training=replace(config.training, seed=seed))


def _in_toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _files_option(name: str, paths: Sequence[Path]) -> list[str]:
    return [name, *(str(path.absolute()) for path in paths)]


def _require_same(
    folder: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    if recorded.get("format") != EXPERIMENT_FORMAT:
        raise ConfigError(
            f"{folder / EXPERIMENT}: the format must be {EXPERIMENT_FORMAT}, but is "
            f"{recorded.get('format')}; the experiment was started by another version "
            "of transduce."
        )
    if not isinstance(recorded.get("settings"), dict) or "precision" not in recorded:
        raise ConfigError(
            f"{folder / EXPERIMENT}: the record of the experiment is damaged; "
            "restore the file, or choose another folder."
        )
    if recorded.get("files") != requested["files"]:
        files = recorded.get("files")
        parts = files.values() if isinstance(files, dict) else ()
        names = [str(each) for part in parts if isinstance(part, list) for each in part]
        raise ConfigError(
            f"{folder}: the experiment in this folder was started with other files "
            f"({', '.join(names)}); give those, or choose another folder."
        )
    if recorded["precision"] != requested["precision"]:
        raise ConfigError(
            f"{folder}: the precision of the experiment in this folder is "
            f"{recorded['precision']}, but {requested['precision']} is requested; give "
            f"--precision {recorded['precision']}, or choose another folder."
        )
    # Settings that an older version did not have were at their defaults.
    known = settings(RunConfig()) | recorded["settings"]
    for name, value in requested["settings"].items():
        if (theirs := known[name]) != value:
            raise ConfigError(
                f"{folder}: `{name}` of the experiment in this folder is {theirs!r}, "
                f"but {value!r} is requested; give the same --scale, --steps and "
                "--set, or choose another folder."
            )


POLL_SECONDS = 0.2
TAIL_BYTES = 4_096
"""Bytes read from the end of a log, longer than a line."""
MOST_PARALLEL = 1_000
"""Largest number of processes at the same time."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PR_SET_PDEATHSIG = 1
"""Constant of Linux's prctl.h."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""C library, opened here because opening it between fork and exec could deadlock."""

Slot = Mapping[str, str]
"""Device or share of the cores for one process, as environment variables."""


class ReproductionStoppedError(TransduceError):
    """The experiment was stopped by the user, and its runs are saved."""


class RunsFailedError(TransduceError):
    """Some runs of the experiment failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentProgress:
    """Progress of all runs of an experiment."""

    num_ended: int
    """Runs that are done or have failed."""
    steps: int
    """Updates made by all runs."""
    working: tuple[str, ...]
    """Name and step of each run in progress."""


def make_slots(device: str, parallel: int | None) -> list[Slot]:
    """Slots for processes that compute at the same time.

    By default there is one for each CUDA device, or one for the whole processor.
    Otherwise `parallel` slots share the devices, or the cores. Raises `ConfigError` if
    `parallel` is not positive.
    """
    require_between("parallel", parallel, 1, MOST_PARALLEL)
    gpus = [] if device == "cpu" else _gpus()
    count = parallel or max(len(gpus), 1)
    if gpus:
        return [{VISIBLE: gpus[number % len(gpus)]} for number in range(count)]
    if count == 1:
        return [{}]
    cores = num_cores() or count
    return [{"OMP_NUM_THREADS": str(max(cores // count, 1))}] * count


def _gpus() -> list[str]:
    """CUDA devices as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return named.split(",")[:count] if named else list(map(str, range(count)))


def run_all(
    runs: Sequence[RowRun],
    workers: "Workers",
    on_progress: Callable[[ExperimentProgress], None],
) -> dict[str, str]:
    """Complete all runs; returns the reason of each failure by the run's name.

    At Ctrl-C or SIGTERM, raises `ReproductionStoppedError` once all processes have
    saved.
    """
    waiting = deque(runs)
    with stop_on_signal() as should_stop:
        try:
            while not should_stop() and (waiting or workers.running):
                while waiting and workers.can_start:
                    workers.start(waiting.popleft())
                workers.poll()
                on_progress(_progress(runs, workers.running, len(waiting)))
                time.sleep(POLL_SECONDS if workers.running else 0)
        finally:
            workers.stop()
        if should_stop():
            raise ReproductionStoppedError(
                "The reproduction was stopped, and is saved; the same command "
                "continues it."
            )
    return workers.failures


@dataclass(slots=True, kw_only=True)
class Worker:
    """Process that trains or translates for a run."""

    run: RowRun
    slot: Slot
    command: list[str]
    process: subprocess.Popen[bytes]


class Workers:
    """Running processes of an experiment, and free slots for others."""

    def __init__(
        self, experiment: Experiment, slots: Sequence[Slot], lock: tuple[int, ...] = ()
    ) -> None:
        self._experiment = experiment
        self._free = list(slots)
        self._lock = lock
        self.running: list[Worker] = []
        self.failures: dict[str, str] = {}

    @property
    def can_start(self) -> bool:
        """Whether another run may start.

        The first run is alone until it has prepared the corpus, which all share.
        """
        return bool(self._free) and (self._experiment.is_prepared or not self.running)

    def start(self, run: RowRun) -> None:
        """Start or continue a run, unless it is done."""
        if (command := self._experiment.next_command(run)) is not None:
            self._start(run, command, self._free.pop(0))

    def poll(self) -> None:
        """Handle the processes that have ended, and start the next of their runs."""
        ended = [each for each in self.running if each.process.poll() is not None]
        for worker in ended:
            self.running.remove(worker)
            command = self._experiment.next_command(worker.run)
            if worker.process.returncode != 0:
                self._fail(worker, _failure_reason(worker))
            elif command == worker.command:
                self._fail(worker, "It ended without a result.")
            elif command is not None:
                self._start(worker.run, command, worker.slot)
            else:
                self._free.insert(0, worker.slot)

    def stop(self) -> None:
        """Make all processes save and end, and wait for them."""
        for worker in self.running:
            worker.process.terminate()
        for worker in self.running:
            worker.process.wait()

    def _start(self, run: RowRun, command: list[str], slot: Slot) -> None:
        with run.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                # Unbuffered, so that both streams are in order in the log.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **slot},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._lock,
                preexec_fn=_end_with_parent if LIBC else None,
            )
        self.running.append(
            Worker(run=run, slot=slot, command=command, process=process)
        )

    def _fail(self, worker: Worker, reason: str) -> None:
        self.failures[worker.run.name] = reason
        self._free.insert(0, worker.slot)


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM if the parent is killed, so that the run saves."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _failure_reason(worker: Worker) -> str:
    """Signal that killed the process, or the last line of its output."""
    if (code := worker.process.returncode) < 0:
        return f"It was killed ({signal.Signals(-code).name})."
    output = _tail(worker.run.log).decode("utf-8", errors="replace").strip()
    return output.rpartition("\n")[2].removeprefix("transduce: ")


def _progress(
    runs: Sequence[RowRun], workers: Sequence[Worker], num_waiting: int
) -> ExperimentProgress:
    steps = [_steps_made(run) for run in runs]
    working = [
        f"{worker.run.name} {_steps_made(worker.run):,}/"
        f"{worker.run.config.training.steps:,}"
        for worker in workers
    ]
    return ExperimentProgress(
        num_ended=len(runs) - num_waiting - len(workers),
        steps=sum(steps),
        working=tuple(working),
    )


def _steps_made(run: RowRun) -> int:
    """Updates by the last complete line of the run's log."""
    if run.is_done:
        return run.config.training.steps
    if not (path := run.path / LOG).is_file():
        return 0
    lines = _tail(path).split(b"\n")[-2:-1]
    return int(json.loads(lines[0])["step"]) if lines else 0


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        return file.read()
