"""Several translations of each sentence as one unit of a test of significance.

A model trained from several seeds translates the test text several times. Its sentences
are drawn or swapped with all their translations together: they are hard or easy for all
seeds alike, so drawn one by one they would seem to say more than they do.
"""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from transduce.evaluation.bleu import require_pairs
from transduce.evaluation.tokenization import Tokenization


class PooledBleu(BLEU):
    """sacreBLEU's, of units as `pooled` makes them; each counts with all its lines."""

    def __init__(self, tokenization: Tokenization | None = None) -> None:
        name = (tokenization or Tokenization()).name
        super().__init__(tokenize=name, force=True)

    def _extract_corpus_statistics(
        self,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]] | None,
    ) -> list[list[Any]]:
        assert references is not None
        return [
            self._of_unit(*unit) for unit in zip(hypotheses, *references, strict=True)
        ]

    def _of_unit(self, hypotheses: str, *references: str) -> list[Any]:
        statistics = super()._extract_corpus_statistics(
            hypotheses.split("\n"), [each.split("\n") for each in references]
        )
        return [sum(column) for column in zip(*statistics, strict=True)]


def pooled(
    translations: Sequence[Sequence[str]], references: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Units of all translations of a sentence, and of as many copies of its reference.

    `DataError` unless each text has a line for each reference.
    """
    for text in translations:
        require_pairs(text, references)
    units = ["\n".join(lines) for lines in zip(*translations, strict=True)]
    return units, ["\n".join([line] * len(translations)) for line in references]
