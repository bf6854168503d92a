"""BLEU and speed of translation among shortlists of several sizes.

    python benchmarks/shortlist.py --model MODEL --source TRAIN.en --target TRAIN.de \\
        --test 2016=TEST.en,TEST.de --frequent 50 100 --per-piece 10 50 100

Learns one shortlist on the training text and cuts it to each pair of sizes. For each it
prints the mean number of candidates of a test sentence, BLEU of each test set beside
that of the whole vocabulary, and words (of the source) a second with the shortlist over
those without, measured by turns. Then it names the smallest shortlist with which no
BLEU changes by 0.1 or more. The results are a Markdown table.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median

from machine import describe_machine, seconds_of

from transduce.decoding.translator import Translator
from transduce.machine import num_threads, use_threads
from transduce.metrics.scores import choose_tokenization, corpus_bleu
from transduce.model_folder import ModelFolder, open_model
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_pairs, read_text
from transduce.text.shortlist import Shortlist, encode_pairs, learn_shortlist

MAX_CHANGE = 0.1
"""Change of BLEU from which translations count as different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSet:
    """Sources and references of a test set."""

    name: str
    sources: list[str]
    references: list[str]

    @property
    def num_words(self) -> int:
        """Number of words of the sources."""
        return sum(len(source.split()) for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a shortlist, with what was measured."""

    frequent: int
    per_piece: int
    candidates: float
    """Mean number of candidates of a test sentence."""
    bleu: list[float]
    """BLEU of each test set."""
    speed: float
    """Median ratio of the speeds with and without the shortlist."""
    words_per_second: float
    whole_words_per_second: float
    """Speed of the whole vocabulary in the same rounds."""


def main() -> None:
    """Measure all sizes, and print the results."""
    arguments = parsed()
    use_threads(1)
    model = open_model(arguments.model)
    tests = [test_set(each) for each in arguments.test]
    pairs = encode_pairs(
        (
            (pair.source, pair.target)
            for pair in read_pairs(arguments.source, arguments.target)
        ),
        model.tokenizer,
    )
    started = time.perf_counter()
    largest = learn_shortlist(
        pairs,
        model.tokenizer,
        frequent=max(arguments.frequent),
        per_piece=max(arguments.per_piece),
        num_threads=num_threads(),
    )
    print(f"Learned from {len(pairs):,} pairs in {time.perf_counter() - started:.0f} s")
    for precision in arguments.precision:
        for beam_size in arguments.beam_size:
            print(f"\n### {precision}, beam {beam_size}, one process\n")
            config = (model.search or SearchConfig()).given({"beam_size": beam_size})
            measure(model, largest, tests, config, precision, arguments)
    print()
    print(describe_machine())


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, nargs="+", required=True)
    parser.add_argument("--target", type=Path, nargs="+", required=True)
    parser.add_argument("--test", nargs="+", required=True, help="NAME=SOURCE,TARGET")
    parser.add_argument("--frequent", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--per-piece", type=int, nargs="+", default=[10, 25, 50, 100])
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--precision", nargs="+", default=["int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, help="lines of each test set; default all")
    arguments = parser.parse_args()
    if any("=" not in each or each.count(",") != 1 for each in arguments.test):
        parser.error("--test must be NAME=SOURCE,TARGET")
    arguments.test = [f"{arguments.lines or ''}|{each}" for each in arguments.test]
    return arguments


def test_set(given: str) -> TestSet:
    """Read a test set, given as LINES|NAME=SOURCE,TARGET."""
    lines, _, rest = given.partition("|")
    name, _, files = rest.partition("=")
    most = int(lines) if lines else None
    source, target = (list(read_text([Path(f)]))[:most] for f in files.split(","))
    return TestSet(name=name, sources=source, references=target)


def measure(
    model: ModelFolder,
    largest: Shortlist,
    tests: Sequence[TestSet],
    config: SearchConfig,
    precision: str,
    arguments: argparse.Namespace,
) -> None:
    """Measure all sizes with one search, and print a table."""
    whole = Translator(model, "cpu", precision=precision)  # type: ignore[arg-type]
    references = [line for each in tests for line in each.references]
    tokenization = choose_tokenization("auto", model.target_language, references)

    def bleu(translator: Translator, search: SearchConfig) -> list[float]:
        return [
            corpus_bleu(
                [t.text for t in translator.translate_stream(each.sources, search)],
                each.references,
                tokenization=tokenization,
            ).score
            for each in tests
        ]

    expected = bleu(whole, replace(config, shortlist=False))
    names = [f"BLEU {each.name}" for each in tests]
    print_row(["F", "B", "candidates", *names, "words/s", "speed"])
    print_row(["---:"] * (5 + len(names)))
    found: list[Sizes] = []
    for frequent, per_piece in product(arguments.frequent, arguments.per_piece):
        shortlist = largest.limited(frequent, per_piece)
        listed = Translator(
            replace(model, shortlist=shortlist),
            "cpu",
            precision=precision,  # type: ignore[arg-type]
        )
        sizes = Sizes(
            frequent=frequent,
            per_piece=per_piece,
            candidates=mean_candidates(shortlist, model, tests),
            bleu=bleu(listed, replace(config, shortlist=True)),
            **speeds(whole, listed, tests, config, arguments.rounds),
        )
        if not found:  # the others are measured beside the whole vocabulary, too
            every = f"{model.tokenizer.vocab_size:,}"
            speed = f"{sizes.whole_words_per_second:,.0f}"
            print_row(["all", "", every, *map(two, expected), speed, "1.00"])
        found.append(sizes)
        print_row(
            [
                f"{frequent}",
                f"{per_piece}",
                f"{sizes.candidates:,.0f}",
                *(
                    f"{score:.2f} ({score - before:+.2f})"
                    for score, before in zip(sizes.bleu, expected, strict=True)
                ),
                f"{sizes.words_per_second:,.0f}",
                f"{sizes.speed:.2f}",
            ]
        )
    print(f"\n{advice(found, expected)}")


def mean_candidates(
    shortlist: Shortlist, model: ModelFolder, tests: Sequence[TestSet]
) -> float:
    """Mean number of candidates of a test sentence."""
    base = shortlist.base()
    sources = [source for each in tests for source in each.sources]
    encoded = model.tokenizer.encode_sources(sources)
    return mean(len(shortlist.candidates(ids, base)) for ids in encoded)


def speeds(
    whole: Translator,
    listed: Translator,
    tests: Sequence[TestSet],
    config: SearchConfig,
    rounds: int,
) -> dict[str, float]:
    """Speed with the shortlist, and its ratio to that without, by turns."""
    words = sum(each.num_words for each in tests)
    turns: list[list[float]] = []
    for _ in range(rounds):
        turn = [
            seconds_of(translating(translator, tests, replace(config, shortlist=is_on)))
            for translator, is_on in ((whole, False), (listed, True))
        ]
        turns.append(turn)
    return {
        "speed": median(whole / listed for whole, listed in turns),
        "words_per_second": words / median(turn[1] for turn in turns),
        "whole_words_per_second": words / median(turn[0] for turn in turns),
    }


def translating(
    translator: Translator, tests: Sequence[TestSet], config: SearchConfig
) -> Callable[[], None]:
    """Return a function that translates all test sets."""

    def translate() -> None:
        for each in tests:
            for _ in translator.translate_stream(each.sources, config):
                pass

    return translate


def advice(found: Sequence[Sizes], expected: Sequence[float]) -> str:
    """Name the fewest candidates with which BLEU stays."""
    good = [
        sizes
        for sizes in found
        if all(
            abs(score - before) < MAX_CHANGE
            for score, before in zip(sizes.bleu, expected, strict=True)
        )
    ]
    if not good:
        return f"With every size, BLEU changes by {MAX_CHANGE} or more."
    best = min(good, key=lambda sizes: sizes.candidates)
    return (
        f"Fewest candidates with which BLEU changes by less than {MAX_CHANGE}: "
        f"--frequent {best.frequent} --per-piece {best.per_piece}."
    )


def two(score: float) -> str:
    """Format a score."""
    return f"{score:.2f}"


def print_row(cells: Iterable[str]) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
