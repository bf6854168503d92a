"""Training speed of the systems of Table 2, beside the Transformer without kernels.

    python benchmarks/architectures.py [--presets NAME...] [--pairs 128] [--rounds 10]

Every system computes the gradient of the same pairs and updates its weights, by
turns. Sentences are random, with the lengths of captions; systems that read characters
get five tokens for each sub-word, so pairs a second are what compares. "plain PyTorch"
is the Transformer as `transduce.model` writes it, without the native library. Prints
medians and ratios as Markdown.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from machine import describe_machine
from torch import nn

from transduce.checkpoint import build
from transduce.data.tensors import Batch, pad_rows
from transduce.device import choose_hardware
from transduce.experiments.presets import preset
from transduce.machine import keep_freed_memory
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import BOS, EOS, NUM_RESERVED
from transduce.training.loss import BatchLoss
from transduce.training.optimizer import WeightOptimizer

PRESETS = (
    "multi30k", "gnmt-multi30k", "rnnsearch-multi30k", "convs2s-multi30k",
    "moe-multi30k", "moe-ffn-multi30k", "deep-att-multi30k", "bytenet-multi30k",
)  # fmt: skip
REFERENCE = "multi30k"
PLAIN = "multi30k, plain PyTorch"
MEAN_LENGTH, SPREAD = 15, 0.35
CHARACTERS_A_PIECE = 5
LEARNING_RATE = 1e-4
SEED = 1


def main() -> None:
    """Time all systems in turns, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    keep_freed_memory()  # as in training
    turns = {name: _turn(name, arguments.pairs) for name in arguments.presets}
    turns[PLAIN] = _turn(REFERENCE, arguments.pairs, is_plain=True)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(arguments.rounds + 2):
        for name, (take, _) in turns.items():
            started = time.perf_counter()
            take()
            if number >= 2:  # the first rounds allocate memory
                seconds[name].append(time.perf_counter() - started)
    times = {name: median(found) for name, found in seconds.items()}
    base = times.get(REFERENCE, times[PLAIN])
    print("| system | parameters | pairs/s | target tokens/s | time, Transformer = 1 |")
    print("|---|---:|---:|---:|---:|")
    for name, (_, (parameters, tokens)) in turns.items():
        print(
            f"| {name} | {parameters:,} | {arguments.pairs / times[name]:,.0f} | "
            f"{tokens / times[name]:,.0f} | {times[name] / base:.2f} |"
        )
    threads = torch.get_num_threads()
    print(f"\n- {arguments.pairs} pairs an update, fp32, {threads} threads")
    print(describe_machine())


def _turn(
    name: str, num_pairs: int, *, is_plain: bool = False
) -> tuple[Callable[[], None], tuple[int, int]]:
    """Return a function that makes an update, the parameters and the target tokens."""
    run = preset(name)
    torch.manual_seed(SEED)
    model = build(replace(run.model, vocab_size=run.tokenizer.vocab_size))
    hardware = choose_hardware("cpu", "fp32")
    trained = model if is_plain else fuse(model)
    batch_loss = BatchLoss(trained, run.training.label_smoothing, hardware)
    batch_loss.train()
    optimizer = WeightOptimizer(trained, replace(run.training, optimizer="adam"))
    is_of_characters = run.tokenizer.kind == "character"
    batch, num_tokens = _batch(
        num_pairs,
        MEAN_LENGTH * (CHARACTERS_A_PIECE if is_of_characters else 1),
        run.tokenizer.vocab_size,
    )

    def take() -> None:
        optimizer.zero_grad()
        (batch_loss(batch).smoothed / num_tokens).backward()
        nn.utils.clip_grad_norm_(batch_loss.parameters(), 1.0)
        optimizer.step(LEARNING_RATE)

    return take, (model.num_parameters(), num_tokens)


def _batch(num_pairs: int, mean_length: int, vocab_size: int) -> tuple[Batch, int]:
    """Return a batch of random pairs of similar lengths, and its target tokens."""
    random = np.random.default_rng(SEED)
    lengths = random.lognormal(np.log(mean_length), SPREAD, num_pairs).astype(int) + 1

    def rows(factor: float) -> list[list[int]]:
        return [
            random.integers(NUM_RESERVED, vocab_size, max(int(n * factor), 1)).tolist()
            for n in lengths
        ]

    source, target = rows(1.0), rows(1.1)
    return batch_of(source, target)


def batch_of(source: list[list[int]], target: list[list[int]]) -> tuple[Batch, int]:
    """Return a batch of pairs without end tokens, and the number of target tokens."""
    batch = Batch(
        source=pad_rows([[*row, EOS] for row in source]),
        target_in=pad_rows([[BOS, *row] for row in target]),
        target_out=pad_rows([[*row, EOS] for row in target]),
    )
    return batch, sum(map(len, target)) + len(target)


if __name__ == "__main__":
    main()
