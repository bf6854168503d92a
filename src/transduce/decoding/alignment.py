"""Word alignment of sentence pairs, by the cross-attention of a model.

`align_pairs` links the words of given translations; `attended_links` those of a
translation whose tags the server places.

Bahdanau et al. (2015) found that attention aligns words. Which layer aligns best
differs between models, and so does the step: the one that writes a target word, or the
next one, which reads it. As in Chen et al. (2020), the best map is the one in which
most words of both sides choose each other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from transduce.decoding.search import require_numbers, similar_lengths
from transduce.errors import RequestError
from transduce.text.corpus import full_windows
from transduce.text.inline_tags import (
    WordLinks,
    agreement,
    have_same_letters,
    letter_groups,
    num_letters,
    units,
    words_at,
)
from transduce.text.languages import without_invisible
from transduce.text.shortlist import ALIGNED_WORD
from transduce.text.tokenizer import Tokenizer, WordTokenizer, normalize
from transduce.text.vocabulary import EOS

if TYPE_CHECKING:
    from transduce.decoding.translator import Translator

MAX_POSITIONS = 2_048
"""Largest batch of pairs whose words are linked, in positions, padding included."""
MAX_ALIGNED_TOKENS = 700
"""Longest sentence whose words are linked by attention, which grows with the square of
its length. Sources are translated in parts of at most 600 tokens, if these are
characters, and by default a translation has at most 50 more."""
WHY_UNALIGNED = (
    "words of the source and the translation could not be aligned, as a side has "
    f"{MAX_ALIGNED_TOKENS} or more tokens, or characters that the vocabulary lacks"
)
"""Explanation of warnings about a translation that `word_attention` leaves out."""
CHOOSING_PAIRS = 256
"""Number of pairs by which the best map of a model is chosen."""

Words = tuple[Sequence[str], Sequence[str]]
"""Words of a source and of its target; none is empty."""
Link = tuple[int, int]
"""Numbers, from 0, of a source word and of a target word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordAlignment:
    """Links between the words of a sentence and those of its translation.

    Words are separated by white space; a mark without a space before it is part of the
    word. `str` writes the links in Pharaoh format, such as `0-0 1-2`.
    """

    source: tuple[str, ...]
    """Words of the source."""
    target: tuple[str, ...]
    """Words of the target."""
    links: tuple[tuple[int, int], ...]
    """Numbers, from 0, of a source word and a target word that correspond, in ascending
    order. A word may have several links, or none."""

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.links)


