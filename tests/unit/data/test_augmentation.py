"""Variants of trees are sound trees and depend on the seed alone."""

from dataclasses import replace
from itertools import islice

import pytest

from transduce.data.augmentation import AugmentationConfig, augmented
from transduce.errors import ConfigError
from transduce.grammar.corpus import training_trees
from transduce.trees.trees import Tree, parse_tree

TREES = list(islice(training_trees(seed=2), 40))
NOTHING = AugmentationConfig(
    copies=1, cut=0.0, replaced_constituents=0.0, replaced_words=0.0
)


def variants(trees: list[Tree], config: AugmentationConfig) -> list[Tree]:
    made = list(augmented(trees, config))
    assert made[: len(trees)] == trees
    return made[len(trees) :]


def test_there_are_no_variants_by_default() -> None:
    assert variants(TREES, AugmentationConfig()) == []


def test_copies_without_changes_equal_the_trees() -> None:
    assert variants(TREES, replace(NOTHING, copies=2)) == TREES * 2


@pytest.mark.parametrize("seed", range(5))
def test_a_variant_is_a_valid_tree(seed: int) -> None:
    config = AugmentationConfig(copies=3, replaced_words=0.3, seed=seed)
    for tree in variants(TREES, config):
        assert parse_tree(str(tree)) == tree
        assert tree.constituents[0].label == "TOP"


def test_the_same_seed_makes_the_same_variants() -> None:
    one, again, other = (
        variants(TREES, AugmentationConfig(copies=2, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == again != other


def test_words_are_replaced_by_words_with_the_same_tag() -> None:
    config = replace(NOTHING, replaced_words=1.0)
    leaves = {leaf for tree in TREES for leaf in tree.leaves}
    changed = variants(TREES, config)
    assert changed != TREES
    for before, after in zip(TREES, changed, strict=True):
        assert after.constituents == before.constituents
        assert [leaf.tag for leaf in after.leaves] == [
            leaf.tag for leaf in before.leaves
        ]
        assert leaves.issuperset(after.leaves)


def test_a_cut_is_a_constituent_of_its_tree() -> None:
    for before, after in zip(
        TREES, variants(TREES, replace(NOTHING, cut=1.0)), strict=True
    ):
        inner = str(after).removeprefix("(TOP ").removesuffix(")")
        assert inner in str(before)


def test_a_constituent_is_replaced_by_one_with_the_same_label() -> None:
    one = parse_tree("(TOP (S (NP (N a)) (VP (V b) (X (N c))) (P .)))")
    other = parse_tree("(TOP (S (NP (D d) (NP (N e))) (Y (V f) (V g))))")
    made = [
        str(
            variants([one, other], replace(NOTHING, replaced_constituents=1.0, seed=s))[
                0
            ]
        )
        for s in range(60)
    ]
    assert set(made) == {
        str(one),
        str(other),
        "(TOP (S (NP (D d) (NP (N e))) (VP (V b) (X (N c))) (P .)))",
        "(TOP (S (NP (N e)) (VP (V b) (X (N c))) (P .)))",
    }


def test_a_tree_of_one_word_is_unchanged() -> None:
    tree = parse_tree("(TOP (UH Yes))")
    config = AugmentationConfig(copies=1, cut=1.0, replaced_constituents=1.0)
    assert variants([tree], config) == [tree]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("copies", -1, "`treebank.augmentation.copies` must be at least 0, but is -1"),
        ("cut", 1.1, "`treebank.augmentation.cut` must be from 0 to 1, but is 1.1"),
        ("replaced_words", -0.1, "replaced_words` must be from 0 to 1, but is -0.1"),
        ("replaced_constituents", 2.0, "replaced_constituents` must be from 0 to 1"),
    ],
)
def test_an_impossible_setting_is_refused(
    name: str, value: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentationConfig(**{name: value})
