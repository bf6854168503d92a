import pytest

from transduce.errors import DataError
from transduce.trees.linearization import (
    STYLES,
    Symbol,
    linearize,
    read_symbols,
    symbols_in,
)
from transduce.trees.trees import parse_tree

JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"


def spelt(tree: str, name: str) -> str:
    style = STYLES[name]
    return " ".join(map(style.spelling, linearize(parse_tree(tree), style)))


@pytest.mark.parametrize(
    ("style", "symbols"),
    [
        ("xx", "(S (NP XX )NP (VP XX (NP XX XX )NP )VP . )S"),
        ("pos", "S NP NNP /NP VP VBZ NP DT NN /NP /VP . /S"),
        ("in-order", "XX (NP )NP (S XX (VP XX (NP XX )NP )VP . )S"),
    ],
)
def test_every_style_linearises_the_example_of_vinyals(
    style: str, symbols: str
) -> None:
    assert spelt(f"(TOP {JOHN})", style) == symbols


def test_the_style_of_tensor2tensor_linearises_its_example() -> None:
    tree = "(TOP (S (NP (DT a) (NN dog)) (VP (VBZ barks))))"
    assert spelt(tree, "pos") == "S NP DT NN /NP VP VBZ /VP /S"


@pytest.mark.parametrize(
    ("tree", "top_down", "in_order"),
    [
        ("(TOP (VB go))", "XX", "XX"),
        ("(TOP (A (B (X x))))", "(A (B XX )B )A", "XX (B )B (A )A"),
        ("(TOP (A (X x)) (B (X y)))", "(TOP (A XX )A (B XX )B )TOP", None),
        ("(TOP (X x) (, ,))", "(TOP XX , )TOP", "XX (TOP , )TOP"),
        ("(TOP (TOP (X x)))", "(TOP (TOP XX )TOP )TOP", None),
        ("(TOP (A (B (C (X x)) (X y)) (X z)))", None, "XX (C )C (B XX )B (A XX )A"),
    ],
)
def test_trees_of_every_shape_have_these_symbols(
    tree: str, top_down: str | None, in_order: str | None
) -> None:
    if top_down is not None:
        assert spelt(tree, "xx") == top_down
    if in_order is not None:
        assert spelt(tree, "in-order") == in_order


def test_only_tags_that_evalb_ignores_are_kept() -> None:
    tree = "(TOP (S (`` ``) (-LRB- -LRB-) (, ,) (: -) ('' '') ($ $) (HYPH -) (. .)))"
    assert spelt(tree, "xx") == "(S `` XX , : '' XX XX . )S"


@pytest.mark.parametrize("tree", [JOHN, f"(ROOT {JOHN})", "(NN a)"])
def test_a_tree_with_another_root_is_refused(tree: str) -> None:
    message = "^A tree must have the root `TOP` to be linearized, but is `.*normalize"
    with pytest.raises(DataError, match=message):
        linearize(parse_tree(tree), STYLES["xx"])


TABLES = {
    "xx": {
        "(S": Symbol("opening", "S"),
        ")S": Symbol("closing", "S"),
        "XX": Symbol("leaf", "XX"),
        ".": Symbol("leaf", "."),
    },
    "pos": {
        "S": Symbol("opening", "S"),
        "/S": Symbol("closing", "S"),
        "/": Symbol("leaf", "/"),
        "NN": Symbol("leaf", "NN"),
        ".": Symbol("leaf", "."),
    },
}


@pytest.mark.parametrize(("style", "table"), TABLES.items())
def test_the_vocabulary_has_the_symbols_of_the_trees_and_is_read_back(
    style: str, table: dict[str, Symbol]
) -> None:
    trees = [parse_tree("(TOP (S (NN a) (/ b)))"), parse_tree("(TOP (S (. c)))")]
    assert symbols_in(trees, STYLES[style]) == table
    assert read_symbols(table, STYLES[style]) == table


def test_the_order_of_the_vocabulary_does_not_depend_on_the_trees() -> None:
    trees = [parse_tree("(TOP (S (NN a)))"), parse_tree("(TOP (A (B (, a))))")]
    some, others = (
        symbols_in(trees, STYLES["xx"]),
        symbols_in(trees[::-1], STYLES["xx"]),
    )
    assert list(some) == list(others)


@pytest.mark.parametrize(
    ("tree", "clash"),
    [
        ("(TOP (S (X (NN a)) (X b)))", "`X` is a tag and a label that opens"),
        ("(TOP (S (NN a) (/S b)))", "`/S` is a label that closes and a tag"),
        ("(TOP (S (/S (NN a))))", "`/S` is a label that closes and .* that opens"),
    ],
)
def test_symbols_with_the_same_spelling_are_refused(tree: str, clash: str) -> None:
    message = f"^Symbols must be spelt differently, but {clash}; choose another style"
    with pytest.raises(DataError, match=message):
        symbols_in([parse_tree(tree)], STYLES["pos"])
