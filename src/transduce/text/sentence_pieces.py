"""Tokenizers of Marian's models: two unigram models, and one vocabulary for both.

The unigram models (Kudo, 2018), one of each language, were learned by SentencePiece
(Kudo and Richardson, 2018), and split text here as they do there. The vocabulary gives
each piece its id; a piece outside it is unknown.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from transduce.errors import CheckpointError
from transduce.text.corpus import require_characters
from transduce.text.vocabulary import (
    EOS,
    LANGUAGE_TAG,
    READABLE_BYTES,
    is_tag,
    language_tags,
)

UNKNOWN = "<unk>"
"""Piece that stands for all others; it decodes to nothing."""
SPACE = "\u2581"
"""Character that stands for a space in pieces."""
NO_PIECE = " "
"""String that no text contains once its spaces are replaced."""
BYTES = {piece: byte for byte, piece in enumerate(READABLE_BYTES.values())}
"""Bytes by the pieces that stand for them, such as <0xE4>."""
BYTE_NAMES = tuple(BYTES)
SURROGATE = re.compile("[\ud800-\udfff]")


class CharacterMap:
    """Replacement of characters, such as "fi" for its ligature; the longest match wins.

    SentencePiece stores it as a double array (Aoe, 1989): its size in bytes, its units,
    and then the replacements, each ended by a zero byte.
    """

    def __init__(self, compiled: bytes) -> None:
        """Read a compiled map; `struct.error` if it is cut short."""
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
        """Return the end of the longest match at `start`, and its replacement."""
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
    """Unigram model of a language: it splits text into its likeliest pieces."""

    pieces: tuple[tuple[str, float], ...]
    """Pieces with their log-probabilities."""
    character_map: bytes
    """Replacements before splitting, compiled for `CharacterMap`."""
    adds_space: bool
    """Whether a space precedes the text, so that its first word is like any other."""
    removes_spaces: bool
    """Whether runs of spaces become one space."""
    spells_bytes: bool = False
    """Whether unknown characters become pieces of their UTF-8 bytes, such as <0xE4>."""

    def cut(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text.

        A run of unknown characters is one piece, or those of its bytes.
        """
        written = [self._written(text) for text in texts]
        if not any(written):  # no need to prepare the library
            return [[] for _ in texts]
        cut = [each.tokens for each in self._library.encode_batch(written)]
        return [self._spelled(each) for each in cut] if self.spells_bytes else cut

    def _spelled(self, pieces: Sequence[str]) -> list[str]:
        """Spell unknown pieces by bytes."""
        spelled: list[str] = []
        for piece in pieces:
            if piece in self._known:
                spelled.append(piece)
            else:
                encoded = piece.encode("utf-8", "replace")
                spelled += [BYTE_NAMES[byte] for byte in encoded]
        return spelled

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(piece for piece, _ in self.pieces)

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        # The library sums in double precision, so it may choose differently where two
        # splits are equally likely up to SentencePiece's rounding.
        pieces = [(NO_PIECE, 0.0), *self.pieces]
        return tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))

    @cached_property
    def _map(self) -> CharacterMap:
        return CharacterMap(self.character_map)

    def _written(self, text: str) -> str:
        """Normalize a text, and write its spaces as the pieces do."""
        if not text:
            return ""
        require_characters(text)
        written = self._map(text)
        if self.removes_spaces:
            written = re.sub(" +", " ", written).strip(" ")
        if self.adds_space:
            written = " " + written
        written = written.replace(" ", SPACE)
        return written.rstrip(SPACE) if self.removes_spaces else written


