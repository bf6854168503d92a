"""Tokenizers of SentencePiece: models of both languages, and one vocabulary for them.

The models, unigrams (Kudo, 2018) or byte pairs (Sennrich et al., 2016), were learned by
SentencePiece (Kudo and Richardson, 2018), and split text here as they do there. The
vocabulary gives each piece its id; a piece outside it is unknown. Imported models of
Marian have such tokenizers, and runs to which a user gives a model of SentencePiece.
"""

import base64
import json
import math
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, pre_tokenizers

from transduce.errors import CheckpointError, RequestError
from transduce.files import read_bounded_bytes, reason
from transduce.settings import shown
from transduce.text.corpus import require_characters
from transduce.text.vocabulary import (
    EOS,
    LANGUAGE_TAG,
    READABLE_BYTES,
    SPECIAL_PIECES,
    corpus_tags,
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
BYTE_PAIRS = "bpe"
"""Kind of a model of byte pairs in a tokenizer's file; unigrams have none."""


class PieceKind(IntEnum):
    """Kinds of pieces in a file of SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class StoredPiece(NamedTuple):
    """Piece in a file of SentencePiece."""

    text: str
    score: float
    kind: int


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
class SentencePieceModel(ABC):
    """Model of a language: it normalizes text, and cuts it into pieces."""

    pieces: tuple[tuple[str, float], ...]
    """Pieces with their scores."""
    character_map: bytes
    """Replacements before splitting, compiled for `CharacterMap`."""
    adds_space: bool
    """Whether a space precedes the text, so that its first word is like any other."""
    removes_spaces: bool
    """Whether runs of spaces become one space."""
    spells_bytes: bool = False
    """Whether unknown characters become pieces of their UTF-8 bytes, such as <0xE4>."""
    symbols: tuple[str, ...] = ()
    """Further pieces, which were given to SentencePiece; their text is not changed."""

    def cut(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text.

        A run of unknown characters is one piece, or those of its bytes.
        """
        written = [self._written(text) for text in texts]
        if not any(written):  # no need to prepare the library
            return [[] for _ in texts]
        cut = self._split(written)
        return [self._spelled(each) for each in cut] if self.spells_bytes else cut

    @abstractmethod
    def _split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of texts that are normalized."""

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
        return frozenset([*(piece for piece, _ in self.pieces), *self.symbols])

    @cached_property
    def _symbol(self) -> re.Pattern[str]:
        return _any_of(self.symbols)

    @cached_property
    def _map(self) -> CharacterMap:
        return CharacterMap(self.character_map)

    def _written(self, text: str) -> str:
        """Normalize a text, and write its spaces as the pieces do."""
        if not text:
            return ""
        require_characters(text)
        # Symbols and the text between them take turns; the first part is text.
        parts = self._symbol.split(text)
        parts[::2] = map(self._map, parts[::2])
        written = "".join(parts)
        if self.removes_spaces:
            written = re.sub(" +", " ", written).strip(" ")
        if self.adds_space:
            written = " " + written
        written = written.replace(" ", SPACE)
        return written.rstrip(SPACE) if self.removes_spaces else written


@dataclass(frozen=True, kw_only=True)
class UnigramModel(SentencePieceModel):
    """Unigram model (Kudo, 2018): it splits text into its likeliest pieces.

    Scores of pieces are log-probabilities.
    """

    def _split(self, texts: Sequence[str]) -> list[list[str]]:
        return [each.tokens for each in self._library.encode_batch(texts)]

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        # The library sums in double precision, so it may choose differently where two
        # splits are equally likely up to SentencePiece's rounding.
        pieces = [(NO_PIECE, 0.0), *self.pieces]
        # SentencePiece prefers a symbol to as many pieces as it has bytes.
        highest = max((score for _, score in self.pieces), default=0.0)
        pieces += [(each, len(each.encode()) * highest - 0.1) for each in self.symbols]
        return tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))


@dataclass(frozen=True, kw_only=True)
class BytePairModel(SentencePieceModel):
    """Byte-pair encoding (Sennrich et al., 2016) by SentencePiece.

    Of two neighbours that form a piece, those with the highest score are merged first.
    """

    def _split(self, texts: Sequence[str]) -> list[list[str]]:
        return _cut_around(self._symbol, texts, self._merge)

    def _merge(self, texts: Sequence[str]) -> list[list[str]]:
        # Tokens of the library have no name for unknown characters; their places do.
        return [
            [text[start:end] for start, end in each.offsets]
            for text, each in zip(texts, self._library.encode_batch(texts), strict=True)
        ]

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        names = [NO_PIECE, *(piece for piece, _ in self.pieces)]
        library = tokenizers.Tokenizer(
            models.BPE(
                vocab={name: i for i, name in enumerate(names)},
                merges=self._merges(),
                unk_token=NO_PIECE,
                fuse_unk=True,
            )
        )
        if not any(SPACE in name[1:] for name in names):
            # No piece crosses words, which the library then caches.
            words = pre_tokenizers.Split(SPACE, "merged_with_next")
            library.pre_tokenizer = words
        return library

    def _merges(self) -> list[tuple[str, str]]:
        """Return the pairs that form a piece, in the order of their merges.

        Of the pairs of one piece, that with the longest first part comes first: the
        leftmost of equal merges is made first, so that runs grow from the left.
        """
        scores = dict(self.pieces)
        return [
            (piece[:end], piece[end:])
            for piece in sorted(scores, key=scores.__getitem__, reverse=True)
            for end in range(len(piece) - 1, 0, -1)
            if piece[:end] in scores and piece[end:] in scores
        ]


@dataclass(frozen=True, kw_only=True)
class SentencePieceTokenizer:
    """Tokenizer with a model of SentencePiece for each language and one vocabulary.

    Unknown pieces are lost, except those that are spelled by bytes.
    """

    vocabulary: tuple[str, ...]
    """Pieces by id."""
    source: SentencePieceModel
    target: SentencePieceModel
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

    @cached_property
    def language_tags(self) -> tuple[str, ...]:
        """Tags of target languages in the vocabulary, such as >>de<<."""
        return language_tags(self._ids)

    def tag_id(self, tag: str) -> int | None:
        """Return the id of a tag; None if the vocabulary has no such tag."""
        return self._ids.get(tag) if is_tag(tag) else None

    def language(self, text: str) -> str:
        """Return the tag of a target language, such as >>fr<<, before a text; empty if
        there is none, or if the vocabulary lacks it."""
        match = LANGUAGE_TAG.match(text)
        return match[0] if match and match[0] in self._ids else ""

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
        if (size := self.target_vocab_size) is None:
            return found
        return [[i if i < size else self.unknown for i in ids] for ids in found]

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
            source=_model(content["source"]),
            target=_model(content["target"]),
            target_vocab_size=num_targets,
            added=tuple(map(_piece, content.get("added", []))),
            silent=silent,
            corpus_tags=tags,
        )

    def _encode(
        self, texts: Sequence[str], model: SentencePieceModel
    ) -> list[list[int]]:
        tags = [self.language(text) for text in texts]
        rest = [text[len(tag) :] for text, tag in zip(texts, tags, strict=True)]
        encoded: list[list[int]] = []
        for tag, pieces in zip(tags, self._cut(rest, model), strict=True):
            tagged = [piece for piece in [tag, *pieces] if piece]
            encoded.append([self._ids.get(piece, self.unknown) for piece in tagged])
        return encoded

    def _cut(self, texts: Sequence[str], model: SentencePieceModel) -> list[list[str]]:
        """Return the pieces of each text, added tokens whole."""
        return _cut_around(self._added, texts, model.cut)

    @cached_property
    def _added(self) -> re.Pattern[str]:
        return _any_of(self.added)

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


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of any of these tokens, the longest first, as its group."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def _cut_around(
    whole: re.Pattern[str],
    texts: Sequence[str],
    cut: Callable[[Sequence[str]], list[list[str]]],
) -> list[list[str]]:
    """Return the pieces of each text; matches of the pattern's group stay whole."""
    # Matches and the text between them take turns; the first part is text.
    parts_of_texts = [whole.split(text) for text in texts]
    between = iter(cut([part for parts in parts_of_texts for part in parts[::2]]))
    found: list[list[str]] = []
    for parts in parts_of_texts:
        pieces: list[str] = []
        for number, part in enumerate(parts):
            is_whole = number % 2 == 1
            pieces += [part] if is_whole else next(between)
        found.append(pieces)
    return found


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


# ---- Files of SentencePiece ------------------------------------------------------


PIECES, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5
"""Numbers of the fields of a file."""
MODEL_KIND, SPACE_AS_SUFFIX, BYTE_FALLBACK = 3, 24, 35
"""Numbers of fields of `TRAINER`."""
CHARACTER_MAP, ADDS_SPACE, REMOVES_SPACES, ESCAPES_SPACES = 2, 3, 4, 5
"""Numbers of fields of `NORMALIZER`; the last three are true by default."""
MODELS: dict[object, type[SentencePieceModel]] = {1: UnigramModel, 2: BytePairModel}
"""Models by the numbers of their kinds."""


def read_model(path: Path) -> tuple[SentencePieceModel, tuple[StoredPiece, ...]]:
    """Read a model that SentencePiece learned, and all its pieces by their ids.

    Raises `CheckpointError` if the file is missing or damaged, `RequestError` if this
    package cannot cut text as the model does.
    """
    try:
        fields = list(_fields(read_bounded_bytes(path)))
        stored = tuple(_stored(_bytes(v)) for name, v in fields if name == PIECES)
        trainer, normalizer, denormalizer = (
            dict(_fields(_bytes(dict(fields).get(name, b""))))
            for name in (TRAINER, NORMALIZER, DENORMALIZER)
        )
        character_map = _bytes(normalizer.get(CHARACTER_MAP, b""))
        CharacterMap(character_map)  # find damage now
        if [each.kind for each in stored].count(PieceKind.UNKNOWN) != 1:
            raise ValueError("it must have one unknown piece")
        if len({each.text for each in stored}) < len(stored):
            raise ValueError("a piece stands in it twice")
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(
            f"{path}: the model of SentencePiece is missing or damaged "
            f"({reason(error)}); name another file, or fetch it again."
        ) from None
    make = MODELS.get(trainer.get(MODEL_KIND, 1))
    has_unused = PieceKind.UNUSED in {each.kind for each in stored}
    obstacles = {
        "cuts by other means": make is None,
        "writes spaces after words": trainer.get(SPACE_AS_SUFFIX),
        "leaves spaces as they are": not normalizer.get(ESCAPES_SPACES, True),
        # SentencePiece merges them too, and cuts them again.
        "has unused pieces": make is BytePairModel and has_unused,
        "changes what it decodes": denormalizer.get(CHARACTER_MAP),
    }
    for obstacle, is_met in obstacles.items():
        if is_met:
            raise RequestError(
                f"{path}: the model of SentencePiece must be one of plain unigrams or "
                f"byte pairs, but {obstacle}; such a model cannot be used."
            )
    assert make is not None  # an obstacle
    model = make(
        pieces=tuple((p.text, p.score) for p in stored if p.kind == PieceKind.NORMAL),
        character_map=character_map,
        adds_space=bool(normalizer.get(ADDS_SPACE, True)),
        removes_spaces=bool(normalizer.get(REMOVES_SPACES, True)),
        spells_bytes=bool(trainer.get(BYTE_FALLBACK)),
        symbols=tuple(p.text for p in stored if p.kind == PieceKind.USER_DEFINED),
    )
    return model, stored


def tokenizer_of_model(path: Path, tags: Sequence[str] = ()) -> SentencePieceTokenizer:
    """Return the tokenizer of a new run with a model of SentencePiece for both sides.

    Its vocabulary has the pieces of the model that text may have, and then the given
    tags of corpora and languages. Raises the errors of `read_model`, and `RequestError`
    if the model has a piece that is a special token here.
    """
    model, stored = read_model(path)
    without_text = (PieceKind.CONTROL, PieceKind.UNUSED)
    pieces = [
        UNKNOWN if each.kind == PieceKind.UNKNOWN else each.text
        for each in stored
        if each.kind not in without_text
    ]
    for name in (*SPECIAL_PIECES, UNKNOWN):
        if pieces.count(name) > (name == UNKNOWN):
            raise RequestError(
                f"{path}: the model of SentencePiece must have {name} as a special "
                "token only, but has it as text; learn a model without it."
            )
    vocabulary = dict.fromkeys([*SPECIAL_PIECES, *pieces, *tags])
    tokenizer = SentencePieceTokenizer(
        vocabulary=tuple(vocabulary), source=model, target=model
    )
    return tokenizer.trained_with(corpus_tags(tags))


def _stored(message: bytes) -> StoredPiece:
    fields = dict(_fields(message))
    (score,) = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))
    kind = fields.get(3, PieceKind.NORMAL)
    if not isinstance(kind, int):
        raise ValueError("the kind of a piece is no number")
    return StoredPiece(_bytes(fields.get(1, b"")).decode(), _finite(score), kind)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message of Protocol Buffers."""
    place = 0
    while place < len(message):
        key, place = _whole(message, place)
        match key & 7:
            case 0:
                value, place = _whole(message, place)
                yield key >> 3, value
                continue
            case 2:
                size, place = _whole(message, place)
            case 1 | 5 as width:
                size = 8 if width == 1 else 4
            case _:
                raise ValueError("it is no message of Protocol Buffers")
        if size > len(message) - place:
            raise ValueError("it is cut short")
        yield key >> 3, message[place : place + size]
        place += size


def _whole(message: bytes, place: int) -> tuple[int, int]:
    """Return a number, of 7 bits a byte, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place == len(message):
            raise ValueError("it is cut short")
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("it is no message of Protocol Buffers")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("it is no message of Protocol Buffers")
    return value


# ---- Tokenizers as JSON ----------------------------------------------------------


def _record(model: SentencePieceModel) -> dict[str, Any]:
    character_map = base64.b64encode(model.character_map).decode("ascii")
    record = {**asdict(model), "character_map": character_map}
    for name in ("spells_bytes", "symbols"):
        if not record[name]:
            del record[name]  # as files of earlier versions are
    if isinstance(model, BytePairModel):
        record["kind"] = BYTE_PAIRS
    return record


def _model(record: dict[str, Any]) -> SentencePieceModel:
    character_map = base64.b64decode(record["character_map"], validate=True)
    CharacterMap(character_map)  # find damage now
    if (kind := record.get("kind")) not in (None, BYTE_PAIRS):
        raise ValueError(f"`kind` must be {BYTE_PAIRS}, but is {shown(kind)}")
    make = UnigramModel if kind is None else BytePairModel
    return make(
        pieces=tuple(
            (_piece(piece), _finite(score)) for piece, score in record["pieces"]
        ),
        character_map=character_map,
        adds_space=bool(record["adds_space"]),
        removes_spaces=bool(record["removes_spaces"]),
        spells_bytes=bool(record.get("spells_bytes", False)),
        symbols=tuple(map(_piece, record.get("symbols", []))),
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
