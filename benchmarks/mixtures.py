"""Show that a weighted mixture has its shares, resumes bit for bit, and is divisible.

    python benchmarks/mixtures.py [--source FILE --target FILE] [--preset multi30k]
        [--steps 1000] [--weights 0.8 0.2] [--later 0.5 0.5] [--set KEY=VALUE...]

Divides the pairs, by default of the built-in corpus, into short and long sentences,
which batches by length do not mix, and trains on both in two stages of equal length:

1. The shares of the pairs in the log, at the end of each stage, beside the weights.
2. The same training, stopped by a signal in the middle of the second stage and resumed,
   beside the uninterrupted one: weights bit for bit, and the log.
3. The same training in two processes, beside the one process: losses and weights.
4. Mistakes in a mixture: the exit code, the sentence, and what is left.

Prints Markdown tables. Each training is a process of its own.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine

from transduce.checkpoint import load_model
from transduce.grammar.corpus import Grammar
from transduce.text.corpus import read_pairs

BUILT_IN_PAIRS = 20_000
"""Pairs of the built-in corpus."""
NAMES = ("short", "long")
FIRST_UPDATES = 20
"""Updates in which the rounding of two processes has hardly any effect."""
DISREGARDED = 20
"""Number of updates of a stage after which the shares must be near the weights."""
POLL_S = 0.05
"""Seconds between two looks at the log."""
SEED = 1
SETTINGS = (
    "batching.source_tokens=2000",
    "batching.target_tokens=2000",
    # Several processes add gradients in another order. Where a gradient is only
    # rounding error, Adam divides by its epsilon, and large steps let the errors grow.
    "training.epsilon=0.0001",
    "training.learning_rate_scale=0.1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Training on a mixture of two corpora in two stages."""

    folder: Path
    """Folder of the corpora and the runs."""
    preset: str
    steps: int
    weights: tuple[tuple[float, float], tuple[float, float]]
    """Weights of the corpora in each stage."""
    settings: tuple[str, ...]

    def command(self, out: Path, *more: str) -> list[str]:
        """Return the command of the training."""
        corpora: list[str] = []
        for name in NAMES:
            texts = (str(self.folder / f"{name}.{side}") for side in ("en", "de"))
            corpora += ["--corpus", name, *texts]
        first, second = (
            ", ".join(f"{name}={each}" for name, each in zip(NAMES, pair, strict=True))
            for pair in self.weights
        )
        stages = (
            f"stages=[{{steps={self.steps // 2}, weights={{{first}}}}}, "
            f"{{weights={{{second}}}}}]"
        )
        return [
            *(sys.executable, "-m", "transduce", "train", "--out", str(out), *more),
            *("--preset", self.preset, "--device", "cpu", *corpora),
            *("--set", f"training.steps={self.steps}", stages, *self.settings),
        ]


def write_corpora(source: Path | None, target: Path | None, folder: Path) -> list[int]:
    """Write the shorter and the longer half of the pairs; return their numbers."""
    pairs: Iterator[tuple[str, str]]
    if source is None or target is None:
        sentences = Grammar.built_in().training_sentences(SEED)
        built_in = islice(sentences, BUILT_IN_PAIRS)
        pairs = ((pair.source, pair.target) for pair in built_in)
    else:
        read = read_pairs([source], [target])
        pairs = ((pair.source, pair.target) for pair in read)
    by_length = sorted(pairs, key=lambda pair: len(pair[0]))
    half = len(by_length) // 2
    for name, part in zip(NAMES, (by_length[:half], by_length[half:]), strict=True):
        for side, number in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[number]}\n" for pair in part)
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
    return [half, len(by_length) - half]


def log_of(run: Path) -> list[dict[str, Any]]:
    """Lines of the log about updates, without what depends on time."""
    if not (run / "log.jsonl").is_file():
        return []
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["kind"] == "step"]
    timed = ("seconds", "waited")
    return [{k: v for k, v in each.items() if k not in timed} for each in entries]


def train(command: Sequence[str]) -> None:
    """Train to the end."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def stop_after(command: Sequence[str], run: Path, step: int) -> int:
    """Train, and stop by a signal after that update at least; return the last one."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not any(entry["step"] >= step for entry in log_of(run)):
        if process.poll() is not None:
            raise SystemExit(f"The training ended before step {step}.")
        time.sleep(POLL_S)
    process.send_signal(signal.SIGTERM)
    process.wait()
    state = json.loads((run / "stopped/training.json").read_text(encoding="utf-8"))
    return int(state["step"])


def largest_difference(one: Path, other: Path) -> float:
    """Largest absolute difference between two weights of the models of two runs."""
    ours, theirs = load_model(one).weights, load_model(other).weights
    return max(
        float((weight - theirs[name]).abs().max()) for name, weight in ours.items()
    )


def loss_difference(one: Path, other: Path, last_step: float = math.inf) -> float:
    """Largest difference between the losses of two runs, up to an update."""
    pairs = zip(log_of(one), log_of(other), strict=True)
    return max(
        abs(ours["loss"] - theirs["loss"])
        for ours, theirs in pairs
        if ours["step"] <= last_step
    )


