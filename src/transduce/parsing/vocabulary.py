"""The symbols of linearised trees as the vocabulary of a target (section 6.3)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.parsing.linearization import (
    ANY_TAG,
    STYLES,
    Style,
    StyleName,
    Symbol,
    linearize,
    read_symbols,
    symbols_in,
)
from transduce.parsing.trees import Tree
from transduce.special_ids import BOS, PAD

SYMBOLS_FILE = "target_tokenizer.json"
"""Of a parser and of its run."""
SPECIAL_SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = len(SPECIAL_SYMBOLS) - 1
"""What training had not: so that its probability can be asked for."""
NUMBERS = tuple(map(chr, range(0x2460, 0x2474)))
"""Circled, from 1 to 20: of words, again and again."""
NEVER_WRITTEN = (PAD, BOS, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SymbolVocabulary:
    """Symbols to ids and back; each is a token, whole."""

    style_name: StyleName
    spellings: tuple[str, ...]
    """Of the symbols, by id from the first after the special ones."""
    is_numbered: bool = False
    """Whether words are numbered, and leaves are the numbers of their words."""

    @property
    def style(self) -> Style:
        return STYLES[self.style_name]

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL_SYMBOLS) + len(self.spellings)

    @property
    def symbols(self) -> dict[int, Symbol]:
        """All that have an id and are not special."""
        table = read_symbols(self.spellings, self.style)
        table |= {number: Symbol("leaf", ANY_TAG) for number in NUMBERS}
        return dict(enumerate(map(table.__getitem__, self.spellings), UNKNOWN + 1))

    def source_line(self, words: Sequence[str]) -> str:
        """A sentence as a line of text."""
        if not self.is_numbered:
            return " ".join(words)
        # Unlike the paper: which word a leaf stands for need not be counted, as small
        # treebanks do not teach it.
        pairs = zip(cycle(NUMBERS), words, strict=False)
        return " ".join(chain.from_iterable(pairs))

    def target_line(self, tree: Tree) -> str:
        """The symbols of a tree as a line of text."""
        numbers = cycle(NUMBERS)
        return " ".join(
            next(numbers)
            if self.is_numbered and symbol.kind == "leaf"
            else self.style.spelling(symbol)
            for symbol in linearize(tree, self.style)
        )

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the symbols that the spaces of each text part."""
        ids = {spelling: i for i, spelling in enumerate(self.spellings, UNKNOWN + 1)}
        return [[ids.get(each, UNKNOWN) for each in text.split()] for text in texts]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The symbols themselves, as `Tokenizer.pieces` gives words."""
        spellings = (*SPECIAL_SYMBOLS, *self.spellings)
        return [f" {spellings[i]}" for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The symbols in a line, as `target_line` writes them."""
        return "".join(self.pieces(ids))[1:]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        content = {
            "style": self.style_name,
            "numbered": self.is_numbered,
            "symbols": self.spellings,
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SymbolVocabulary":
        """Read what `save` wrote; `CheckpointError` if it is damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            style_name, spellings = content["style"], tuple(content["symbols"])
            if style_name in STYLES and all(type(each) is str for each in spellings):
                return cls(style_name, spellings, bool(content["numbered"]))
        except (OSError, ValueError, LookupError, TypeError):
            pass  # said below
        raise CheckpointError(
            f"{path}: must hold the symbols of trees, but does not; restore the file "
            "or train again."
        )


def learn_symbols(
    trees: Iterable[Tree], style_name: StyleName, *, is_numbered: bool = False
) -> SymbolVocabulary:
    """All symbols of the trees, or those of constituents and numbers for leaves."""
    table = symbols_in(trees, STYLES[style_name])
    if not is_numbered:
        return SymbolVocabulary(style_name, tuple(table))
    phrases = [spelling for spelling, symbol in table.items() if symbol.kind != "leaf"]
    return SymbolVocabulary(style_name, (*phrases, *NUMBERS), is_numbered=True)
