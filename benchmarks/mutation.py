"""Mutation test: change the code at random places, and run the tests on each change.

    python benchmarks/mutation.py --tool COSMIC_RAY [--mutants 250] [--seed 1]
        [--workers 2] [--only GROUP...]

COSMIC_RAY is the command of the package `cosmic-ray` (8.x), which may be installed in
an environment of its own; this script's Python runs the tests. At most one mutant is
drawn for each place and kind of operator, so that no place dominates. Each worker
changes files in a copy of the checkout. A mutant is killed if a test of its group fails
or times out. The score and the surviving mutants are printed as Markdown.
"""

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from machine import describe_machine

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 240
COPIED = ("src", "tests", "benchmarks", "scripts", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules, and the tests that must kill their mutants."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "model": Group(
        modules=tuple(
            f"model/{name}.py"
            for name in (
                "attention", "config", "embedding", "layers", "transformer",
            )
        ),
        tests=("unit/model", "relations/test_cached_decoding.py"),
    ),
    "loss": Group(
        modules=tuple(
            f"{name}.py"
            for name in ("nn/cross_entropy", "training/loss", "training/reward")
        ),
        tests=(
            "unit/nn/test_cross_entropy.py",
            "unit/nn/test_native_loss.py",
            "unit/training/test_guided_attention.py",
            "unit/training/test_loss.py",
            "unit/training/test_reward.py",
            "relations/test_accumulation.py",
        ),
    ),
    "search": Group(
        modules=tuple(
            f"decoding/{name}.py"
            for name in ("beam_search", "native_search", "search")
        ),
        tests=(
            "unit/decoding/test_beam_search.py", "unit/decoding/test_greedy_search.py",
            "relations/test_limits.py", "relations/test_search_properties.py",
            "relations/test_beam_search_exhaustive.py", "relations/test_refilling.py",
            "unit/decoding/test_native_search.py", "unit/decoding/test_candidates.py",
            "unit/decoding/test_sampling.py", "relations/test_steps_together.py",
        ),
    ),
    "batches": Group(
        modules=("data/batches.py", "data/dataset.py"), tests=("unit/data",)
    ),
    "checkpoint": Group(
        modules=("checkpoint.py", "model_folder.py"),
        tests=("unit/test_averaging.py", "unit/test_checkpoint.py",
               "unit/test_model_folder.py", "unit/test_foreign_models.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Change of the code: its place, operator and occurrence."""

    group: str
    module: str
    line: int
    operator: str
    occurrence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a mutant: whether it was killed, and its first changed line."""

    mutant: Mutant
    is_killed: bool
    diff: str


def drawn(tool: str, group: str, count: int, seed: int, folder: Path) -> list[Mutant]:
    """Draw a group's mutants at random, at most one of each kind and place."""
    places: dict[tuple[object, ...], list[Mutant]] = defaultdict(list)
    for row in _specifications(tool, GROUPS[group], folder):
        module, operator, occurrence, line, column = row
        family = operator.split("/")[-1].split("_")[0]
        places[module, line, column, family].append(
            Mutant(
                group=group,
                module=module,
                line=line,
                operator=operator,
                occurrence=occurrence,
            )
        )
    draw = random.Random(seed)
    one_each = [draw.choice(places[place]) for place in sorted(places)]
    return draw.sample(one_each, min(count, len(one_each)))


def _specifications(
    tool: str, group: Group, folder: Path
) -> list[tuple[str, str, int, int, int]]:
    config, session = folder / "config.toml", folder / "session.sqlite"
    session.unlink(missing_ok=True)
    modules = json.dumps([f"src/transduce/{module}" for module in group.modules])
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {modules}\ntimeout = {TIMEOUT_S}\n"
        'excluded-modules = []\ntest-command = "false"\n'
        '[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    command = [tool, "init", str(config), str(session)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with sqlite3.connect(session) as database:
        return database.execute(
            "select module_path, operator_name, occurrence, start_pos_row, "
            "start_pos_col from mutation_specs where operator_args like '%{}%'"
        ).fetchall()


def copies(count: int, folder: Path) -> "Queue[Path]":
    """Copies of the checkout to change files in."""
    free: Queue[Path] = Queue()
    for number in range(count):
        copy = folder / f"copy-{number}"
        copy.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name)
            else:
                shutil.copy(source, copy / name)
        free.put(copy)
    return free


def try_out(tool: str, mutant: Mutant, free: "Queue[Path]") -> Outcome:
    """Apply a mutant to a copy, run the tests, and restore the copy."""
    copy = free.get()
    path = copy / mutant.module
    before = path.read_text(encoding="utf-8")
    try:
        command = [tool, "apply", mutant.module, mutant.operator,
                   str(mutant.occurrence)]  # fmt: skip
        subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
        after = path.read_text(encoding="utf-8")
        return Outcome(
            mutant=mutant, is_killed=not _passes(copy, mutant.group),
            diff=_changed(before, after),
        )  # fmt: skip
    finally:
        path.write_text(before, encoding="utf-8")
        free.put(copy)


def _passes(copy: Path, group: str) -> bool:
    tests = [f"tests/{test}" for test in GROUPS[group].tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
               *tests]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / ".hypothesis"),
    }
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, timeout=TIMEOUT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _changed(before: str, after: str) -> str:
    """First line that differs, before and after."""
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        if old != new:
            return f"`{old.strip()}` to `{new.strip()}`"
    return "a line was removed"


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Table of each group's score, and a list of surviving mutants."""
    tried = Counter(each.mutant.group for each in outcomes)
    killed = Counter(each.mutant.group for each in outcomes if each.is_killed)
    yield "| modules | mutants | killed | score |"
    yield "|---|---|---|---|"
    for group, count in tried.items():
        yield f"| {group} | {count} | {killed[group]} | {killed[group] / count:.1%} |"
    total = sum(killed.values())
    yield f"| all | {len(outcomes)} | {total} | {total / len(outcomes):.1%} |"
    yield ""
    yield "Survived:"
    yield ""
    for each in outcomes:
        if not each.is_killed:
            place = f"{each.mutant.module.removeprefix('src/transduce/')}"
            yield f"- {place}:{each.mutant.line}: {each.diff}"


def main() -> None:
    """Draw mutants, run the tests on each, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--mutants", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), default=None)
    options = parser.parse_args()
    names = options.only or list(GROUPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mutants = [
            mutant
            for group in names
            for mutant in drawn(
                options.tool, group, options.mutants // len(names), options.seed, folder
            )
        ]
        free = copies(options.workers, folder)
        for group in names:
            if not _passes(next(iter(free.queue)), group):
                raise SystemExit(f"The tests of {group} fail without any change.")
        outcomes = []
        with ThreadPoolExecutor(options.workers) as threads:
            for outcome in threads.map(
                lambda mutant: try_out(options.tool, mutant, free), mutants
            ):
                outcomes.append(outcome)
                sign = "killed" if outcome.is_killed else "SURVIVED"
                place = f"{outcome.mutant.module}:{outcome.mutant.line}"
                print(f"{sign} {place} {outcome.diff}", file=sys.stderr, flush=True)
    print("\n".join(table(outcomes)))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
