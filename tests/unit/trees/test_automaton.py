import pytest

from transduce.errors import RequestError
from transduce.phrases import counted
from transduce.trees.automaton import Allowed, PartialTree, partial_tree
from transduce.trees.linearization import STYLES, Symbol


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
