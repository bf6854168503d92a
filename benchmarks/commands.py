"""Shared by the benchmarks of trainings: commands, whose results are made once."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
Outputs = Callable[[str, Path, int], Mapping[str, Path]]
"""Function of a test text's name, its sources and the number of a seed, from 0, that
returns each system's translations."""


def corpus_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of trainings on a corpus by several seeds."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", default="en", help="language of the source")
    parser.add_argument("--target", default="de", help="language of the target")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pairs", type=int, help="training pairs; by default all")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    return parser


def call(*arguments: object) -> str:
    """Run a command of transduce, and return its standard output; exit if it fails."""
    command = [sys.executable, "-m", "transduce", *map(str, arguments)]
    print(f"$ transduce {' '.join(command[3:])}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:  # the command has printed why
        raise SystemExit(done.returncode)
    return done.stdout


def train(run: Path, *options: object) -> Path:
    """Train a run, or continue it; return its folder."""
    if not (run / "config.json").is_file():
        call("train", "--out", run, *options)
    elif not is_trained(run):
        call("train", "--out", run, "--resume")
    return run


def is_trained(run: Path) -> bool:
    """Whether a run with a dev corpus has ended."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return any(json.loads(line)["kind"] == "final" for line in lines)


def translated(models: Sequence[Path], source: Path, output: Path) -> Path:
    """Translate a text by a model or an ensemble, unless it is done."""
    if not output.is_file():
        first, *others = models
        together = ("--ensemble", *others) if others else ()
        output.parent.mkdir(parents=True, exist_ok=True)
        call("translate", first, *together, "--input", source, "--output", output,
             "--force")  # fmt: skip
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """BLEU of a system beside the baseline."""

    bleu: float
    difference: float
    p: float | None
    """The larger p of both tests of significance; None for the baseline."""


def compared(outputs: Mapping[str, Path], reference: Path) -> dict[str, Compared]:
    """Compare translations with those of the first system, by name."""
    options = ("--reference", reference, "--examples", 0, "--json")
    [bleu] = [
        scores
        for scores in json.loads(call("compare", *outputs.values(), *options))["scores"]
        if "BLEU" in scores["metric"]
    ]
    return {
        name: Compared(
            bleu=system["score"],
            difference=system["difference"],
            p=None
            if system["bootstrap_p"] is None
            else max(system["bootstrap_p"], system["randomisation_p"]),
        )
        for name, system in zip(outputs, bleu["systems"], strict=True)
    }


def outputs_of(runs: Mapping[str, Sequence[Path]]) -> Outputs:
    """Return the outputs of systems that each have one run for each seed.

    A text is translated when its outputs are first requested.
    """

    def outputs(test: str, source: Path, number: int) -> Mapping[str, Path]:
        return {
            name: translated([each[number]], source, each[number] / f"{test}.out")
            for name, each in runs.items()
        }

    return outputs


def bleu_table(
    given: argparse.Namespace, system: str, gain: str, outputs: Outputs
) -> str:
    """Format BLEU on the test texts, means over the seeds, with tests of significance.

    Gains are over the first system. `system` and `gain` are the heads of their columns.
    """
    rows = []
    for test in given.tests:
        source = given.data / f"{test}.{given.source}"
        reference = given.data / f"{test}.{given.target}"
        by_seed = [
            compared(outputs(test, source, number), reference)
            for number in range(len(given.seeds))
        ]
        for name in by_seed[0]:
            scores = [each[name] for each in by_seed]
            ps = [f"{each.p:.4f}" for each in scores if each.p is not None]
            gained = f"{fmean(each.difference for each in scores):+.2f}" if ps else ""
            bleu = f"{fmean(each.bleu for each in scores):.2f}"
            rows.append((test, name, bleu, gained, ", ".join(ps)))
    return table(("text", system, "BLEU", gain, "p by seed"), rows)


def first_lines(path: Path, number: int | None, out: Path, skipped: int = 0) -> Path:
    """Write some lines of a file, and return the path of the new file."""
    with path.open("rb") as file:
        lines = file.readlines()
    end = None if number is None else skipped + number
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(b"".join(lines[skipped:end]))
    return out


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
