"""Translations, and the way from lines of text to parts that a model reads and back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat, zip_longest
from typing import NamedTuple

from transduce.decoding.search import Hypothesis, require_numbers
from transduce.errors import RequestError, shortened
from transduce.text.splitting import is_within_word, space_between, split_long
from transduce.text.tokenizer import Tokenizer, WordTokenizer

MAX_SOURCE_TOKENS = 250
"""Tokens of a source above which it is translated in parts: few models were trained on
longer ones."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TranslationHypothesis:
    """One of the translations that search found for a source."""

    text: str
    score: float
    """Log-probability divided by the length penalty, plus the weighted coverage;
    hypotheses are ranked by it. For a sample, its log-probability."""
    log_probability: float
    """Natural logarithm of the probability of the tokens, the end token included."""
    tokens: tuple[str, ...]
    """Tokens as the model put them out; the first token of a word begins with a space.
    Unknown words, which the text has replaced, are <unk>."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each token and, unless the length limit cut the translation
    short, of the end token. Empty if the source was translated in parts."""

    def __repr__(self) -> str:
        shown = f"text={shortened(self.text)}, score={self.score:.3f}"
        return f"{type(self).__name__}({shown}, tokens={len(self.tokens)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Translation:
    """Translation of a source: the best hypothesis, and others if requested."""

    text: str
    """Text of the best hypothesis; empty if the source is empty."""
    score: float
    """Score of the best hypothesis; 0 if the source is empty."""
    hypotheses: tuple[TranslationHypothesis, ...]
    """Hypotheses, best first: one, unless search was for several or the translation was
    sampled. Empty if the source is empty."""
    num_parts: int = 1
    """Number of parts in which the source was translated; more than one if it was
    longer than 250 tokens. The score is then the sum of the parts' scores."""

    def __repr__(self) -> str:
        shown = [f"text={shortened(self.text)}", f"score={self.score:.3f}"]
        if len(self.hypotheses) > 1:
            shown.append(f"hypotheses={len(self.hypotheses)}")
        if self.num_parts > 1:
            shown.append(f"num_parts={self.num_parts}")
        return f"{type(self).__name__}({', '.join(shown)})"


EMPTY = Translation(text="", score=0.0, hypotheses=())
"""Translation of an empty source."""


class Part(NamedTuple):
    """A source, or a part of one that is too long for the model.

    It is a tuple because tuples are the fastest to send to other processes.
    """

    line: int
    number: int
    """Number among the parts of its line."""
    source: list[int]
    prefix: list[int]
    continues_word: bool = False
    """Whether the line was split within a word before this part."""
    source_words: tuple[str, ...] = ()
    """Word of each source token, if the vocabulary is of words; otherwise empty, as is
    `prefix_words`."""
    prefix_words: tuple[str, ...] = ()
    """Word of each token of the prefix."""

    @property
    def length(self) -> int:
        """Number of tokens of source or prefix, the larger one, the end included."""
        return max(len(self.source), len(self.prefix)) + 1


def encode_lines(
    window: Sequence[tuple[int, tuple[str, str]]],
    tokenizer: Tokenizer,
    language: str | None = None,
) -> list[list[Part]]:
    """Return the parts of each line, given as its number, source and prefix.

    Sources that are too long are split at ends of sentences of the language, a BCP 47
    tag, or at smaller units.
    """
    sources = tokenizer.encode_sources([source for _, (source, _) in window])
    texts = [prefix for _, (_, prefix) in window]
    prefixes: Iterable[list[int]] = repeat([], len(window))
    if any(texts):
        prefixes = tokenizer.encode_targets(texts)
    lines = []
    for (number, (text, prefix_text)), source, prefix in zip(
        window, sources, prefixes, strict=True
    ):
        whole = Part(
            number,
            0,
            source,
            prefix,
            source_words=_words(text, tokenizer),
            prefix_words=_words(prefix_text, tokenizer),
        )
        is_long = len(source) > MAX_SOURCE_TOKENS
        lines.append(split(whole, text, tokenizer, language) if is_long else [whole])
    return lines


