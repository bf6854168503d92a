"""Time and memory of restricted attention (section 4), by blocks and by a mask.

    python benchmarks/restricted_attention.py [--lengths 512 1024] [--neighbourhoods 16]

One layer of self-attention of the base model's width encodes a sentence, and makes a
training step (forward and backward). Both forms take turns, each in a process of its
own, whose peak memory is that of the process after it has loaded PyTorch.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

LENGTHS = (512, 1024, 2048, 4096)
NEIGHBOURHOODS = (16, 64)
FORMS = ("mask", "blocks")
WORK = ("encoding", "training")
D_MODEL, HEADS = 512, 8
MIB = 1024


def measure(form: str, work: str, length: int, neighbourhood: int, rounds: int) -> None:
    """Print milliseconds of processor time and MiB of memory beyond the start's."""
    import torch

    from transduce.model.attention import MultiHeadAttention, RestrictedSelfAttention
    from transduce.model.sizes import Band
    from transduce.nn.fuse import fuse

    torch.manual_seed(1)
    torch.set_num_threads(1)
    width = D_MODEL // HEADS
    band = Band.of(neighbourhood, is_causal=False)
    restricted = RestrictedSelfAttention(
        D_MODEL, HEADS, width, width, "scaled", 0.0, band
    )
    whole = MultiHeadAttention(D_MODEL, HEADS, width, width, "scaled")
    attention = fuse(whole if form == "mask" else restricted)
    x = torch.randn(1, length, D_MODEL, requires_grad=work == "training")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run() -> None:
        # The mask is formed anew each time, as a model does.
        mask = None
        if form == "mask":
            mask = restricted.whole_mask(None, length, length, x.device)
        with torch.set_grad_enabled(work == "training"):
            y = attention(x, x, mask)
        if work == "training":
            y.sum().backward()

    run()
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(1000 * median(seconds), (peak - before) / MIB)


def measured(*case: object) -> tuple[float, float]:
    """Measure a case in a new process; returns milliseconds and MiB."""
    command = [sys.executable, str(Path(__file__)), "--one", *map(str, case)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    milliseconds, mib = map(float, printed.stdout.split())
    return milliseconds, mib


def main() -> None:
    """Measure all cases by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--neighbourhoods", type=int, nargs="+", default=NEIGHBOURHOODS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        form, work, *numbers = options.one
        measure(form, work, *map(int, numbers))
        return
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
