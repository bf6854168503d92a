"""Runs of Table 3 as processes, so that a crash of one stays its own."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from transduce.errors import TransduceError
from transduce.experiments.run_folder import LOG
from transduce.experiments.tables.table3.experiment import Experiment, RowRun
from transduce.interruption import stop_on_signal
from transduce.machine import num_cores
from transduce.settings import require_between

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
