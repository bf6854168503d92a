"""Tags before a source: of its corpus, such as <bt>, and of its target language.

A tag is one token of the vocabulary. Tags of corpora (Caswell et al., 2019) are made in
training alone: no text gives one. The tag of a target language is written before the
text as in OPUS-MT's models, `>>de<< A man sleeps.`, and there are models that are
imported with such tags. Both mix signs and letters, which no learned piece does.
"""

import re
from collections.abc import Iterable, Sequence

from transduce.errors import ConfigError, RequestError
from transduce.text.languages import best_match, canonical, english_name
from transduce.text.vocabulary import SPECIAL_PIECES, UNKNOWN_PIECES

CORPUS_TAG = re.compile(r"<[^\W\d_][\w-]*>")
"""Pattern of a corpus's tag."""
LANGUAGE_TAG = re.compile(">>.*?<<", re.DOTALL)
"""Pattern of a target language's tag."""
TAG_IN_TEXT = re.compile(r">>[^<>\s]+<<|<[^<>\s]+>")
"""Pattern of a tag within a text: of a language, of a corpus, or of markup."""
MOST_NAMED = 30
"""Maximum number of languages that a message names."""


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


def find_language_tag(
    language: str, tags: Sequence[str], what: str = "The target language"
) -> str:
    """Return the tag of the language, or of one that matches it best.

    The language may be a BCP 47 tag (de for >>deu<<), or written as in the tag
    (zho_Hans). Raises `RequestError` with the languages that there are; `what` names
    the language in its message.
    """
    by_language: dict[str, str] = {}
    for tag in reversed(tags):
        by_language[_language(tag)] = tag
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
    known = sorted(by_language)
    more = len(known) - MOST_NAMED
    others = f" and {more} others" if more > 0 else ""
    raise RequestError(
        f"{what} must be one of the model's, but is {language!r}; it has "
        f"{', '.join(map(_named, known[:MOST_NAMED]))}{others}."
    )


def languages_of(tags: Sequence[str]) -> list[str]:
    """Return the languages that tags name, as BCP 47 tags where they are such."""
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
