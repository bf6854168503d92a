"""Trees become symbols, which are a vocabulary, and symbols trees, with repairs."""

from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest

from learned_symbols import learn_symbols
from transduce.errors import DataError, RequestError, counted
from transduce.grammar.corpus import training_trees
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.trees.linearization import (
    NEVER_WRITTEN,
    STYLES,
    UNKNOWN,
    Allowed,
    PartialTree,
    Repairs,
    StyleName,
    Symbol,
    SymbolVocabulary,
    delinearize,
    linearize,
    partial_tree,
    read_symbols,
    symbol_table,
)
from transduce.trees.trees import NOTHING, parse_tree

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
    symbols = {one for tree in trees for one in linearize(tree, STYLES[style])}
    assert symbol_table(symbols, STYLES[style]) == table
    assert read_symbols(table, STYLES[style]) == table


def test_the_vocabulary_is_sorted() -> None:
    trees = [parse_tree("(TOP (S (NN a)))"), parse_tree("(TOP (A (B (, a))))")]
    symbols = {one for tree in trees for one in linearize(tree, STYLES["xx"])}
    assert list(symbol_table(symbols, STYLES["xx"]).values()) == sorted(symbols)


@pytest.mark.parametrize(
    ("tree", "clash"),
    [
        ("(TOP (S (X (NN a)) (X b)))", "`X` is a tag and a label that opens"),
        ("(TOP (S (NN a) (/S b)))", "`/S` is a label that closes and a tag"),
        ("(TOP (S (/S (NN a))))", "`/S` is a label that closes and .* that opens"),
        ("(TOP (S (X a) (/X b)))", "`/X` is a tag and a label that closes"),
    ],
)
def test_symbols_with_the_same_spelling_are_refused(tree: str, clash: str) -> None:
    message = f"^Symbols must be spelt differently, but {clash}; choose another style"
    with pytest.raises(DataError, match=message):
        learn_symbols([parse_tree(tree)], "pos")


@pytest.mark.parametrize("name", sorted(STYLES))
def test_brackets_without_a_label_are_refused_only_where_they_have_no_symbol(
    name: StyleName,
) -> None:
    tree = parse_tree("(TOP (S ((NN a) (NN b)) (. .)))")
    if name == "pos":
        message = "^Symbols must be spelt, .* is empty; label all brackets, or choose"
        with pytest.raises(DataError, match=message):
            learn_symbols([tree], name)
        return
    vocabulary = learn_symbols([tree], name)
    [ids] = vocabulary.encode_targets([vocabulary.target_line(tree)])
    symbols = [vocabulary.symbols[i] for i in ids]
    assert symbols == linearize(tree, vocabulary.style)


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


def after(
    symbols: str, num_words: int, style: str = "xx", max_symbols: int = 100
) -> PartialTree:
    """Automaton state after symbols, all of which are allowed."""
    state = partial_tree(num_words, max_symbols, STYLES[style])
    kinds = {"(": "opening", ")": "closing"}
    for text in symbols.split():
        symbol = Symbol(kinds.get(text[0], "leaf"), text.lstrip("()"))  # type: ignore[arg-type] # a kind
        assert state.allowed().permits(symbol)
        state = state.after(symbol)
    return state


def says(allowed: Allowed) -> str:
    """Short text for the allowed symbols."""
    parts = {
        "(": allowed.opening,
        "XX": allowed.leaf,
        f"){allowed.closing}": allowed.closing is not None,
        "end": allowed.end,
    }
    return " ".join(part for part, is_allowed in parts.items() if is_allowed)


@pytest.mark.parametrize(
    ("symbols", "num_words", "expected"),
    [
        ("", 0, "end"),
        ("", 1, "( XX"),
        ("XX", 1, "end"),
        ("", 2, "("),
        ("(S", 2, "( XX"),
        ("(S XX", 2, "( XX"),
        ("(S (NP XX", 2, "( XX )NP"),
        ("(S (NP XX )NP", 2, "( XX"),
        ("(S XX (NP XX", 2, ")NP"),
        ("(S XX XX", 2, ")S"),
        ("(S XX XX )S", 2, "end"),
    ],
)
def test_top_down_automaton_allows_these_symbols(
    symbols: str, num_words: int, expected: str
) -> None:
    assert says(after(symbols, num_words).allowed()) == expected


@pytest.mark.parametrize(
    ("symbols", "num_words", "expected"),
    [
        ("", 0, "end"),
        ("", 1, "XX"),
        ("XX", 1, "( end"),
        ("XX (S", 1, ")S"),
        ("XX (S )S", 1, "( end"),
        ("XX", 2, "("),
        ("XX (NP", 2, "XX )NP"),
        ("XX (NP )NP", 2, "("),
        ("XX (NP )NP (S", 2, "XX )S"),
        ("XX (NP )NP (S XX", 2, "( )S"),
        ("XX (NP )NP (S XX )S", 2, "( end"),
        ("XX (S XX", 3, "( XX )S"),
        ("XX (S XX (NP", 3, "XX )NP"),
    ],
)
def test_in_order_automaton_allows_these_symbols(
    symbols: str, num_words: int, expected: str
) -> None:
    assert says(after(symbols, num_words, "in-order").allowed()) == expected


