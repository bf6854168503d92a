"""Train and score the `multi30k` preset on Multi30k with transduce's commands.

    python benchmarks/multi30k.py --data DIR --out RUNS [--tasks tok-en-de de-en ...]

DIR has train, val, test_2016_flickr, test_2017_flickr and test_2017_mscoco with the
extensions .en, .de and .fr. `tok/` has the same files, lower-cased and tokenized by the
authors of the data set (Elliott et al., 2016 and 2017). An interrupted run is resumed.
Further options are passed to `transduce train`. Results are printed as Markdown.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import describe_machine, minutes_of

from commands import TESTS, call
from transduce.experiments.presets import PRESETS

TASKS = ("tok-en-de", "tok-en-fr", "en-de", "de-en", "en-fr")
SEARCH = PRESETS["multi30k"].search


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One direction of the corpus."""

    name: str
    folder: Path
    source: str
    target: str

    @classmethod
    def named(cls, name: str, data: Path) -> "Task":
        *prefix, source, target = name.split("-")
        folder = data / prefix[0] if prefix else data
        return cls(name=name, folder=folder, source=source, target=target)

    @property
    def is_tokenized(self) -> bool:
        return self.folder.name == "tok"

    def files(self, split: str) -> tuple[str, str]:
        """Source and target file of a split."""
        stem = self.folder / split
        return f"{stem}.{self.source}", f"{stem}.{self.target}"


def train(task: Task, run: Path, options: list[str]) -> None:
    """Train, or resume an interrupted run."""
    source, target = task.files("train")
    dev_source, dev_target = task.files("val")
    files = ["--source", source, "--target", target]
    files += ["--dev-source", dev_source, "--dev-target", dev_target]
    begin = ["--preset", "multi30k", *files]
    how = ["--resume"] if (run / "config.json").is_file() else begin
    command = ["-m", "transduce", "train", "--out", str(run), *how, *options]
    subprocess.run([sys.executable, *command], check=True)


def scores(task: Task, run: Path, split: str) -> dict[str, float]:
    """Scores of the averaged model on a test set, by name."""
    source, reference = task.files(split)
    printed = call(
        *("evaluate", run, "--source", source, "--reference", reference, "--json"),
        *("--language", task.target, "--beam-size", SEARCH.beam_size),
        *("--length-penalty", SEARCH.length_penalty),
        *(("--tokenized",) if task.is_tokenized else ()),
    )
    return {score["name"]: score["score"] for score in json.loads(printed)}


def report(task: Task, run: Path, minutes: float) -> str:
    """Format the scores of a task as a Markdown table."""
    found = {split: scores(task, run, split) for split in TESTS if has(task, split)}
    names = list(next(iter(found.values())))
    rows = [
        f"| {split} | " + " | ".join(f"{by_name[name]:.2f}" for name in names) + " |"
        for split, by_name in found.items()
    ]
    head = f"| {task.name} | " + " | ".join(names) + " |"
    line = "|---" * (len(names) + 1) + "|"
    times = (
        f"{minutes_of(run):.0f} minutes of updates; the last call took {minutes:.0f} "
        "minutes, scoring included."
    )
    return "\n".join([head, line, *rows, "", times, ""])


def has(task: Task, split: str) -> bool:
    """Whether the corpus has this test set in both languages."""
    return all(Path(file).is_file() for file in task.files(split))


def main() -> None:
    """Train and score each task, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    arguments, options = parser.parse_known_args()
    for name in arguments.tasks:
        task = Task.named(name, arguments.data)
        started = time.monotonic()
        train(task, arguments.out / name, options)
        minutes = (time.monotonic() - started) / 60
        print(report(task, arguments.out / name, minutes), flush=True)
    print(describe_machine())


if __name__ == "__main__":
    main()
