"""Measure how training on a CPU gains from huge pages.

    OMP_NUM_THREADS=1 python benchmarks/huge_pages.py [--presets NAME...]
        [--precision auto] [--tokens 2048] [--turns 6] [--updates 8]

The same updates of random sentences, of another length in each update, with the memory
of tensors in huge pages, as in `transduce train`, and in pages of 4 KB. Each has a
process of its own. They take turns of several updates in a row; the first turn is not
counted. Linux must give huge pages on advice: `madvise` in
/sys/kernel/mm/transparent_hugepage/enabled.
"""

import transduce  # noqa: F401  # before PyTorch, as it sets OpenMP's spinning

# isort: split
import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
import torch
from architectures import (
    CHARACTERS_A_PIECE,
    LEARNING_RATE,
    MEAN_LENGTH,
    SEED,
    SPREAD,
    batch_of,
)
from machine import describe_machine

from transduce import machine
from transduce.benchmark import training
from transduce.benchmark.measurement import Turns, Worker, order_of_turns
from transduce.checkpoint import build
from transduce.data.tensors import Batch
from transduce.device import choose_hardware
from transduce.experiments.presets import preset
from transduce.nn.fuse import fuse
from transduce.signals import unwound_on_termination
from transduce.text.vocabulary import NUM_RESERVED
from transduce.training.loss import BatchLoss
from transduce.training.optimizer import WeightOptimizer

PRESETS = (
    "multi30k", "gnmt-multi30k", "convs2s-multi30k", "moe-multi30k",
    "bytenet-multi30k",
)  # fmt: skip
KINDS = ("4 KB", "huge")


def main() -> None:
    """Train by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--updates", type=int, default=8)
    options = parser.parse_args()
    if not machine.can_use_huge_pages():
        sys.exit("This system does not give huge pages on advice.")
    print("| preset | 4 KB, ms | huge, ms | times as fast | range of turns |")
    print("|---|---:|---:|---:|---|", flush=True)
    for name in options.presets:
        work = partial(train, name, options.precision, options.tokens)
        seconds = measured(work, options.turns, options.updates)
        before, after = (seconds[kind] for kind in KINDS)
        ratios = [a / b for a, b in zip(before, after, strict=True)]
        print(
            f"| `{name}` | {median(before) * 1e3:.0f} | {median(after) * 1e3:.0f} | "
            f"{median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )
    print(f"\n{describe_machine()}")


def measured(work: "partial[None]", turns: int, updates: int) -> dict[str, list[float]]:
    """Return the mean seconds of an update in each turn, by the kind of pages."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack, unwound_on_termination():
        workers = {
            kind: stack.enter_context(
                Worker(
                    kind,
                    partial(work, kind),
                    torch.device("cpu"),
                    training.OUR_ENVIRONMENT,
                )
            )
            for kind in KINDS
        }
        for turn in range(turns + 1):
            for kind in order_of_turns(list(KINDS), turn):
                taken = [workers[kind].take_turn().seconds for _ in range(updates)]
                if turn > 0:
                    seconds[kind].append(sum(taken) / updates)
    return seconds


def train(
    name: str, precision: machine.Precision, tokens: int, kind: str, turns: Turns[float]
) -> None:
    """Train a preset's model, one update a turn."""
    machine.keep_freed_memory()
    if kind == "huge":
        machine.use_huge_pages()
    run = preset(name)
    torch.manual_seed(SEED)
    model = build(replace(run.model, vocab_size=run.tokenizer.vocab_size))
    hardware = choose_hardware("cpu", precision, width=run.model.d_model)
    trained = fuse(model)
    batch_loss = BatchLoss(trained, run.training.label_smoothing, hardware)
    batch_loss.train()
    optimizer = WeightOptimizer(trained, replace(run.training, optimizer="adam"))
    random = np.random.default_rng(SEED)
    factor = CHARACTERS_A_PIECE if run.tokenizer.kind == "character" else 1
    turns.begin()
    while True:
        batch, num_tokens = random_batch(
            random, factor * MEAN_LENGTH, tokens, run.tokenizer.vocab_size
        )
        optimizer.zero_grad()
        (batch_loss(batch).smoothed / num_tokens).backward()
        optimizer.step(LEARNING_RATE)
        turns.done(0.0)


def random_batch(
    random: np.random.Generator, mean_length: int, tokens: int, vocab_size: int
) -> tuple[Batch, int]:
    """Return pairs of one random length, and the number of their target tokens."""
    length = int(random.lognormal(np.log(mean_length), SPREAD)) + 1
    count = max(tokens // length, 1)
    ids = random.integers(NUM_RESERVED, vocab_size, (2, count, length))
    return batch_of(*ids.tolist())


if __name__ == "__main__":
    main()
