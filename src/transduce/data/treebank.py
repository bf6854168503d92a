"""Treebanks as parallel text: sentences and linearized trees (section 6.3).

A small treebank can be augmented by variants of its trees. A variant replaces words by
others of the same tag or a constituent by another of the same label, or is a
constituent of its tree. Words and phrases thus occur in new contexts, and short
sentences as well as long ones.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar, Literal

from transduce.data.corpus_files import Choice, CorpusFiles, choose
from transduce.data.prepared_corpus import (
    DEV,
    TRAINING,
    PairEncoder,
    PreparedCorpus,
    prepare,
)
from transduce.errors import DataError
from transduce.settings import Bounds, Seed, Share, convert_and_check
from transduce.text.corpus import (
    name_of,
    read_lines,
    read_text,
    require_one_standard_input,
    write_lines,
)
from transduce.text.tokenizer import Tokenizer, normalize
from transduce.text.vocabulary import TokenizerConfig
from transduce.trees.linearization import (
    STYLES,
    Style,
    StyleName,
    Symbol,
    as_read,
    linearize,
    vocabulary_of,
)
from transduce.trees.trees import (
    ROOT,
    Constituent,
    Leaf,
    Tree,
    normalized,
    read_parses,
    read_trees,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAugmentationConfig:
    """Settings of augmentation; by default there is none."""

    copies: Annotated[int, Bounds(0, 10_000)] = 0
    """Number of variants of each tree, in addition to the tree itself."""
    cut: Share = 0.3
    """Share of variants that are a constituent of their tree."""
    replaced_constituents: Share = 0.5
    """Share of variants with a constituent of another tree."""
    replaced_words: Share = 0.1
    """Share of the words of a variant that are replaced."""
    seed: Seed = 1
    """Seed of the variants."""

    def __post_init__(self) -> None:
        convert_and_check(self, "treebank.augmentation.")


def augmented(
    trees: Sequence[Tree],
    config: TreeAugmentationConfig,
    dev_trees: Sequence[Tree] = (),
) -> Iterator[Tree]:
    """Yield all trees and then their variants, which the seed determines.

    A variant with the sentence of a dev tree is replaced by the tree itself.
    """
    yield from trees
    if config.copies:
        # Unlike the paper: variants of the trees enlarge a small treebank. Off by
        # default: `treebank.augmentation.copies`.
        maker = _Variants(trees, config)
        held_out = {tuple(tree.words) for tree in dev_trees}
        for _ in range(config.copies):
            for tree in trees:
                variant = maker.variant(tree)
                yield tree if tuple(variant.words) in held_out else variant


class _Variants:
    """Random variants of trees, with words and constituents of all trees."""

    def __init__(self, trees: Sequence[Tree], config: TreeAugmentationConfig) -> None:
        self._config = config
        self._random = Random(config.seed)
        self._words = defaultdict[str, list[str]](list)
        """Words by tag, repeated by frequency."""
        self._constituents = defaultdict[str, list[tuple[Tree, Constituent]]](list)
        """Constituents by label, each with its tree."""
        for tree in trees:
            for leaf in tree.leaves:
                self._words[leaf.tag].append(leaf.word)
            for constituent in tree.constituents[1:]:
                self._constituents[constituent.label].append((tree, constituent))

    def variant(self, tree: Tree) -> Tree:
        """Return a variant of a tree."""
        inner = tree.constituents[1:]
        if inner and self._happens(self._config.cut):
            tree = _alone(tree, self._random.choice(inner))
        elif inner and self._happens(self._config.replaced_constituents):
            old = self._random.choice(inner)
            donor, new = self._random.choice(self._constituents[old.label])
            tree = _with_replaced(tree, old, donor, new)
        leaves = [self._varied(leaf) for leaf in tree.leaves]
        return replace(tree, leaves=tuple(leaves))

    def _varied(self, leaf: Leaf) -> Leaf:
        """Return a leaf, or with some probability another word of the same tag."""
        if not self._happens(self._config.replaced_words):
            return leaf
        return leaf._replace(word=self._random.choice(self._words[leaf.tag]))

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability


def _alone(tree: Tree, constituent: Constituent) -> Tree:
    """Return a constituent as a tree of its own."""
    leaves = tree.leaves[constituent.start : constituent.end]
    root = Constituent(ROOT, 0, len(leaves))
    inner = [each.moved(-constituent.start) for each in _within(tree, constituent)]
    return Tree(leaves=leaves, constituents=(root, *inner))


def _with_replaced(tree: Tree, old: Constituent, donor: Tree, new: Constituent) -> Tree:
    """Return the tree with a constituent replaced by a new one of the donor."""
    removed = _within(tree, old)
    first = tree.constituents.index(removed[0])
    before = tree.constituents[:first]
    after = tree.constituents[first + len(removed) :]
    growth = (new.end - new.start) - (old.end - old.start)
    around = [
        each._replace(end=each.end + growth) if each.end >= old.end else each
        for each in before
    ]
    inserted = [each.moved(old.start - new.start) for each in _within(donor, new)]
    later = [each.moved(growth) for each in after]
    return Tree(
        leaves=(
            *tree.leaves[: old.start],
            *donor.leaves[new.start : new.end],
            *tree.leaves[old.end :],
        ),
        constituents=(*around, *inserted, *later),
    )


def _within(tree: Tree, constituent: Constituent) -> tuple[Constituent, ...]:
    """Return the constituent and those inside it; of equal ones, the outermost."""
    first = tree.constituents.index(constituent)
    following = tree.constituents[first:]
    return tuple(takewhile(lambda each: each.start < constituent.end, following))


TEXT = "text"
"""Folder of the treebank as text during preparation."""
WORDS, SYMBOLS = "words.txt", "symbols.txt"
DEV_TREES = f"{DEV}/trees.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreebankConfig:
    """Settings of a parser's target."""

    style: StyleName = "xx"
    """Symbols of a tree: xx, where leaves are XX except punctuation (Vinyals et al.,
    2015); pos, where leaves keep their tags; in-order, where a bracket follows its
    first child (Liu and Zhang, 2017); in-order-pos, with tags."""
    guidance: Annotated[float, Bounds(0, 1_000)] = 0.0
    """Weight of the loss that guides cross-attention to the next word; 0 for no
    guidance."""
    augmentation: TreeAugmentationConfig = field(default_factory=TreeAugmentationConfig)
    """Augmentation of the training trees by variants."""

    def __post_init__(self) -> None:
        convert_and_check(self, "treebank.")


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

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [*self.trees, *self.dev_trees]

    def absolute_names(self) -> dict[str, list[str]]:
        """Return the absolute file names by part."""
        return {
            part: [str(path.absolute()) for path in paths]
            for part, paths in asdict(self).items()
        }


