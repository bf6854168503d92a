"""Experiments: several trainings in one folder, each in processes of its own.

The state of a run (`PresetRun`) is what its processes have written, so an experiment
can be killed and resumed at any time: `train --resume` continues a run that has begun.
The record of an experiment (`experiment_record`) has its corpus and its settings, which
later commands in the same folder must not change. `run_all` runs the processes, several
at a time (`Workers`).
"""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import torch

from transduce.data.corpus_files import CorpusFiles, digest_of
from transduce.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    TransduceError,
    counted,
)
from transduce.experiments.presets import RunConfig, preset
from transduce.experiments.run_folder import (
    DIVERGED,
    RUN_CONFIG,
    WENT_BACK,
    Entry,
    RunFolder,
    is_run,
    read_tail,
    settings_of,
)
from transduce.files import LEFTOVERS, path_lock, read_json, write_json
from transduce.machine import Precision, threads_of_each
from transduce.processes import PYTHON, environment_of_python
from transduce.report.report import Column, Section, Table
from transduce.settings import flattened, require_between
from transduce.signals import signals_held, stop_on_signal
from transduce.text.corpus import ENDINGS, read_pairs, read_text, require_text
from transduce.training.config import rate_setting

RUNS, LOGS, CORPUS = "runs", "logs", "corpus"
"""Folders of an experiment: its runs, the output of their processes, and a corpus that
the command fetched."""
POLL_SECONDS = 0.2
MAX_PARALLEL = 1_000
"""Largest number of processes at the same time."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PR_SET_PDEATHSIG = 1
"""Constant of Linux's prctl.h."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""C library, opened here because opening it between fork and exec could deadlock."""

Slot = Mapping[str, str]
"""Device or share of the cores for one process, as environment variables."""


@dataclass(frozen=True, kw_only=True)
class PresetRun:
    """Training of a preset, with changed settings, in a folder of the experiment."""

    row: str
    """Row of the experiment's table."""
    preset: str
    seed: int
    config: RunConfig
    """All settings of the run."""
    folder: Path
    """Folder of the experiment."""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.row}-seed{self.seed}"

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.folder / RUNS / self.name

    @property
    def log(self) -> Path:
        """Output of the run's processes."""
        return self.folder / LOGS / f"{self.name}.log"

    @property
    def has_begun(self) -> bool:
        """Whether the run's folder has been prepared."""
        return (self.path / RUN_CONFIG).is_file()

    @property
    def is_trained(self) -> bool:
        """Whether the run has made its last update."""
        return RunFolder(self.path).log.has_results

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for this run."""
        return self.is_trained

    @property
    def num_steps(self) -> int:
        """Number of updates of the whole run."""
        return self.config.training.steps

    @property
    def steps_made(self) -> int:
        """Updates by the newest entry of the run's log, whose other lines may be
        damaged."""
        with suppress(CheckpointError):
            if self.is_done:
                return self.num_steps
        return RunFolder(self.path).log.newest_step

    @property
    def perplexity(self) -> float:
        """Perplexity on the dev corpus after the last update; may be infinite."""
        found = self.last_entry("dev", "perplexity")["perplexity"]
        # JSON has no infinity, so the log has null in its place.
        return math.inf if found is None else float(found)

    @property
    def has_diverged(self) -> bool:
        """Whether the loss diverged, so that the run went on at a lower rate."""
        return bool(RunFolder(self.path).log.entries(WENT_BACK))

    def final_failure(self) -> str | None:
        """Return the reason why the run cannot be completed; None if it can be."""
        if not RunFolder(self.path).log.entries(DIVERGED):
            return None
        return (
            "The loss diverged twice, the second time at a reduced learning rate, so "
            f"the run is not tried again; lower `{rate_setting(self.config.training)}` "
            f"in another folder, or remove {self.path} to train it anew."
        )

    def recorded_settings(self) -> RunConfig:
        """Read the settings of the run; `CheckpointError` if it lacks its record."""
        if not is_run(self.path):
            raise CheckpointError(
                f"{self.path}: must hold a run of the experiment, but lacks "
                f"{RUN_CONFIG} or the encoded corpus; restore them, or remove the "
                "folder to train the run again."
            )
        return settings_of(self.path)

    def last_entry(self, kind: Literal["step", "dev"], *needed: str) -> Entry:
        """Newest log entry of a kind.

        Raises `CheckpointError` if there is none, or if it lacks a needed value.
        """
        entries = RunFolder(self.path).log.entries(kind, *needed)
        if not entries:
            raise CheckpointError(
                f"{self.path}: the log of the run must have lines of kind {kind!r}, "
                "but has none; remove the run to train it again."
            )
        return entries[-1]

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """Assignments that turn the preset into the run's settings."""
        changed = changes(self.config, preset(self.preset))
        return tuple(f"{name}={_in_toml(value)}" for name, value in changed.items())

    def next_options(self, files: CorpusFiles, precision: Precision) -> list[str]:
        """Options of the command that starts or continues the training.

        Runs that also translate override this method.
        """
        out = ["train", "--out", str(self.path), "--precision", precision]
        if self.has_begun:
            return [*out, "--resume"]
        return [
            *out,
            *("--preset", self.preset, "--however-long"),
            *(("--set", *self.overrides) if self.overrides else ()),
            *_files_option("--source", files.source),
            *_files_option("--target", files.target),
            *_files_option("--dev-source", files.dev_source),
            *_files_option("--dev-target", files.dev_target),
        ]


