"""Translations: from lines of text to parts that a model reads, and back to lines.

Lines are read ahead in windows (`Pace`), whose parts are searched for together
(`start_translating`, `start_sampling`).

Unknown words of a vocabulary of words are replaced after the search (`unknown_words`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat, zip_longest
from typing import Annotated, Any, NamedTuple, TypeVar

from transduce.decoding.backend import start_search
from transduce.decoding.sampling import Sampling
from transduce.decoding.search import (
    AllowedTokens,
    DecodingModel,
    Hypothesis,
    RunningSearch,
    coverage_of,
    require_numbers,
    start_decoder,
    with_shortlists,
)
from transduce.errors import RequestError, shortened, warn_caller
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.settings import MAX_WHOLE, Bounds, convert_and_check
from transduce.text.corpus import Windows, full_windows, require_characters
from transduce.text.inline_tags import PlacedTerm, is_within_word
from transduce.text.shortlist import Shortlist
from transduce.text.splitting import space_between, split_long
from transduce.text.tokenizer import (
    SubwordTokenizer,
    Tokenizer,
    WordTokenizer,
    encode_with_tag,
)
from transduce.text.vocabulary import BOS, EOS, PAD

MAX_SOURCE_TOKENS = 250
"""Maximum number of tokens of a source that is translated whole: few models were
trained on longer ones."""
MAX_SOURCE_CHARACTERS = 600
"""The same limit if tokens are characters; the preset `bytenet-en-de` trains on as
many."""


def max_source_tokens(tokenizer: Tokenizer, num_positions: int | None = None) -> int:
    """Return the maximum number of tokens of a source that is translated whole.

    A model with `num_positions` learned positions needs one for each token and one for
    the end token.
    """
    longest = MAX_SOURCE_TOKENS
    if isinstance(tokenizer, SubwordTokenizer) and tokenizer.is_of_characters:
        longest = MAX_SOURCE_CHARACTERS
    if num_positions is not None:
        longest = min(longest, max(num_positions - 1, 1))
    return longest


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
    """Generated tokens; the first token of a word begins with a space.
    Unknown words, which the text has replaced, are `<unk>`."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each token and, unless the length limit cut the translation
    short, of the end token. Empty if the source was translated in parts."""

    def __repr__(self) -> str:
        shown = f"text={shortened(self.text)}, score={self.score:z.3f}"
        return f"{type(self).__name__}({shown}, tokens={len(self.tokens)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Translation:
    """Translation of a source: the best hypothesis, and others if requested."""

    text: str
    """Text of the best hypothesis; empty if the source is empty."""
    score: float
    """Score of the best hypothesis; 0 if the source is empty."""
    hypotheses: tuple[TranslationHypothesis, ...]
    """Hypotheses, best first: one, or at most `SearchConfig.num_best` with different
    texts, or all samples. Empty if the source is empty."""
    num_parts: int = 1
    """Number of parts in which the source was translated; more than one if it was
    longer than 250 tokens (600 of a vocabulary of characters). The score is then the
    sum of the parts' scores."""
    placed_terms: tuple[PlacedTerm, ...] = ()
    """Terms of the glossary that have replaced words of the translation. Empty if the
    source was translated in parts."""
    may_lack_terms: bool = False
    """Whether terms of the glossary may be missing, as the words of the source and of
    the translation could not be aligned."""

    def __repr__(self) -> str:
        shown = [f"text={shortened(self.text)}", f"score={self.score:z.3f}"]
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
    text: str = ""
    """Text of the source, without the tag of a target language."""
    prefix_text: str = ""

    @property
    def length(self) -> int:
        """Number of tokens of the longer one of source and prefix, with the end
        token."""
        return max(len(self.source), len(self.prefix)) + 1


def encode_lines(
    window: Sequence[tuple[int, tuple[str, str]]],
    tokenizer: Tokenizer,
    language: str | None = None,
    tag: str = "",
    max_tokens: int | None = None,
) -> list[list[Part]]:
    """Return the parts of each line, given as its number, source and prefix.

    Sources of more than `max_tokens` tokens, by default `max_source_tokens`, are split
    at ends of sentences of the language, a BCP 47 tag, or at smaller units. Each part
    has the tag of a corpus before it, if one is given.
    """
    if max_tokens is None:
        max_tokens = max_source_tokens(tokenizer)
    sources = encode_with_tag([source for _, (source, _) in window], tag, tokenizer)
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
            source_words=_words(text, tokenizer, tag),
            prefix_words=_words(prefix_text, tokenizer),
            text=text.removeprefix(tokenizer.language(text)),
            prefix_text=prefix_text,
        )
        if len(source) - bool(tag) <= max_tokens:
            lines.append([whole])
        else:
            # Unlike the paper: a line of more than 250 tokens, or 600 characters if the
            # vocabulary is of these, is translated sentence by sentence. The paper does
            # not mention such lines. On by default.
            lines.append(_split(whole, text, tokenizer, language, tag, max_tokens))
    return lines


