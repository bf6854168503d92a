"""GLEU of a sentence, the reward of GNMT (Wu et al., 2016, section 5).

BLEU is a measure of a corpus: of one sentence it is 0 without a common 4-gram. GLEU
counts 1- to 4-grams together, and is symmetric.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

LONGEST = 4
"""Length of the longest n-grams."""


def n_grams(tokens: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
    """Count the 1- to 4-grams of a sentence."""
    starts = [tokens[first:] for first in range(LONGEST)]
    return Counter(
        gram
        for longest in range(1, LONGEST + 1)
        for gram in zip(*starts[:longest], strict=False)
    )


def sentence_gleu(
    hypothesis: Sequence[Hashable], reference: Sequence[Hashable]
) -> float:
    """Return the GLEU of a sentence of words or ids, from 0 to 1.

    It is the smaller of the precision and the recall of 1- to 4-grams; 0 if one of the
    sentences is empty.
    """
    return gleu_of_counts(n_grams(hypothesis), n_grams(reference))


def gleu_of_counts(
    hypothesis: Counter[tuple[Hashable, ...]], reference: Counter[tuple[Hashable, ...]]
) -> float:
    """Return the GLEU of counted n-grams, to count those of a reference only once."""
    if not hypothesis or not reference:
        return 0.0
    matches = sum(min(count, reference[gram]) for gram, count in hypothesis.items())
    # The larger of the numbers is the denominator of the smaller of the ratios.
    return matches / max(hypothesis.total(), reference.total())


def mean_gleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean GLEU of sentences in percent, over words between spaces."""
    pairs = zip(texts, references, strict=True)
    scores = [sentence_gleu(text.split(), right.split()) for text, right in pairs]
    return 100 * sum(scores) / max(len(scores), 1)