def prepare_treebank(
    files: TreebankFiles,
    config: TreebankConfig,
    vocabulary: TokenizerConfig | PairEncoder,
    max_length: int,
    folder: Path,
    sibling_runs: Iterable[Path] = (),
    held_out_by: int | None = None,
) -> PreparedCorpus:
    """Prepare treebanks as `prepare` does text; keep the normalized dev trees.

    With a seed `held_out_by`, dev trees are held out if there are enough trees. The
    vocabulary is learned by its settings, or that of an encoder. Raises `DataError` if
    a file cannot be used.
    """
    dev_trees = read_treebank(files.dev_trees) if files.dev_trees else []
    choice = None
    if held_out_by is not None:
        choice = choose_dev_trees(files.trees, held_out_by)
    held_out = dict[str, Tree]()
    # Millions of trees do not fit into memory: each is written as soon as it is read.
    trees = _training_trees(files.trees, choice, held_out)
    if config.augmentation.copies:
        all_trees = list(trees)
        trees = augmented(
            all_trees, config.augmentation, [*dev_trees, *held_out.values()]
        )
    tokenizer: TokenizerConfig | Tokenizer
    if isinstance(vocabulary, PairEncoder):
        tokenizer, symbols = vocabulary.tokenizer, vocabulary.symbols
    else:
        tokenizer, symbols = vocabulary, None
    style_name = config.style if symbols is None else symbols.style_name
    text = folder / TEXT
    unescapes = symbols is None or symbols.unescapes
    read_word = partial(as_read, unescapes=unescapes)
    found = _write_text(trees, STYLES[style_name], read_word, text / TRAINING)
    _require_trees(found, files.trees[0])
    symbols = symbols or vocabulary_of(found, style_name)
    if dev_trees := [*dev_trees, *held_out.values()]:
        _write_text(dev_trees, symbols.style, read_word, text / DEV)
    corpus_files = _text_files(files, text, has_dev=bool(dev_trees))
    corpus = prepare(corpus_files, tokenizer, max_length, folder, sibling_runs, symbols)
    if dev_trees:
        write_lines(folder / DEV_TREES, map(str, dev_trees))
    shutil.rmtree(text)
    return replace(corpus, is_held_out=choice is not None)


