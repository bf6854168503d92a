"""Repairs of symbol sequences, one by one and in their order."""

from collections import Counter
from dataclasses import asdict

import pytest

from transduce.trees.delinearization import Repairs, delinearize
from transduce.trees.linearization import STYLES, Symbol
from transduce.trees.trees import NOTHING


def repaired(
    symbols: str, num_words: int, style: str = "xx"
) -> tuple[str, dict[str, int]]:
    """Tree over a number of words, and the counts of repairs."""
    kinds = {"(": "opening", ")": "closing"}
    read = [
        Symbol(kinds.get(text[0], "leaf"), text.lstrip("()"))  # type: ignore[arg-type] # a kind
        for text in symbols.split()
    ]
    words = "abcdefgh"[:num_words]
    tree, repairs = delinearize(read, words, STYLES[style])
    assert tree.words == tuple(words)
    return str(tree), {kind: n for kind, n in asdict(repairs).items() if n}


@pytest.mark.parametrize(
    ("symbols", "num_words", "tree"),
    [
        ("(S (NP XX )NP . )S", 2, "(TOP (S (NP (XX a)) (. b)))"),
        ("XX", 1, "(TOP (XX a))"),
        ("(TOP (A XX )A , )TOP", 2, "(TOP (A (XX a)) (, b))"),
        ("(A (A (A XX )A )A )A", 1, "(TOP (A (A (A (XX a)))))"),
    ],
)
def test_well_formed_symbols_need_no_repair(
    symbols: str, num_words: int, tree: str
) -> None:
    assert repaired(symbols, num_words) == (tree, {})


@pytest.mark.parametrize(
    ("symbols", "num_words", "tree", "repairs"),
    [
        ("(S (NP XX )VP )S", 1, "(S (NP (XX a)))", "mislabelled"),
        ("(S XX )NP", 1, "(S (XX a))", "mislabelled"),
        ("XX XX )NP", 2, "(NP (XX a) (XX b))", "unopened"),
        ("(A XX )A XX )B )C", 2, "(C (B (A (XX a)) (XX b)))", "unopened unopened"),
        ("(A (B XX (C XX )C", 2, "(A (B (XX a) (C (XX b))))", "unclosed unclosed"),
        ("(A (B )B XX (C (D )D )C )A", 1, "(A (XX a))", "empty empty empty"),
        ("(A XX (B XX XX )B )A", 2, "(A (XX a) (B (XX b)))", "surplus"),
        ("(A XX (B XX )B )A", 1, "(A (XX a))", "surplus"),
        ("(A XX (B XX )B . )A", 2, "(A (XX a) (. b))", "surplus"),
        ("(A XX (B XX . )B )A", 2, "(A (XX a) (B (. b)))", "surplus"),
        ("(A XX . )A", 1, "(A (. a))", "surplus"),
        ("(A XX )A XX", 1, "(A (XX a))", "surplus"),
        ("(A (B XX )B )A", 3, "(A (B (XX a)) (XX b) (XX c))", "missing missing"),
        ("(A XX . )A", 3, "(A (XX a) (XX b) (. c))", "missing"),
        ("(A . )A", 3, "(A (XX a) (XX b) (. c))", "missing missing"),
        ("(A (B . )B )A", 2, "(A (B (. a)) (XX b))", "missing"),
        ("(A XX )A (B XX )B", 2, "(S (A (XX a)) (B (XX b)))", "unrooted"),
        ("XX XX", 2, "(S (XX a) (XX b))", "unrooted"),
        ("XX", 2, "(S (XX a) (XX b))", "unrooted missing"),
        ("(A XX )A .", 3, "(S (A (XX a)) (XX b) (. c))", "unrooted missing"),
        ("", 2, "(S (XX a) (XX b))", "unrooted missing missing"),
        (")A (B", 1, "(S (XX a))", "unopened unclosed empty empty unrooted missing"),
    ],
)
def test_each_repair_is_made_and_counted(
    symbols: str, num_words: int, tree: str, repairs: str
) -> None:
    counts = dict(Counter(repairs.split()))
    assert repaired(symbols, num_words) == (f"(TOP {tree})", counts)


@pytest.mark.parametrize(
    ("symbols", "num_words", "tree", "repairs"),
    [
        ("XX (NP )NP (S . )S", 2, "(TOP (S (NP (XX a)) (. b)))", {}),
        ("XX (A )A (B )B", 1, "(TOP (B (A (XX a))))", {}),
        ("(A XX )A", 1, "(TOP (A (XX a)))", {"childless": 1}),
        ("XX (A (B XX )B )A", 2, "(TOP (A (XX a) (B (XX b))))", {"childless": 1}),
        ("(A XX (B )B )A", 1, "(TOP (A (B (XX a))))", {"childless": 1}),
        ("XX )A (B .", 2, "(TOP (B (A (XX a)) (. b)))", {"unopened": 1, "unclosed": 1}),
        ("XX XX (A )A", 2, "(TOP (S (XX a) (A (XX b))))", {"unrooted": 1}),
    ],
)
def test_an_in_order_opening_symbol_takes_the_child_before_it(
    symbols: str, num_words: int, tree: str, repairs: dict[str, int]
) -> None:
    assert repaired(symbols, num_words, "in-order") == (tree, repairs)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("count", range(4))
def test_a_sentence_without_words_has_no_tree(style: str, count: int) -> None:
    read = [Symbol("opening", "S"), Symbol("leaf", "XX"), Symbol("closing", "S")]
    assert delinearize(read[:count], [], STYLES[style]).tree == NOTHING


@pytest.mark.parametrize("style", STYLES)
def test_a_tree_may_have_any_number_of_brackets(style: str) -> None:
    opening, closing = Symbol("opening", "S"), Symbol("closing", "S")
    leaf = Symbol("leaf", "XX")
    symbols = [leaf, *[opening] * 10_000, leaf, *[closing] * 20_000]
    tree, repairs = delinearize(symbols, ["a", "b"], STYLES[style])
    assert tree.words == ("a", "b")
    assert repairs.unopened == 10_000
    assert len(tree.constituents) == 1 + 20_000


def test_repairs_add_up() -> None:
    total = Repairs(unclosed=2, empty=1) + Repairs(unclosed=3, missing=4) + Repairs()
    assert total == Repairs(unclosed=5, empty=1, missing=4)
    assert total.total == 10
    assert (Repairs() + Repairs()).total == 0
