"""Linearization of trees into symbols that a Transformer can generate (section 6.3).

A symbol stands for each word, since the words are known from the input. A root with
only one child is omitted. The symbols are a parser's target vocabulary. An automaton
limits parsing to well-formed symbol sequences; its states are small, immutable and
cheap to copy. Otherwise a model's output may not be a tree: fixed rules repair it, and
each repair is counted. Vinyals et al. (2015) only add brackets; here the number of
leaves is corrected as well.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from transduce.errors import (
    AccessError,
    CheckpointError,
    DataError,
    RequestError,
    TransduceError,
    counted,
)
from transduce.files import parse_json, read_bounded
from transduce.text.languages import without_invisible
from transduce.text.vocabulary import BOS, PAD
from transduce.trees.trees import (
    NOTHING,
    ROOT,
    Constituent,
    Leaf,
    Tree,
    without_brackets,
)

Kind = Literal["opening", "closing", "leaf"]
Order = Literal["top-down", "in-order"]
StyleName = Literal["xx", "pos", "in-order", "in-order-pos"]
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
"""Tags whose words EVALB ignores."""
ANY_TAG = "XX"


class Symbol(NamedTuple):
    """Start or end of a constituent, or a leaf."""

    kind: Kind
    label: str
    """Label of the constituent, or tag of the leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Style of linearization."""

    order: Order
    """Position of the opening symbol: before the first child, or after it (Liu and
    Zhang, 2017)."""
    opening: str
    """Prefix of opening symbols."""
    closing: str
    """Prefix of closing symbols."""
    keeps_tags: bool
    """Whether leaves keep their tags; otherwise they are XX, except punctuation."""

    def leaf(self, tag: str) -> Symbol:
        """Return the symbol of a leaf."""
        is_kept = self.keeps_tags or tag in PUNCTUATION
        return Symbol("leaf", tag if is_kept else ANY_TAG)

    def spelling(self, symbol: Symbol) -> str:
        """Return the symbol as a target token."""
        prefixes = {"opening": self.opening, "closing": self.closing, "leaf": ""}
        return prefixes[symbol.kind] + symbol.label


STYLES: dict[StyleName, Style] = {
    # Vinyals et al. (2015): (S (NP XX )NP . )S
    "xx": Style(order="top-down", opening="(", closing=")", keeps_tags=False),
    # Tensor2tensor, the paper's own code: S NP NNP /NP . /S
    "pos": Style(order="top-down", opening="", closing="/", keeps_tags=True),
    # Like `xx`, in another order: XX (NP )NP (S . )S
    "in-order": Style(order="in-order", opening="(", closing=")", keeps_tags=False),
    # Like `in-order`, with tags: NNP (NP )NP (S . )S
    "in-order-pos": Style(order="in-order", opening="(", closing=")", keeps_tags=True),
}


def linearize(tree: Tree, style: Style) -> list[Symbol]:
    """Return the symbols of a tree; `DataError` unless its root is `TOP`."""
    if not tree.constituents or tree.constituents[0].label != ROOT:
        raise DataError(
            f"A tree must have the root `{ROOT}` to be linearized, but is "
            f"`{str(tree)[:40]}`; normalize it first."
        )
    return list(_symbols(_below_root(tree), style))


def _below_root(tree: Tree) -> Tree:
    root, *below = tree.constituents
    if not below:
        has_one_child = len(tree.leaves) == 1
    else:
        label, *span = below[0]
        has_one_child = label != ROOT and span == [root.start, root.end]
    return replace(tree, constituents=tuple(below)) if has_one_child else tree


def _symbols(tree: Tree, style: Style) -> Iterator[Symbol]:
    """Yield the symbols leaf by leaf, with those of the constituents around each leaf.

    In top-down order a constituent opens before its first leaf, otherwise after its
    first child. It closes after its last leaf.
    """
    is_top_down = style.order == "top-down"
    # Constituents around the leaf, each with whether its opening symbol is written.
    entered: list[tuple[Constituent, bool]] = []
    leaves = zip(tree.leaves, tree.opened_at(), strict=True)
    for end, (leaf, begun) in enumerate(leaves, start=1):
        if is_top_down:
            yield from [Symbol("opening", one.label) for one in begun]
        entered += [(one, is_top_down) for one in begun]
        yield style.leaf(leaf.tag)
        while entered:
            constituent, is_opened = entered.pop()
            if not is_opened:
                yield Symbol("opening", constituent.label)
            if constituent.end > end:
                entered.append((constituent, True))
                break
            yield Symbol("closing", constituent.label)


def symbol_table(symbols: set[Symbol], style: Style) -> dict[str, Symbol]:
    """Return symbols by spelling, in order: the target vocabulary.

    Raises `DataError` if two symbols have the same spelling, or if one has none.
    """
    table: dict[str, Symbol] = {}
    for symbol in sorted(symbols):
        spelling = style.spelling(symbol)
        if not spelling:
            raise DataError(
                "Symbols must be spelt, but the opening symbol of a bracket without a "
                "label is empty; label all brackets, or choose another style."
            )
        _require_same(spelling, table.setdefault(spelling, symbol), symbol)
    for spelling, symbol in read_symbols(table, style).items():
        # Two tags such as X and /X would be read as a label.
        _require_same(spelling, table[spelling], symbol)
    return table


def _require_same(spelling: str, one: Symbol, other: Symbol) -> None:
    if one != other:
        raise DataError(
            f"Symbols must be spelt differently, but `{spelling}` is {_said(one)} and "
            f"{_said(other)}; choose another style."
        )


def _said(symbol: Symbol) -> str:
    return {
        "opening": "a label that opens",
        "closing": "a label that closes",
        "leaf": "a tag",
    }[symbol.kind]


def read_symbols(spellings: Iterable[str], style: Style) -> dict[str, Symbol]:
    """Rebuild the table of `symbol_table` from its spellings.

    A spelling is a label if it also occurs with the closing prefix.
    """
    spellings = list(spellings)
    known = set(spellings)
    labels = {
        label
        for label in (spelling.removeprefix(style.closing) for spelling in spellings)
        if {style.opening + label, style.closing + label} <= known
    }
    table = {spelling: Symbol("leaf", spelling) for spelling in spellings}
    for label in labels:
        table[style.opening + label] = Symbol("opening", label)
        table[style.closing + label] = Symbol("closing", label)
    return table


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


class Allowed(NamedTuple):
    """Set of symbols that may come next.

    There are only about four times as many values as labels, so a mask of the
    vocabulary can be cached for each.
    """

    opening: bool
    leaf: bool
    closing: str | None
    """Only label that may be closed; None if none may be."""
    end: bool
    """Whether the tree is complete, so that the sequence may end."""

    def permits(self, symbol: Symbol) -> bool:
        match symbol.kind:
            case "opening":
                return self.opening
            case "leaf":
                return self.leaf
            case "closing":
                return self.closing == symbol.label


class PartialTree(NamedTuple):
    """Prefix of a linearized tree.

    Any sequence of allowed symbols completes the tree: every step allows at least one
    symbol, and the end comes within `symbols_left` symbols.
    """

    order: Order
    words_left: int
    symbols_left: int
    labels: tuple[str, ...] = ()
    """Labels of the open constituents, outer ones first."""
    last: Kind | None = None
    """Kind of the last symbol; None at the start."""

    def allowed(self) -> Allowed:
        """Return the symbols that may come next."""
        return Allowed(
            opening=self._may_open() and self._has_room(self.words_left, 1),
            leaf=self._may_add_leaf(),
            closing=self.labels[-1] if self._may_close() else None,
            end=not self.labels and not self.words_left,
        )

    def after(self, symbol: Symbol) -> "PartialTree":
        """Return the state after one more symbol, which must be allowed."""
        kind, label = symbol
        labels = self.labels
        if kind == "opening":
            labels = (*labels, label)
        elif kind == "closing":
            labels = labels[:-1]
        words_left = self.words_left - (kind == "leaf")
        return PartialTree(self.order, words_left, self.symbols_left - 1, labels, kind)

    def _may_open(self) -> bool:
        if self.order == "in-order":
            return self.last in ("leaf", "closing")
        return self.words_left > 0 and (bool(self.labels) or self.last is None)

    def _may_add_leaf(self) -> bool:
        if not self.words_left:
            return False
        if self.labels:
            return True
        is_first = self.last is None
        return is_first and (self.order == "in-order" or self.words_left == 1)

    def _may_close(self) -> bool:
        if not self.labels:
            return False
        if self.order == "in-order":
            return self._has_room(self.words_left, -1)
        is_last = len(self.labels) == 1
        return self.last != "opening" and not (is_last and self.words_left)

    def _has_room(self, words_left: int, deeper: int) -> bool:
        depth = len(self.labels) + deeper
        return symbols_needed(words_left, depth) < self.symbols_left


def partial_tree(num_words: int, max_symbols: int, style: Style) -> PartialTree:
    """Return the initial state; `max_symbols` does not count the end.

    Raises `RequestError` if no tree over the words fits.
    """
    needed = num_words if num_words <= 1 else symbols_needed(num_words, 0)
    if max_symbols < needed:
        raise RequestError(
            f"A tree over {counted(num_words, 'word')} must be allowed at least "
            f"{counted(needed, 'symbol')}, but is allowed {max_symbols}."
        )
    return PartialTree(style.order, num_words, max_symbols)


def symbols_needed(words_left: int, depth: int) -> int:
    """Return the least number of symbols that complete a tree at this depth."""
    if words_left and not depth:
        return words_left + 2  # a constituent around them
    return words_left + depth


ESCAPE = re.compile(r"\\([/*])")
"""Escape of the Penn Treebank, as in 1\\/2."""


def as_read(word: str, *, unescapes: bool) -> str:
    """Return a word as a model reads it: without brackets and invisible characters.

    A word of invisible characters alone stays.
    """
    word = without_brackets(without_invisible(word) or word)
    return ESCAPE.sub(r"\1", word) if unescapes else word


SYMBOLS_FILE = "target_tokenizer.json"
"""Name of the file in a parser's model folder and run folder."""
SPECIAL_SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = len(SPECIAL_SYMBOLS) - 1
"""Id of symbols that training did not contain, so that they can be scored."""
NEVER_WRITTEN = (PAD, BOS, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SymbolVocabulary:
    """Mapping between symbols and ids; each symbol is one token."""

    style_name: StyleName
    spellings: tuple[str, ...]
    """Spellings by id, starting after the special symbols."""
    unescapes: bool = False
    """Whether the model reads words without the backslashes of the Penn Treebank, such
    as 1/2 for 1\\/2, which raw text lacks; False in older models."""

    @property
    def style(self) -> Style:
        return STYLES[self.style_name]

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL_SYMBOLS) + len(self.spellings)

    @property
    def symbols(self) -> dict[int, Symbol]:
        """Symbols by id, without the special ones."""
        table = read_symbols(self.spellings, self.style)
        return dict(enumerate(map(table.__getitem__, self.spellings), UNKNOWN + 1))

    @property
    def takes_word(self) -> list[bool]:
        """Whether each id stands for a word of the input."""
        symbols = self.symbols
        return [
            i in symbols and symbols[i].kind == "leaf" for i in range(self.vocab_size)
        ]

    def read_word(self, word: str) -> str:
        """Return a word of a sentence as the model reads it."""
        return as_read(word, unescapes=self.unescapes)

    def target_line(self, tree: Tree) -> str:
        """Write the symbols of a tree as a line of text."""
        return " ".join(map(self.style.spelling, linearize(tree, self.style)))

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text's symbols, which spaces separate."""
        ids = {spelling: i for i, spelling in enumerate(self.spellings, UNKNOWN + 1)}
        return [[ids.get(each, UNKNOWN) for each in text.split()] for text in texts]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols as strings, as `Tokenizer.pieces` does for text."""
        spellings = (*SPECIAL_SYMBOLS, *self.spellings)
        return [f" {spellings[i]}" for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as a line of symbols, the inverse of `encode_targets`."""
        return "".join(self.pieces(ids))[1:]

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        content = {
            "style": self.style_name,
            "unescapes": self.unescapes,
            "symbols": self.spellings,
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SymbolVocabulary":
        """Read a file written by `save`; `CheckpointError` if it is damaged."""
        try:
            content = parse_json(read_bounded(path))
            style_name, spellings = content["style"], tuple(content["symbols"])
            unescapes = content.get("unescapes", False)
            is_written = style_name in STYLES and isinstance(unescapes, bool)
            if is_written and all(map(_is_spelling, spellings)):
                vocabulary = cls(style_name, spellings, unescapes)
                is_sound = len(set(spellings)) == len(spellings)
                if is_sound and len(vocabulary.symbols) == len(spellings):
                    return vocabulary
        except AccessError:
            raise
        except (OSError, ValueError, LookupError, TypeError, TransduceError):
            pass  # the error below covers these
        raise CheckpointError(
            f"{path}: must hold the symbols of trees, but does not; restore the file "
            "or train again."
        )


def _is_spelling(symbol: object) -> bool:
    """Whether a value is a symbol that can be written in a line of symbols."""
    if type(symbol) is not str or symbol.split() != [symbol]:
        return False
    symbol.encode()  # `UnicodeEncodeError`, a `ValueError`, if it is half a character
    return True


def vocabulary_of(symbols: set[Symbol], style_name: StyleName) -> SymbolVocabulary:
    """Return the vocabulary of symbols; raises the errors of `symbol_table`."""
    spellings = tuple(symbol_table(symbols, STYLES[style_name]))
    return SymbolVocabulary(style_name, spellings, unescapes=True)