def _words(text: str, tokenizer: Tokenizer, tag: str = "") -> tuple[str, ...]:
    """Return the word of each token, if the vocabulary is of words."""
    if not isinstance(tokenizer, WordTokenizer):
        return ()
    words = tokenizer.split(text)
    return (tag, *words) if tag and words else tuple(words)


def _split(
    whole: Part,
    text: str,
    tokenizer: Tokenizer,
    language: str | None,
    tag: str,
    max_tokens: int,
) -> list[Part]:
    """Split a source with this text; the first part keeps the prefix."""
    code = tokenizer.language(text)
    rest = text.removeprefix(code)

    def count_tokens(texts: Sequence[str]) -> list[int]:
        return list(map(len, tokenizer.encode_sources(texts)))

    # The tag of a target language takes a token of each part.
    capacity = max(max_tokens - bool(code), 1)
    texts = split_long(rest, capacity, count_tokens, language)
    sources = encode_with_tag([code + text for text in texts], tag, tokenizer)
    return [
        Part(
            line=whole.line,
            number=i,
            source=source,
            prefix=[] if i else whole.prefix,
            continues_word=is_within_word(rest, start),
            source_words=_words(code + text, tokenizer, tag),
            prefix_words=() if i else whole.prefix_words,
            text=text,
            prefix_text="" if i else whole.prefix_text,
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


EXCLUDED = (PAD, BOS)
"""Ids of tokens that are never generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSearch:
    """Beam search or sampling of the parts of lines."""

    start: Callable[[Sequence[DecodingModel], list[Part]], RunningSearch]
    """Function that encodes parts and starts their search."""
    group_size: int
    """Number of hypotheses of each part."""
    min_steps: int = 0
    """Minimum number of steps of a part."""
    config: SearchConfig | None = None
    """Settings of beam search; None for sampling."""


def start_translating(
    models: Sequence[DecodingModel], parts: list[Part], config: SearchConfig
) -> RunningSearch:
    """Encode sources and start the search for their translations."""
    limits = [config.limit(part.length, minimum=len(part.prefix) + 1) for part in parts]
    prefixes = [part.prefix for part in parts]
    decoder = start_decoder(models, _sources(parts), config)
    if config.shortlist and models[0].shortlist is not None:
        shortlists = allowed_tokens(models[0].shortlist, parts, config)
        decoder = with_shortlists(decoder, shortlists)
    coverage = coverage_of(decoder, config)
    # Several hypotheses may have the same text, so more than `num_best` are needed.
    max_hypotheses = 1 if config.num_best == 1 else None
    search = start_search(
        limits, config, EOS, EXCLUDED, prefixes, coverage, max_hypotheses
    )
    return RunningSearch(decoder, search, BOS)


def with_available_shortlist(
    config: SearchConfig, shortlist: Shortlist | None
) -> SearchConfig:
    """Return the config; if the model has no shortlist, warn and set
    `search.shortlist` to false."""
    if not config.shortlist or shortlist is not None:
        return config
    warn_caller(
        "`search.shortlist` is set, but the model has no shortlist; the whole "
        "vocabulary is used instead. Make one with `transduce shortlist`."
    )
    return replace(config, shortlist=False)


def allowed_tokens(
    shortlist: Shortlist, parts: list[Part], config: SearchConfig
) -> list[AllowedTokens]:
    """Return the tokens among which each part chooses.

    None stands for all tokens: after a prefix, and for a part with so few candidates
    that `min_length` and `bad_words` could exclude all of them. Candidates depend on
    the part alone, and so does its translation.
    """
    # Unlike the paper: a shortlist, for speed; the softmax of section 3.4 is then over
    # some hundred tokens. Off by default: `search.shortlist`.
    base = shortlist.base()
    max_excluded = config.min_length + len(config.bad_words) + 1
    allowed: list[AllowedTokens] = []
    for part in parts:
        candidates = shortlist.candidates(part.source, base)
        is_usable = not part.prefix and len(candidates) > max_excluded
        allowed.append(candidates if is_usable else None)
    return allowed


def start_sampling(
    models: Sequence[DecodingModel], parts: list[Part], config: SamplingConfig
) -> RunningSearch:
    """Encode sources and start to draw their translations."""
    limits = [part.length + config.extra_length for part in parts]
    seeds = [(part.line, part.number) for part in parts]
    search = Sampling(limits, seeds, config, EOS, EXCLUDED)
    return RunningSearch(start_decoder(models, _sources(parts)), search, BOS)


def _sources(parts: list[Part]) -> list[list[int]]:
    return [[*part.source, EOS] for part in parts]


def require_lists(*several: object) -> None:
    """Raise `RequestError` unless each argument is a collection of sentences.

    A string is refused, as its letters would count as sentences.
    """
    for each in several:
        if isinstance(each, str):
            raise RequestError(
                "Several sentences must be given as a list of strings, but one string "
                "is given; put it into a list."
            )
        if isinstance(each, bytes | bytearray):
            raise RequestError(
                f"A sentence must be a string, but is {type(each).__name__}; decode it."
            )
        if isinstance(each, Mapping | set | frozenset):
            raise RequestError(
                "Several sentences must be given as a list of strings, but are given "
                f"as {type(each).__name__}; put them into a list, in their order."
            )
        try:
            iter(each)  # type: ignore[call-overload] # tests whether it can be
        except TypeError:
            raise RequestError(
                "Sentences must be strings, but are given as "
                f"{type(each).__name__}; give one string, or a list of strings."
            ) from None


def listed(sentences: Iterable[str]) -> list[str]:
    """Return several sentences as a list; raise `RequestError` if one is no string."""
    require_lists(sentences)
    texts = list(sentences)
    for number, text in enumerate(texts, start=1):
        require_text(text, number)
    return texts


_MISSING: Any = object()
"""Place of a source or prefix after the end of all."""


def require_strings(*several: object) -> None:
    """Raise `RequestError` unless targets or prefixes of one sentence are strings."""
    for each in several:
        if not isinstance(each, str):
            raise RequestError(
                "The target or prefix of one sentence must be one string, but is "
                f"{type(each).__name__}; give all of them as strings, or all as lists."
            )


def pair_up(
    sources: Iterable[str], prefixes: Iterable[str] | None, first_line: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield each source with its prefix; raise `RequestError` where one is missing.

    Messages count from 1, after the `first_line` lines that came before.
    """
    if prefixes is None:
        for number, source in enumerate(sources, start=first_line + 1):
            require_text(source, number)
            yield source, ""
        return
    pairs = zip_longest(sources, prefixes, fillvalue=_MISSING)
    for number, (source, prefix) in enumerate(pairs, start=first_line + 1):
        if source is _MISSING or prefix is _MISSING:
            raise RequestError(
                "Sources and prefixes must be equally many, but the "
                f"{'sources' if source is _MISSING else 'prefixes'} end before number "
                f"{number:,}."
            )
        require_text(source, number)
        require_text(prefix, number)
        yield source, prefix


def require_text(sentence: object, number: int) -> None:
    """Raise `RequestError` unless a sentence is a string of valid Unicode.

    The message names the sentence by its number.
    """
    if not isinstance(sentence, str):
        raise RequestError(
            f"A sentence must be a string, but number {number:,} is "
            f"{type(sentence).__name__}."
        )
    require_characters(sentence)


def detokenize(
    hypotheses: Sequence[Hypothesis],
    tokenizer: Tokenizer,
    texts: Sequence[str] | None = None,
) -> Translation:
    """Return hypotheses as text; raise `CheckpointError` if the model outputs NaN.

    `texts` are the texts with unknown words replaced. By default each text is decoded
    from its tokens.
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


def with_best(translation: Translation, max_count: int) -> Translation:
    """Keep the best `max_count` hypotheses with different texts, in their order.

    Several sequences of tokens may have the same text.
    """
    best: dict[str, TranslationHypothesis] = {}
    for each in translation.hypotheses:
        best.setdefault(each.text, each)
    return replace(translation, hypotheses=tuple(islice(best.values(), max_count)))


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

    def joined() -> Iterator[tuple[int, Translation]]:
        for number, translation in found:
            line, part = places[number]
            translations[line][part] = translation
            missing[line] -= 1
            if not missing[line]:
                on_line()
                yield line, join_parts(lines[line], translations[line])

    return in_order(joined())


def join_parts(
    parts: Sequence[Part], translations: Sequence[Translation]
) -> Translation:
    """Join the best translations of a line's parts; a single part keeps all of its
    hypotheses."""
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
        may_lack_terms=any(each.may_lack_terms for each in translations),
    )


def _join_texts(parts: Sequence[Part], translations: Sequence[Translation]) -> str:
    """Join texts with spaces, except within a word or in scripts without spaces."""
    text = ""
    for part, translation in zip(parts, translations, strict=True):
        space = "" if part.continues_word else space_between(text, translation.text)
        text += space + translation.text
    return text


Result = TypeVar("Result")


def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Windows in which a stream is read, and callbacks for its progress."""

    windows: Windows = full_windows
    on_line: Callable[[], Any] = _do_nothing
    """Called once for each line that is done, even if earlier lines are not."""
    on_step: Callable[[], Any] | None = None
    """Called between steps of search; an exception that it raises ends the stream."""
    on_unplaced: Callable[[Sequence[int]], Any] | None = None
    """Called with the numbers, from 1, of lines in which terms of the glossary may be
    missing; by default, a warning names them."""
    first_line: Annotated[int, Bounds(0, MAX_WHOLE)] = 0
    """Number of the stream's first line, if earlier lines are done already."""

    def __post_init__(self) -> None:
        convert_and_check(self)


def in_order(numbered: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Yield results by their number, from 0, each once all before it are there."""
    early: dict[int, Result] = {}
    number = 0
    for each, result in numbered:
        early[each] = result
        while number in early:
            yield early.pop(number)
            number += 1
