"""Trees from symbols, with repairs: each word becomes a leaf, in order.

A model's output may not be a well-formed tree. Fixed rules repair it, and each repair
is counted. Vinyals et al. (2015) only add brackets; here the number of leaves is
corrected as well."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import NamedTuple

from transduce.trees.linearization import ANY_TAG, PUNCTUATION, Order, Style, Symbol
from transduce.trees.normalization import ROOT
from transduce.trees.trees import NOTHING, Constituent, Leaf, Tree

CLAUSE = "S"
"""Label of the root added to an output without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """Number of repairs by kind; all 0 for a well-formed tree."""

    mislabelled: int = 0
    """Closing symbols whose label differs from the open constituent's."""
    unopened: int = 0
    """Closing symbols without an open constituent; they close one that is added around
    everything before."""
    unclosed: int = 0
    """Constituents without a closing symbol, closed at the end."""
    childless: int = 0
    """In-order opening symbols with no child before them."""
    empty: int = 0
    """Constituents without a leaf, removed."""
    surplus: int = 0
    """Leaves beyond the number of words, removed from the end."""
    missing: int = 0
    """Words without a leaf, added at the end of the root."""
    unrooted: int = 0
    """1 if a root had to be added."""

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __add__(self, other: "Repairs") -> "Repairs":
        return Repairs(**(Counter(asdict(self)) + Counter(asdict(other))))


class Delinearized(NamedTuple):
    """Tree with the repairs that were needed."""

    tree: Tree
    repairs: Repairs


def delinearize(
    symbols: Iterable[Symbol], words: Sequence[str], style: Style
) -> Delinearized:
    """Build a tree over exactly these words from any symbols, with the root `TOP`.

    Leaves take their tags from the symbols. Without words, the result is `NOTHING`.
    """
    repairs: Counter[str] = Counter()
    outline = _flat(_balanced(symbols, style.order, repairs), repairs)
    outline = _shortened(outline, len(words), repairs)
    outline = _rooted(outline, len(words), repairs)
    outline = _lengthened(outline, len(words), repairs)
    return Delinearized(_tree(outline, words), Repairs(**repairs))


@dataclass(slots=True, eq=False)
class _Bracket:
    label: str
    children: list["_Bracket | str"] = field(default_factory=list)
    """Inner brackets, and tags of leaves."""
    num_taken: int = 0
    """Number of children that preceded the in-order opening symbol."""


def _balanced(
    symbols: Iterable[Symbol], order: Order, repairs: Counter[str]
) -> _Bracket:
    top = _Bracket(ROOT)
    unclosed = [top]
    for kind, label in symbols:
        if kind == "leaf":
            unclosed[-1].children.append(label)
        elif kind == "opening":
            unclosed.append(_opened(unclosed[-1], label, order, repairs))
        elif unclosed[-1] is top:
            repairs["unopened"] += 1
            top.children = [_Bracket(label, top.children)]
        else:
            repairs["mislabelled"] += unclosed.pop().label != label
    repairs["unclosed"] += len(unclosed) - 1
    return top


def _opened(
    parent: _Bracket, label: str, order: Order, repairs: Counter[str]
) -> _Bracket:
    bracket = _Bracket(label)
    if order == "in-order":
        if len(parent.children) > parent.num_taken:
            bracket.children.append(parent.children.pop())
            bracket.num_taken = 1
        else:
            repairs["childless"] += 1
    parent.children.append(bracket)
    return bracket


class _Outline(NamedTuple):
    """Tree without its words."""

    tags: list[str]
    constituents: list[Constituent]


def _flat(top: _Bracket, repairs: Counter[str]) -> _Outline:
    tags: list[str] = []
    constituents: list[Constituent] = []
    # Stack of nodes to visit; a number marks where that constituent closes.
    coming: list[_Bracket | str | int] = [*reversed(top.children)]
    while coming:
        match coming.pop():
            case _Bracket(label=label, children=children):
                coming += [len(constituents), *reversed(children)]
                constituents.append(Constituent(label, len(tags), len(tags)))
            case str(tag):
                tags.append(tag)
            case number if constituents[number].start < len(tags):
                closed = constituents[number]._replace(end=len(tags))
                constituents[number] = closed
            case _:
                # Its inner constituents were empty too and are already removed.
                constituents.pop()
                repairs["empty"] += 1
    return _Outline(tags, constituents)


def _shortened(outline: _Outline, num_words: int, repairs: Counter[str]) -> _Outline:
    tags, constituents = outline
    surplus = len(tags) - num_words
    if surplus <= 0:
        return outline
    repairs["surplus"] += surplus
    # A full stop stays the last.
    at = num_words - 1 if num_words and tags[-1] in PUNCTUATION else num_words
    moved = [
        Constituent(label, _moved(start, at, surplus), _moved(end, at, surplus))
        for label, start, end in constituents
    ]
    return _Outline(
        tags[:at] + tags[at + surplus :],
        [one for one in moved if one.start < one.end],
    )


def _moved(position: int, at: int, surplus: int) -> int:
    """Return a position after `surplus` leaves are removed."""
    return max(min(position, at), position - surplus)


def _rooted(outline: _Outline, num_words: int, repairs: Counter[str]) -> _Outline:
    tags, constituents = outline
    has_root = bool(constituents) and constituents[0][1:] == (0, len(tags))
    if has_root or len(tags) == num_words <= 1:
        return outline
    repairs["unrooted"] += 1
    return _Outline(tags, [Constituent(CLAUSE, 0, len(tags)), *constituents])


def _lengthened(outline: _Outline, num_words: int, repairs: Counter[str]) -> _Outline:
    tags, constituents = outline
    missing = num_words - len(tags)
    if not missing:
        return outline
    repairs["missing"] += missing
    root, *inner = constituents
    at = len(tags)
    if tags and tags[-1] in PUNCTUATION and all(one.end < at for one in inner):
        at -= 1
    tags = [*tags[:at], *[ANY_TAG] * missing, *tags[at:]]
    return _Outline(tags, [root._replace(end=num_words), *inner])


def _tree(outline: _Outline, words: Sequence[str]) -> Tree:
    if not words:
        return NOTHING
    tags, constituents = outline
    if not constituents or constituents[0].label != ROOT:
        constituents = [Constituent(ROOT, 0, len(words)), *constituents]
    return Tree(leaves=tuple(map(Leaf, tags, words)), constituents=tuple(constituents))