def _words(text: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the word of each token, if the vocabulary is of words."""
    return tuple(tokenizer.split(text)) if isinstance(tokenizer, WordTokenizer) else ()


def split(
    whole: Part, text: str, tokenizer: Tokenizer, language: str | None = None
) -> list[Part]:
    """Split a source with this text; the first part keeps the prefix."""
    code = tokenizer.language(text)
    rest = text.removeprefix(code)

    def count_tokens(texts: Sequence[str]) -> list[int]:
        return list(map(len, tokenizer.encode_sources(texts)))

    texts = split_long(rest, MAX_SOURCE_TOKENS, count_tokens, language)
    sources = tokenizer.encode_sources([code + text for text in texts])
    return [
        Part(
            line=whole.line,
            number=i,
            source=source,
            prefix=[] if i else whole.prefix,
            continues_word=is_within_word(rest, start),
            source_words=_words(text, tokenizer),
            prefix_words=() if i else whole.prefix_words,
        )
        for i, (source, text, start) in enumerate(
            zip(sources, texts, _starts(rest, texts), strict=True)
        )
    ]


def _starts(text: str, parts: Sequence[str]) -> Iterator[int]:
    """Yield the position in the text at which each part starts."""
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


def pair_up(
    sources: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each source with its prefix; raise `RequestError` where one is missing."""
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


def detokenize(
    hypotheses: Sequence[Hypothesis],
    tokenizer: Tokenizer,
    texts: Sequence[str] | None = None,
) -> Translation:
    """Return hypotheses as text; raise `CheckpointError` if the model put out NaN.

    `texts` are those with unknown words replaced; None if there are none.
    """
    require_numbers([each.log_probability for each in hypotheses])
    if texts is None:
        texts = [tokenizer.decode(each.ids) for each in hypotheses]
    decoded = tuple(
        TranslationHypothesis(
            text=text,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            tokens=tuple(tokenizer.pieces(hypothesis.ids)),
            token_log_probabilities=hypothesis.token_log_probabilities,
        )
        for hypothesis, text in zip(hypotheses, texts, strict=True)
    )
    best = decoded[0]
    return Translation(text=best.text, score=best.score, hypotheses=decoded)


def without_duplicates(translation: Translation) -> Translation:
    """Drop hypotheses with the text of a better one; token sequences may share a text.

    The order of the others stays.
    """
    best = {each.text: each for each in reversed(translation.hypotheses)}
    kept = (each for each in translation.hypotheses if best[each.text] is each)
    return replace(translation, hypotheses=tuple(kept))


def join_lines(
    lines: Sequence[Sequence[Part]],
    found: Iterable[tuple[int, Translation]],
    on_line: Callable[[], object],
) -> Iterator[Translation]:
    """Yield the translation of each line once it and all lines before it are done.

    `found` has the number of each part, counted through all lines, and its translation,
    in any order. `on_line` is called once for each line that is done.
    """
    places = [(n, i) for n, parts in enumerate(lines) for i in range(len(parts))]
    translations = [[EMPTY] * len(parts) for parts in lines]
    missing = [len(parts) for parts in lines]
    next_line = 0
    for number, translation in found:
        line, part = places[number]
        translations[line][part] = translation
        missing[line] -= 1
        if not missing[line]:
            on_line()
        while next_line < len(lines) and not missing[next_line]:
            yield join_parts(lines[next_line], translations[next_line])
            next_line += 1


def join_parts(
    parts: Sequence[Part], translations: Sequence[Translation]
) -> Translation:
    """Join the translations of a line's parts; of several, only the best are used."""
    if len(translations) == 1:
        return translations[0]
    best = [each.hypotheses[0] for each in translations if each.hypotheses]
    whole = TranslationHypothesis(
        text=_join_texts(parts, translations),
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


def _join_texts(parts: Sequence[Part], translations: Sequence[Translation]) -> str:
    """Join texts with spaces, except within a word or in scripts without spaces."""
    text = ""
    for part, translation in zip(parts, translations, strict=True):
        space = "" if part.continues_word else space_between(text, translation.text)
        text += space + translation.text
    return text