def settings(config: RunConfig) -> dict[str, Any]:
    """All settings by their full names, as a record in JSON has them."""
    return flattened(json.loads(json.dumps(asdict(config))))


def changes(config: RunConfig, base: RunConfig) -> dict[str, Any]:
    """Settings that differ from those of another run, by their full names."""
    theirs = settings(base)
    return {k: value for k, value in settings(config).items() if value != theirs[k]}


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """Return the settings with another seed."""
    return replace(config, training=replace(config.training, seed=seed))


def _in_toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _files_option(name: str, paths: Sequence[Path]) -> list[str]:
    return [name, *(str(path.absolute()) for path in paths)]


@runtime_checkable
class Run(Protocol):
    """Work of an experiment: one or several processes, one after the other."""

    @property
    def name(self) -> str: ...
    @property
    def log(self) -> Path: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def steps_made(self) -> int: ...
    @property
    def is_done(self) -> bool: ...
    def final_failure(self) -> str | None: ...
    def next_options(self, files: CorpusFiles, precision: Precision) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs on one corpus, in one folder."""

    folder: Path
    files: CorpusFiles
    device: str = "auto"
    precision: Precision = "fp32"
    """Precision of all runs. "auto" could choose another one for wide models than for
    narrow ones."""

    def next_command(self, run: Run) -> list[str] | None:
        """Command that continues a run; None if the run is done."""
        if run.is_done:
            return None
        options = run.next_options(self.files, self.precision)
        return [*PYTHON, "-m", "transduce", *options, "--device", self.device]

    def record_settings(
        self, name: str, version: int, base: RunConfig, **others: object
    ) -> None:
        """Record the settings of all runs; `ConfigError` if the folder has other ones.

        `name` is the file name of the record. `others` are settings of the experiment
        that `base` does not have.
        """
        path = self.folder / name
        record = {
            **experiment_record(version, self.folder, self.files, self.precision),
            **others,
            "settings": settings(base),
        }
        if path.is_file():
            recorded = read_record(path)
            require_same_experiment(path, recorded, record, "settings")
            # Settings that an older version did not have were at their defaults.
            known = settings(RunConfig()) | recorded["settings"]
            what = "the experiment"
            require_same_settings(self.folder, what, known, record["settings"])
            require_same_settings(self.folder, what, recorded, others)
        write_record(path, record)


def experiment_record(
    version: int, folder: Path, files: CorpusFiles, precision: Precision
) -> dict[str, Any]:
    """Return the part that the records of all experiments have.

    `version` is the version of the record's format. Digests record the contents of the
    corpus. Files in the experiment's folder have names relative to it, so that the
    folder can be moved. Raises `DataError` if the corpus cannot be used.
    """
    names = files.absolute_names()
    return {
        "format": version,
        "files": {part: _portable(each, folder) for part, each in names.items()},
        "digests": files.digests(),
        "precision": precision,
    }


def _portable(names: Sequence[str], folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        for path in map(Path, names)
    ]


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of an experiment; an experiment without one has not begun.

    Raises `ConfigError` if it is damaged.
    """
    try:
        return read_json(path) if path.is_file() else {}
    except CheckpointError:
        raise damaged_record(path) from None