@pytest.mark.parametrize(
    ("style", "symbols", "expected"),
    [
        ("xx", "", "("),
        ("xx", "(S", "( XX"),  # five left: (A XX XX )A )S
        ("xx", "(S XX", "( XX"),
        ("xx", "(S XX (A", "XX"),
        ("xx", "(S (A", "XX"),
        ("xx", "(S (A XX", "XX )A"),
        ("in-order", "XX", "("),
        ("in-order", "XX (S", "XX )S"),  # four left: )S (A XX )A
        ("in-order", "XX (S XX", "( )S"),
        ("in-order", "XX (S )S", "("),
        ("in-order", "XX (S )S (A", "XX"),
    ],
)
def test_a_symbol_that_leaves_no_room_to_finish_is_forbidden(
    style: str, symbols: str, expected: str
) -> None:
    assert says(after(symbols, 2, style, max_symbols=6).allowed()) == expected


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("num_words", "needed"), [(0, 0), (1, 1), (2, 4), (9, 11)])
def test_a_limit_too_small_for_any_tree_is_refused(
    style: str, num_words: int, needed: int
) -> None:
    assert partial_tree(num_words, needed, STYLES[style]).words_left == num_words
    words, symbols = counted(num_words, "word"), counted(needed, "symbol")
    message = f"^A tree over {words} must be allowed at least {symbols}, but is allowed"
    with pytest.raises(RequestError, match=message):
        partial_tree(num_words, needed - 1, STYLES[style])


@pytest.mark.parametrize(
    ("symbol", "is_permitted"),
    [
        (Symbol("opening", "NP"), False),
        (Symbol("leaf", "NP"), True),
        (Symbol("closing", "NP"), True),
        (Symbol("closing", "VP"), False),
    ],
)
def test_allowed_symbols_are_permitted_and_others_are_not(
    symbol: Symbol, is_permitted: bool
) -> None:
    allowed = Allowed(opening=False, leaf=True, closing="NP", end=False)
    assert allowed.permits(symbol) == is_permitted


TREES = list(islice(training_trees(seed=1), 50))


@pytest.mark.parametrize("name", STYLES)
def test_the_symbols_of_a_tree_have_ids(name: StyleName) -> None:
    vocabulary = learn_symbols(TREES, name)
    lines = list(map(vocabulary.target_line, TREES))
    for tree, ids in zip(TREES, vocabulary.encode_targets(lines), strict=True):
        symbols = [vocabulary.symbols[i] for i in ids]
        assert symbols == linearize(tree, STYLES[name])


def test_special_ids_come_before_all_symbols() -> None:
    vocabulary = SymbolVocabulary("xx", (")S", "(S", "XX"))
    assert list(vocabulary.symbols) == [4, 5, 6]
    assert vocabulary.vocab_size == 7
    assert vocabulary.symbols[4] == Symbol("closing", "S")
    assert set(NEVER_WRITTEN) == {PAD, BOS, UNKNOWN}
    assert EOS not in NEVER_WRITTEN


def test_a_symbol_outside_the_training_trees_is_unknown() -> None:
    vocabulary = learn_symbols([parse_tree("(TOP (S (A a)))")], "xx")
    assert vocabulary.encode_targets(["(S (NP XX )NP )S", ""]) == [
        [6, UNKNOWN, 5, UNKNOWN, 4],
        [],
    ]


def test_symbols_of_words_take_a_source_word() -> None:
    tree = parse_tree("(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))")
    vocabulary = learn_symbols([tree], "pos")
    words = {
        vocabulary.spellings[i - UNKNOWN - 1]
        for i in vocabulary.symbols
        if vocabulary.takes_word[i]
    }
    assert words == {"DT", "NN", "VBZ", "."}
    assert vocabulary.takes_word[: UNKNOWN + 1] == [False] * 4


@pytest.mark.parametrize(
    ("word", "read", "read_before"),
    [
        ("1\\/2", "1/2", "1\\/2"),
        ("\\*\\*", "**", "\\*\\*"),
        ("a\\b", "a\\b", "a\\b"),
        ("(so\u00ad)", "-LRB-so-RRB-", "-LRB-so-RRB-"),
        ("\u200b", "\u200b", "\u200b"),
    ],
)
def test_a_model_reads_words_without_the_escapes_of_a_treebank(
    tmp_path: Path, word: str, read: str, read_before: str
) -> None:
    assert learn_symbols(TREES, "xx").read_word(word) == read
    # A file of an older version.
    (tmp_path / "symbols").write_text('{"style": "xx", "symbols": ["(S", ")S", "XX"]}')
    older = SymbolVocabulary.load(tmp_path / "symbols")
    assert older.read_word(word) == read_before


def test_a_saved_vocabulary_can_be_read(tmp_path: Path) -> None:
    for name in STYLES:
        saved = learn_symbols(TREES, name)
        saved.save(tmp_path / "symbols")
        assert SymbolVocabulary.load(tmp_path / "symbols") == saved
