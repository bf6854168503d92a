"""Train parsers on treebanks and score them with transduce's commands.

    python benchmarks/parsing.py --data DIR --out RUNS [--tasks wsj wsj-gum ...]

DIR has wsj_sample/ (NLTK's sample of the Penn Treebank) and gum/ (Zeldes, 2017), each
with train.trees and dev.trees. An existing run is only scored; resume an interrupted
one by `transduce train --resume`. Further options are passed to `transduce train`.
Results are printed as Markdown.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import describe_machine, minutes_of

from transduce.text.corpus import read_text, write_lines
from transduce.trees.trees import read_trees

TRANSDUCE = [sys.executable, "-m", "transduce"]
NUM_MEMORIZED = 200
"""Trees that are both trained on and scored."""
NUM_TIMED = 1_000
OVERFITTING = (
    "--set", "model.dropout=0.0", "treebank.augmentation.copies=0",
    "training.steps=700", "training.checkpoint_steps=50",
    "training.learning_rate_scale=0.5", "training.warmup_steps=150",
    "training.label_smoothing=0.0",
)  # fmt: skip
"""Settings of a model that is to memorize its treebank."""
SAMPLE_ALONE = ("--set", "model.dropout=0.2", "training.steps=8500")
"""Settings for the small sample without other trees."""
SEARCHES = tuple(
    (beam_size, constrained) for beam_size in (1, 21) for constrained in (False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Treebanks to train on, treebank to score, and options of the training."""

    train: tuple[Path, ...]
    dev: Path
    options: tuple[str, ...] = ()


def tasks(data: Path, out: Path) -> dict[str, Task]:
    """Tasks by name; with GUM, each tree of the sample counts twice."""
    wsj, gum = data / "wsj_sample", data / "gum"
    memorized = out / "memorized.trees"
    return {
        "memorized": Task(train=(memorized,), dev=memorized, options=OVERFITTING),
        "wsj": Task(
            train=(wsj / "train.trees",), dev=wsj / "dev.trees", options=SAMPLE_ALONE
        ),
        "wsj-gum": Task(
            train=(wsj / "train.trees", wsj / "train.trees", gum / "train.trees"),
            dev=wsj / "dev.trees",
        ),
        "gum": Task(train=(gum / "train.trees",), dev=gum / "dev.trees"),
    }


def train(task: Task, run: Path, options: list[str]) -> None:
    """Train, unless the run exists."""
    if run.exists():
        return
    files = ["--trees", *map(str, task.train), "--dev-trees", str(task.dev)]
    command = [*TRANSDUCE, "train", "--preset", "parsing-small", "--out", str(run)]
    subprocess.run([*command, *files, *task.options, *options], check=True)


def report(name: str, task: Task, run: Path) -> str:
    """Format the scores of a run with every search as a Markdown table."""
    head = "| | beam | constrained | F1 | recall | precision | complete | repaired |"
    rows = [
        _row(name, task, run, beam_size, constrained)
        for beam_size, constrained in SEARCHES
    ]
    times = f"{minutes_of(run):.0f} minutes of updates."
    return "\n".join([head, "|---" * 8 + "|", *rows, "", times, ""])


def _row(name: str, task: Task, run: Path, beam_size: int, constrained: bool) -> str:
    command = [*TRANSDUCE, "evaluate-parses", str(task.dev), "--model", str(run)]
    command += ["--json", "--beam-size", str(beam_size)]
    command += ["--constrained"] if constrained else []
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(printed)
    keys = ("f1", "recall", "precision", "complete_match")
    figures = [f"{found['all'][key]:.2f}" for key in keys]
    cells = [
        name,
        str(beam_size),
        "yes" if constrained else "no",
        *figures,
        f"{found['mended']:.2f} %",
    ]
    return f"| {' | '.join(cells)} |"


def speed(run: Path, treebank: Path, folder: Path) -> str:
    """Format the speed of parsing a thousand sentences, with loading."""
    trees = list(read_trees(read_text([treebank]), str(treebank)))[:NUM_TIMED]
    sentences = folder / "sentences.txt"
    write_lines(sentences, (" ".join(tree.words) for tree in trees))
    command = [*TRANSDUCE, "parse", str(run), "--tokenized", "--input", str(sentences)]
    rows = ["| constrained | seconds | sentences/s |", "|---|---|---|"]
    for option in ((), ("--constrained",)):
        started = time.monotonic()
        subprocess.run([*command, *option], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        constrained = "yes" if option else "no"
        rows.append(f"| {constrained} | {seconds:.0f} | {len(trees) / seconds:.1f} |")
    return "\n".join([f"{len(trees):,} sentences in one call, beam 21:", "", *rows, ""])


def main() -> None:
    """Train and score each task, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["memorized", "wsj", "wsj-gum"])
    arguments, options = parser.parse_known_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    known = tasks(arguments.data, out)
    first = read_text([arguments.data / "wsj_sample" / "train.trees"])
    memorized = list(read_trees(first, "wsj_sample"))[:NUM_MEMORIZED]
    write_lines(out / "memorized.trees", map(str, memorized))
    for name in arguments.tasks:
        train(known[name], out / name, options)
        print(report(name, known[name], out / name), flush=True)
    last = out / arguments.tasks[-1]
    print(speed(last, arguments.data / "gum" / "dev.trees", out))
    print(describe_machine())


if __name__ == "__main__":
    main()