def damaged_record(path: Path) -> ConfigError:
    """Return the error of a record that lacks something."""
    return ConfigError(
        f"{path}: the record of the experiment is damaged; restore the file, or choose "
        "another folder."
    )


def require_same_experiment(
    path: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any], *tables: str
) -> None:
    """Raise `ConfigError` if a record is of another format, corpus or precision.

    `path` is the record's, `tables` are the names of further parts that must be tables.
    """
    folder = path.parent
    if recorded.get("format") != requested["format"]:
        raise ConfigError(
            f"{path}: the format must be {requested['format']}, but is "
            f"{recorded.get('format')}; the experiment was started by another version "
            "of transduce."
        )
    # A record of an older version has no digests: its files are accepted by name.
    parts = [recorded.get("digests", {}), *(recorded.get(name) for name in tables)]
    if not all(isinstance(part, dict) for part in (recorded.get("files"), *parts)):
        raise damaged_record(path)
    for part in _changed_parts(recorded, requested):
        names = ", ".join(_names_of(recorded["files"], part))
        raise ConfigError(
            f"{folder}: the {part} text must be the one that the experiment in this "
            f"folder was started with ({names}), but differs; give that, or choose "
            "another folder."
        )
    if (known := recorded.get("precision")) != requested["precision"]:
        raise ConfigError(
            f"{folder}: the precision of the experiment in this folder is {known}, "
            f"but {requested['precision']} is requested; choose the precision {known}, "
            "or another folder."
        )


PARTS = {"training": ("source", "target"), "dev": ("dev_source", "dev_target")}
"""Names in a record of the files of each part of a corpus."""


def _names_of(files: Mapping[str, Any], part: str) -> list[str]:
    names = (files.get(side) for side in PARTS[part])
    return [str(name) for each in names if isinstance(each, list) for name in each]


