"""Measure training and decoding beside busy neighbours, and under a CPU quota.

    python benchmarks/neighbours.py [--preset multi30k] [--model MODEL]
        [--input FILE] [--batch-size 32] [--neighbours 1 4] [--turns 20] [--no-peers]
        [--long-spins] [--without training|decoding|neighbours|quota ...]

Neighbours are processes that only spin, on the same cores. With C cores and N of them,
the fair share of a program is C / (C + N) of its undisturbed speed, and the tables have
the part of the fair share that each system reaches. A CPU quota of one core, by a
control group where this process may make one, is compared by turns with one pinned
core, on which there is nothing to wait for; a loop in Python shows what the quota
itself costs.

All systems take turns in each condition: an update of training, or batches of
translation. Peers are PyTorch and Hugging Face in training and CTranslate2 in decoding,
where installed, with the settings of OpenMP that they have by default. `--long-spins`
adds our training on threads of OpenMP that spin for long, as without `GOMP_SPINCOUNT`.

Decoding is that of a random model of the preset's sizes, with translations of 25
tokens, or of a given model. `--batch-size 32` is a typical batch of a server,
`--batch-size 1000` that of a file, which is divided into parts so that a process that
finishes early takes another. Run it on a machine with nothing else to do.
"""

import transduce  # noqa: F401  # before PyTorch, as it sets OpenMP's spinning

# isort: split
import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from machine import describe_machine

from transduce.benchmark import decoding, peers, training
from transduce.benchmark.measurement import (
    OPENMP_SPINS,
    Turn,
    Turns,
    Worker,
    order_of_turns,
    peer_environment,
    within_quota,
)
from transduce.checkpoint import load_model, save_model
from transduce.device import choose_hardware
from transduce.errors import RequestError, counted
from transduce.experiments.presets import RunConfig, preset
from transduce.grammar.corpus import Grammar
from transduce.interop import ctranslate2 as ctranslate2_export
from transduce.machine import (
    PROC,
    control_groups,
    describe_threads,
)
from transduce.signals import unwound_on_termination

CPU = torch.device("cpu")
Key = TypeVar("Key")
BEAM_SIZE = 4
FORCED_LENGTH = 25
NUM_SENTENCES = 1_000
WARM_UP_TURNS = 2
"""Turns in which memory is allocated, before all conditions."""
SETTLING_S = 0.5
"""Time in which the kernel spreads new neighbours over the cores."""
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:  # until it is killed, at the latest
    for _ in range(10**6):
        pass
"""
"""Program of a neighbour."""
PARTS = ("training", "decoding", "neighbours", "quota")
"""Parts of the measurement that `--without` leaves out."""
LOOP_STEPS = 10**7
"""Steps of a turn of the loop in Python."""
QUOTA_US = PERIOD_US = 100_000
"""Microseconds of a core's time in a period: a quota of one core."""
LONG_SPINS = f"{training.OURS}, long spins"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Work of a system, and the environment that its process gets."""

    name: str
    work: Callable[[Turns[Any]], None]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Quantity by which systems are compared."""

    title: str
    unit: str
    systems: Sequence[System]
    amount: Callable[[Any], float]
    """Target tokens or sentences of a turn's outcome."""
    seconds: Callable[[Turn[Any]], float]
    """Time of a turn."""

    def without_peers(self) -> "Measured":
        """Return the same with our systems only."""
        own = [each for each in self.systems if each.name.startswith(training.OURS)]
        return replace(self, systems=own)


def training_systems(name: str, num_turns: int, *, long_spins: bool) -> Measured:
    """Return the systems that train: ours and the peers that are installed."""
    run = preset(name)
    hardware = choose_hardware("cpu", width=run.model.d_model)
    task = training.TrainingTask(run=run, hardware=hardware, steps=num_turns)
    work = partial(within_quota, training.work_of(training.OURS, task))
    own = training.OUR_ENVIRONMENT
    systems = [System(name=training.OURS, work=work, environment=own)]
    if long_spins:
        old = own | {"GOMP_SPINCOUNT": OPENMP_SPINS}
        systems.append(System(name=LONG_SPINS, work=work, environment=old))
    systems += [
        System(
            name=peer, work=training.work_of(peer, task), environment=peer_environment()
        )
        for peer in training.peers_on(CPU)
        if training.obstacle(peer, task.model) is None
    ]
    return Measured(
        title=f"Training, preset {name}, {hardware.precision}",
        unit="target tokens/s",
        systems=systems,
        amount=lambda outcome: outcome.num_target_tokens,
        seconds=lambda turn: turn.seconds,
    )


