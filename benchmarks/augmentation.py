"""Train a preset with and without augmentation, and score changed test sets.

    python benchmarks/augmentation.py --data DIR --out RUNS [--preset multi30k]
        [--source en --target de] [--steps N] [--seeds 1 2 3] [--tests NAME ...]
        [--variants none noise ...] [--lines N] [options of `transduce train`]

DIR has train, val and the test sets with the languages as extensions. Each variant is
trained once for each seed, or resumed, and translates each text as it is, in ALL CAPS,
in lower case, with typos, and without the marks at its end. Scores are BLEU without
case, since the translation of ALL CAPS may be in capitals or not; references do not
change. Prints a Markdown table of means over the seeds for each text, and the pairs
that a process changes in a second. Choose a variant by the table of val. The same
command continues after an interruption.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev

import numpy as np
from machine import describe_machine, minutes_of

import transduce
from commands import train
from transduce.data.augmentation import CHUNK_PAIRS, PairAugmenter, largest_length
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import TRAINING
from transduce.experiments.run_folder import settings_of
from transduce.files import atomic_file
from transduce.metrics.scores import corpus_bleu
from transduce.text.corpus import read_text
from transduce.text.pair_changes import in_case, with_typos, without_end_marks
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer

NOISE = (
    "upper=0.05", "title=0.03", "lower=0.05", "typos=0.1", "no_end=0.05", "joined=0.05",
)  # fmt: skip
VARIANTS = {
    "none": (),
    "case": ("upper=0.05", "title=0.03", "lower=0.05"),
    "typos": ("typos=0.1",),
    "noise": NOISE,
    "dropout": ("subword_dropout=0.1",),
    "dropout-source": ("subword_dropout=0.1", "subword_sides=source"),
    "all": (*NOISE, "subword_dropout=0.1"),
}
"""Settings of the group `augmentation`."""
FORMS: dict[str, Callable[[str, Random], str]] = {
    "as it is": lambda text, random: text,
    "ALL CAPS": lambda text, random: in_case(text, "upper"),
    "lower": lambda text, random: in_case(text, "lower"),
    "typos": with_typos,
    "no end": lambda text, random: without_end_marks(text),
}
"""Forms of a test set's sources."""
TYPO_SEED = 20_240_101
"""Seed of the typos of test sets; training draws others."""


def trained(run: Path, variant: str, seed: int, arguments: argparse.Namespace) -> None:
    """Train, or resume an interrupted run."""
    files = [
        part
        for option, split in (("", "train"), ("dev-", "val"))
        for side in ("source", "target")
        for part in (
            f"--{option}{side}",
            arguments.data / f"{split}.{getattr(arguments, side)}",
        )
    ]
    settings = [f"augmentation.{each}" for each in VARIANTS[variant]]
    settings += [f"training.seed={seed}", *arguments.set]
    if arguments.steps is not None:
        settings.append(f"training.steps={arguments.steps}")
    options = ("--preset", arguments.preset, *files, *arguments.options)
    train(run, *options, "--set", *settings)


def scores(run: Path, test: str, arguments: argparse.Namespace) -> list[float]:
    """Return the score of each form of a test set, computed once."""
    done = run / f"augmentation-{test}-{arguments.lines or 'all'}.json"
    if not done.is_file():
        with atomic_file(done) as new:
            new.write_text(json.dumps(_scores(run, test, arguments)) + "\n")
    found: list[float] = json.loads(done.read_text())
    return found


def _scores(run: Path, test: str, arguments: argparse.Namespace) -> list[float]:
    sources, references = (
        list(read_text([arguments.data / f"{test}.{language}"]))[: arguments.lines]
        for language in (arguments.source, arguments.target)
    )
    translator = transduce.load(run)
    found = []
    for form in FORMS.values():
        random = Random(TYPO_SEED)
        translations = translator.translate([form(text, random) for text in sources])
        found.append(
            corpus_bleu(
                [each.text for each in translations], references, lowercase=True
            ).score
        )
    return found


def speed(run: Path) -> float | None:
    """Return the pairs that a process changes in a second of processor time."""
    config = settings_of(run)
    if not config.augmentation.used:
        return None
    tokenizer = load_tokenizer(run / TOKENIZER_FILE)
    dataset = open_dataset(run / TRAINING)
    most = largest_length(dataset, config.batching.max_length)
    augment = PairAugmenter(config.augmentation, tokenizer, config.languages, most)
    random = np.random.default_rng(1)
    number = min(CHUNK_PAIRS, len(dataset))
    seconds = []
    for trial in range(3):  # the first fills the caches
        chunk = dataset.picked(random.permutation(len(dataset))[:number])
        started = time.process_time()
        augment(chunk, (1, trial))
        seconds.append(time.process_time() - started)
    return number / mean(seconds[1:])


def row(name: str, by_seed: Sequence[Sequence[float]]) -> str:
    """Format means over seeds, with their standard deviations if there are several."""
    cells = []
    for values in zip(*by_seed, strict=True):
        spread = f" ±{stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{mean(values):.2f}{spread}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Train each variant with each seed, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lines", type=int, help="lines of each test set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tests", nargs="+", default=["val", "test_2016_flickr"])
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["none", "noise", "all"]
    )
    parser.add_argument("--set", nargs="+", default=[], help="further settings")
    arguments, options = parser.parse_known_args()
    arguments.options = options
    times = []
    tables: dict[str, list[str]] = {test: [] for test in arguments.tests}
    for variant in arguments.variants:
        runs = [arguments.out / f"{variant}-{seed}" for seed in arguments.seeds]
        for run, seed in zip(runs, arguments.seeds, strict=True):
            trained(run, variant, seed, arguments)
        for test, rows in tables.items():
            rows.append(row(variant, [scores(run, test, arguments) for run in runs]))
        minutes = mean(minutes_of(run) for run in runs)
        settings = ", ".join(VARIANTS[variant]) or "no augmentation"
        changed = f", {found:,.0f} pairs/s" if (found := speed(runs[0])) else ""
        times.append(
            f"- {variant}: {settings}; {minutes:.1f} minutes of updates{changed}"
        )
    for test, rows in tables.items():
        print(f"| {test} | " + " | ".join(FORMS) + " |")
        print("|---" * (len(FORMS) + 1) + "|")
        print("\n".join(rows) + "\n")
    print("\n".join(times) + "\n")
    print(describe_machine())


if __name__ == "__main__":
    main()
