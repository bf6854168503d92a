"""Measure the preparation of a large corpus: pairs per second, memory, disk.

    python benchmarks/preparation.py --folder DIR [--pairs 10000000]

Writes a generated corpus (words by Zipf's law, about 25 per sentence) into a new
folder, then runs `transduce train` on it twice for one step. The first run prepares the
corpus, the second shares it, which gives the time and memory of starting alone. Results
are printed as Markdown.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import describe_machine

NUM_WORDS, EXPONENT = 400_000, 1.07
"""Number of distinct words, and exponent of Zipf's law."""
MEAN_LENGTH, SHAPE = 25.0, 2.5
"""Words per sentence, gamma distributed."""
CHUNK_PAIRS = 100_000
WMT14_EN_FR_PAIRS = 36_000_000
STARTED = b"Training pairs:"
"""Start of the line that is printed when the corpus is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Time and memory of one run of `transduce train`."""

    seconds: float
    """Seconds until the corpus is prepared."""
    peak_bytes: int


def write_corpus(folder: Path, num_pairs: int) -> None:
    """Write `source.txt` and `target.txt` with different vocabularies."""
    random = np.random.default_rng(1)
    for side in ("source", "target"):
        words = [*random_words(random), b"\n"]
        frequencies = np.arange(1, NUM_WORDS + 1) ** -EXPONENT
        bounds = np.cumsum(frequencies / frequencies.sum())
        with (folder / f"{side}.txt").open("wb") as file:
            for start in range(0, num_pairs, CHUNK_PAIRS):
                count = min(CHUNK_PAIRS, num_pairs - start)
                lengths = 1 + random.gamma(SHAPE, MEAN_LENGTH / SHAPE, count).astype(
                    int
                )
                picked = np.searchsorted(bounds, random.random(lengths.sum()))
                picked = np.minimum(picked, NUM_WORDS - 1)
                with_ends = np.insert(picked, np.cumsum(lengths), NUM_WORDS)
                file.write(b" ".join(map(words.__getitem__, with_ends.tolist())))


def random_words(random: np.random.Generator) -> list[bytes]:
    """Words made of syllables; frequent words are short."""
    consonants, vowels = list("bcdfghklmnprstvwz"), list("aeiouäé")
    syllables = np.array([c + v for c in consonants for v in vowels])
    numbers = 1 + (np.log10(np.arange(1, NUM_WORDS + 1)) / 1.5).astype(int)
    picked = iter(random.choice(syllables, int(numbers.sum())))
    return ["".join(next(picked) for _ in range(n)).encode() for n in numbers]


def run(folder: Path, out: Path, options: list[str]) -> Measured:
    """Train for one step in a process of its own."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out)]
    command += ["--source", str(folder / "source.txt")]
    command += ["--target", str(folder / "target.txt"), "--preset", "base"]
    # With a small model, the memory is mostly that of the data.
    command += ["--set", "model.d_model=64", "model.d_ff=64", "model.num_layers=1"]
    command += ["training.steps=1", *options]
    started, seconds = time.monotonic(), 0.0
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(STARTED):
            seconds = time.monotonic() - started
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"`{' '.join(command)}` failed.")
    return Measured(seconds=seconds, peak_bytes=usage.ru_maxrss * 1024)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Write the corpus, train twice, and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True)
    write_corpus(folder, arguments.pairs)
    text = sum((folder / f"{side}.txt").stat().st_size for side in ("source", "target"))
    first = run(folder, folder / "runs" / "first", [])
    second = run(folder, folder / "runs" / "second", ["training.seed=2"])
    disk = size_of(folder / "runs" / "first" / "corpus")
    factor = WMT14_EN_FR_PAIRS / arguments.pairs
    print(f"| pairs | {arguments.pairs:,} | WMT14 en-fr, {WMT14_EN_FR_PAIRS:,} |")
    print("|---|---|---|")
    print(f"| text | {text / 1e9:.2f} GB | {factor * text / 1e9:.1f} GB |")
    for name, seconds in (("prepared", first.seconds), ("shared", second.seconds)):
        print(
            f"| {name} in | {seconds / 60:.1f} minutes "
            f"({arguments.pairs / seconds:,.0f} pairs/s) | "
            f"{factor * seconds / 60:.0f} minutes |"
        )
    print(f"| ids on disk | {disk / 1e9:.2f} GB | {factor * disk / 1e9:.1f} GB |")
    print(f"| peak memory, preparation | {first.peak_bytes / 1e9:.2f} GB | |")
    print(f"| peak memory, start of training | {second.peak_bytes / 1e9:.2f} GB | |")
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