@dataclass(frozen=True, kw_only=True)
class SentencePieceTokenizer:
    """Tokenizer with a unigram model for each language and one vocabulary.

    Unknown pieces are lost, except those that are spelled by bytes.
    """

    vocabulary: tuple[str, ...]
    """Pieces by id."""
    source: UnigramModel
    target: UnigramModel
    target_vocab_size: int | None = None
    """Number of pieces that targets may have, the first ones; None for all. A model of
    two vocabularies has their union: pieces of targets, and then those of sources only.
    """
    added: tuple[str, ...] = ()
    """Tokens that were added to the vocabulary, and are cut out of a text first."""
    silent: tuple[str, ...] = ()
    """Tokens that decode to nothing; those that are not in `added` are not cut out of a
    text either."""
    corpus_tags: tuple[str, ...] = field(default=(), compare=False)
    """Tags of corpora, such as <bt>, with which a run of this package has trained the
    model. Other pieces of that form, such as <br>, are text."""

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def language_tags(self) -> tuple[str, ...]:
        """Tags of target languages in the vocabulary, such as >>de<<."""
        return language_tags(self._ids)

    def tag_id(self, tag: str) -> int | None:
        """Return the id of a tag; None if the vocabulary has no such tag."""
        return self._ids.get(tag) if is_tag(tag) else None

    def language(self, text: str) -> str:
        """Return the tag before a text that names the target language, such as
        >>fr<<."""
        match = LANGUAGE_TAG.match(text)
        return match[0] if match else ""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source's pieces, without special tokens.

        A language tag is one piece.
        """
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many sources at once, on all cores."""
        return self._encode(texts, self.source)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many targets at once, on all cores."""
        found = self._encode(texts, self.target)
        if (most := self.target_vocab_size) is None:
            return found
        return [[i if i < most else self.unknown for i in ids] for ids in found]

    def without(self, removed: Collection[str]) -> "SentencePieceTokenizer":
        """Return the tokenizer without some pieces; ids behind them change."""
        num_targets = self.target_vocab_size
        if num_targets is not None:
            num_targets -= sum(p in removed for p in self.vocabulary[:num_targets])
        return replace(
            self,
            vocabulary=tuple(p for p in self.vocabulary if p not in removed),
            target_vocab_size=num_targets,
            added=tuple(p for p in self.added if p not in removed),
            silent=tuple(p for p in self.silent if p not in removed),
            corpus_tags=tuple(p for p in self.corpus_tags if p not in removed),
        )

    def trained_with(self, tags: Iterable[str]) -> "SentencePieceTokenizer":
        """Return the tokenizer with the tags of corpora of a run."""
        known = [tag for tag in tags if self.tag_id(tag) is not None]
        return replace(
            self, corpus_tags=tuple(dict.fromkeys([*self.corpus_tags, *known]))
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special and unknown tokens.

        Each run of white space becomes one space.
        """
        pieces = self.pieces(i for i in ids if i > EOS and i not in self._textless)
        if self.source.spells_bytes or self.target.spells_bytes:
            pieces = _unspelled(pieces)
        return " ".join("".join(pieces).split())

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return readable pieces; the first piece of a word starts with a space."""
        return [self.vocabulary[i].replace(SPACE, " ") for i in ids]

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        path.write_text(self.json(), encoding="utf-8")

    def json(self) -> str:
        """Return the JSON that `save` writes."""
        content: dict[str, Any] = {
            "type": "SentencePiece",
            "vocabulary": self.vocabulary,
            "source": _record(self.source),
            "target": _record(self.target),
        }
        for name in ("target_vocab_size", "added", "silent", "corpus_tags"):
            if value := getattr(self, name):
                content[name] = value
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> "SentencePieceTokenizer":
        """Read the JSON written by `save`.

        Raises `LookupError`, `TypeError`, `ValueError` or `struct.error` if damaged.
        """
        vocabulary = tuple(map(_piece, content["vocabulary"]))
        if UNKNOWN not in vocabulary:
            raise ValueError(f"no piece is {UNKNOWN}")
        num_targets = content.get("target_vocab_size")
        if num_targets is not None and not (
            type(num_targets) is int and EOS < num_targets <= len(vocabulary)
        ):
            raise ValueError("target_vocab_size must be a part of the vocabulary")
        if UNKNOWN not in vocabulary[:num_targets]:
            raise ValueError(f"no piece of targets is {UNKNOWN}")
        silent = tuple(map(_piece, content.get("silent", [])))
        if not set(silent) <= {*vocabulary[EOS + 1 :]}:
            raise ValueError("silent tokens must be in the vocabulary")
        tags = tuple(map(_piece, content.get("corpus_tags", [])))
        if not set(tags) <= set(filter(is_tag, vocabulary)):
            raise ValueError("corpus_tags must be tags in the vocabulary")
        return cls(
            vocabulary=vocabulary,
            source=_unigram_model(content["source"]),
            target=_unigram_model(content["target"]),
            target_vocab_size=num_targets,
            added=tuple(map(_piece, content.get("added", []))),
            silent=silent,
            corpus_tags=tags,
        )

    def _encode(self, texts: Sequence[str], model: UnigramModel) -> list[list[int]]:
        tags = [self.language(text) for text in texts]
        rest = [text[len(tag) :] for text, tag in zip(texts, tags, strict=True)]
        encoded: list[list[int]] = []
        for tag, pieces in zip(tags, self._cut(rest, model), strict=True):
            tagged = [piece for piece in [tag, *pieces] if piece]
            encoded.append([self._ids.get(piece, self.unknown) for piece in tagged])
        return encoded

    def _cut(self, texts: Sequence[str], model: UnigramModel) -> list[list[str]]:
        """Return the pieces of each text, added tokens whole."""
        if not self.added:
            return model.cut(texts)
        # Added tokens and the text between them take turns; the first part is text.
        parts_of_texts = [self._added.split(text) for text in texts]
        between = [part for parts in parts_of_texts for part in parts[::2]]
        cut = iter(model.cut(between))
        found: list[list[str]] = []
        for parts in parts_of_texts:
            pieces: list[str] = []
            for number, part in enumerate(parts):
                is_added = number % 2 == 1
                pieces += [part] if is_added else next(cut)
            found.append(pieces)
        return found

    @cached_property
    def _added(self) -> re.Pattern[str]:
        longest_first = sorted(self.added, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Ids by piece, without special tokens, which text cannot contain."""
        return {piece: i for i, piece in enumerate(self.vocabulary) if i > EOS}

    @cached_property
    def _textless(self) -> frozenset[int]:
        """Ids of the unknown piece and of silent tokens."""
        return frozenset([self.unknown, *(self._ids[piece] for piece in self.silent)])

    @cached_property
    def unknown(self) -> int:
        """Id of the piece that stands for all unknown ones."""
        return self.vocabulary.index(UNKNOWN)


