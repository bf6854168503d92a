"""chrF, the F-score of character n-grams (Popović, 2015): needs no words."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF

from transduce.evaluation.bleu import require_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChrfScore:
    """A chrF score with the protocol that made it."""

    name: str
    """chrF and the weight of recall against precision."""
    score: float
    """In percent."""
    signature: str
    """The protocol as sacreBLEU writes it."""

    def __str__(self) -> str:
        return f"{self.name} = {self.score:.2f} {self.signature}"


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> ChrfScore:
    """Score detokenised text as sacreBLEU does: chrF2, up to 6 characters, no words."""
    require_pairs(hypotheses, references)
    metric = CHRF()
    score = metric.corpus_score(hypotheses, [references]).score
    return ChrfScore(
        name=f"chrF{metric.beta}", score=score, signature=str(metric.get_signature())
    )