def align_pairs(
    translator: "Translator", pairs: Iterable[tuple[str, str]]
) -> Iterator[WordAlignment]:
    """Yield the word alignment of each source and target, in order.

    The first pairs decide which layer of the model aligns. A pair has no links if a
    side is empty, has 700 or more tokens, or has characters that the tokenizer drops.
    Raises `RequestError` if the model has no cross-attention, and `CheckpointError` if
    it outputs NaN.
    """
    chosen: int | None = None
    for window in full_windows(pairs):
        split = [_Split.of(*pair) for pair in window]
        words = [each.words for each in split]
        if chosen is None:
            chosen = _best_map(translator, window, words)
        links: dict[int, tuple[Link, ...]] = {}
        for i, maps in word_attention(translator, window, words):
            require_numbers([float(maps.sum())])
            assert chosen is not None
            links[i] = split[i].numbered(symmetrized(maps[chosen]))
        for i, each in enumerate(split):
            yield WordAlignment(
                source=each.source, target=each.target, links=links.get(i, ())
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A pair cut at white space, and its words as the tokenizer spells them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    words: Words
    """Words that are not empty once the tokenizer has normalized them."""
    numbers: tuple[Sequence[int], Sequence[int]]
    """Number of each of these among all words."""

    @classmethod
    def of(cls, source: str, target: str) -> "_Split":
        sides = ALIGNED_WORD.findall(source), ALIGNED_WORD.findall(target)
        # Translators read no invisible characters of a source.
        letters = (
            [_letters(without_invisible(word)) for word in sides[0]],
            [_letters(word) for word in sides[1]],
        )
        numbers = [[i for i, word in enumerate(side) if word] for side in letters]
        return cls(
            source=tuple(sides[0]),
            target=tuple(sides[1]),
            words=(list(filter(None, letters[0])), list(filter(None, letters[1]))),
            numbers=(numbers[0], numbers[1]),
        )

    def numbered(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return links of words as links of all words."""
        sources, targets = self.numbers
        return tuple(sorted((sources[i], targets[j]) for i, j in links))


def _letters(word: str) -> str:
    """Return the letters of a word; a no-break space in it is none."""
    return normalize(word).replace(" ", "")


def _best_map(
    translator: "Translator",
    pairs: Sequence[tuple[str, str]],
    words: Sequence[Words],
) -> int | None:
    """Return the number of the map whose words agree most.

    None if no pair can be aligned.
    """
    usable = [i for i, (source, target) in enumerate(words) if source and target]
    for start in range(0, len(usable), CHOOSING_PAIRS):
        first = usable[start : start + CHOOSING_PAIRS]
        found = word_attention(
            translator, [pairs[i] for i in first], [words[i] for i in first]
        )
        # None of them may be short enough, or in the characters of the vocabulary.
        if agreements := [agreement(maps[..., :-1]) for _, maps in found]:
            return int(np.sum(agreements, axis=0).argmax())
    return None


def symmetrized(attention: Float32[np.ndarray, "target source_and_end"]) -> set[Link]:
    """Link words by attention in both directions, and join the two sets of links.

    Each target word chooses the source word that it attends to most, or none if that is
    the end token; each source word chooses the target word that attends to it most. The
    links that both choose grow by neighbours of which one word has no link yet, and at
    last by links of two words without any (grow-diag-final-and; Koehn et al., 2005).
    """
    of_targets, of_sources = attention.argmax(axis=1), attention[:, :-1].argmax(axis=0)
    num_sources = len(of_sources)
    by_target = {(int(i), j) for j, i in enumerate(of_targets) if i < num_sources}
    by_source = {(i, int(j)) for i, j in enumerate(of_sources)}
    links, either = by_target & by_source, by_target | by_source
    linked = {i for i, _ in links}, {j for _, j in links}
    grown = sorted(links)
    for i, j in grown:  # which grows, too
        around = ((i + di, j + dj) for di in (-1, 0, 1) for dj in (-1, 0, 1))
        for new in around:
            is_open = new[0] not in linked[0] or new[1] not in linked[1]
            if new in either and new not in links and is_open:
                links.add(new)
                grown.append(new)
                linked[0].add(new[0])
                linked[1].add(new[1])
    for i, j in sorted(either):
        if i not in linked[0] and j not in linked[1]:
            links.add((i, j))
            linked[0].add(i)
            linked[1].add(j)
    return links


def attended_links(
    translator: "Translator", pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Return word links of sentence pairs by the first model of an ensemble.

    Words, numbers and marks are units by themselves. Each of the target is linked to
    the unit of the source that it attends to most, in the map that agrees most in this
    pair. None for a pair with a side that is empty or too long, or that the tokenizer
    cannot represent, and for all pairs if the model has no cross-attention.
    """
    found: list[WordLinks | None] = [None] * len(pairs)
    if translator.cross_attention is None:
        return found
    spans = [(units(source), units(target)) for source, target in pairs]
    words = [
        (words_at(pair[0], source), words_at(pair[1], target))
        for pair, (source, target) in zip(pairs, spans, strict=True)
    ]
    for i, maps in word_attention(translator, pairs, words):
        without_end = maps[..., :-1]
        best = without_end[agreement(without_end).argmax()]
        source, target = spans[i]
        found[i] = WordLinks(
            source=source, target=target, source_of=tuple(best.argmax(axis=-1).tolist())
        )
    return found


def word_attention(
    translator: "Translator",
    pairs: Sequence[tuple[str, str]],
    words: Sequence[Words],
    sources: Sequence[list[int]] | None = None,
) -> Iterator[tuple[int, Float32[np.ndarray, "maps target source_and_end"]]]:
    """Yield the number of a pair, and the attention of target words to source words.

    There is a map for each layer at the step that writes a word, then one for each
    layer at the step that reads it; the last source word is the end token. Pairs with
    an empty side, with 700 tokens or more, or whose words the tokens do not spell are
    left out. `sources` has the tokens of each source, by default with the tags of the
    translator. In an ensemble, the attention is that of the first model. Raises
    `RequestError` if the model has no cross-attention.
    """
    attention = translator.cross_attention
    if attention is None:
        raise RequestError(
            "A model that aligns words must have cross-attention, but this one has "
            "none; use a model of another architecture."
        )
    tokenizer = translator.tokenizer
    texts = [without_invisible(source) for source, _ in pairs]
    untagged = tokenizer.encode_sources(texts)
    if sources is None:
        sources = translator.source_ids(texts)
    targets = tokenizer.encode_targets([target for _, target in pairs])
    groups: dict[int, tuple[Float32[np.ndarray, "pieces words"], ...]] = {}
    for i, (of_source, of_target) in enumerate(words):
        is_short = max(len(sources[i]), len(targets[i])) < MAX_ALIGNED_TOKENS
        if of_source and of_target and is_short:
            of_sides = (
                _groups(
                    tokenizer,
                    tokenizer.encode_sources,
                    texts[i],
                    untagged[i],
                    of_source,
                ),
                _groups(
                    tokenizer,
                    tokenizer.encode_targets,
                    pairs[i][1],
                    targets[i],
                    of_target,
                ),
            )
            if all(each.any(axis=0).all() for each in of_sides):
                groups[i] = of_sides
    order = list(groups)
    lengths = [max(len(sources[i]), len(targets[i])) + 1 for i in order]
    for batch in similar_lengths(lengths, MAX_POSITIONS):
        chosen = [order[i] for i in batch]
        # With the end token the last row is of the step that reads the last token.
        maps = attention(
            [[*sources[i], EOS] for i in chosen], [[*targets[i], EOS] for i in chosen]
        )
        for i, weights in zip(chosen, maps, strict=True):
            num_tags = len(sources[i]) - len(untagged[i])
            yield i, _between_words(weights[..., num_tags:], *groups[i])


def _between_words(
    weights: Float32[np.ndarray, "layers steps pieces_and_end"],
    source: Float32[np.ndarray, "source_pieces source_words"],
    target: Float32[np.ndarray, "target_pieces target_words"],
) -> Float32[np.ndarray, "maps target_words source_words_and_end"]:
    """Sum attention over the pieces of a source word; take its mean over a target's."""
    maps = np.concatenate([weights[:, :-1], weights[:, 1:]])
    means = target / target.sum(axis=0)
    to_words = np.concatenate([maps[..., :-1] @ source, maps[..., -1:]], axis=-1)
    return np.ascontiguousarray(means.T @ to_words, dtype=np.float32)


def _groups(
    tokenizer: Tokenizer,
    encode: Callable[[Sequence[str]], list[list[int]]],
    text: str,
    ids: Sequence[int],
    words: Sequence[str],
) -> Float32[np.ndarray, "pieces words"]:
    """Return the share of each token's letters that belong to each word of a text.

    All are 0 if the tokens do not spell the words. `encode` is that of the text's side.
    """
    if isinstance(tokenizer, WordTokenizer):  # whose piece of unknown words is <unk>
        pieces = tokenizer.split(text)
    else:
        pieces = tokenizer.pieces(ids)
    if not have_same_letters(words, pieces):
        # Models of SentencePiece write three points for an ellipsis, for example.
        encoded = map(tokenizer.pieces, encode(words))
        words = ["x" * sum(map(num_letters, each)) for each in encoded]
    if not have_same_letters(words, pieces):
        return np.zeros((len(pieces), len(words)), dtype=np.float32)
    return letter_groups(pieces, words)
