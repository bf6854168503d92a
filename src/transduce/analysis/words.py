"""Attention between sub-words joined to attention between words.

Attention to a word is the sum over its pieces; attention from a word is the mean over
its pieces (Clark et al., 2019). So the weights of a word still sum to one.
"""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def word_starts(pieces: Sequence[str]) -> list[int]:
    """Where words begin among pieces as `Tokenizer.pieces` gives them.

    The first piece of a word begins with a space; what has neither letter nor digit
    is a word of its own.
    """
    starts: list[int] = []
    for i, piece in enumerate(pieces):
        is_alone = _is_punctuation(piece) or _is_punctuation(pieces[i - 1])
        if i == 0 or piece.startswith(" ") or is_alone:
            starts.append(i)
    return starts


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
        # The later bytes of a letter begin none.
        mine = owners[at : at + count] or owners[at - 1 : at]
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
