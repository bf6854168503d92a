"""Whether two source trees give the same translations, parses and trained weights.

    python benchmarks/equality.py --old OLD/src --new src
        [--translator MODEL --text NAME SOURCE REFERENCE ...]
        [--parser MODEL --trees FILE]
        [--train SOURCE TARGET DEV_SOURCE DEV_TARGET --updates 200 --work DIR]

Each tree runs in processes of its own, one at a time. Translations and parses are
compared token for token, and their scores as numbers. Training runs the preset
multi30k with a fixed seed: in the old tree on one thread and on two, which says how
much the number of threads changes the weights, in the new tree likewise, and in the new
tree once more from the checkpoint in the middle. Finished runs in the folder WORK are
not repeated. Prints Markdown tables.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors.numpy import load_file

BEAM_SIZES = 1, 4, 12
N_BEST = 4
PREFIX_WORDS = 2
SEED = 7
"""Seed of sampling; that of training is in the preset."""
PRECISIONS: tuple[Literal["fp32", "int8"], ...] = ("fp32", "int8")
THREADS = 1, 2
"""Numbers of threads that training is compared on."""

Line = list[tuple[list[str], list[float]]]
"""Tokens and scores of each hypothesis of one line."""


class Tree(NamedTuple):
    """A source tree."""

    name: str
    source: Path

    def run(self, *arguments: str, threads: int = 1) -> None:
        """Run Python on this tree's package."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.source.resolve()),
            "OMP_NUM_THREADS": str(threads),
        }
        command = [sys.executable, *arguments]
        subprocess.run(
            command, env=environment, check=True, stdout=sys.stderr, text=True
        )


def main() -> None:
    """Compare what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--translator", type=Path)
    parser.add_argument("--text", nargs=3, action="append", default=[])
    parser.add_argument("--parser", type=Path)
    parser.add_argument("--trees", type=Path)
    parser.add_argument("--train", nargs=4, type=Path)
    parser.add_argument("--train-in", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        task, found = arguments.worker
        Path(found).write_text(json.dumps(work(json.loads(task))), encoding="utf-8")
        return
    trees = Tree("old", arguments.old), Tree("new", arguments.new)
    if arguments.translator:
        for text in arguments.text:
            task = {"translator": str(arguments.translator), "text": text[1:]}
            compare(f"translations of {text[0]}", task, trees)
    if arguments.parser:
        task = {"parser": str(arguments.parser), "trees": str(arguments.trees)}
        compare(f"parses of {arguments.trees.name}", task, trees)
    if arguments.train:
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.work or Path(temporary)
            for precision in arguments.train_in:
                compare_training(
                    trees, arguments.train, arguments.updates, precision, folder
                )
    from machine import describe_machine  # not in workers: it needs the new library

    print(describe_machine())


def compare(title: str, task: dict[str, Any], trees: tuple[Tree, Tree]) -> None:
    """Print a table of one task's differences between the trees."""
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for tree in trees:
            path = Path(folder) / tree.name
            tree.run(__file__, "--worker", json.dumps(task), str(path))
            answers.append(json.loads(path.read_text(encoding="utf-8")))
            libraries = answers[-1]["libraries"]
            if not answers[-1]["package"].startswith(str(tree.source.resolve())):
                sys.exit(f"{tree.source} was not used, but {answers[-1]['package']}")
            print(f"{tree.name} computes with {', '.join(libraries)}", file=sys.stderr)
    old, new = (answer["cases"] for answer in answers)
    print(
        f"\n| {title} | lines | hypotheses | lines that differ "
        "| largest difference of a score |\n|---|---|---|---|---|"
    )
    for name in old:
        print(f"| {name} | {row(old[name], new[name])} |", flush=True)


