"""Any tree survives linearization, and any symbols become a tree."""

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.trees.bracket_f1 import bracket_f1, with_tags_of
from transduce.trees.linearization import (
    STYLES,
    Repairs,
    Style,
    Symbol,
    delinearize,
    linearize,
    partial_tree,
    read_symbols,
    symbol_table,
)
from transduce.trees.trees import Tree, normalized, parse_tree, read_trees

thoroughly = settings(max_examples=500)
LABELS = ["S", "NP", "VP", "TOP"]
TAGS = ["NN", "DT", ",", ".", "``", "-LRB-"]
words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\f\v()"),
    min_size=1,
    max_size=3,
)
sentences = st.lists(words, max_size=9)
styles = st.sampled_from(sorted(STYLES))


def accepts(symbols: Sequence[Symbol], num_words: int, style: Style) -> bool:
    """Whether the automaton accepts the symbols."""
    state = partial_tree(num_words, max(len(symbols), num_words + 2), style)
    for symbol in symbols:
        if not state.allowed().permits(symbol):
            return False
        state = state.after(symbol)
    return state.allowed().end


def bracketed(label: str, children: list[str]) -> str:
    return f"({label} {' '.join(children)})"


leaves = st.builds(bracketed, st.sampled_from(TAGS), words.map(lambda word: [word]))
nodes = st.recursive(
    leaves,
    lambda inner: st.builds(
        bracketed, st.sampled_from(LABELS), st.lists(inner, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
trees = st.builds(
    lambda children: parse_tree(bracketed("TOP", children)),
    st.lists(nodes, min_size=1, max_size=3),
)
symbols = st.one_of(
    st.builds(Symbol, st.sampled_from(["opening", "closing"]), st.sampled_from(LABELS)),
    st.builds(Symbol, st.just("leaf"), st.sampled_from([*TAGS, "XX"])),
)


@given(trees)
def test_a_tree_that_is_written_is_read_again(tree: Tree) -> None:
    assert parse_tree(str(tree)) == tree
    assert list(read_trees([str(tree)] * 2, "trees")) == [tree, tree]


@given(trees)
def test_normalisation_is_idempotent(tree: Tree) -> None:
    assert normalized(tree) == tree


@given(trees, styles)
def test_a_tree_is_restored_from_its_symbols(tree: Tree, name: str) -> None:
    style = STYLES[name]
    found = delinearize(linearize(tree, style), tree.words, style)
    assert found.repairs == Repairs()
    assert found.tree.words == tree.words
    assert with_tags_of(tree, found.tree) == tree
    if style.keeps_tags:
        assert found.tree == tree


@given(trees, styles)
def test_a_restored_tree_has_a_score_of_100(tree: Tree, name: str) -> None:
    style = STYLES[name]
    found = delinearize(linearize(tree, style), tree.words, style).tree
    [counts] = bracket_f1([tree], [found]).sentences
    assert counts.matched == counts.gold == counts.predicted
    assert counts.status != "error"


@given(st.lists(trees, min_size=1, max_size=3), styles)
def test_symbols_can_be_read_from_their_spellings(
    forest: list[Tree], name: str
) -> None:
    style = STYLES[name]
    linearized = [linearize(tree, style) for tree in forest]
    table = symbol_table({one for each in linearized for one in each}, style)
    assert read_symbols(table, style) == table
    for symbols in linearized:
        assert [table[style.spelling(symbol)] for symbol in symbols] == symbols


@thoroughly
@given(st.lists(symbols, max_size=30), sentences, styles)
def test_any_symbols_and_words_make_a_tree_over_these_words(
    symbols: list[Symbol], words: list[str], name: str
) -> None:
    tree, repairs = delinearize(symbols, words, STYLES[name])
    assert tree.words == tuple(words)
    assert delinearize(symbols, words, STYLES[name]) == (tree, repairs)
    if words:
        assert parse_tree(str(tree)) == tree
        assert normalized(tree) == tree


@given(trees, styles, st.integers(0, 3))
def test_the_automaton_accepts_every_tree(tree: Tree, name: str, spare: int) -> None:
    symbols = linearize(tree, STYLES[name])
    state = partial_tree(len(tree.leaves), len(symbols) + spare, STYLES[name])
    for symbol in symbols:
        assert state.allowed().permits(symbol)
        state = state.after(symbol)
    assert state.allowed().end


@thoroughly
@given(st.data(), sentences, styles, st.integers(0, 12))
def test_every_path_through_the_automaton_is_a_tree(
    data: st.DataObject, words: list[str], name: str, spare: int
) -> None:
    style = STYLES[name]
    max_symbols = len(words) + 2 + spare
    state = partial_tree(len(words), max_symbols, style)
    written: list[Symbol] = []
    everything = [
        *(Symbol("opening", label) for label in LABELS),
        *(Symbol("closing", label) for label in LABELS),
        *(Symbol("leaf", tag) for tag in TAGS),
    ]
    while True:
        allowed = state.allowed()
        choices = [symbol for symbol in everything if allowed.permits(symbol)]
        assert choices or allowed.end
        if allowed.end and (not choices or data.draw(st.booleans())):
            break
        written.append(data.draw(st.sampled_from(choices)))
        state = state.after(written[-1])
    assert len(written) <= max_symbols
    tree, repairs = delinearize(written, words, style)
    assert repairs == Repairs()
    assert tree.words == tuple(words)


@pytest.mark.parametrize("choose", [min, max], ids=["first", "last"])
@pytest.mark.parametrize("name", STYLES)
def test_the_automaton_ends_a_long_sentence_in_time(
    name: str, choose: Callable[[list[Symbol]], Symbol]
) -> None:
    """A model that only opens constituents or only adds leaves must finish."""
    state = partial_tree(100, 400, STYLES[name])
    everything = [
        Symbol("opening", "S"), Symbol("leaf", "XX"), Symbol("closing", "S")
    ]  # fmt: skip
    num_symbols = 0
    while not (allowed := state.allowed()).end:
        choices = [symbol for symbol in everything if allowed.permits(symbol)]
        state = state.after(choose(choices))
        num_symbols += 1
    assert num_symbols <= 400


@pytest.mark.parametrize("length", range(7))
@pytest.mark.parametrize("name", ["xx", "in-order"])
def test_the_automaton_accepts_exactly_the_symbols_that_need_no_repair(
    name: str, length: int
) -> None:
    style = STYLES[name]
    everything = [
        *(Symbol("opening", label) for label in "AB"),
        *(Symbol("closing", label) for label in "AB"),
        Symbol("leaf", "XX"),
    ]
    num_accepted = 0
    for symbols in product(everything, repeat=length):
        words = "w" * sum(symbol.kind == "leaf" for symbol in symbols)
        is_mended = delinearize(symbols, words, style).repairs != Repairs()
        assert accepts(symbols, len(words), style) != is_mended
        num_accepted += not is_mended
    assert num_accepted or length == 2
