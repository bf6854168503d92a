"""Tokenizers of Marian's models: two unigram models, and one vocabulary for both.

The unigram models (Kudo, 2018), one of each language, were learned by SentencePiece
(Kudo and Richardson, 2018), and cut text here as they do there. What they cut it into
has its id in the vocabulary, or is unknown.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from transduce.errors import CheckpointError
from transduce.text.vocabulary import EOS

UNKNOWN = "<unk>"
"""The piece of the vocabulary for what is not in it; as text it is nothing."""
SPACE = "\u2581"
"""How a space is written in pieces."""
NO_PIECE = " "
"""Cannot be in a text whose spaces are written otherwise."""
SURROGATE = re.compile("[\ud800-\udfff]")
LANGUAGE = re.compile(">>.*?<<", re.DOTALL)
"""What stands before the text for a model that translates into several."""


class CharacterMap:
    """What is written for what, such as "fi" for its ligature: the longest match first.

    A double array (Aoe, 1989) as SentencePiece keeps it: its size in bytes, its units,
    and then what is to be written, each ended by a zero.
    """

    def __init__(self, compiled: bytes) -> None:
        """`struct.error` if it is cut short."""
        (size,) = struct.unpack_from("<I", compiled) if compiled else (0,)
        self._units = struct.unpack_from(f"<{size // 4}I", compiled, 4) if size else ()
        self._written = compiled[4 + size :]

    def __call__(self, text: str) -> str:
        if not self._units:
            return text
        data = text.encode()
        parts: list[bytes] = []
        position = 0
        try:
            while position < len(data):
                end, written = self._longest(data, position)
                parts.append(written)
                position = end
            return b"".join(parts).decode()
        except (IndexError, ValueError):
            raise CheckpointError(
                "The character map of the tokenizer is damaged; restore the model's "
                "tokenizer, or import the model again."
            ) from None

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """Where the longest match from there ends, and what is to be written for it."""
        end = start + _width(data[start])
        written = data[start:end]
        unit = self._units[0]
        node = _offset(unit)
        for position in range(start, len(data)):
            node ^= data[position]
            unit = self._units[node]
            if unit & 0x8000_00FF != data[position]:
                break
            node ^= _offset(unit)
            if unit & 0x100:  # a match ends here
                first = self._units[node] & 0x7FFF_FFFF
                written = self._written[first : self._written.index(0, first)]
                end = position + 1
        return end, written


@dataclass(frozen=True, kw_only=True)
class UnigramModel:
    """How texts of a language are cut into pieces: the likeliest way."""

    pieces: tuple[tuple[str, float], ...]
    """With their log-probabilities."""
    character_map: bytes
    """What is written for what before, as `CharacterMap` reads it."""
    adds_space: bool
    """Before the text, so that its first word is like any other."""
    removes_spaces: bool
    """All but one between words."""

    def cut(self, texts: Sequence[str]) -> list[list[str]]:
        """The pieces of each text, and runs of what is in none of them."""
        written = [self._written(text) for text in texts]
        if not any(written):  # no need to prepare the library
            return [[] for _ in texts]
        return [each.tokens for each in self._library.encode_batch(written)]

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        # The library sums in double precision, and so may choose another way where
        # two are equally likely but for the rounding of SentencePiece.
        pieces = [(NO_PIECE, 0.0), *self.pieces]
        return tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))

    @cached_property
    def _map(self) -> CharacterMap:
        return CharacterMap(self.character_map)

    def _written(self, text: str) -> str:
        """As the pieces write it."""
        if not text:
            return ""
        written = self._map(SURROGATE.sub("\ufffd", text))
        if self.removes_spaces:
            written = re.sub(" +", " ", written).strip(" ")
        if self.adds_space:
            written = " " + written
        written = written.replace(" ", SPACE)
        return written.rstrip(SPACE) if self.removes_spaces else written


@dataclass(frozen=True, kw_only=True)
class SentencePieceTokenizer:
    """Text to ids and back by a unigram model of each language.

    What the vocabulary has not is unknown, and lost.
    """

    vocabulary: tuple[str, ...]
    """By id."""
    source: UnigramModel
    target: UnigramModel

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def language(self, text: str) -> str:
        """The code before a text, such as >>fr<<, that tells what to translate into."""
        match = LANGUAGE.match(text)
        return match[0] if match else ""

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of a source; no special token among them.

        The code of a language is one piece.
        """
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on all cores."""
        return self._encode(texts, self.source)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for targets."""
        return self._encode(texts, self.target)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, one space for each run of white space.

        Special tokens and what is unknown are left out.
        """
        known = (i for i in ids if i > EOS and i != self._unknown)
        return " ".join("".join(self.pieces(known)).split())

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces themselves, for people to read; a word's first has a space."""
        return [self.vocabulary[i].replace(SPACE, " ") for i in ids]

    def save(self, path: Path) -> None:
        """Write all of it as JSON."""
        content = {
            "type": "SentencePiece",
            "vocabulary": self.vocabulary,
            "source": _record(self.source),
            "target": _record(self.target),
        }
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> "SentencePieceTokenizer":
        """From the JSON that `save` wrote.

        `LookupError`, `TypeError`, `ValueError` or `struct.error` if it is damaged.
        """
        vocabulary = tuple(map(_piece, content["vocabulary"]))
        if UNKNOWN not in vocabulary:
            raise ValueError(f"no piece is {UNKNOWN}")
        return cls(
            vocabulary=vocabulary,
            source=_unigram_model(content["source"]),
            target=_unigram_model(content["target"]),
        )

    def _encode(self, texts: Sequence[str], model: UnigramModel) -> list[list[int]]:
        codes = [self.language(text) for text in texts]
        rest = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
        return [
            [self._ids.get(piece, self._unknown) for piece in [code, *pieces] if piece]
            for code, pieces in zip(codes, model.cut(rest), strict=True)
        ]

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Those of special tokens left out: in a text they are no such."""
        return {piece: i for i, piece in enumerate(self.vocabulary) if i > EOS}

    @cached_property
    def _unknown(self) -> int:
        return self.vocabulary.index(UNKNOWN)


def _record(model: UnigramModel) -> dict[str, Any]:
    character_map = base64.b64encode(model.character_map).decode("ascii")
    return {**asdict(model), "character_map": character_map}


def _unigram_model(record: dict[str, Any]) -> UnigramModel:
    character_map = base64.b64decode(record["character_map"], validate=True)
    CharacterMap(character_map)  # so that damage is found now
    return UnigramModel(
        pieces=tuple(
            (_piece(piece), _finite(score)) for piece, score in record["pieces"]
        ),
        character_map=character_map,
        adds_space=bool(record["adds_space"]),
        removes_spaces=bool(record["removes_spaces"]),
    )


def _piece(piece: object) -> str:
    if type(piece) is not str:  # a control symbol is empty: it writes no text
        raise ValueError("each piece must be a string")
    piece.encode()  # `UnicodeEncodeError`, a `ValueError`, if it is half a character
    return piece


def _finite(score: object) -> float:
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError("the score of each piece must be a finite number")
    return float(score)


def _offset(unit: int) -> int:
    """From a unit to those that come after it."""
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _width(first: int) -> int:
    """Bytes of the character that begins with this one, in UTF-8."""
    return 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
