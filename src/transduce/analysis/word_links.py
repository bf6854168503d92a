"""Word alignment between a sentence and its translation, from attention.

A target word is linked to the source word of its greatest cross-attention
(Bahdanau et al., 2015). The best layer differs between models; for each pair it is the
one in which most words of both sides choose each other, as in Chen et al. (2020).
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import cross_attention_maps
from transduce.data.tensors import pad_rows
from transduce.decoding.streaming import similar_lengths
from transduce.decoding.translator import Translator
from transduce.text.inline_tags import Span, WordLinks, units
from transduce.text.languages import UNSPACED_LETTER, UNSPACED_LETTERS
from transduce.text.vocabulary import BOS, EOS

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_JOINER = "\u200d"
"""Zero-width joiner between emoji that are drawn as one."""
_ENDS_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]$")


def word_starts(pieces: Sequence[str]) -> list[int]:
    """Indices of the first piece of each word, for pieces of `Tokenizer.pieces`.

    The first piece of a word begins with a space. A piece without letters and digits is
    a word of its own, and so is a piece of a script without spaces.
    """
    starts: list[int] = []
    before = ""
    for i, text in enumerate(piece_texts(pieces)):
        if i == 0 or (text and _begins_word(text, before)):
            starts.append(i)
        before = text or before
    return starts


def _begins_word(text: str, before: str) -> bool:
    if text.startswith(" "):
        return True
    continues = unicodedata.category(text[0])[0] == "M" or text[0] == _JOINER
    if not before.strip() or continues or before.endswith(_JOINER):
        return False
    return (
        _is_punctuation(text)
        or _is_punctuation(before)
        or UNSPACED_LETTER.match(text) is not None
        or _ENDS_UNSPACED.search(before) is not None
    )


def piece_texts(pieces: Sequence[str]) -> list[str]:
    """Text of each piece; a letter encoded as bytes is the text of its first byte."""
    texts: list[str] = []
    for is_bytes, run in groupby(pieces, lambda piece: bool(_BYTE.fullmatch(piece))):
        found = list(run)
        texts += _decoded([int(p[3:5], 16) for p in found]) if is_bytes else found
    return texts


def _decoded(values: Sequence[int]) -> list[str]:
    texts: list[str] = []
    while (start := len(texts)) < len(values):
        length = next(
            (n for n in (4, 3, 2) if _begins_letter(values[start : start + n], n)), 1
        )
        letter = bytes(values[start : start + length]).decode("utf-8", "replace")
        texts += [letter, *[""] * (length - 1)]
    return texts


def _begins_letter(values: Sequence[int], length: int) -> bool:
    """Whether the bytes are one UTF-8 character of this length."""
    try:
        return len(bytes(values).decode("utf-8")) == 1 and len(values) == length
    except UnicodeDecodeError:
        return False


def _is_punctuation(piece: str) -> bool:
    return piece != " " and not _LETTER_OR_DIGIT.search(piece)


def word_groups(
    starts: Sequence[int], num_pieces: int
) -> Float[Tensor, "pieces words"]:
    """Matrix of 1 where a piece belongs to a word, otherwise 0."""
    groups = torch.zeros(num_pieces, len(starts))
    for word, (start, end) in enumerate(
        zip(starts, [*starts[1:], num_pieces], strict=True)
    ):
        groups[start:end, word] = 1
    return groups


def letter_groups(
    pieces: Sequence[str], words: Sequence[str]
) -> Float[Tensor, "pieces words"]:
    """Matrix of the share of each piece's letters that belong to each word.

    A piece may belong to two words. Each byte of a letter encoded as bytes is a piece.
    The pieces must spell the words: see `have_same_letters`.
    """
    owners = [word for word, text in enumerate(words) for _ in text]
    groups = torch.zeros(len(pieces), len(words))
    at = 0
    for i, piece in enumerate(pieces):
        count = _num_letters(piece)
        # A space belongs to the next word, later bytes of a letter to the first byte's.
        other = at if not piece.strip() and at < len(owners) else at - 1
        letters = owners[at : at + count] or owners[other : other + 1]
        for owner in letters:
            groups[i, owner] += 1 / len(letters)
        at += count
    assert at == len(owners)
    return groups


def have_same_letters(words: Sequence[str], pieces: Sequence[str]) -> bool:
    """Whether the pieces have as many letters as the words.

    Some tokenizers drop unknown characters.
    """
    return sum(map(len, words)) == sum(map(_num_letters, pieces))


def _num_letters(piece: str) -> int:
    """Number of letters that begin in a piece."""
    if byte := _BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return len(piece.replace(" ", ""))


def between_words(
    weights: Float[Tensor, "*heads queries keys"],
    query_groups: Float[Tensor, "queries query_words"],
    key_groups: Float[Tensor, "keys key_words"],
) -> Float[Tensor, "*heads query_words key_words"]:
    """Attention between words: the mean over a query's pieces, the sum over a key's.

    Every query word must have a piece.
    """
    means = query_groups / query_groups.sum(dim=0)
    return means.T @ weights @ key_groups


MOST_POSITIONS = 2_048
"""Largest batch in positions, padding included."""
MAX_TOKENS = 256
"""Longest sentence: attention maps grow with its square, and longer sentences are
translated in parts."""


def attended_links(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Word links of sentence pairs by the first model of an ensemble.

    None for a pair with a side that is too long, or that the tokenizer cannot
    represent.
    """
    tokenizer = translator.tokenizer
    sources = tokenizer.encode_sources([source for source, _ in pairs])
    targets = tokenizer.encode_targets([target for _, target in pairs])
    lengths = [
        max(len(source), len(target)) + 1
        for source, target in zip(sources, targets, strict=True)
    ]
    short = [i for i, length in enumerate(lengths) if length <= MAX_TOKENS]
    found: list[WordLinks | None] = [None] * len(pairs)
    model = translator.torch_model.transformer
    for batch in similar_lengths([lengths[i] for i in short], MOST_POSITIONS):
        chosen = [short[i] for i in batch]
        maps = cross_attention_maps(
            model,
            pad_rows([[*sources[i], EOS] for i in chosen]).to(translator.device),
            pad_rows([[BOS, *targets[i]] for i in chosen]).to(translator.device),
        )
        for i, weights in zip(chosen, maps, strict=True):
            pieces = tokenizer.pieces(sources[i]), tokenizer.pieces(targets[i])
            found[i] = _links(pairs[i], pieces, weights)
    return found