def _changed_parts(
    recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> list[str]:
    """Return the parts of a corpus, training or dev, that differ between records."""
    if "digests" in recorded:
        theirs, ours = recorded["digests"], requested["digests"]
        return [part for part in PARTS if theirs.get(part) != ours.get(part)]
    return [
        part
        for part in PARTS
        if not _same_files(
            _names_of(recorded["files"], part), _names_of(requested["files"], part)
        )
    ]


def _same_files(recorded: Sequence[str], names: Sequence[str]) -> bool:
    """Whether files have the absolute names that an older version recorded.

    Relative names are in the experiment's folder, which may have been moved.
    """
    return len(recorded) == len(names) and all(
        Path(old).parts[-len(Path(new).parts) :] == Path(new).parts
        for old, new in zip(recorded, names, strict=True)
    )


def require_same_settings(
    folder: Path,
    what: str,
    known: Mapping[str, Any],
    requested: Mapping[str, Any],
    remedy: str = "give the same settings",
) -> None:
    """Raise `ConfigError` if a known setting of `what` differs from the requested."""
    for name, value in requested.items():
        if name in known and known[name] != value:
            raise ConfigError(
                f"{folder}: `{name}` of {what} in this folder is {known[name]!r}, but "
                f"{value!r} is requested; {remedy}, or choose another folder."
            )


def kept_precision(precision: Precision, recorded: object) -> Precision:
    """Return the precision of an earlier command's record for "auto", if it has one.

    The work then continues on a machine for which "auto" would choose another.
    """
    is_kept = precision == "auto" and recorded in get_args(Precision)
    return cast(Precision, recorded) if is_kept else precision


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write an experiment's record of its settings, and make the folders beside it."""
    for name in (RUNS, LOGS):
        (path.parent / name).mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def refuse_other_contents(folder: Path, record: str, what: str) -> None:
    """Raise `ConfigError` if a folder holds anything but an experiment.

    `record` is the name of the file with its settings, `what` describes it.
    """
    if not folder.exists() or (folder / record).is_file():
        return
    if not folder.is_dir() or not all(map(_precedes_record, folder.iterdir())):
        raise ConfigError(
            f"{folder}: the output folder must be new or {what}, but is neither; "
            "choose another."
        )


def _precedes_record(path: Path) -> bool:
    """Return whether an experiment makes an entry of its folder before the record.

    A command that is killed then leaves it there.
    """
    if path.name in (RUNS, LOGS):
        return path.is_dir() and not any(path.iterdir())
    return path.name == CORPUS or path.match(LEFTOVERS)


@contextmanager
def locked(folder: Path) -> Iterator[tuple[int, ...]]:
    """Lock an experiment's folder; `ConfigError` if another command has locked it.

    The lock is an open file, to be left open in child processes: it lasts until the
    last of them has ended. Ctrl-C raises `ReproductionStoppedError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refusal = ConfigError(
        f"{folder}: one command at a time may use this folder, but another one, or "
        "a process that it started, is using it; wait for it to end."
    )
    with path_lock(folder, refusal) as lock:
        try:
            yield lock
        except KeyboardInterrupt:
            raise ReproductionStoppedError(
                f"Interrupted. All finished work is in {folder}: the same command "
                "continues the reproduction."
            ) from None


class ReproductionStoppedError(TransduceError):
    """The experiment was stopped by the user; the same command continues it."""


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
    require_between("parallel", parallel, 1, MAX_PARALLEL)
    gpus = [] if device == "cpu" else _gpus()
    count = parallel or max(len(gpus), 1)
    if gpus:
        return [{VISIBLE: gpus[number % len(gpus)]} for number in range(count)]
    if count == 1:
        return [{}]
    return [threads_of_each(count)] * count


def _gpus() -> list[str]:
    """CUDA devices as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return named.split(",")[:count] if named else list(map(str, range(count)))


def run_all(
    runs: Sequence[Run],
    workers: "Workers",
    on_progress: Callable[[ExperimentProgress], None],
) -> dict[str, str]:
    """Complete all runs; returns the reason of each failure by the run's name.

    At Ctrl-C or SIGTERM, raises `ReproductionStoppedError` once all processes have
    saved.
    """
    with stop_on_signal() as should_stop:
        waiting = deque(run for run in runs if not workers.has_ended(run))
        try:
            while not should_stop():
                while waiting and workers.can_start:
                    workers.start(waiting.popleft())
                workers.poll()
                on_progress(_progress(runs, workers.running, len(waiting)))
                if not waiting and not workers.running:
                    break
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

    run: Run
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
        is_prepared = _has_prepared_corpus(self._experiment.folder)
        return bool(self._free) and (is_prepared or not self.running)

    def has_ended(self, run: Run) -> bool:
        """Whether nothing is left to do for a run, or its files are damaged."""
        with self._failing_if_damaged(run):
            return self._experiment.next_command(run) is None
        return True

    def start(self, run: Run) -> None:
        """Start or continue a run, unless it is done or cannot be completed."""
        with self._failing_if_damaged(run):
            if (reason := run.final_failure()) is not None:
                self.failures[run.name] = reason
            elif (command := self._experiment.next_command(run)) is not None:
                self._start(run, command, self._free.pop(0))

    def poll(self) -> None:
        """Handle the processes that have ended, and start the next of their runs."""
        ended = [each for each in self.running if each.process.poll() is not None]
        for worker in ended:
            self.running.remove(worker)
            with self._failing_if_damaged(worker.run):
                if self._continues(worker):
                    continue
            self._free.insert(0, worker.slot)

    def stop(self) -> None:
        """Make all processes save and end, and wait for them."""
        for worker in self.running:
            worker.process.terminate()
        for worker in self.running:
            worker.process.wait()

    def _continues(self, worker: Worker) -> bool:
        """Start the next process of a run whose process has ended, if there is one."""
        run = worker.run
        if worker.process.returncode != 0:
            self.failures[run.name] = _failure_reason(worker)
            return False
        command = self._experiment.next_command(run)
        if command == worker.command:
            self.failures[run.name] = "It ended without a result."
        elif command is not None:
            self._start(run, command, worker.slot)
            return True
        return False

    @contextmanager
    def _failing_if_damaged(self, run: Run) -> Iterator[None]:
        """Let a run with damaged files fail, so that the others are completed."""
        try:
            yield
        except CheckpointError as error:
            self.failures[run.name] = str(error)

    def _start(self, run: Run, command: list[str], slot: Slot) -> None:
        # A signal between the start of a process and its entry would leave it running.
        with signals_held(), run.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                # Unbuffered, so that both streams are in order in the log.
                env={**environment_of_python(), "PYTHONUNBUFFERED": "1", **slot},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._lock,
                preexec_fn=_end_with_parent if LIBC else None,
            )
            self.running.append(
                Worker(run=run, slot=slot, command=command, process=process)
            )


