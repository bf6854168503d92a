"""Measure a step of recurrent decoders whose layers are computed as cells.

    OMP_NUM_THREADS=1 python benchmarks/recurrent_steps.py [--presets NAME...]
        [--turns 5]

The same steps of models with random weights, by `nn.LSTM` and `nn.GRU` as they are, and
as `transduce translate` computes them on a CPU: one position of few rows as a cell. A
step includes the logits. Both take turns of a whole search; the first turn is not
counted.
"""

import transduce  # noqa: F401  # before PyTorch, as it sets OpenMP's spinning

# isort: split
import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from machine import describe_machine
from torch import nn

from transduce.architectures.interface import TransductionModel
from transduce.architectures.recurrent import RecurrentLayer
from transduce.benchmark.measurement import order_of_turns
from transduce.checkpoint import build
from transduce.data.tensors import pad_rows
from transduce.experiments.presets import preset
from transduce.nn.fuse import FusedRecurrentLayer, fuse
from transduce.text.vocabulary import BOS, NUM_RESERVED

PRESETS = ("gnmt-multi30k", "rnnsearch-en-fr", "gnmt-en-de")
SIZES = ((1, 1), (1, 4), (8, 4), (32, 4))
"""Sentences of a batch, and hypotheses of each."""
VOCAB_SIZE, SOURCE_LENGTH, STEPS, SEED = 8_000, 20, 15, 1
LAYER, CELL = "as a layer", "as a cell"


def main() -> None:
    """Take steps by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    print(
        "| preset | sentences | beam | as a layer, ms | as a cell, ms | ratio | range |"
    )
    print("|---|---:|---:|---:|---:|---:|---|", flush=True)
    for name in options.presets:
        models = both(name)
        for num_sentences, beam_size in SIZES:
            taken: dict[str, list[float]] = {kind: [] for kind in models}
            for turn in range(options.turns + 1):
                for kind in order_of_turns(list(models), turn):
                    seconds = step_seconds(models[kind], num_sentences, beam_size)
                    if turn > 0:
                        taken[kind].append(seconds)
            print_row(name, num_sentences, beam_size, taken[LAYER], taken[CELL])
    print(f"\n- {torch.get_num_threads()} threads\n{describe_machine()}")


def both(name: str) -> dict[str, TransductionModel]:
    """Return a preset's model with random weights, computed in both ways."""
    torch.manual_seed(SEED)
    config = replace(preset(name).model, vocab_size=VOCAB_SIZE)
    cells = fuse(build(config).eval())
    layers = fuse(cells)
    assert isinstance(layers, nn.Module)
    for module in layers.modules():
        if isinstance(module, FusedRecurrentLayer):
            module.__class__ = RecurrentLayer  # type: ignore[assignment] # its parent
    return {LAYER: layers, CELL: cells}


@torch.no_grad()
def step_seconds(model: TransductionModel, num_sentences: int, beam_size: int) -> float:
    """Encode sources and take steps; return the mean time of a step in seconds."""
    random = np.random.default_rng(SEED)
    shape = (num_sentences, SOURCE_LENGTH)
    source = pad_rows(random.integers(NUM_RESERVED, VOCAB_SIZE, shape).tolist())
    state = model.start(model.encode(source))
    model.step(torch.full((num_sentences, 1), BOS), state)
    rows = torch.arange(num_sentences)[:, None].expand(-1, beam_size).contiguous()
    state.reorder(rows)
    last = torch.full((num_sentences, beam_size), NUM_RESERVED)
    started = time.perf_counter()
    for _ in range(STEPS):
        model.step(last, state)
    return (time.perf_counter() - started) / STEPS


def print_row(
    name: str,
    num_sentences: int,
    beam_size: int,
    layer: Sequence[float],
    cell: Sequence[float],
) -> None:
    """Print medians in ms, and the ratio of the turns with its range."""
    ratios = [a / b for a, b in zip(layer, cell, strict=True)]
    print(
        f"| `{name}` | {num_sentences} | {beam_size} | {median(layer) * 1e3:.2f} | "
        f"{median(cell) * 1e3:.2f} | {median(ratios):.2f} | {min(ratios):.2f} to "
        f"{max(ratios):.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