def decoding_systems(
    run: RunConfig,
    model: Path | None,
    text: Path | None,
    batch_size: int,
    num_turns: int,
    folder: Path,
) -> Measured:
    """Return the systems that translate: ours and the peers that are installed."""
    sentences = sentences_of(text)
    checkpoint = (
        decoding.random_checkpoint(run, sentences)
        if model is None
        else load_model(model)
    )
    save_model(checkpoint, folder / "ours")
    setting = peers.Setting(
        batch_size=batch_size,
        beam_size=BEAM_SIZE,
        forced_length=FORCED_LENGTH if model is None else None,
    )
    task = peers.DecodingTask(
        models=folder,
        sentences=tuple(sentences),
        settings=(setting,),
        rounds=num_turns,
        device=CPU,
    )
    prepared = [(training.OURS, partial(peers.ours, "int8", False), "transduce")]
    if find_spec("ctranslate2") is not None:
        ctranslate2_export.export(checkpoint, folder / "ctranslate2", sentences[:10])
        prepare = partial(peers.ctranslate2, "int8", 1, False)
        prepared.append(("CTranslate2", prepare, "ctranslate2"))
    systems = [
        System(
            name=name,
            work=partial(decoding.translate_in_turns, prepare, library, task),
            environment={} if name == training.OURS else peer_environment(),
        )
        for name, prepare, library in prepared
    ]
    return Measured(
        title=f"Decoding, {'random model' if model is None else model}, {setting}",
        unit="sentences/s",
        systems=systems,
        amount=lambda outcome: len(outcome.translations),
        seconds=lambda turn: sum(turn.outcome.batch_seconds),  # without warm-up
    )


