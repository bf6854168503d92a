"""Layout of a learned vocabulary: special ids, bytes, tags, and settings of the rest.

Ids 0 to 2 are special, the next 256 are bytes, and the learned pieces follow. In a
vocabulary of words, two ids of unknown words take the place of the bytes.

A tag is one token before a source. Training adds the tags of corpora, such as <bt>
(Caswell et al., 2019); these characters in a text are no tag. The tag of a target
language is written in the text, as for OPUS-MT's models: `>>de<< A man sleeps.`
Imported models can have such tags. Tags mix signs and letters, which no learned piece
does.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from transduce.errors import ConfigError, RequestError
from transduce.settings import Bounds, convert_and_check, shown
from transduce.text.languages import best_match, canonical, english_name

TokenizerKind = Literal["bpe", "word-piece", "word", "character"]
PAD, BOS, EOS = 0, 1, 2
"""Padding; start of the decoder's input; end of source and target."""
SPECIAL_PIECES = ("<pad>", "<s>", "</s>")
FIRST_BYTE = 0xF700
"""Byte b is written as the character U+F700 + b, from Unicode's private use area. A
user's own character of that range is itself encoded as bytes, so nothing is
ambiguous."""
BYTE_PIECES = tuple(chr(FIRST_BYTE + byte) for byte in range(256))
READABLE_BYTES = {piece: f"<0x{byte:02X}>" for byte, piece in enumerate(BYTE_PIECES)}
"""Readable form of bytes."""
NUM_RESERVED = len(SPECIAL_PIECES) + len(BYTE_PIECES)
UNKNOWN_PIECES = (" <unk>", "<unk>")
"""Pieces of a vocabulary of words that stand for all other words: with a space before
the word, and without."""
UNKNOWN_IDS = range(len(SPECIAL_PIECES), len(SPECIAL_PIECES) + len(UNKNOWN_PIECES))
"""Ids of unknown words in a vocabulary of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Settings of the vocabulary, which a run learns (section 5.1)."""

    kind: TokenizerKind = "bpe"
    """Byte-pair encoding (the paper's en-de), word-pieces (its en-fr), words, the rare
    ones unknown, or single characters."""
    vocab_size: Annotated[int, Bounds(0, 2**24)] = 37_000
    """Maximum size of the vocabulary, including special tokens and bytes; small corpora
    give fewer."""
    model: str | None = None
    """File of a SentencePiece model, of unigrams or byte pairs, in place of a learned
    vocabulary; `kind` and `vocab_size` then have no effect."""

    def __post_init__(self) -> None:
        convert_and_check(self, "tokenizer.")
        if self.vocab_size <= self.num_reserved:
            others = "bytes" if self.has_bytes else "unknown words"
            raise ConfigError(
                f"`tokenizer.vocab_size` must be above {self.num_reserved} (special "
                f"tokens and {others}), but is {self.vocab_size}."
            )

    @property
    def has_bytes(self) -> bool:
        """Whether characters outside the vocabulary are encoded as bytes."""
        return self.kind != "word"

    @property
    def num_reserved(self) -> int:
        """Number of ids before the learned pieces."""
        return NUM_RESERVED if self.has_bytes else UNKNOWN_IDS.stop


CORPUS_TAG = re.compile(r"<[^\W\d_][\w-]*>")
"""Pattern of a corpus's tag."""
LANGUAGE_TAG = re.compile(r">>[^\W\d_][^<>\s]*<<")
"""Pattern of a target language's tag. Its letter distinguishes it from the learned
pieces of signs, such as >>|<<."""
TAG_IN_TEXT = re.compile(r">>[^<>\s]+<<|<[^<>\s]+>")
"""Pattern of a tag within a text: of a language, of a corpus, or of markup."""
MAX_NAMED = 30
"""Maximum number of languages or tags that a message names."""


