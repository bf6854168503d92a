"""Attention between sub-words joined to attention between words.

Attention to a word is the sum over its pieces; attention from a word is the mean over
its pieces (Clark et al., 2019). So the weights of a word still sum to one.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.text.scripts import UNSPACED_LETTER, UNSPACED_LETTERS

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_JOINER = "\u200d"
"""Zero-width joiner between emoji that are drawn as one."""
_ENDS_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]$")


def word_starts(pieces: Sequence[str]) -> list[int]:
    """Where words begin among pieces as `Tokenizer.pieces` gives them.

    The first piece of a word begins with a space; what has neither letter nor digit
    is a word of its own, and so is a piece of a script that writes no spaces.
    """
    starts: list[int] = []
    before = ""
    for i, text in enumerate(spelt_letters(pieces)):
        if i == 0 or (text and _begins_word(text, before)):
            starts.append(i)
        before = text or before
    return starts


def _begins_word(text: str, before: str) -> bool:
    if text.startswith(" "):
        return True
    goes_on = unicodedata.category(text[0])[0] == "M" or text[0] == _JOINER
    if not before.strip() or goes_on or before.endswith(_JOINER):
        return False
    return (
        _is_punctuation(text)
        or _is_punctuation(before)
        or UNSPACED_LETTER.match(text) is not None
        or _ENDS_UNSPACED.search(before) is not None
    )


def spelt_letters(pieces: Sequence[str]) -> list[str]:
    """Text of each piece; a letter in bytes belongs to its first byte."""
    texts: list[str] = []
    for is_bytes, run in groupby(pieces, lambda piece: bool(_BYTE.fullmatch(piece))):
        found = list(run)
        texts += _of_bytes([int(p[3:5], 16) for p in found]) if is_bytes else found
    return texts


def _of_bytes(values: Sequence[int]) -> list[str]:
    texts: list[str] = []
    while (start := len(texts)) < len(values):
        length = next(
            (n for n in (4, 3, 2) if _begins_letter(values[start : start + n], n)), 1
        )
        letter = bytes(values[start : start + length]).decode("utf-8", "replace")
        texts += [letter, *[""] * (length - 1)]
    return texts


def _begins_letter(values: Sequence[int], length: int) -> bool:
    """Whether the bytes are one UTF-8 letter of this length."""
    try:
        return len(bytes(values).decode("utf-8")) == 1 and len(values) == length
    except UnicodeDecodeError:
        return False


def _is_punctuation(piece: str) -> bool:
    return piece != " " and not _LETTER_OR_DIGIT.search(piece)


def groups_of(starts: Sequence[int], num_pieces: int) -> Float[Tensor, "pieces words"]:
    """Which pieces, each one, belong to which words."""
    groups = torch.zeros(num_pieces, len(starts))
    for word, (start, end) in enumerate(
        zip(starts, [*starts[1:], num_pieces], strict=True)
    ):
        groups[start:end, word] = 1
    return groups


def groups_of_words(
    pieces: Sequence[str], words: Sequence[str]
) -> Float[Tensor, "pieces words"]:
    """Which part of each piece belongs to which of the words that they spell.

    By their letters, as a piece may be of two words, which share it then. Of a letter
    that is spelt in bytes, each byte is a piece.
    """
    owners = [word for word, text in enumerate(words) for _ in text]
    groups = torch.zeros(len(pieces), len(words))
    at = 0
    for i, piece in enumerate(pieces):
        count = _num_letters(piece)
        # A space belongs to the next word, the later bytes of a letter to the first.
        other = at if not piece.strip() and at < len(owners) else at - 1
        mine = owners[at : at + count] or owners[other : other + 1]
        for owner in mine:
            groups[i, owner] += 1 / len(mine)
        at += count
    assert at == len(owners)
    return groups


def are_spelt(words: Sequence[str], pieces: Sequence[str]) -> bool:
    """Whether the pieces have as many letters: some tokenizers lose what is unknown."""
    return sum(map(len, words)) == sum(map(_num_letters, pieces))


def _num_letters(piece: str) -> int:
    """That begin in it."""
    if byte := _BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return len(piece.replace(" ", ""))


def between_words(
    weights: Float[Tensor, "*heads queries keys"],
    query_groups: Float[Tensor, "queries query_words"],
    key_groups: Float[Tensor, "keys key_words"],
) -> Float[Tensor, "*heads query_words key_words"]:
    """What words attend to; every word must have a piece."""
    means = query_groups / query_groups.sum(dim=0)
    return means.T @ weights @ key_groups