def sentences_of(text: Path | None) -> list[str]:
    """Return lines of the file, or sentences of the built-in corpus."""
    if text is not None:
        return text.read_text(encoding="utf-8").splitlines()
    pairs = Grammar.built_in().training_sentences(seed=1)
    return [pair.source for pair in islice(pairs, NUM_SENTENCES)]


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Run processes that spin on the cores of this one."""
    command = [sys.executable, "-S", "-c", SPIN]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        time.sleep(SETTLING_S if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Pin this process, and those that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def in_group(group: Path) -> Iterator[None]:
    """Move this process to a control group, where those that it starts stay."""
    join(group)
    try:
        yield
    finally:
        join(group.parent)


def join(group: Path) -> None:
    """Move this process to a control group."""
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


@contextmanager
def quota_group() -> Iterator[Path]:
    """Make a control group with a quota of one core.

    Raises `RequestError` if this process may not, also not join it.
    """
    with ExitStack() as stack:
        try:
            parent, version = next(control_groups("cpu", PROC))
            group = parent / f"transduce-{os.getpid()}"
            if version == 2:
                stack.enter_context(controlled_cpu(parent))
            group.mkdir()
            stack.callback(remove, group)
            if version == 2:
                (group / "cpu.max").write_text(
                    f"{QUOTA_US} {PERIOD_US}", encoding="ascii"
                )
            else:
                for name, number in (("period", PERIOD_US), ("quota", QUOTA_US)):
                    (group / f"cpu.cfs_{name}_us").write_text(
                        str(number), encoding="ascii"
                    )
            with in_group(group):
                pass
        except (OSError, StopIteration) as error:
            raise RequestError(
                "A quota needs a control group with the controller `cpu`, but none can "
                f"be used here ({str(error) or 'none is mounted'}); start the "
                "benchmark in a container with `--cpus 1` instead."
            ) from None
        yield group


@contextmanager
def controlled_cpu(parent: Path) -> Iterator[None]:
    """Give the groups within a group of version 2 the controller `cpu`."""
    path = parent / "cgroup.subtree_control"
    if "cpu" in path.read_text(encoding="ascii").split():
        yield
        return
    path.write_text("+cpu", encoding="ascii")
    try:
        yield
    finally:
        with suppress(OSError):  # another group within it needs the controller now
            path.write_text("-cpu", encoding="ascii")


def remove(group: Path) -> None:
    """Remove a control group, once the kernel has removed its ended processes."""
    for _ in range(100):
        try:
            group.rmdir()
            break
        except OSError:
            time.sleep(0.1)


def start(stack: ExitStack, measured: Measured) -> dict[str, Worker[Any]]:
    """Start a process for each system, which inherits affinity and control group."""
    workers: dict[str, Worker[Any]] = {}
    for system in measured.systems:
        worker: Worker[Any] = Worker(system.name, system.work, CPU, system.environment)
        workers[system.name] = stack.enter_context(worker)
        for _ in range(WARM_UP_TURNS):
            worker.take_turn()
    return workers


def rates(
    measured: Measured, workers: Mapping[Key, Worker[Any]], num_turns: int
) -> dict[Key, float]:
    """Measure the amount per second of each process over its turns."""
    turns: dict[Key, list[Turn[Any]]] = {key: [] for key in workers}
    for number in range(num_turns):
        for key in order_of_turns(list(workers), number):
            turns[key].append(workers[key].take_turn())
    return {
        key: sum(measured.amount(turn.outcome) for turn in done)
        / sum(map(measured.seconds, done))
        for key, done in turns.items()
    }


def beside_neighbours(
    measured: Measured, counts: Sequence[int], num_turns: int
) -> Iterator[str]:
    """Yield a Markdown table of speeds alone and beside neighbours."""
    cores = len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        workers = start(stack, measured)
        found = {}
        for count in (0, *counts):
            with spinning(count):
                found[count] = rates(measured, workers, num_turns)
    names = [f"{counted(count, 'neighbour')} | of the fair share" for count in counts]
    yield f"| {measured.unit} | alone | {' | '.join(names)} |"
    yield "|---|---|" + "---|---|" * len(counts)
    for name, alone in found[0].items():
        cells = [f"{alone:,.1f}"]
        for count in counts:
            fair = alone * cores / (cores + count)
            rate = found[count][name]
            cells += [f"{rate:,.1f}", f"{rate / fair:.2f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def under_a_quota(measured: Measured, num_turns: int) -> Iterator[str]:
    """Yield a Markdown table of speeds under a quota and on a pinned core."""
    try:
        with quota_group() as group, ExitStack() as stack:
            workers: dict[tuple[str, bool], Worker[Any]] = {}
            for is_quota, confined in ((False, on_one_core()), (True, in_group(group))):
                with confined:
                    started = start(stack, measured)
                workers |= {(name, is_quota): each for name, each in started.items()}
            found = rates(measured, workers, num_turns)
    except RequestError as error:
        yield str(error)
        return
    yield f"| {measured.unit} | one pinned core | quota of one core | ratio |"
    yield "|---|---|---|---|"
    for system in measured.systems:
        pinned, rate = found[system.name, False], found[system.name, True]
        yield f"| {system.name} | {pinned:,.1f} | {rate:,.1f} | {rate / pinned:.2f} |"


def loops(turns: Turns[int]) -> None:
    """Count to the same number in every turn."""
    turns.begin()
    while True:
        for _ in range(LOOP_STEPS):
            pass
        turns.done(LOOP_STEPS)


LOOP = Measured(
    title="A loop in Python",
    unit="steps/s",
    systems=[System(name="loop", work=loops, environment={})],
    amount=lambda steps: steps,
    seconds=lambda turn: turn.seconds,
)


def main() -> None:
    """Measure by the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--neighbours", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], choices=PARTS)
    parser.add_argument("--long-spins", action="store_true")
    given = parser.parse_args()
    # Processes take the turns of all numbers of neighbours; a quota begins new ones.
    num_turns = WARM_UP_TURNS + given.turns * (1 + len(given.neighbours))
    with unwound_on_termination(), tempfile.TemporaryDirectory() as folder:
        found = []
        if "training" not in given.without:
            found.append(
                training_systems(given.preset, num_turns, long_spins=given.long_spins)
            )
        if "decoding" not in given.without:
            found.append(
                decoding_systems(
                    preset(given.preset),
                    given.model,
                    given.input,
                    given.batch_size,
                    num_turns,
                    Path(folder),
                )
            )
        if given.no_peers:
            found = [each.without_peers() for each in found]
        for measured in found if "neighbours" not in given.without else ():
            print(f"## {measured.title}\n", flush=True)
            for line in beside_neighbours(measured, given.neighbours, given.turns):
                print(line, flush=True)
            print()
        for measured in (*found, LOOP) if "quota" not in given.without else ():
            print(f"## {measured.title}: quota\n", flush=True)
            for line in under_a_quota(measured, given.turns):
                print(line, flush=True)
            print()
    print(f"{describe_machine()}- {describe_threads()}")


if __name__ == "__main__":
    main()
