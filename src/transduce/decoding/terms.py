"""Translations that contain the terms of a glossary.

A source is translated without the glossary first. Cross-attention shows which words of
this translation stand for a term. Unless they are those of the glossary, these replace
them, in the form that the model finds likeliest. The rest stays.

Searches that force words tend to go astray after words that the model does not know: a
search that begins after the term loses 1.6 BLEU on the built-in corpus with invented
words, and gains at most 0.5 with known ones. Those that force them at any place, such
as dynamic beam allocation (Post and Vilar, 2018), put them beside the model's own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np
from jaxtyping import Float32

from transduce.decoding.alignment import (
    MAX_ALIGNED_TOKENS,
    symmetrized,
    word_attention,
)
from transduce.decoding.batched_search import score_pairs
from transduce.decoding.search import Hypothesis
from transduce.decoding.translations import Part, Translation, detokenize
from transduce.errors import listed_lines, warn_caller
from transduce.search_config import SearchConfig
from transduce.text.glossary import Glossary, Occurrence, capitalized, find_word
from transduce.text.inline_tags import Span, agreement, units, words_at
from transduce.text.splitting import space_between
from transduce.text.tokenizer import normalize

if TYPE_CHECKING:
    from transduce.decoding.translator import Translator


def with_terms(
    translator: "Translator",
    glossary: Glossary,
    parts: Sequence[Part],
    found: Iterable[tuple[int, Translation]],
    config: SearchConfig,
) -> Iterator[tuple[int, Translation]]:
    """Yield the translations that are found, with the terms that their sources have.

    `found` has the number of each part and its translation. A translation of a source
    with terms has one hypothesis, whose score is that of the config, but without a
    penalty of coverage. Terms stay out of a translation whose words cannot be aligned,
    with a `TransduceWarning`: see `word_attention`.
    """
    drafts = []
    for number, translation in found:
        source = normalize(parts[number].text)
        terms = glossary.terms_in(source) if translation.text else []
        if terms:
            only = replace(translation, hypotheses=translation.hypotheses[:1])
            drafts.append(_Draft(parts[number], number, source, terms, only))
        else:
            yield number, translation
    pairs = [(each.source, each.translation.text) for each in drafts]
    words = [(words_at(a, units(a)), words_at(b, units(b))) for a, b in pairs]
    # A line may have the tag of another language than the translator puts before it.
    sources = [each.part.source for each in drafts]
    unaligned = dict(enumerate(drafts))
    for i, maps in word_attention(translator, pairs, words, sources):
        best = maps[agreement(maps[..., :-1]).argmax()]
        drafts[i].places = drafts[i].missing(best)
        del unaligned[i]
    if unaligned:
        lines = sorted({each.part.line + 1 for each in unaligned.values()})
        warn_caller(
            f"Terms of the glossary may be missing in {listed_lines(lines)}: words of "
            "the source and the translation could not be aligned, as a side has "
            f"{MAX_ALIGNED_TOKENS} or more tokens, or characters that the vocabulary "
            "lacks."
        )
    for k in range(max((len(each.places) for each in drafts), default=0)):
        # The score of the last form is that of the translation.
        chosen = [
            each
            for each in drafts
            if k < len(each.places)
            and (k == len(each.places) - 1 or len(each.places[k].term.forms) > 1)
        ]
        _choose_form(translator, chosen, k, config)
    for each in drafts:
        yield each.number, each.translation


@dataclass
class _Place:
    """Place of a term in a translation, and the form of the term that it gets."""

    term: Occurrence
    start: int
    end: int
    """End of the words that the term replaces; the start if there are none."""
    form: str


@dataclass
class _Draft:
    """Translation of a part, in which terms are to be placed."""

    part: Part
    number: int
    source: str
    terms: list[Occurrence]
    translation: Translation
    places: list[_Place] = field(default_factory=list)
    """Places of the terms that the translation lacks, from left to right."""

    def __post_init__(self) -> None:
        self._text = self.translation.text

    def missing(
        self, attention: Float32[np.ndarray, "target source_and_end"]
    ) -> list[_Place]:
        """Return places for the terms that the translation lacks.

        None overlaps another, or the words of a term that it has. Words of the prefix
        stay, so no place is for a term that they translate.
        """
        source, target = units(self.source), units(self._text)
        links = symmetrized(attention)
        are_words = [_is_word(self._text[slice(*span)]) for span in target]
        between_words = {(i, j) for i, j in links if are_words[j]}
        spans = []
        for number, term in enumerate(self.terms):
            is_word = _is_word(self.source[term.start : term.end])
            own_links = between_words if is_word else links  # so marks beside it stay
            span = _place_of(term, source, target, own_links, attention)
            spans.append((span, number))
        spans.sort()
        own = self._own_words(spans)
        places = []
        prefix_end = end = len(normalize(self.part.prefix_text))
        for (start, stop), number in spans:
            if number in own or start < min(stop, prefix_end):
                continue
            start = max(start, end)
            stop = max(stop, start)
            for first, last in sorted(own.values()):
                if first < stop and start < last:
                    start, stop = (
                        (start, first) if start < first else (last, max(stop, last))
                    )
            term = self.terms[number]
            places.append(_Place(term=term, start=start, end=stop, form=term.forms[0]))
            end = stop
        return places

    def _own_words(self, spans: Sequence[tuple[Span, int]]) -> dict[int, Span]:
        """Return where terms stand in the translation, by their numbers.

        A term has the words at its place, or else those elsewhere that no other term
        has: attention may miss them. A single character elsewhere is often a part of
        another word, as in Chinese.
        """
        own: dict[int, Span] = {}
        for is_near in (True, False):
            for span, number in spans:
                free = (
                    each
                    for each in _spelt_at(self._text, self.terms[number])
                    if (_overlap(each, span) if is_near else each[1] - each[0] > 1)
                    and not any(_overlap(each, other) for other in own.values())
                )
                if number not in own and (first := next(free, None)) is not None:
                    own[number] = first
        return own

    def written(self) -> str:
        """Return the translation with all terms in their forms."""
        text, end = "", 0
        for place in self.places:
            text += self._text[end : place.start]
            is_added = place.start == place.end
            is_before_mark = text[-1:].strip() != ""
            if is_added or place.start == end:
                text = text.rstrip()
                text += space_between(text, place.form)
            is_small = text or place.term.is_kept or self._text[0].islower()
            text += place.form if is_small else capitalized(place.form)
            end = place.end
            if is_added and not is_before_mark:
                rest = self._text[end:].lstrip()
                text += space_between(text, rest)
                end = len(self._text) - len(rest)
        return text + self._text[end:]


def _choose_form(
    translator: "Translator",
    drafts: Sequence[_Draft],
    number: int,
    config: SearchConfig,
) -> None:
    """Choose the likeliest form of the term at a place of each draft."""
    variants: list[tuple[_Draft, str, str]] = []
    for draft in drafts:
        for form in draft.places[number].term.forms:
            draft.places[number].form = form
            variants.append((draft, form, draft.written()))
    scored = _scored(
        translator,
        [draft.part.source for draft, *_ in variants],
        [text for *_, text in variants],
        config,
    )
    best: dict[int, Translation] = {}
    for (draft, form, _), translation in zip(variants, scored, strict=True):
        if draft.number not in best or translation.score > best[draft.number].score:
            best[draft.number] = draft.translation = translation
            draft.places[number].form = form


def _scored(
    translator: "Translator",
    sources: Sequence[list[int]],
    texts: Sequence[str],
    config: SearchConfig,
) -> list[Translation]:
    """Return given translations of sources, with their scores."""
    ids = translator.tokenizer.encode_targets(texts)
    positions = translator.batch_positions
    scores = dict(score_pairs(translator.models, sources, ids, positions))
    translations = []
    for i, (text, own) in enumerate(zip(texts, ids, strict=True)):
        hypothesis = Hypothesis(
            ids=tuple(own),
            log_probability=scores[i].log_probability,
            token_log_probabilities=scores[i].token_log_probabilities,
            score=config.score(scores[i].log_probability, scores[i].num_tokens),
        )
        translations.append(detokenize([hypothesis], translator.tokenizer, [text]))
    return translations


def _is_word(text: str) -> bool:
    """Return whether a text has a letter, a digit or an emoji."""
    return any(each.isalnum() or category(each) == "So" for each in text)


def _spelt_at(text: str, term: Occurrence) -> Iterator[Span]:
    """Yield the places of the forms of a term in a text."""
    for spelling in dict.fromkeys(term.spellings):
        place = -1
        while (place := find_word(text, spelling, place + 1)) >= 0:
            yield place, place + len(spelling)


def _overlap(one: Span, other: Span) -> bool:
    """Return whether two spans overlap; an empty one is that of its next character."""
    return one[0] < max(other[1], other[0] + 1) and other[0] < one[1]


def _place_of(
    term: Occurrence,
    source: Sequence[Span],
    target: Sequence[Span],
    links: set[tuple[int, int]],
    attention: Float32[np.ndarray, "target source_and_end"],
) -> Span:
    """Return the place of the translation's words for a term.

    They are the longest run of words that are linked to it, with marks and other words
    without links between them. Without a link, it is the empty place before the word
    that attends to it most.
    """
    own = [i for i, (a, b) in enumerate(source) if a < term.end and term.start < b]
    linked = sorted({j for i, j in links if i in own})
    if not linked:
        at = target[int(attention[:, own].sum(axis=1).argmax())][0]
        return at, at
    of_any = {j for _, j in links}
    runs = [[linked[0]]]
    for j in linked[1:]:
        if of_any.isdisjoint(range(runs[-1][-1] + 1, j)):
            runs[-1].append(j)
        else:
            runs.append([j])
    longest = max(runs, key=len)
    return target[longest[0]][0], target[longest[-1]][1]
