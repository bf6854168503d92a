"""Treebanks as parallel text: sentences and linearized trees (section 6.3)."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, get_args

from transduce.data.augmentation import AugmentationConfig, augmented
from transduce.data.corpus_files import CorpusFiles
from transduce.data.held_out import hold_out
from transduce.data.prepared_corpus import DEV, PreparedCorpus, prepare
from transduce.errors import ConfigError, DataError
from transduce.settings import require_between
from transduce.text.corpus import read_text, write_lines
from transduce.text.vocabulary import TokenizerConfig
from transduce.trees.linearization import STYLES, StyleName
from transduce.trees.normalization import normalized
from transduce.trees.trees import Tree, read_parses, read_trees
from transduce.trees.vocabulary import SymbolVocabulary, learn_symbols

MAX_GUIDANCE = 1_000
"""Largest weight of guided attention; it exceeds the cross-entropy by far."""
TEXT = "text"
"""Folder of the treebank as text during preparation."""
WORDS, SYMBOLS = "words.txt", "symbols.txt"
DEV_TREES = f"{DEV}/trees.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreebankConfig:
    """Settings of a parser's target."""

    style: StyleName = "xx"
    """Style of linearization."""
    guidance: float = 0.0
    """Weight of the loss that guides cross-attention to the next word; 0 for no
    guidance."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    """Augmentation of the training trees by variants."""

    def __post_init__(self) -> None:
        require_between("treebank.guidance", self.guidance, 0, MAX_GUIDANCE)
        if self.style not in get_args(StyleName):
            known = ", ".join(f'"{name}"' for name in STYLES)
            raise ConfigError(
                f'`treebank.style` must be one of {known}, but is "{self.style}".'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreebankFiles:
    """Treebank files of a run."""

    trees: tuple[Path, ...]
    dev_trees: tuple[Path, ...] = ()

    task: ClassVar[Literal["translation", "parsing"]] = "parsing"
    metrics: ClassVar[tuple[str, ...]] = ("f1",)
    """Metric of parses on the dev treebank."""

    @property
    def has_dev(self) -> bool:
        return bool(self.dev_trees)

    def absolute_names(self) -> dict[str, list[str]]:
        """Return the absolute file names by part."""
        return {
            part: [str(path.absolute()) for path in paths]
            for part, paths in asdict(self).items()
        }


def prepare_treebank(
    files: TreebankFiles,
    config: TreebankConfig,
    tokenizer: TokenizerConfig,
    max_length: int,
    folder: Path,
    sibling_runs: Iterable[Path] = (),
    held_out_by: int | None = None,
) -> PreparedCorpus:
    """Prepare treebanks as `prepare` does text; keep the normalized dev trees.

    With a seed `held_out_by`, dev trees are held out if there are enough trees. Raises
    `DataError` if a file cannot be used.
    """
    trees = read_treebank(files.trees)
    dev_trees = read_treebank(files.dev_trees) if files.dev_trees else []
    is_held_out = False
    if held_out_by is not None:
        sentences = [" ".join(tree.words) for tree in trees]
        if (parts := hold_out(trees, sentences, held_out_by)) is not None:
            (trees, dev_trees), is_held_out = parts, True
    symbols = learn_symbols(trees, config.style)
    text = folder / TEXT
    training = _write_text(
        augmented(trees, config.augmentation), symbols, text / "training"
    )
    dev = _write_text(dev_trees, symbols, text / "dev") if dev_trees else training
    corpus_files = CorpusFiles(
        source=(training / WORDS,),
        target=(training / SYMBOLS,),
        dev_source=(dev / WORDS,) if dev_trees else (),
        dev_target=(dev / SYMBOLS,) if dev_trees else (),
    )
    corpus = prepare(corpus_files, tokenizer, max_length, folder, sibling_runs, symbols)
    if dev_trees:
        write_lines(folder / DEV_TREES, map(str, dev_trees))
    shutil.rmtree(text)
    return replace(corpus, is_held_out=is_held_out)


def read_treebank(paths: Sequence[Path]) -> list[Tree]:
    """Read the trees of all files, normalized; `DataError` if there is none."""
    trees = [tree for path in paths for tree in _trees(path)]
    if not trees:
        raise DataError(f"{paths[0]}: a treebank must have a tree, but has none.")
    return trees


def read_both(gold: Path, predicted: Path) -> tuple[list[Tree], list[Tree]]:
    """Read gold and predicted trees unchanged, in order.

    Raises `DataError` unless there is a prediction for each gold tree, and at least
    one."""
    gold_trees, trees = (
        list(read_parses(read_text([path]), str(path))) for path in (gold, predicted)
    )
    if len(trees) != len(gold_trees) or not trees:
        raise DataError(
            f"{predicted}: there must be as many trees as in {gold}, and at least one, "
            f"but there are {len(trees):,} for {len(gold_trees):,}."
        )
    return gold_trees, trees


def _trees(path: Path) -> Iterator[Tree]:
    for tree in map(normalized, read_trees(read_text([path]), str(path))):
        if tree.leaves:
            yield tree


def _write_text(trees: Iterable[Tree], symbols: SymbolVocabulary, folder: Path) -> Path:
    """Write sentences and linearized trees as two files; return their folder."""
    folder.mkdir(parents=True)
    kept = list(trees)
    write_lines(folder / WORDS, (" ".join(tree.words) for tree in kept))
    write_lines(folder / SYMBOLS, map(symbols.target_line, kept))
    return folder