def row(old: list[Line], new: list[Line]) -> str:
    """Return the cells of one case."""
    if len(old) != len(new):
        return f"{len(old)} and {len(new)} lines"
    different, largest, hypotheses = [], 0.0, 0
    for number, (before, after) in enumerate(zip(old, new, strict=True), start=1):
        hypotheses += len(before)
        if [tokens for tokens, _ in before] != [tokens for tokens, _ in after]:
            different.append(number)
            continue
        for (_, first), (_, second) in zip(before, after, strict=True):
            if len(first) != len(second):
                different.append(number)
                break
            differences = np.subtract(first, second)
            largest = max(largest, float(np.abs(differences).max(initial=0)))
    if different:
        print("lines that differ:", *different[:20], file=sys.stderr)
    return f"{len(old):,} | {hypotheses:,} | {len(different)} | {largest:.2g}"


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Return what the tree on the path finds, and the native libraries it used."""
    import transduce

    found = translations if "translator" in task else parses
    cases = dict(found(task))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    package = str(Path(transduce.__file__).parent)
    used = {word for word in maps if word.startswith(package) and word.endswith(".so")}
    return {
        "package": package,
        "libraries": sorted(word.removeprefix(package) for word in used),
        "cases": cases,
    }


def translations(task: dict[str, Any]) -> Iterator[tuple[str, list[Line]]]:
    """Yield cases of one text: name, and the hypotheses of its lines."""
    from transduce import SamplingConfig, SearchConfig, load

    sources, references = (
        Path(each).read_text(encoding="utf-8").splitlines() for each in task["text"]
    )
    prefixes = [" ".join(each.split()[:PREFIX_WORDS]) for each in references]
    searches: dict[str, tuple[SearchConfig, list[str] | None]] = {
        f"beam {beam_size}": (SearchConfig(beam_size=beam_size), None)
        for beam_size in BEAM_SIZES
    }
    searches |= {
        f"{name}, prefixes of {PREFIX_WORDS} words": (config, prefixes)
        for name, (config, _) in searches.items()
    }
    for beam_size in BEAM_SIZES[1:]:
        config = SearchConfig(beam_size=beam_size, num_best=N_BEST)
        searches[f"beam {beam_size}, {N_BEST} best"] = config, None
    coverage = SearchConfig(beam_size=BEAM_SIZES[1], coverage_penalty=0.2)
    searches[f"beam {BEAM_SIZES[1]}, coverage penalty"] = coverage, None
    for precision in PRECISIONS:
        translator = load(task["translator"], device="cpu", precision=precision)
        for name, (config, begun) in searches.items():
            found = translator.translate_stream(sources, config, begun)
            yield f"{precision}, {name}", [hypotheses(each) for each in found]
        drawn = translator.sample(sources, SamplingConfig(seed=SEED, top_p=0.9))
        yield f"{precision}, samples", [hypotheses(each) for each in drawn]
        scores = translator.score(sources, references)
        yield (
            f"{precision}, scores of references",
            [[([str(each.num_tokens)], [each.log_probability])] for each in scores],
        )


def hypotheses(translation: Any) -> Line:
    """Return tokens and scores of all hypotheses of a line."""
    return [
        (
            list(each.tokens),
            [each.score, each.log_probability, *each.token_log_probabilities],
        )
        for each in translation.hypotheses
    ]


def parses(task: dict[str, Any]) -> Iterator[tuple[str, list[Line]]]:
    """Yield cases of one treebank's words: name, and the tree of each sentence."""
    from transduce import SearchConfig, load
    from transduce.trees.trees import read_trees

    lines = Path(task["trees"]).read_text(encoding="utf-8").splitlines()
    sentences = [tree.words for tree in read_trees(lines, task["trees"])]
    for precision in PRECISIONS:
        parser = load(task["parser"], device="cpu", precision=precision).parser()
        for constrained in False, True:
            for beam_size in BEAM_SIZES:
                config = SearchConfig(
                    beam_size=beam_size, length_penalty=0.3, extra_length=300
                )
                found = parser.parse_stream(sentences, config, constrained=constrained)
                kind = "constrained" if constrained else "free"
                yield (
                    f"{precision}, {kind}, beam {beam_size}",
                    [
                        [([str(each.tree), str(each.repairs)], [each.score])]
                        for each in found
                    ],
                )