def _unspelled(pieces: Iterable[str]) -> list[str]:
    """Replace each run of pieces of bytes by its text."""
    found: list[str] = []
    for is_bytes, run in groupby(pieces, BYTES.__contains__):
        each = list(run)
        found += [_text_of(bytes(BYTES[p] for p in each))] if is_bytes else each
    return found


def _text_of(data: bytes) -> str:
    """Decode UTF-8; each byte that is not part of a character becomes U+FFFD."""
    found, place = [], 0
    while place < len(data):
        character = data[place : place + _width(data[place])]
        try:
            found.append(character.decode())
            place += len(character)
        except UnicodeDecodeError:
            found.append("\ufffd")
            place += 1
    return "".join(found)


def _record(model: UnigramModel) -> dict[str, Any]:
    character_map = base64.b64encode(model.character_map).decode("ascii")
    record = {**asdict(model), "character_map": character_map}
    if not model.spells_bytes:
        del record["spells_bytes"]  # as files of earlier versions are
    return record


def _unigram_model(record: dict[str, Any]) -> UnigramModel:
    character_map = base64.b64decode(record["character_map"], validate=True)
    CharacterMap(character_map)  # find damage now
    return UnigramModel(
        pieces=tuple(
            (_piece(piece), _finite(score)) for piece, score in record["pieces"]
        ),
        character_map=character_map,
        adds_space=bool(record["adds_space"]),
        removes_spaces=bool(record["removes_spaces"]),
        spells_bytes=bool(record.get("spells_bytes", False)),
    )


def _piece(piece: object) -> str:
    if type(piece) is not str:  # a control symbol is empty, as it has no text
        raise ValueError("each piece must be a string")
    piece.encode()  # `UnicodeEncodeError`, a `ValueError`, if it is half a character
    return piece


def _finite(score: object) -> float:
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError("the score of each piece must be a finite number")
    return float(score)


def _offset(unit: int) -> int:
    """Return the offset from a unit to its children."""
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _width(first: int) -> int:
    """Return the length in bytes of the UTF-8 character that starts with this byte."""
    return 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
