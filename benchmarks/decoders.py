"""Compare self-attention and recurrent units in the decoder, in BLEU and speed.

    python benchmarks/decoders.py --data DIR --out RUNS [--source en --target de]

DIR has train, val and the test sets with the extensions of both languages. For each
seed, two models are trained that differ in `model.decoder_self_attention` only: by
default of the sizes of `student-tiny`. For students, give the translations of a teacher
as the target of `train` (`transduce distill` writes them). The same command continues
after an interruption.

Speeds are words of the source a second of one thread, each the best of several rounds
in which both models take turns, at equal text and search. Results are Markdown.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from machine import describe_machine, seconds_of

from commands import bleu_table, corpus_parser, first_lines, outputs_of, table, train
from transduce.decoding.translator import Translator
from transduce.model_folder import open_model
from transduce.text.corpus import read_text

DECODERS = {"self-attention": "attention", "SSRU": "ssru"}
"""Value of the setting for each name in the tables."""


def main() -> None:
    """Train the models, and print their scores and speeds."""
    given = parsed()
    pairs = [
        first_lines(
            given.data / f"train.{each}",
            given.pairs,
            given.out / "text" / f"train.{each}",
        )
        for each in (given.source, given.target)
    ]
    runs = {
        name: [trained(given, pairs, name, seed) for seed in given.seeds]
        for name in DECODERS
    }
    print(quality(given, runs))
    print(speeds(given, {name: of_name[0] for name, of_name in runs.items()}))
    print(describe_machine())


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = corpus_parser(__doc__)
    parser.add_argument("--preset", default="student-tiny")
    parser.add_argument("--set", nargs="+", default=[], help="settings of both")
    parser.add_argument("--precision", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--lines", type=int, default=500, help="of the timed text")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def trained(given: argparse.Namespace, pairs: list[Path], name: str, seed: int) -> Path:
    """Train a model, unless it is trained already; return its run."""
    kind = DECODERS[name]
    dev = [given.data / f"val.{each}" for each in (given.source, given.target)]
    return train(
        given.out / f"{kind}-{seed}",
        *("--preset", given.preset, "--source", pairs[0], "--target", pairs[1]),
        *("--dev-source", dev[0], "--dev-target", dev[1]),
        *("--set", *given.set, f"training.seed={seed}"),
        f"model.decoder_self_attention={kind}",
    )


def quality(given: argparse.Namespace, runs: Mapping[str, list[Path]]) -> str:
    """Format BLEU, the means over the seeds, and the tests of significance."""
    return bleu_table(given, "decoder", "difference", outputs_of(runs))


def speeds(given: argparse.Namespace, runs: Mapping[str, Path]) -> str:
    """Format the speed of both models in each way of decoding."""
    texts = [given.data / f"{test}.{given.source}" for test in given.tests]
    lines = list(read_text(texts))[: given.lines]
    num_words = sum(len(line.split()) for line in lines)
    rows = []
    for precision, beam_size, batch_size in product(
        given.precision, given.beam_size, given.batch_size
    ):
        ways = {
            name: translating(run, precision, beam_size, batch_size, lines)
            for name, run in runs.items()
        }
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(given.rounds):
            for name, translate in ways.items():
                best[name] = min(best[name], seconds_of(translate))
        attention, ssru = (num_words / best[name] for name in DECODERS)
        rows.append(
            (
                precision,
                str(beam_size),
                str(batch_size),
                f"{attention:,.0f}",
                f"{ssru:,.0f}",
                f"{ssru / attention:.2f}",
            )
        )
    heads = ("precision", "beam", "batch", *DECODERS, "ratio")
    return table(heads, rows)


def translating(
    run: Path, precision: str, beam_size: int, batch_size: int, lines: list[str]
) -> Callable[[], None]:
    """Return a function that translates all lines in batches."""
    translator = Translator(open_model(run), "cpu", precision=precision)  # type: ignore[arg-type]
    config = replace(translator.search, beam_size=beam_size)
    batches = [
        lines[first : first + batch_size] for first in range(0, len(lines), batch_size)
    ]

    def translate() -> None:
        for batch in batches:
            for _ in translator.translate_stream(batch, config):
                pass

    translate()  # loads the weights
    return translate


if __name__ == "__main__":
    main()
