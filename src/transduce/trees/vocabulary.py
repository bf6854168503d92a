"""Target vocabulary of a parser: the symbols of linearized trees (section 6.3)."""

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
        content = {"style": self.style_name, "symbols": self.spellings}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "SymbolVocabulary":
        """Read a file written by `save`; `CheckpointError` if it is damaged."""
        try:
            content = parse_json(read_bounded(path))
            style_name, spellings = content["style"], tuple(content["symbols"])
            if style_name in STYLES and all(map(_is_spelling, spellings)):
                vocabulary = cls(style_name, spellings)
                is_sound = len(set(spellings)) == len(spellings)
                if is_sound and len(vocabulary.symbols) == len(spellings):
                    return vocabulary
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


def learn_symbols(trees: Iterable[Tree], style_name: StyleName) -> SymbolVocabulary:
    """Collect the symbols of the trees into a vocabulary."""
    return SymbolVocabulary(style_name, tuple(symbols_in(trees, STYLES[style_name])))