def _text_files(files: TreebankFiles, text: Path, *, has_dev: bool) -> CorpusFiles:
    """Return the files of `_write_text`; messages name the treebanks in their place."""
    training, dev = text / TRAINING, text / DEV
    return CorpusFiles(
        source=(training / WORDS,),
        target=(training / SYMBOLS,),
        dev_source=(dev / WORDS,) if has_dev else (),
        dev_target=(dev / SYMBOLS,) if has_dev else (),
        labels={
            training / WORDS: str(files.trees[0]),
            dev / WORDS: str((*files.dev_trees, *files.trees)[0]),
        },
    )


def choose_dev_trees(paths: Sequence[Path], seed: int) -> Choice | None:
    """Choose sentences to hold out as dev trees; None if there are too few trees."""
    return choose(map(_sentence, treebank(paths)), None, seed)


def _training_trees(
    paths: Sequence[Path], choice: Choice | None, held_out: dict[str, Tree]
) -> Iterator[Tree]:
    """Yield the trees to train on; collect those held out, one for each sentence."""
    for tree in treebank(paths):
        if choice is None or choice.part_of(_sentence(tree)) is None:
            yield tree
        else:
            held_out.setdefault(normalize(_sentence(tree)), tree)


def _sentence(tree: Tree) -> str:
    return " ".join(tree.words)


def treebank(paths: Sequence[Path]) -> Iterator[Tree]:
    """Yield the trees of all files, normalized, without those of traces alone."""
    return (tree for path in paths for tree in _trees(path) if tree.leaves)


def read_treebank(paths: Sequence[Path]) -> list[Tree]:
    """Read the trees of all files, normalized, without those of traces alone.

    Raises `DataError` if there is none.
    """
    require_one_standard_input(paths)
    trees = list(treebank(paths))
    _require_trees(trees, paths[0])
    return trees


def read_gold(path: Path) -> list[Tree]:
    """Read trees to be scored against, normalized; `NOTHING` for one of traces alone.

    Raises `DataError` if no tree has words.
    """
    trees = list(_trees(path))
    _require_trees([tree for tree in trees if tree.leaves], path)
    return trees


def _require_trees(found: Collection[Tree | Symbol], path: Path) -> None:
    if not found:
        raise DataError(f"{name_of(path)}: a treebank must have a tree, but has none.")


def read_both(gold: Path, predicted: Path) -> tuple[list[Tree], list[Tree]]:
    """Read gold and predicted trees unchanged, in order.

    Raises `DataError` unless there is a prediction for each gold tree, and a gold tree
    with words.
    """
    require_one_standard_input([gold, predicted])
    gold_trees, trees = (
        list(read_parses(read_text([path]), name_of(path)))
        for path in (gold, predicted)
    )
    if len(trees) != len(gold_trees) or not trees:
        hint = ""
        if any(not tree.leaves for tree in (*gold_trees, *trees)):
            hint = "; a blank line or `(TOP)` counts as a sentence without a parse"
        raise DataError(
            f"{name_of(predicted)}: there must be as many trees as in {name_of(gold)}, "
            f"and at least one, but there are {len(trees):,} for {len(gold_trees):,}"
            f"{hint}."
        )
    _require_trees([tree for tree in gold_trees if tree.leaves], gold)
    return gold_trees, trees


def before_number(path: Path, num_trees: int) -> str:
    """Return the words of a message before the number of one of a file's trees.

    The number is also that of its line if the file has as many lines as trees.
    """
    is_one_a_line = path.is_file() and (  # a pipe cannot be read again
        sum(1 for _ in read_lines(path)) == num_trees
    )
    return f"{path}:" if is_one_a_line else f"{name_of(path)}, tree "


def _trees(path: Path) -> Iterator[Tree]:
    return map(normalized, read_trees(read_text([path]), name_of(path)))


def _write_text(
    trees: Iterable[Tree],
    style: Style,
    read_word: Callable[[str], str],
    folder: Path,
) -> set[Symbol]:
    """Write sentences and linearized trees as two files; return the symbols."""
    folder.mkdir(parents=True)
    found = set[Symbol]()
    with ExitStack() as stack:
        words, targets = (
            stack.enter_context(
                (folder / name).open("w", encoding="utf-8", newline="\n")
            )
            for name in (WORDS, SYMBOLS)
        )
        for tree in trees:
            symbols = linearize(tree, style)
            found.update(symbols)
            words.write(" ".join(map(read_word, tree.words)) + "\n")
            targets.write(" ".join(map(style.spelling, symbols)) + "\n")
    return found
