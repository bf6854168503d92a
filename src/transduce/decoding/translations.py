"""What sources are translated to."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat, zip_longest
from typing import NamedTuple

from transduce.decoding.search import Hypothesis, require_numbers
from transduce.errors import RequestError, shortened
from transduce.text.splitting import is_within_word, space_between, split_long
from transduce.text.tokenizer import Tokenizer

MAX_SOURCE_TOKENS = 250
"""A longer source is translated in parts: few models were trained on such."""


class Part(NamedTuple):
    """A source, or a part of one that is over-long, as the model reads it.

    A tuple, as that goes to other processes fastest.
    """

    line: int
    number: int
    """Among the parts of its line."""
    source: list[int]
    prefix: list[int]
    continues_word: bool = False
    """Whether the line was cut within a word before it."""

    @property
    def length(self) -> int:
        """Tokens of source or prefix, whichever has more; the end counts."""
        return max(len(self.source), len(self.prefix)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the text, and how its translation is to begin."""

    number: int
    text: str
    source: list[int]
    prefix: list[int]


def lines_of(
    window: Sequence[tuple[int, tuple[str, str]]], tokenizer: Tokenizer
) -> list[Line]:
    """Lines by their number, source and prefix, as the model reads them."""
    source_ids = tokenizer.encode_sources([source for _, (source, _) in window])
    prefixes = [prefix for _, (_, prefix) in window]
    prefix_ids: Iterable[list[int]] = repeat([], len(window))
    if any(prefixes):
        prefix_ids = tokenizer.encode_targets(prefixes)
    return [
        Line(number=number, text=text, source=source, prefix=prefix)
        for (number, (text, _)), source, prefix in zip(
            window, source_ids, prefix_ids, strict=True
        )
    ]


def parts_of(
    line: Line, tokenizer: Tokenizer, language: str | None = None
) -> list[Part]:
    """One, unless the source is too long for the model: then sentences, or less.

    Sentences end as they do in the language, a BCP 47 tag.
    """
    if len(line.source) <= MAX_SOURCE_TOKENS:
        whole = Part(line=line.number, number=0, source=line.source, prefix=line.prefix)
        return [whole]
    code = tokenizer.language(line.text)
    rest = line.text.removeprefix(code)

    def count_tokens(texts: Sequence[str]) -> list[int]:
        return list(map(len, tokenizer.encode_sources(texts)))

    texts = split_long(rest, MAX_SOURCE_TOKENS, count_tokens, language)
    sources = tokenizer.encode_sources([code + text for text in texts])
    return [
        Part(
            line=line.number,
            number=i,
            source=source,
            prefix=[] if i else line.prefix,
            continues_word=is_within_word(rest, start),
        )
        for i, (source, start) in enumerate(
            zip(sources, _starts(rest, texts), strict=True)
        )
    ]


def _starts(text: str, parts: Sequence[str]) -> Iterator[int]:
    """Where each part begins in the text."""
    end = 0
    for part in parts:
        start = text.index(part, end)
        end = start + len(part)
        yield start


def require_lists(*several: object) -> None:
    """Raise `RequestError` for a string, whose letters would count as sentences.

    Only methods that accept one sentence or several accept a string.
    """
    if any(isinstance(each, str | bytes) for each in several):
        raise RequestError(
            "Several sentences must be given as a list of strings, but one string is "
            "given; put it into a list."
        )


def require_strings(*several: object) -> None:
    """Raise `RequestError` for anything but strings beside a source of one sentence."""
    for each in several:
        if not isinstance(each, str):
            raise RequestError(
                "The target or prefix of one sentence must be one string, but is "
                f"{type(each).__name__}; give all of them as strings, or all as lists."
            )


def paired(
    sources: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Each source and its prefix; `RequestError` where one of them is missing."""
    if prefixes is None:
        for number, source in enumerate(sources, start=1):
            _require_text(source, number)
            yield source, ""
        return
    for number, (source, prefix) in enumerate(zip_longest(sources, prefixes), start=1):
        if source is None or prefix is None:
            raise RequestError(
                "Sources and prefixes must be equally many, but the "
                f"{'sources' if source is None else 'prefixes'} end before number "
                f"{number:,}."
            )
        _require_text(source, number)
        _require_text(prefix, number)
        yield source, prefix


def _require_text(sentence: object, number: int) -> None:
    if not isinstance(sentence, str):
        raise RequestError(
            f"A sentence must be a string, but number {number:,} is "
            f"{type(sentence).__name__}."
        )


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
