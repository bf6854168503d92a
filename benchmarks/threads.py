"""Measure how training gains from threads: the same updates with one thread and more.

    python benchmarks/threads.py [--preset multi30k] [--precision auto] [--threads 1 2]
        [--turns 16] [--updates 10] [--set KEY=VALUE ...]

Training is as the preset says, with its optimizer. Each number of threads has a process
of its own. They take turns of several updates in a row, as an update after the turn of
another process begins with cold caches. The first turns are not counted. `--set`
changes batching, such as `source_tokens=3125`. Run it on a machine with nothing else to
do.
"""

import transduce  # noqa: F401  # before PyTorch, as it sets OpenMP's spinning

# isort: split
import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import mean, median

from machine import describe_machine

from transduce.architectures.interface import TransductionModel
from transduce.benchmark import training
from transduce.benchmark.measurement import Worker, order_of_turns
from transduce.checkpoint import build
from transduce.device import choose_hardware
from transduce.experiments.presets import preset
from transduce.signals import unwound_on_termination
from transduce.training.config import TrainingConfig


class Task(training.TrainingTask):
    """Training of a preset by its own settings, which peers may lack.

    Its architecture may be any. Lengths are those of sub-words, also for characters.
    """

    def new_model(self) -> TransductionModel:
        return build(replace(self.run.model, vocab_size=self.run.tokenizer.vocab_size))

    @property
    def training(self) -> TrainingConfig:
        return replace(self.run.training, steps=self.steps)


Seconds = dict[int, list[float]]
"""Times of the updates by the number of threads."""


def main(argv: Sequence[str] | None = None) -> None:
    """Train by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    run = preset(options.preset)
    changes = {key: int(n) for key, n in (each.split("=") for each in options.set)}
    task = Task(
        run=replace(run, batching=replace(run.batching, **changes)),
        hardware=choose_hardware("cpu", options.precision, width=run.model.d_model),
        steps=options.turns * options.updates,
    )
    print(describe_machine(), task.hardware, sep="\n")
    with started(task, options.threads) as workers:
        seconds = measured(workers, options.turns, options.updates)
    print_table(seconds)


@contextmanager
def started(
    task: training.TrainingTask, threads: Sequence[int]
) -> Iterator[Mapping[int, Worker[training.UpdateOutcome]]]:
    """Processes that train with each number of threads."""
    with ExitStack() as stack, unwound_on_termination():
        yield {
            number: stack.enter_context(
                Worker(
                    f"{number} threads",
                    partial(training.train_ours, task),
                    task.hardware.device,
                    training.OUR_ENVIRONMENT | {"OMP_NUM_THREADS": str(number)},
                )
            )
            for number in threads
        }


def measured(
    workers: Mapping[int, Worker[training.UpdateOutcome]], turns: int, updates: int
) -> Seconds:
    """Return the seconds of each update, by turns."""
    seconds: Seconds = {number: [] for number in workers}
    for turn in range(turns):
        for number in order_of_turns(list(workers), turn):
            taken = [workers[number].take_turn().seconds for _ in range(updates)]
            if turn > 0:
                seconds[number] += taken
    return seconds


def print_table(seconds: Seconds) -> None:
    """Print times, and how many times as fast as the first number each one is."""
    first = next(iter(seconds.values()))
    print("threads  median    mean      times as fast (median of ratios, of means)")
    for number, each in seconds.items():
        ratio = median(a / b for a, b in zip(first, each, strict=True))
        print(
            f"{number:7}  {median(each) * 1e3:6.1f} ms {mean(each) * 1e3:6.1f} ms  "
            f"{ratio:.2f}, {mean(first) / mean(each):.2f}"
        )


if __name__ == "__main__":
    main()
