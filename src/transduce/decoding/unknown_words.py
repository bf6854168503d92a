"""Unknown words of translations, replaced after search (Luong et al., 2015).

A model whose vocabulary is of words puts out <unk> for all others. Each is replaced by
the dictionary's translation of the source word that the decoder attends to most there,
or by this source word itself.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transduce.decoding.search import Hypothesis
from transduce.decoding.translations import Part
from transduce.text.dictionary import WordDictionary
from transduce.text.tags import LANGUAGE_TAG
from transduce.text.tokenizer import WordTokenizer
from transduce.text.vocabulary import EOS, UNKNOWN_IDS

Attention = Callable[
    [Sequence[Sequence[int]], Sequence[Sequence[int]]],
    list[Float[np.ndarray, "target source"]],
]
"""Function of sources with end tokens and targets without, which returns the weights of
each pair: those with which each target token was predicted."""
BATCH = 64
"""Maximum number of hypotheses whose attention is computed at once."""


def replaced_texts(
    found: Sequence[tuple[Part, Sequence[Hypothesis]]],
    tokenizer: WordTokenizer,
    dictionary: WordDictionary | None,
    attention: Attention,
) -> list[list[str]]:
    """Return the text of each hypothesis of each part, without unknown words.

    Words of a part's prefix are those of the prefix. Without a dictionary, all other
    unknown words are copied from the source.
    """
    dictionary = dictionary or WordDictionary(translations={})
    words = [[list(tokenizer.pieces(h.ids)) for h in several] for _, several in found]
    unknown = [
        (part, hypothesis, words[i][j])
        for i, (part, several) in enumerate(found)
        for j, hypothesis in enumerate(several)
        if not set(UNKNOWN_IDS).isdisjoint(hypothesis.ids)
    ]
    unknown.sort(key=lambda each: len(each[1].ids))  # so that padding stays small
    for start in range(0, len(unknown), BATCH):
        batch = unknown[start : start + BATCH]
        maps = attention(
            [[*part.source, EOS] for part, _, _ in batch],
            [hypothesis.ids for _, hypothesis, _ in batch],
        )
        for (part, hypothesis, pieces), weights in zip(batch, maps, strict=True):
            for place, word in _replacements(part, hypothesis, dictionary, weights):
                pieces[place] = word
    return [[tokenizer.join(pieces) for pieces in several] for several in words]


def _replacements(
    part: Part,
    hypothesis: Hypothesis,
    dictionary: WordDictionary,
    weights: Float[np.ndarray, "target source"],
) -> Iterator[tuple[int, str]]:
    """Yield the position of each unknown word, and the word in its place."""
    words = part.source_words
    # The tag of the target language is no word to translate.
    first = int(len(words) > 1 and LANGUAGE_TAG.fullmatch(words[0]) is not None)
    for place, token in enumerate(hypothesis.ids):
        if token not in UNKNOWN_IDS:
            continue
        if place < len(part.prefix_words):
            yield place, part.prefix_words[place]
            continue
        # The end token, which is no word, comes after all words.
        source = first + weights[place, first : len(words)].argmax()
        word = dictionary.translation(words[source].strip())
        yield place, " " + word if token == UNKNOWN_IDS[0] else word
