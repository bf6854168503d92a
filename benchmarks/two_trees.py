"""Compare the speed and results of two source trees by turns.

    python benchmarks/two_trees.py --old OLD/src --new src [--train PRESET...]
        [--training-precision fp32] [--decode MODEL... --input FILE] [--rounds 8]

Each tree has its own process for each kind of work. While one works the other sleeps,
so a slow period of the machine affects both. A round of training is one update; a round
of decoding translates some sentences. Prints a Markdown table: the median over the
rounds of the new tree's time divided by the old tree's, and whether both had the same
losses or translations.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

WARM_UP = 2
"""Number of first rounds that are not counted: they allocate memory and fill caches."""
CELLS = tuple((batch, beam) for batch in (1, 32, 128) for beam in (1, 4))
"""Batch sizes in sentences, and beam sizes."""
SENTENCES = {1: 12, 32: 256, 128: 256}
"""Number of sentences of a round, by batch size."""
MIN_SECONDS = 0.5
"""Time for which a round of decoding repeats its work, about."""

Round = Callable[[], Any]


def main() -> None:
    """Let both trees work by turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--train", nargs="*", default=[])
    parser.add_argument("--training-precision", default="auto")
    parser.add_argument("--decode", type=Path, nargs="*", default=[])
    parser.add_argument("--precisions", nargs="*", default=["fp32", "int8"])
    parser.add_argument("--input", type=Path)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    work: dict[str, dict[str, Any]] = {
        f"training, {preset}": {
            "train": preset,
            "precision": arguments.training_precision,
            "steps": arguments.rounds + WARM_UP,
        }
        for preset in arguments.train
    }
    for model in arguments.decode:
        for precision in arguments.precisions:
            for batch, beam in CELLS:
                name = f"{model.name}, {precision}, batch {batch}, beam {beam}"
                work[name] = {
                    "decode": str(model.absolute()),
                    "input": str(arguments.input.absolute()),
                    "precision": precision,
                    "batch": batch,
                    "beam": beam,
                    "max_length": arguments.max_length,
                }
    print("| | new / old | range | old, s | same results |")
    print("|---|---|---|---|---|", flush=True)
    for name, task in work.items():
        print(compare(name, task, arguments.old, arguments.new, arguments.rounds))
        sys.stdout.flush()
    from machine import describe_machine  # not in workers: it needs the new library

    print(f"\n{describe_machine()}, load {os.getloadavg()[0]:.1f}")


def compare(name: str, task: dict[str, Any], old: Path, new: Path, rounds: int) -> str:
    """Return one row of the table."""
    ratios, seconds, same = [], [], True
    with ExitStack() as stack:
        trees = [stack.enter_context(worker(tree, task)) for tree in (old, new)]
        for number in range(rounds + WARM_UP):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found = {which: turn(trees[which]) for which in order}
            same = same and found[0]["result"] == found[1]["result"]
            if number >= WARM_UP:
                ratios.append(found[1]["seconds"] / found[0]["seconds"])
                seconds.append(found[0]["seconds"])
    return (
        f"| {name} | {median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} "
        f"| {median(seconds):.3f} | {'yes' if same else 'no'} |"
    )


@contextmanager
def worker(tree: Path, task: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that imports one source tree, and end it afterwards."""
    command = [sys.executable, __file__, "--worker", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": str(tree.absolute())}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        place = process.stdout.readline().strip()
        if not place.startswith(str(tree.absolute())):
            sys.exit(f"{tree}: the worker ended, or imported {place} instead")
        yield process
        process.kill()


def turn(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Let a process do one round; return its seconds and result."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        sys.exit(f"A worker ended with {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found


def serve(task: dict[str, Any]) -> None:
    """Do a round for each line of standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    if "train" in task:
        train(task, lambda result: answer(out, result))
        return
    translate = decoder(task)
    started = time.perf_counter()
    translate()
    repeats = max(1, round(MIN_SECONDS / (time.perf_counter() - started)))
    answer(out, None)
    while True:
        # Not counted: the caches hold data of the other tree, which worked until now.
        translate()
        restart()
        found = [translate() for _ in range(repeats)]
        answer(out, found[-1], repeats)


_started: float | None = None


def restart() -> None:
    """Start to measure a round."""
    global _started  # noqa: PLW0603
    _started = time.perf_counter()


def answer(out: Any, result: Any, repeats: int = 1) -> None:
    """Write seconds and result of the last round, and wait for the next."""
    if _started is None:
        import transduce

        print(transduce.__file__, file=out, flush=True)
    else:
        seconds = (time.perf_counter() - _started) / repeats
        print(json.dumps({"seconds": seconds, "result": result}), file=out, flush=True)
    if not sys.stdin.readline():
        sys.exit()
    restart()


def benchmark_name(name: str, *modules: str) -> Any:
    """Return what the first of these modules of a tree's benchmark calls `name`."""
    for module in modules:
        with suppress(ModuleNotFoundError, AttributeError):
            return getattr(
                importlib.import_module(f"transduce.benchmark.{module}"), name
            )
    sys.exit(f"This tree has no {name} in {', '.join(modules)}.")


def train(task: dict[str, Any], done: Callable[[Any], None]) -> None:
    """Make one update of a preset each round."""
    from dataclasses import replace

    import torch

    from transduce import machine
    from transduce.device import choose_hardware
    from transduce.experiments.presets import PRESETS

    run = PRESETS[task["train"]]
    if run.batching.source_tokens > 3_125:
        batching = replace(run.batching, source_tokens=3_125, target_tokens=3_125)
        run = replace(run, batching=batching)
    hardware = choose_hardware("cpu", task["precision"])
    machine.keep_freed_memory()
    if hasattr(machine, "use_huge_pages"):  # older trees lack it
        machine.use_huge_pages()
    torch.manual_seed(1)
    modules = ("training", "training_systems", "training.task", "training.contestants")
    training_task = benchmark_name("TrainingTask", *modules)
    our_trainer = benchmark_name("our_trainer", *modules)
    trainer = our_trainer(
        training_task(run=run, hardware=hardware, steps=task["steps"])
    )
    done(None)
    trainer.train(
        on_step=lambda report: done(report.loss),
        save=lambda: None,
        on_checkpoint=lambda: False,
        should_stop=lambda: False,
    )


def decoder(task: dict[str, Any]) -> Round:
    """Translate the same sentences each round."""
    import transduce

    lines = Path(task["input"]).read_text(encoding="utf-8").splitlines()
    count = SENTENCES[task["batch"]]
    chosen: Sequence[str] = [lines[i % len(lines)] for i in range(count)]
    translator = transduce.load(task["decode"], precision=task["precision"])
    search = transduce.SearchConfig(
        beam_size=task["beam"], max_length=task["max_length"]
    )

    def translate() -> list[str]:
        found = []
        for start in range(0, count, task["batch"]):
            batch = chosen[start : start + task["batch"]]
            found += [
                each.text
                for line in translator.translate_stream(batch, search)
                for each in line.hypotheses[:1]
            ]
        return found

    return translate


if __name__ == "__main__":
    main()
