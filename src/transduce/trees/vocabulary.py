"""The symbols of linearised trees as the vocabulary of a target (section 6.3)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import CheckpointError, TransduceError
from transduce.files import parse_json, read_bounded
from transduce.text.vocabulary import BOS, PAD
from transduce.trees.linearization import (
    STYLES,
    Style,
    StyleName,
    Symbol,
    linearize,
    read_symbols,
    symbols_in,
)
from transduce.trees.trees import Tree

SYMBOLS_FILE = "target_tokenizer.json"
"""Of a parser and of its run."""
SPECIAL_SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = len(SPECIAL_SYMBOLS) - 1
"""What training had not: so that its probability can be asked for."""
NEVER_WRITTEN = (PAD, BOS, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SymbolVocabulary:
    """Symbols to ids and back; each is a token, whole."""

    style_name: StyleName
    spellings: tuple[str, ...]
    """Of the symbols, by id from the first after the special ones."""

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
        return dict(enumerate(map(table.__getitem__, self.spellings), UNKNOWN + 1))

    @property
    def takes_word(self) -> list[bool]:
        """By id: whether the symbol stands for a word, the next one."""
        symbols = self.symbols
        return [
            i in symbols and symbols[i].kind == "leaf" for i in range(self.vocab_size)
        ]

    def target_line(self, tree: Tree) -> str:
        """The symbols of a tree as a line of text."""
        return " ".join(map(self.style.spelling, linearize(tree, self.style)))

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
        content = {"style": self.style_name, "symbols": self.spellings}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SymbolVocabulary":
        """Read what `save` wrote; `CheckpointError` if it is damaged."""
        try:
            content = parse_json(read_bounded(path))
            style_name, spellings = content["style"], tuple(content["symbols"])
            if style_name in STYLES and all(map(_is_spelling, spellings)):
                vocabulary = cls(style_name, spellings)
                is_sound = len(set(spellings)) == len(spellings)
                if is_sound and len(vocabulary.symbols) == len(spellings):
                    return vocabulary
        except (OSError, ValueError, LookupError, TypeError, TransduceError):
            pass  # said below
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


def learn_symbols(trees: Iterable[Tree], style_name: StyleName) -> SymbolVocabulary:
    """All symbols of the trees."""
    return SymbolVocabulary(style_name, tuple(symbols_in(trees, STYLES[style_name])))
