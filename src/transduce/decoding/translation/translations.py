"""What sources are translated to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.search import require_numbers
from transduce.decoding.translation.parts import Part
from transduce.phrases import shortened
from transduce.text.splitting import space_between
from transduce.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TranslationHypothesis:
    """One of the translations that were found."""

    text: str
    score: float
    """Log-probability over the length penalty, and what coverage takes from it;
    translations are ranked by it."""
    log_probability: float
    """Natural logarithm, the end token counted."""
    tokens: tuple[str, ...]
    """As the model put them out; the first of a word begins with a space."""
    token_log_probabilities: tuple[float, ...]
    """Of each token and, if it ended by itself, of the end token; none of what was
    translated in parts, each of which has an end."""

    def __repr__(self) -> str:
        shown = f"text={shortened(self.text)}, score={self.score:.3f}"
        return f"{type(self).__name__}({shown}, tokens={len(self.tokens)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Translation:
    """The best translation, and others that were asked for."""

    text: str
    score: float
    hypotheses: tuple[TranslationHypothesis, ...]
    """Best first: the best alone unless search was for several; none for an empty
    source, whose translation is empty."""
    num_parts: int = 1
    """In how many the source was translated, more than one if it was over-long; the
    scores of the parts are added up."""

    def __repr__(self) -> str:
        shown = [f"text={shortened(self.text)}", f"score={self.score:.3f}"]
        if len(self.hypotheses) > 1:
            shown.append(f"hypotheses={len(self.hypotheses)}")
        if self.num_parts > 1:
            shown.append(f"num_parts={self.num_parts}")
        return f"{type(self).__name__}({', '.join(shown)})"


EMPTY = Translation(text="", score=0.0, hypotheses=())
"""Of an empty source."""


def spelt(hypotheses: Sequence[Hypothesis], tokenizer: Tokenizer) -> Translation:
    """What was found as text; `CheckpointError` if the model has put out NaN."""
    require_numbers([each.log_probability for each in hypotheses])
    decoded = tuple(
        TranslationHypothesis(
            text=tokenizer.decode(hypothesis.ids),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            tokens=tuple(tokenizer.pieces(hypothesis.ids)),
            token_log_probabilities=hypothesis.token_log_probabilities,
        )
        for hypothesis in hypotheses
    )
    best = decoded[0]
    return Translation(text=best.text, score=best.score, hypotheses=decoded)


def distinct(translation: Translation) -> Translation:
    """Without hypotheses of a text that a better one has: tokens spell it variously."""
    best = {each.text: each for each in reversed(translation.hypotheses)}
    kept = (each for each in translation.hypotheses if best[each.text] is each)
    return replace(translation, hypotheses=tuple(kept))


def joined(parts: Sequence[Part], translations: Sequence[Translation]) -> Translation:
    """Those of the parts of a line as one, of which only the best is known."""
    if len(translations) == 1:
        return translations[0]
    best = [each.hypotheses[0] for each in translations if each.hypotheses]
    whole = TranslationHypothesis(
        text=_joined_text(parts, translations),
        score=sum(hypothesis.score for hypothesis in best),
        log_probability=sum(hypothesis.log_probability for hypothesis in best),
        tokens=tuple(chain.from_iterable(h.tokens for h in best)),
        token_log_probabilities=(),
    )
    return Translation(
        text=whole.text,
        score=whole.score,
        hypotheses=(whole,),
        num_parts=len(translations),
    )


def _joined_text(parts: Sequence[Part], translations: Sequence[Translation]) -> str:
    """No space where the source has a word in two parts, or its script writes none."""
    text = ""
    for part, translation in zip(parts, translations, strict=True):
        space = "" if part.continues_word else space_between(text, translation.text)
        text += space + translation.text
    return text
