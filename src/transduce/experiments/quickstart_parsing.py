"""Section 6.3 on the trees of the built-in grammar."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transduce.data.treebank import TreebankFiles, read_treebank
from transduce.decoding.parser import ParseScore, score_parses
from transduce.decoding.translator import load
from transduce.device import Hardware
from transduce.errors import ConfigError
from transduce.experiments.observation import RunObserver
from transduce.experiments.pipeline import train
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import PICTURE
from transduce.files import atomic_directory
from transduce.grammar.corpus import held_out_trees, training_trees
from transduce.text.corpus import write_lines
from transduce.trees.trees import Tree

NUM_TRAINING, NUM_DEV, NUM_TEST = 10_000, 100, 300
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsingResult:
    """What the quickstart of parsing shows."""

    picture: Path
    """The learning curve."""
    score: ParseScore
    """On sentences with combinations of words never seen in training."""
    examples: tuple[Tree, ...]
    """As the parser finds them."""


def run_parsing_quickstart(
    out: Path, hardware: Hardware, observer: RunObserver
) -> ParsingResult:
    """Train on the built-in grammar's trees, parse its test sentences and score them.

    `ConfigError` if the folder is there.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is not; choose "
            "another by --out, or overwrite it with --force."
        )
    with atomic_directory(out / "corpus") as new:
        _write_trees(new)
    files = TreebankFiles(
        trees=(out / "corpus" / "train.trees",),
        dev_trees=(out / "corpus" / "dev.trees",),
    )
    preset = PRESETS["parsing-quickstart"]
    train(files, preset, out / "run", hardware, observer)
    gold = read_treebank([out / "corpus" / "test.trees"])
    parser = load(out / "run", device=hardware.device.type).parser()
    parses = list(parser.parse_stream((tree.words for tree in gold), preset.search))
    return ParsingResult(
        picture=out / "run" / PICTURE,
        score=score_parses(gold, parses),
        examples=tuple(parse.tree for parse in parses[:5]),
    )


def _write_trees(folder: Path) -> None:
    held_out = held_out_trees(SEED)
    _write(folder / "train.trees", islice(training_trees(SEED), NUM_TRAINING))
    _write(folder / "dev.trees", islice(held_out, NUM_DEV))
    _write(folder / "test.trees", islice(held_out, NUM_TEST))


def _write(path: Path, trees: Iterator[Tree]) -> None:
    write_lines(path, map(str, trees))