def _links(
    pair: tuple[str, str],
    pieces: tuple[list[str], list[str]],
    weights: Float[Tensor, "layers heads target source"],
) -> WordLinks | None:
    source, target = units(pair[0]), units(pair[1])
    words = _words(pair[0], source), _words(pair[1], target)
    if not (source and target and all(map(have_same_letters, words, pieces))):
        return None
    groups = [letter_groups(of, texts) for of, texts in zip(pieces, words, strict=True)]
    if any(bool((each.sum(dim=0) == 0).any()) for each in groups):
        return None
    means = weights.mean(dim=1)[..., :-1]  # without the end token of the source
    written, read = means[:, :-1], means[:, 1:]
    by_word = between_words(torch.cat([written, read]), groups[1], groups[0])
    best = by_word[_agreement(by_word).argmax()]
    return WordLinks(
        source=source, target=target, source_of=tuple(best.argmax(dim=-1).tolist())
    )


def _words(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _agreement(
    weights: Float[Tensor, "maps target source"],
) -> Float[Tensor, " maps"]:
    """Number of target words chosen by the source word that they choose."""
    chosen = weights.argmax(dim=-1)
    choosing = weights.argmax(dim=-2)
    back = choosing.gather(-1, chosen)
    return (back == torch.arange(weights.size(-2))).float().sum(dim=-1)
