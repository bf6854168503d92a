"""Measure what back-translation gains on Multi30k.

    python benchmarks/back_translation.py --data DIR --out RUNS [--seeds 1 2 3]

DIR has train, val, test_2016_flickr, test_2017_flickr and test_2017_mscoco with the
extensions of both languages. Half of the pairs are true ones; of the other half only
the target side is used. A model of the other direction, trained on the true pairs,
translates it back. Three systems are compared: the true half alone, the true half with
the back-translated one (with the tag <bt>), and all true pairs. The same command
continues after an interruption. Results are printed as Markdown.
"""

import argparse
import json
from pathlib import Path

from machine import describe_machine

from commands import bleu_table, call, corpus_parser, first_lines, outputs_of, train


def main() -> None:
    """Train all systems, and print their scores."""
    parser = corpus_parser(__doc__)
    parser.set_defaults(seeds=[1])
    parser.add_argument("--preset", default="multi30k")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all runs")
    parser.add_argument("--sampling", nargs="*", help="sample, with these options")
    given = parser.parse_args()
    print(report(given, trained(given)))
    print(describe_machine())


def trained(given: argparse.Namespace) -> dict[str, list[Path]]:
    """Train the systems; return their runs by name, one for each seed."""
    text, languages = given.out / "text", (given.source, given.target)
    with (given.data / f"train.{given.source}").open("rb") as file:
        total = given.pairs or sum(1 for _ in file)
    half = total // 2
    true = [
        first_lines(given.data / f"train.{each}", half, text / f"half.{each}")
        for each in languages
    ]
    whole = [
        first_lines(given.data / f"train.{each}", total, text / f"all.{each}")
        for each in languages
    ]
    mono = first_lines(
        given.data / f"train.{given.target}",
        total - half,
        text / f"mono.{given.target}",
        half,
    )
    dev = [given.data / f"val.{each}" for each in languages]
    backward = train(
        given.out / "backward",
        *_options(given, dev[::-1], given.seeds[0]),
        *("--source", true[1], "--target", true[0]),
    )
    sampling = () if given.sampling is None else ("--sampling", *given.sampling)
    folder = given.out / "back-translated"
    call("back-translate", backward, "--input", mono, "--out", folder, *sampling)
    back = [folder / f"back-translated.{each}" for each in languages]
    kinds = {
        "half": ("--source", true[0], "--target", true[1]),
        "half and back-translated half": (
            *("--corpus", "true", *true),
            *("--corpus", "back", *back, "tag=bt"),
        ),
        "all": ("--source", whole[0], "--target", whole[1]),
    }
    return {
        name: [
            train(
                given.out / f"{name.replace(' ', '-')}-{seed}",
                *_options(given, dev, seed),
                *corpora,
            )
            for seed in given.seeds
        ]
        for name, corpora in kinds.items()
    }


def _options(
    given: argparse.Namespace, dev: list[Path], seed: int
) -> tuple[object, ...]:
    return (
        *("--preset", given.preset, "--dev-source", dev[0], "--dev-target", dev[1]),
        *("--set", *given.set, f"training.seed={seed}"),
    )


def report(given: argparse.Namespace, runs: dict[str, list[Path]]) -> str:
    """Format BLEU on the test texts, with the significance of the gains."""
    pairs = json.loads((given.out / "back-translated" / "report.json").read_text())
    return (
        f"{bleu_table(given, 'training pairs', 'gain', outputs_of(runs))}\n"
        f"Seeds: {', '.join(map(str, given.seeds))}. p is the "
        "larger of the paired bootstrap's and of approximate randomisation's.\n"
        f"Back-translated pairs: {pairs['pairs']}\n"
    )


if __name__ == "__main__":
    main()