def compare_training(
    trees: tuple[Tree, Tree],
    files: list[Path],
    updates: int,
    precision: str,
    folder: Path,
) -> None:
    """Print a table of differences between the weights after some updates."""
    runs = {}
    for tree in trees:
        for threads in THREADS:
            run = folder / f"{tree.name}-{precision}-{threads}"
            if not checkpoint(run, updates).exists():
                train(tree, run, files, updates, precision, threads)
            runs[tree.name, threads] = run
    new = trees[1]
    middle = folder / f"{new.name}-{precision}-resumed"
    begin_in_the_middle(runs[new.name, 1], middle, updates)
    new.run("-m", "transduce", "train", "--out", str(middle), "--resume")
    pairs = {
        "old, one thread and two": (runs["old", 1], runs["old", 2]),
        "new, one thread and two": (runs["new", 1], runs["new", 2]),
        "old and new, one thread": (runs["old", 1], runs["new", 1]),
        "old and new, two threads": (runs["old", 2], runs["new", 2]),
        f"new, {updates} updates and {updates // 2} + {updates // 2}": (
            runs["new", 1],
            middle,
        ),
    }
    print(
        f"\n| {updates} updates, {precision} | weights that differ "
        "| largest difference | of the optimizer's state | of a logged loss |\n"
        "|---|---|---|---|---|"
    )
    for name, (one, other) in pairs.items():
        weights = difference(one, other, updates, "model")
        state = difference(one, other, updates, "training")
        loss = np.abs(np.subtract(losses(one), losses(other))).max()
        print(
            f"| {name} | {weights[0]:,} of {weights[1]:,} | {weights[2]:.2g} "
            f"| {state[2]:.2g} | {loss:.2g} |",
            flush=True,
        )


def train(
    tree: Tree,
    run: Path,
    files: list[Path],
    updates: int,
    precision: str,
    threads: int,
) -> None:
    """Train the preset multi30k, with a checkpoint in the middle."""
    tree.run(
        *("-m", "transduce", "train", "--preset", "multi30k", "--out", str(run)),
        *("--source", str(files[0]), "--target", str(files[1])),
        *("--dev-source", str(files[2]), "--dev-target", str(files[3])),
        *("--device", "cpu", "--precision", precision, "--set"),
        *(f"training.steps={updates}", f"training.checkpoint_steps={updates // 2}"),
        *("training.warmup_steps=50", "training.best_by=loss"),
        threads=threads,
    )


def begin_in_the_middle(run: Path, copy: Path, updates: int) -> None:
    """Copy a run without what it did after its checkpoint in the middle."""
    shutil.copytree(run, copy)
    for folder in copy / "averaged", copy / "best", checkpoint(copy, updates):
        shutil.rmtree(folder, ignore_errors=True)


def checkpoint(run: Path, step: int) -> Path:
    """Return the folder of one checkpoint."""
    return run / "checkpoints" / f"step-{step:08}"


def difference(
    one: Path, other: Path, updates: int, name: str
) -> tuple[int, int, float]:
    """Return how many numbers differ, of how many, and the largest difference."""
    first, second = (
        load_file(checkpoint(run, updates) / f"{name}.safetensors")
        for run in (one, other)
    )
    if first.keys() != second.keys():
        sys.exit(f"{one} and {other} hold different tensors of {name}")
    different, largest = 0, 0.0
    for key, value in first.items():
        if not np.array_equal(value, second[key]):
            different += int((value != second[key]).sum())
            apart = np.subtract(value, second[key], dtype=np.float64)
            largest = max(largest, float(np.abs(apart).max()))
    return different, sum(value.size for value in first.values()), largest


def losses(run: Path) -> list[float]:
    """Return the losses that a run has logged."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    found = {each["step"]: each["loss"] for each in entries if each["kind"] == "step"}
    return [found[step] for step in sorted(found)]


if __name__ == "__main__":
    main()
