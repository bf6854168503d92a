"""Replacement of the unknown words of a translation, after the search.

A model with a vocabulary of words generates <unk> for any other word. Each <unk> is
replaced (Luong et al., 2015) by the dictionary's translation of the source word that
the decoder attends to most there, or by this source word itself.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import numpy as np
from jaxtyping import Float

from transduce.decoding.search import Hypothesis
from transduce.decoding.translations import Part
from transduce.text.alignment import WordDictionary
from transduce.text.tokenizer import WordTokenizer
from transduce.text.vocabulary import EOS, UNKNOWN_IDS, is_tag

CrossAttention = Callable[
    [Sequence[Sequence[int]], Sequence[Sequence[int]]],
    list[Float[np.ndarray, "layers target source"]],
]
"""Function of sources with end tokens and of targets that returns the weights of
cross-attention of each pair, at the steps that predict the target tokens."""
MAX_ATTENTION_BATCH = 64
"""Largest number of hypotheses whose attention is computed at once."""


def replaced_texts(
    found: Sequence[tuple[Part, Sequence[Hypothesis]]],
    tokenizer: WordTokenizer,
    dictionary: WordDictionary | None,
    attention: CrossAttention,
    bad_words: Sequence[Sequence[int]] = (),
) -> list[list[str]]:
    """Return the text of each hypothesis of each part, without unknown words.

    An unknown word of the prefix is replaced by the word that the prefix has there, any
    other one by the dictionary's translation of a source word, or by the source word.
    Without a dictionary, all others are copied from the source. A word stays <unk> if
    each replacement would complete one of `bad_words`.
    """
    bad_phrases = [list(tokenizer.pieces(ids)) for ids in bad_words]
    dictionary = dictionary or WordDictionary(translations={})
    words = [
        [
            _HypothesisWords(part, each.ids, tokenizer.pieces(each.ids))
            for each in several
        ]
        for part, several in found
    ]
    unknown = [each for several in words for each in several if each.has_unknown]
    unknown.sort(key=lambda each: len(each.ids))  # so that padding stays small
    for start in range(0, len(unknown), MAX_ATTENTION_BATCH):
        batch = unknown[start : start + MAX_ATTENTION_BATCH]
        maps = attention(
            [[*each.part.source, EOS] for each in batch], [each.ids for each in batch]
        )
        for each, weights in zip(batch, maps, strict=True):
            each.replace_unknown(weights.mean(axis=0), dictionary, bad_phrases)
    return [[tokenizer.join(each.words) for each in several] for several in words]


class _HypothesisWords:
    """Words of a hypothesis, whose unknown ones can be replaced."""

    def __init__(self, part: Part, ids: tuple[int, ...], words: Iterable[str]) -> None:
        self.part = part
        self.ids = ids
        self.words = list(words)

    @property
    def has_unknown(self) -> bool:
        """Whether a word is unknown."""
        return not set(UNKNOWN_IDS).isdisjoint(self.ids)

    def replace_unknown(
        self,
        weights: Float[np.ndarray, "target source"],
        dictionary: WordDictionary,
        bad_phrases: Sequence[Sequence[str]],
    ) -> None:
        """Replace unknown words by the attention at the steps that predict them."""
        for place, token in enumerate(self.ids):
            if token in UNKNOWN_IDS:
                choices = self._replacements(place, weights[place], dictionary)
                self._replace(place, choices, bad_phrases)

    def _replacements(
        self,
        place: int,
        weights: Float[np.ndarray, " source"],
        dictionary: WordDictionary,
    ) -> tuple[str, ...]:
        """Return words for the place of an unknown one, best first."""
        if place < len(self.part.prefix_words):
            return (self.part.prefix_words[place],)
        words = self.part.source_words
        # Tags of a corpus and of the target language come before the words; one word
        # remains in any case. The end token comes after them.
        first = sum(1 for _ in takewhile(is_tag, words[:-1]))
        source = first + weights[first : len(words)].argmax()
        with_space, _ = UNKNOWN_IDS  # the unknown word has two pieces
        space = " " if self.ids[place] == with_space else ""
        own = words[source].strip()
        return space + dictionary.translation(own), space + own

    def _replace(
        self, place: int, choices: Sequence[str], bad_phrases: Sequence[Sequence[str]]
    ) -> None:
        """Replace a word by the first choice that completes no bad phrase, if any."""
        for word in (*choices, self.words[place]):
            self.words[place] = word
            if not _is_covered(place, self.words, bad_phrases):
                return


def _is_covered(place: int, words: list[str], phrases: Sequence[Sequence[str]]) -> bool:
    """Return whether one of the phrases occurs in the words and covers a place."""
    return any(
        words[start : start + len(phrase)] == phrase
        for phrase in phrases
        for start in range(max(place - len(phrase) + 1, 0), place + 1)
    )