def is_final(run: Run) -> bool:
    """Whether a run that has failed is not tried again; damage can be repaired."""
    try:
        return run.final_failure() is not None
    except CheckpointError:
        return False


def _has_prepared_corpus(folder: Path) -> bool:
    """Whether a run of an experiment has prepared the corpus, which others share."""
    return any((folder / RUNS).glob(f"*/{RUN_CONFIG}"))


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM if the parent is killed, so that the run saves."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _failure_reason(worker: Worker) -> str:
    """Signal that killed the process, or the last line of its output."""
    if (code := worker.process.returncode) < 0:
        return f"It was killed ({signal.Signals(-code).name})."
    output = read_tail(worker.run.log).decode("utf-8", errors="replace").strip()
    return output.rpartition("\n")[2].removeprefix("transduce: ")


def _progress(
    runs: Sequence[Run], workers: Sequence[Worker], num_waiting: int
) -> ExperimentProgress:
    steps = [run.steps_made for run in runs]
    working = [
        f"{worker.run.name} {worker.run.steps_made:,}/{worker.run.num_steps:,}"
        for worker in workers
    ]
    return ExperimentProgress(
        num_ended=len(runs) - num_waiting - len(workers),
        steps=sum(steps),
        working=tuple(working),
    )


def read_references(source: Path, references: Path) -> list[str]:
    """Return the references of a text.

    Raises `DataError` if they are not as many as the source has lines. Otherwise the
    translations of the source would be found too many or too few, however often they
    are made.
    """
    pairs = read_pairs([source], [references], ("source", "references"))
    return [pair.target for pair in pairs]


def translated_lines(path: Path, num_lines: int) -> list[str]:
    """Return the translations of a text that a run has made.

    Raises `DataError` if they are not as many as the source has lines, as in a file
    that was damaged.
    """
    lines = list(read_text([path]))
    if len(lines) != num_lines:
        raise DataError(
            f"{path}: must have {counted(num_lines, 'translation')}, one for each line "
            f"of the text, but has {len(lines):,}; remove the file, and the same "
            "command translates again."
        )
    return lines


def described_files(files: Mapping[str, Sequence[str]]) -> str:
    """Describe a record's files for a report: "source: my.en; target: my.de"."""
    return "; ".join(
        f"{part.replace('_', ' ')}: {', '.join(Path(name).name for name in names)}"
        for part, names in files.items()
    )


def failed_runs(failures: Mapping[str, str]) -> Section:
    """Return the section of a report about the runs that failed, with the reasons."""
    heads = (Column(name="run", is_text=True), Column(name="reason", is_text=True))
    table = Table(columns=heads, rows=tuple(failures.items()))
    return Section(title="Runs that failed", parts=(table,))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationText:
    """A text with its true translations, on which models are compared."""

    name: str
    source: Path
    reference: Path

    @classmethod
    def of(cls, source: Path, reference: Path) -> "EvaluationText":
        """Return a text named after its source file, without its language."""
        name = source.stem if source.suffix in ENDINGS else source.name
        return cls(
            name=name.rpartition(".")[0] or name, source=source, reference=reference
        )

    def read_through(self) -> str:
        """Read the text once, before any work, and return its digest.

        Raises `DataError` for an error, or if a side has no text.
        """
        digest = digest_of([self.source], [self.reference])
        for path in (self.source, self.reference):
            require_text(path, read_text([path]))
        return digest


def require_different_names(texts: Sequence[EvaluationText]) -> None:
    """Raise `ConfigError` if two texts have the same name."""
    names = [text.name for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Test texts must have different names, but two are named {name}; "
                "rename the files of one."
            )