def shares_table(run: Path, mixture: Mixture) -> Iterator[str]:
    """Rows of the shares at the end of each stage, and their largest difference."""
    yield "| stage | corpus | weight | share in the log | difference |"
    yield "|---|---|---|---|---|"
    log = log_of(run)
    for number, weights in enumerate(mixture.weights, start=1):
        last = [entry for entry in log if entry["stage"] == number][-1]
        total = sum(weights)
        for name, weight in zip(NAMES, weights, strict=True):
            share, wanted = last["shares"][name], weight / total
            yield (
                f"| {number}, to update {last['step']:,} | {name} | {wanted:.2%} | "
                f"{share:.2%} | {100 * (share - wanted):+.2f} points |"
            )


def largest_deviation(run: Path, mixture: Mixture, updates: int) -> float:
    """Largest difference between share and weight after so many updates of a stage."""
    found, starts = 0.0, (0, mixture.steps // 2)
    for entry in log_of(run):
        number = entry["stage"] - 1
        weights = mixture.weights[number]
        if entry["step"] - starts[number] >= updates:
            for name, weight in zip(NAMES, weights, strict=True):
                share = entry["shares"][name]
                found = max(found, abs(share - weight / sum(weights)))
    return found


def main() -> None:
    """Train on the mixture that the arguments describe, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--weights", type=float, nargs=2, default=(0.8, 0.2))
    parser.add_argument("--later", type=float, nargs=2, default=(0.5, 0.5))
    parser.add_argument("--set", dest="settings", nargs="*", default=SETTINGS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        mixture = Mixture(
            folder=Path(name),
            preset=given.preset,
            steps=given.steps,
            weights=(tuple(given.weights), tuple(given.later)),
            settings=tuple(given.settings),
        )
        sizes = write_corpora(given.source, given.target, mixture.folder)
        report(mixture, sizes)
    print(f"\n{describe_machine()}")


def mistakes(mixture: Mixture) -> Iterator[str]:
    """Rows of commands with a mistake: exit code, message, and if a run is left."""
    short, long = (
        ["--corpus", name, f"{mixture.folder}/{name}.en", f"{mixture.folder}/{name}.de"]
        for name in NAMES
    )
    empty = [f"{mixture.folder}/empty.{side}" for side in ("en", "de")]
    for path in empty:
        Path(path).touch()
    commands = {
        "weight 0": [*short, "0", *long, "1"],
        "negative weight": [*short, "-1", *long, "1"],
        "weight of one corpus alone": [*short, "1", *long],
        "empty corpus": [*short, "--corpus", "none", *empty],
        "one name twice": [*short, *short],
        "unknown name in a stage": [*short, "--set", "stages=[{weights={other=1}}]"],
        "stages shorter than the training": [
            *(*short, "--set", "stages=[{steps=1, weights={short=1}}]"),
        ],
        "malformed tag": [*short, "tag=a b"],
        "missing file": ["--corpus", "short", "missing.en", "missing.de"],
    }
    yield "| mistake | exit code | message | folder left |"
    yield "|---|---|---|---|"
    out = mixture.folder / "mistake"
    for mistake, options in commands.items():
        command = (sys.executable, "-m", "transduce", "train", *options)
        found = subprocess.run(
            [*command, "--preset", "tiny", "--out", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        message = found.stderr.strip().replace(f"{mixture.folder}/", "")
        is_left = "yes" if out.exists() else "no"
        yield f"| {mistake} | {found.returncode} | {message} | {is_left} |"


def report(mixture: Mixture, sizes: list[int]) -> None:
    """Train, and print the tables."""
    whole, resumed, both = (
        mixture.folder / name for name in ("whole", "resumed", "both")
    )
    train(mixture.command(whole))
    numbers = " and ".join(
        f"{size:,} {name}" for name, size in zip(NAMES, sizes, strict=True)
    )
    print(f"\n{numbers} pairs, preset {mixture.preset}, {mixture.steps:,} updates\n")
    for row in shares_table(whole, mixture):
        print(row)
    deviation = largest_deviation(whole, mixture, DISREGARDED)
    print(
        f"\nLargest difference in any line of the log after the first {DISREGARDED} "
        f"updates of a stage: {100 * deviation:.2f} points."
    )

    stopped = stop_after(mixture.command(resumed), resumed, 3 * mixture.steps // 4)
    train(mixture.command(resumed, "--resume"))
    ours, theirs = load_model(whole).weights, load_model(resumed).weights
    are_same = all(torch.equal(weight, theirs[n]) for n, weight in ours.items())
    train(mixture.command(both, "--devices", "2"))
    shares = [[each["shares"] for each in log_of(run)] for run in (whole, both)]
    losses = [log_of(run)[-1]["loss"] for run in (whole, resumed, both)]
    print("\n| training | beside one uninterrupted process | last loss |")
    print("|---|---|---|")
    print(f"| one process | | {losses[0]:.6f} |")
    print(
        f"| stopped after update {stopped:,} and resumed | weights "
        f"{'the same bit for bit' if are_same else 'DIFFERENT'}, log "
        f"{'the same' if log_of(whole) == log_of(resumed) else 'DIFFERENT'} | "
        f"{losses[1]:.6f} |"
    )
    are_equal = "the same" if shares[0] == shares[1] else "DIFFERENT"
    print(
        f"| two processes | losses within {loss_difference(whole, both):.1e}, in the "
        f"first {FIRST_UPDATES} updates within "
        f"{loss_difference(whole, both, FIRST_UPDATES):.1e}; weights in the end within "
        f"{largest_difference(whole, both):.1e}; shares {are_equal} | "
        f"{losses[2]:.6f} |\n"
    )
    for row in mistakes(mixture):
        print(row)


if __name__ == "__main__":
    main()
