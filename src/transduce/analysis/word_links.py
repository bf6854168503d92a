"""Links between the words of a sentence pair, by the model's cross-attention.

A target word is linked to the source word of its greatest cross-attention
(Bahdanau et al., 2015). The best layer differs between models; for each pair it is the
one in which most words of both sides choose each other, as in Chen et al. (2020).
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from transduce.decoding.translations import similar_lengths
from transduce.decoding.translator import Translator
from transduce.text.inline_tags import Span, WordLinks, units
from transduce.text.tokenizer import WordTokenizer
from transduce.text.vocabulary import EOS

MOST_POSITIONS = 2_048
"""Largest batch in positions, padding included."""
MAX_TOKENS = 256
"""Longest sentence: attention grows with its square, and longer sentences are
translated in parts."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""Piece that stands for a byte."""


def attended_links(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Word links of sentence pairs by the first model of an ensemble.

    None for a pair with a side that is too long, or that the tokenizer cannot
    represent, and for all pairs if the model has no cross-attention.
    """
    found: list[WordLinks | None] = [None] * len(pairs)
    attention = translator.cross_attention
    if attention is None:
        return found
    tokenizer = translator.tokenizer
    texts = [source for source, _ in pairs]
    untagged = tokenizer.encode_sources(texts)
    sources = translator.source_ids(texts)
    targets = tokenizer.encode_targets([target for _, target in pairs])
    lengths = [
        max(len(source), len(target)) + 1
        for source, target in zip(sources, targets, strict=True)
    ]
    short = [i for i, length in enumerate(lengths) if length <= MAX_TOKENS]
    for batch in similar_lengths([lengths[i] for i in short], MOST_POSITIONS):
        chosen = [short[i] for i in batch]
        # With the end token the last row is of the step that reads the last token.
        maps = attention(
            [[*sources[i], EOS] for i in chosen], [[*targets[i], EOS] for i in chosen]
        )
        for i, weights in zip(chosen, maps, strict=True):
            pieces = (
                # An unknown word has the letters that it has in the text.
                (tokenizer.split(pairs[i][0]), tokenizer.split(pairs[i][1]))
                if isinstance(tokenizer, WordTokenizer)
                else (tokenizer.pieces(untagged[i]), tokenizer.pieces(targets[i]))
            )
            num_tags = len(sources[i]) - len(untagged[i])
            found[i] = _links(pairs[i], pieces, weights[..., num_tags:-1])
    return found


def letter_groups(
    pieces: Sequence[str], words: Sequence[str]
) -> Float32[np.ndarray, "pieces words"]:
    """Matrix of the share of each piece's letters that belong to each word.

    A piece may belong to two words. Each byte of a letter encoded as bytes is a piece.
    The pieces must spell the words: see `have_same_letters`.
    """
    owners = [word for word, text in enumerate(words) for _ in text]
    groups = np.zeros((len(pieces), len(words)), dtype=np.float32)
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
    if byte := BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return len(piece.replace(" ", ""))


def agreement(
    weights: Float32[np.ndarray, "maps target source"],
) -> Float32[np.ndarray, " maps"]:
    """Number of target words chosen by the source word that they choose."""
    chosen = weights.argmax(axis=-1)
    choosing = weights.argmax(axis=-2)
    back = np.take_along_axis(choosing, chosen, axis=-1)
    return (back == np.arange(weights.shape[-2])).sum(axis=-1, dtype=np.float32)


def _links(
    pair: tuple[str, str],
    pieces: tuple[list[str], list[str]],
    weights: Float32[np.ndarray, "layers steps source"],
) -> WordLinks | None:
    """Links of a pair, given the attention of all steps to all tokens but the last."""
    source, target = units(pair[0]), units(pair[1])
    words = _words(pair[0], source), _words(pair[1], target)
    if not (source and target and all(map(have_same_letters, words, pieces))):
        return None
    groups = [letter_groups(of, texts) for of, texts in zip(pieces, words, strict=True)]
    if any((each.sum(axis=0) == 0).any() for each in groups):
        return None
    # Attention at the step that outputs a token, and at the step that reads it.
    maps = np.concatenate([weights[:, :-1], weights[:, 1:]])
    means = groups[1] / groups[1].sum(axis=0)
    by_word = means.T @ maps @ groups[0]
    best = by_word[agreement(by_word).argmax()]
    return WordLinks(
        source=source, target=target, source_of=tuple(best.argmax(axis=-1).tolist())
    )


def _words(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]
