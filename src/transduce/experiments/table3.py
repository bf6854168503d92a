"""The folder of a reproduction of Table 3: its settings, runs, and what is done.

Training and translating are processes of their own, and what they leave behind says how
far a run is: so an experiment that was killed at any moment goes on from there.
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
from transduce.experiments.run_folder import LOG, RunFolder
from transduce.experiments.run_folder import RECORD as RUN_RECORD
from transduce.experiments.table3_rows import changes, row_config, settings
from transduce.files import file_lock, read_json
from transduce.interruption import stop_on_signal
from transduce.machine import Precision, num_cores
from transduce.search_config import SearchConfig
from transduce.settings import require_between

FORMAT = 2
RECORD, CORPUS, RUNS, LOGS = "experiment.json", "corpus", "runs", "logs"
TRANSLATIONS = "dev_translations.txt"


@dataclass(frozen=True, kw_only=True)
class RowRun:
    """A row trained from one seed; its run has a folder of its own."""

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
        """What its processes print."""
        return self.folder / LOGS / f"{self.name}.log"

    @property
    def translations(self) -> Path:
        """Of the dev text; there when the run is done."""
        return self.path / TRANSLATIONS

    @property
    def references(self) -> Path:
        return self.path / DEV / DEV_TARGET

    @property
    def has_begun(self) -> bool:
        return (self.path / RUN_RECORD).is_file()

    @property
    def is_trained(self) -> bool:
        return any(e["kind"] == "final" for e in RunFolder(self.path).read_log())

    @property
    def is_done(self) -> bool:
        return self.translations.is_file()

    def last_entry(self, kind: Literal["step", "dev"], *needed: str) -> dict[str, Any]:
        """The log's line on the newest update or checkpoint; it has what is needed.

        `CheckpointError` if there is no such line, or it lacks something.
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
        """What makes the run's settings of those of its row's preset."""
        changed = changes(self.config, TABLE_3[self.row])
        return tuple(f"{name}={_in_toml(value)}" for name, value in changed.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Rows of Table 3 on one corpus, in one folder."""

    folder: Path
    files: CorpusFiles
    base: RunConfig
    device: str = "auto"
    precision: Precision = "fp32"
    """Of all rows: left to each, the wide ones could have another."""

    def begin(self) -> None:
        """Note the settings; `ConfigError` if the folder holds something else."""
        record = {
            "format": FORMAT,
            "files": self.files.absolute_names(),
            "precision": self.precision,
            "settings": settings(self.base),
        }
        path = self.folder / RECORD
        if path.is_file():
            _require_same(self.folder, read_json(path), record)
            return
        for name in (RUNS, LOGS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{RECORD}.new")
        new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        new.replace(path)

    @property
    def is_prepared(self) -> bool:
        """Whether a run has made the corpus that all others then share."""
        return any((self.folder / RUNS).glob(f"*/{RUN_RECORD}"))

    def next_command(self, run: RowRun) -> list[str] | None:
        """What is to be done next for a run; none if all is done."""
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
        """Of the dev text by the last checkpoint, not averaged, as in Table 3."""
        checkpoint = RunFolder(run.path).checkpoint(run.last_entry("dev")["step"])
        options = ["translate", str(checkpoint)]
        options += ["--input", str(run.path / DEV / DEV_SOURCE)]
        # Begin anew after an interruption, since the lines are few.
        options += ["--output", str(run.translations), "--force"]
        for field in fields(SearchConfig):
            value = getattr(run.config.search, field.name)
            if field.name != "num_best" and value is not None:
                options += [f"--{field.name.replace('_', '-')}", str(value)]
        return options


def row_runs(
    folder: Path, base: RunConfig, rows: Sequence[str], seeds: Sequence[int]
) -> list[RowRun]:
    """Seed by seed, so that whole tables are done early.

    `ConfigError` if a row or a seed is impossible.
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
    """`ConfigError` if a folder holds what is no reproduction of Table 3."""
    if not folder.exists() or (folder / RECORD).is_file():
        return
    if not folder.is_dir() or any(p.name != CORPUS for p in folder.iterdir()):
        raise ConfigError(
            f"{folder}: the output folder must be new, or one that this command has "
            "begun, but is not; choose another."
        )


def claimed(folder: Path) -> AbstractContextManager[tuple[int, ...]]:
    """Keep others from working in a folder; `ConfigError` if another one does.

    The claim is an open file, to be left open in child processes: it holds until the
    last of them has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return file_lock(
        folder,
        ConfigError(
            f"{folder}: must be worked in by one command at a time, but another, or "
            "what it began, is at it; wait for it to end."
        ),
    )


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, training=replace(config.training, seed=seed))


def _in_toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _files_option(name: str, paths: Sequence[Path]) -> list[str]:
    return [name, *(str(path.absolute()) for path in paths)]


def _require_same(
    folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    if begun.get("format") != FORMAT:
        raise ConfigError(
            f"{folder / RECORD}: the format must be {FORMAT}, but is "
            f"{begun.get('format')}; the experiment was begun by another version of "
            "transduce."
        )
    if not isinstance(begun.get("settings"), dict) or "precision" not in begun:
        raise ConfigError(
            f"{folder / RECORD}: the record of the experiment is damaged; restore the "
            "file, or choose another folder."
        )
    if begun.get("files") != asked["files"]:
        files = begun.get("files")
        parts = files.values() if isinstance(files, dict) else ()
        names = [str(each) for part in parts if isinstance(part, list) for each in part]
        raise ConfigError(
            f"{folder}: the experiment there was begun with other files "
            f"({', '.join(names)}); give those, or choose another folder."
        )
    if begun["precision"] != asked["precision"]:
        raise ConfigError(
            f"{folder}: the precision of the experiment there is {begun['precision']}, "
            f"but {asked['precision']} is asked for; give --precision "
            f"{begun['precision']}, or choose another folder."
        )
    # What an older version did not know was as it is by default.
    known = settings(RunConfig()) | begun["settings"]
    for name, value in asked["settings"].items():
        if (theirs := known[name]) != value:
            raise ConfigError(
                f"{folder}: `{name}` of the experiment there is {theirs!r}, but "
                f"{value!r} is asked for; give the same --scale, --steps and --set, or "
                "choose another folder."
            )


POLL_SECONDS = 0.2
TAIL_BYTES = 4_096
"""Of a log, more than its last line has."""
MOST_PARALLEL = 1_000
"""Trainings at the same time."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl.h."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Opened here, for between fork and exec it might wait for ever."""

Place = Mapping[str, str]
"""Where a process computes, as variables of its environment."""


class ReproductionStoppedError(TransduceError):
    """The experiment was asked to stop, and its runs have saved where they stand."""


class RunsFailedError(TransduceError):
    """Some runs of an experiment have no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeProgress:
    """How far all runs together are."""

    num_ended: int
    """Runs that are done, or have failed."""
    steps: int
    """Made by all of them."""
    working: tuple[str, ...]
    """What is going on, in words."""


def places(device: str, parallel: int | None) -> list[Place]:
    """Where processes are to compute at the same time.

    Each CUDA device takes one, and the processor one, unless told otherwise: then they
    are shared out. `ConfigError` if there is to be none.
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
    """As `CUDA_VISIBLE_DEVICES` calls them."""
    count = torch.cuda.device_count()
    named = os.environ.get(VISIBLE)
    return named.split(",")[:count] if named else list(map(str, range(count)))


def carry_out(
    experiment: Experiment,
    runs: Sequence[RowRun],
    crew: "Crew",
    on_progress: Callable[[WholeProgress], None],
) -> dict[str, str]:
    """Do what is not yet done of the runs; why some have failed, by name.

    `ReproductionStoppedError` at Ctrl-C or SIGTERM, once all processes have saved.
    """
    waiting = deque(runs)
    with stop_on_signal() as should_stop:
        try:
            while not should_stop() and (waiting or crew.children):
                while waiting and crew.has_room:
                    crew.begin(waiting.popleft())
                crew.attend()
                on_progress(_progress(runs, crew.children, len(waiting)))
                time.sleep(POLL_SECONDS if crew.children else 0)
        finally:
            crew.end()
        if should_stop():
            raise ReproductionStoppedError(
                "The reproduction was stopped, and is saved; the same command goes on."
            )
    return crew.failures


@dataclass(slots=True, kw_only=True)
class Child:
    """A process that works on a run."""

    run: RowRun
    place: Place
    command: list[str]
    process: subprocess.Popen[bytes]


class Crew:
    """The processes that are at work, and the places that are free."""

    def __init__(
        self, experiment: Experiment, at: Sequence[Place], claim: tuple[int, ...] = ()
    ) -> None:
        self._experiment = experiment
        self._free = list(at)
        self._claim = claim
        self.children: list[Child] = []
        self.failures: dict[str, str] = {}

    @property
    def has_room(self) -> bool:
        """The first run is alone until it has made the corpus that all share."""
        return bool(self._free) and (self._experiment.is_prepared or not self.children)

    def begin(self, run: RowRun) -> None:
        """Go on with a run, unless it is done."""
        if (command := self._experiment.next_command(run)) is not None:
            self._start(run, command, self._free.pop(0))

    def attend(self) -> None:
        """See who has ended; a run goes on where it was until it is done."""
        ended = [child for child in self.children if child.process.poll() is not None]
        for child in ended:
            self.children.remove(child)
            command = self._experiment.next_command(child.run)
            if child.process.returncode != 0:
                self._fail(child, _last_words(child))
            elif command == child.command:
                self._fail(child, "It ended without a result.")
            elif command is not None:
                self._start(child.run, command, child.place)
            else:
                self._free.insert(0, child.place)

    def end(self) -> None:
        """Have all save and end; however long that takes."""
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            child.process.wait()

    def _start(self, run: RowRun, command: list[str], place: Place) -> None:
        with run.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                # The log tells in its order what goes to either stream.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **place},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._claim,
                preexec_fn=_end_with_parent if LIBC else None,
            )
        self.children.append(
            Child(run=run, place=place, command=command, process=process)
        )

    def _fail(self, child: Child, why: str) -> None:
        self.failures[child.run.name] = why
        self._free.insert(0, child.place)


def _end_with_parent() -> None:
    """Be told to stop, and save, if the command that began it is killed."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _last_words(child: Child) -> str:
    """Why it failed: the sentence that a user's mistake ends with, or what is last."""
    if (code := child.process.returncode) < 0:
        return f"It was killed ({signal.Signals(-code).name})."
    said = _tail(child.run.log).decode("utf-8", errors="replace").strip()
    return said.rpartition("\n")[2].removeprefix("transduce: ")


def _progress(
    runs: Sequence[RowRun], children: Sequence[Child], num_waiting: int
) -> WholeProgress:
    steps = [_steps_made(run) for run in runs]
    working = [
        f"{child.run.name} {_steps_made(child.run):,}/"
        f"{child.run.config.training.steps:,}"
        for child in children
    ]
    return WholeProgress(
        num_ended=len(runs) - num_waiting - len(children),
        steps=sum(steps),
        working=tuple(working),
    )


def _steps_made(run: RowRun) -> int:
    """By the last whole line of the run's log."""
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