def corpus_tag(name: str) -> str:
    """Return the tag of a corpus, given with or without its angle brackets.

    Raises `ConfigError` if it is malformed, or another special token.
    """
    tag = name if name.startswith("<") else f"<{name}>"
    if not CORPUS_TAG.fullmatch(tag) or tag in (*SPECIAL_PIECES, *UNKNOWN_PIECES):
        raise ConfigError(
            "The tag of a corpus must be letters, digits, hyphens and underscores in "
            f"angle brackets, such as <bt>, and no other special token, but is {tag}."
        )
    return tag


def language_tag(language: str) -> str:
    """Return the tag of a target language, such as >>de<<.

    `ConfigError` if the language is not a BCP 47 tag.
    """
    return f">>{canonical(language)}<<"


def is_tag(piece: str) -> bool:
    """Whether a piece of a vocabulary is a tag."""
    if piece[:1] not in "<>":  # most pieces, quickly
        return False
    if piece in SPECIAL_PIECES or piece in UNKNOWN_PIECES:
        return False
    return bool(CORPUS_TAG.fullmatch(piece) or LANGUAGE_TAG.fullmatch(piece))


def language_tags(pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of target languages among the pieces of a vocabulary."""
    return tuple(piece for piece in pieces if LANGUAGE_TAG.fullmatch(piece))


def corpus_tags(pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of corpora among the pieces of a vocabulary."""
    return tuple(p for p in pieces if is_tag(p) and not LANGUAGE_TAG.fullmatch(p))


def find_corpus_tag(name: str, tags: Sequence[str]) -> str:
    """Return the tag of a corpus, given with or without its angle brackets.

    Raises `RequestError`, which lists the model's tags, for any other name.
    """
    for tag in (name, f"<{name}>"):
        if tag in tags:
            return tag
    if not tags:
        raise RequestError(
            "A tag must be one of the model's, but this model has none, so that "
            f"{shown(name)} cannot be chosen; leave the tag out."
        )
    raise RequestError(
        f"The tag must be one of the model's, but is {shown(name)}; it has "
        f"{_listed(tags)}."
    )


def find_language_tag(
    language: str, tags: Sequence[str], what: str = "The target language"
) -> str:
    """Return the tag of the language, or of one that matches it best.

    The language may be a BCP 47 tag (de for >>deu<<), or written as in the tag
    (zho_Hans). Raises `RequestError`, which lists the model's languages, for any other;
    `what` names the language in its message.
    """
    by_language = {_language(tag): tag for tag in reversed(tags)}
    written = f">>{language}<<"
    if written in tags:
        return written
    if (found := best_match(language, list(by_language))) is not None:
        return by_language[found]
    if not tags:
        raise RequestError(
            "A model must have tags of target languages to translate into one of "
            f"several, but this one has none, so that {language!r} cannot be chosen; "
            "leave the target language out."
        )
    raise RequestError(
        f"{what} must be one of the model's, but is {language!r}; it has "
        f"{_listed(list(map(_named, sorted(by_language))))}."
    )


def require_language_tag(tag: str, tags: Sequence[str]) -> None:
    """Raise `RequestError` if a source begins with a tag that is none of the model's.

    The message lists these. For a model without any, the tag is text.
    """
    if tags and tag not in tags:
        raise RequestError(
            f"The tag before a source must be one of the model's, but is {tag}; it has "
            f"{_listed(tags)}."
        )


def own_language_tag(language: str | None, tags: Sequence[str]) -> str:
    """Return the tag of a model's own target language; empty without one."""
    if language is None or best_match(language, languages_of(tags)) is None:
        return ""
    return find_language_tag(language, tags)


def _listed(names: Sequence[str]) -> str:
    """Join names for a message: the first `MAX_NAMED`, and the number of the others."""
    more = len(names) - MAX_NAMED
    others = f" and {more} others" if more > 0 else ""
    return f"{', '.join(names[:MAX_NAMED])}{others}"


def languages_of(tags: Sequence[str]) -> list[str]:
    """Return the languages that tags name, as BCP 47 tags where possible."""
    return [_language(tag) for tag in tags]


def _language(tag: str) -> str:
    name = tag[2:-2]
    try:
        return canonical(name.replace("_", "-"))
    except ConfigError:
        return name


def _named(language: str) -> str:
    try:
        return f"{language} ({english_name(language)})"
    except ConfigError:
        return language
