"""Augmentation of small treebanks by variants of their trees.

A variant replaces words by others of the same tag or a constituent by another of the
same label, or is a constituent of its tree. Words and phrases thus occur in new
contexts, and short sentences as well as long ones.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from transduce.errors import ConfigError
from transduce.settings import require_between
from transduce.trees.normalization import ROOT
from transduce.trees.trees import Constituent, Tree

MAX_COPIES = 10_000
"""Maximum number of variants of a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentationConfig:
    """Settings of augmentation; by default there is none."""

    copies: int = 0
    """Number of variants of each tree, in addition to the tree itself."""
    cut: float = 0.3
    """Share of variants that are a constituent of their tree."""
    replaced_constituents: float = 0.5
    """Share of variants with a constituent of another tree."""
    replaced_words: float = 0.1
    """Share of the words of a variant that are replaced."""
    seed: int = 1
    """Seed of the variants."""

    def __post_init__(self) -> None:
        require_between("treebank.augmentation.copies", self.copies, 0, MAX_COPIES)
        require_between("treebank.augmentation.seed", self.seed, 0, 2**63 - 1)
        for name in ("cut", "replaced_constituents", "replaced_words"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigError(
                    f"`treebank.augmentation.{name}` must be from 0 to 1, but is "
                    f"{value}."
                )


def augmented(trees: Sequence[Tree], config: AugmentationConfig) -> Iterator[Tree]:
    """Return all trees followed by their variants, which the seed determines."""
    yield from trees
    if config.copies:
        # Unlike the paper: variants of its trees enlarge a small treebank.
        maker = _Variants(trees, config)
        for _ in range(config.copies):
            yield from map(maker.variant, trees)


class _Variants:
    def __init__(self, trees: Sequence[Tree], config: AugmentationConfig) -> None:
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
        inner = tree.constituents[1:]
        if inner and self._happens(self._config.cut):
            tree = _alone(tree, self._random.choice(inner))
        elif inner and self._happens(self._config.replaced_constituents):
            place = self._random.choice(inner)
            tree = _with(
                tree, place, *self._random.choice(self._constituents[place.label])
            )
        leaves = [
            leaf._replace(word=self._random.choice(self._words[leaf.tag]))
            if self._happens(self._config.replaced_words)
            else leaf
            for leaf in tree.leaves
        ]
        return replace(tree, leaves=tuple(leaves))

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability


def _alone(tree: Tree, constituent: Constituent) -> Tree:
    """Return a constituent as a tree of its own."""
    moved = [
        Constituent(label, start - constituent.start, end - constituent.start)
        for label, start, end in _within(tree, constituent)
    ]
    leaves = tree.leaves[constituent.start : constituent.end]
    root = Constituent(ROOT, 0, len(leaves))
    return Tree(leaves=leaves, constituents=(root, *moved))


def _with(tree: Tree, place: Constituent, donor: Tree, new: Constituent) -> Tree:
    """Return the tree with one constituent replaced by another tree's."""
    growth = (new.end - new.start) - (place.end - place.start)
    gone = _within(tree, place)
    first = tree.constituents.index(gone[0])
    before, after = tree.constituents[:first], tree.constituents[first + len(gone) :]
    return Tree(
        leaves=tree.leaves[: place.start]
        + donor.leaves[new.start : new.end]
        + tree.leaves[place.end :],
        constituents=(
            *[
                one._replace(end=one.end + growth) if one.end >= place.end else one
                for one in before
            ],
            *[
                Constituent(
                    label,
                    start - new.start + place.start,
                    end - new.start + place.start,
                )
                for label, start, end in _within(donor, new)
            ],
            *[
                Constituent(label, start + growth, end + growth)
                for label, start, end in after
            ],
        ),
    )


def _within(tree: Tree, constituent: Constituent) -> tuple[Constituent, ...]:
    """Return the constituent and those inside it; of equal ones, the outermost."""
    first = tree.constituents.index(constituent)
    last = first
    while (
        last < len(tree.constituents)
        and tree.constituents[last].start < constituent.end
    ):
        last += 1
    return tree.constituents[first:last]
