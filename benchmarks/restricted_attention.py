"""Time and memory of restricted attention (section 4), by blocks and by a mask.

    python benchmarks/restricted_attention.py [--lengths 512 1024] [--neighbourhoods 16]

One layer of self-attention of the base model's width encodes a sentence, and makes a
training step (forward and backward). Both forms take turns. Each case is measured in a
process of its own; its memory is the peak beyond that at the start.
"""

import argparse
import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from transduce.benchmark.measurement import describe_machine
from transduce.model.attention import MultiHeadAttention, RestrictedSelfAttention
from transduce.model.config import Band
from transduce.nn.fuse import fuse

LENGTHS = (512, 1024, 2048, 4096)
NEIGHBOURHOODS = (16, 64)
FORMS = ("mask", "blocks")
WORK = ("encoding", "training")
D_MODEL, HEADS = 512, 8
KIB = 1024


def measure(
    form: str, work: str, length: int, neighbourhood: int, rounds: int
) -> tuple[float, float]:
    """Return milliseconds of processor time of a pass, and MiB of memory."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    d_head = D_MODEL // HEADS
    band = Band.of(neighbourhood, is_causal=False)
    restricted = RestrictedSelfAttention(
        D_MODEL, HEADS, d_head, d_head, "scaled", 0.0, band
    )
    whole = MultiHeadAttention(D_MODEL, HEADS, d_head, d_head, "scaled")
    is_masked, is_training = form == "mask", work == "training"
    attention = fuse(whole if is_masked else restricted)
    x = torch.randn(1, length, D_MODEL, requires_grad=is_training)

    def run() -> None:
        # The mask is formed anew each time, as for each batch of a model.
        mask = (
            restricted.whole_mask(None, length, length, x.device) if is_masked else None
        )
        with torch.set_grad_enabled(is_training):
            y = attention(x, x, mask)
        if is_training:
            y.sum().backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1000 * median(seconds), (peak - before) / KIB


def send(result: Connection, *case: Any) -> None:
    """Measure a case and send its figures to the parent process."""
    result.send(measure(*case))


def measured(*case: Any) -> tuple[float, float]:
    """Measure a case in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=send, args=(theirs, *case))
    process.start()
    figures: tuple[float, float] = ours.recv()
    process.join()
    return figures


def main() -> None:
    """Measure all cases by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--neighbourhoods", type=int, nargs="+", default=NEIGHBOURHOODS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine(("torch", "numpy"), torch.device("cpu")))
    print(f"Load average of the last minute: {os.getloadavg()[0]:.1f}\n")
    print("| work | n | r | mask, ms | blocks, ms | ratio | mask, MiB | blocks, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for work in WORK:
        for length in options.lengths:
            for r in options.neighbourhoods:
                mask, blocks = (
                    measured(form, work, length, r, options.rounds) for form in FORMS
                )
                print(
                    f"| {work} | {length:,} | {r} | {mask[0]:.1f} | {blocks[0]:.1f} "
                    f"| {mask[0] / blocks[0]:.1f} | {mask[1]:.0f} | {blocks[1]:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
