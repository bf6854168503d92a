"""Translations that contain the terms of a glossary.

A source is translated without the glossary first. Cross-attention shows which words of
this translation stand for a term. Unless they are those of the glossary, these replace
them, in the form that the model finds likeliest. The rest stays.

Searches that force words tend to go astray after words that the model does not know: a
search that begins after the term loses 1.6 BLEU on the built-in corpus with invented
words, and gains at most 0.5 with known ones. Those that force them at any place, such
as dynamic beam allocation (Post and Vilar, 2018), put them beside the model's own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np
from jaxtyping import Float32

from transduce.decoding.alignment import (
    WHY_UNALIGNED,
    symmetrized,
    word_attention,
)
from transduce.decoding.search import Hypothesis, score_pairs
from transduce.decoding.translations import Pace, Part, Translation, detokenize
from transduce.errors import listed_lines, warn_caller
from transduce.metrics.scores import TargetScore
from transduce.search_config import SearchConfig
from transduce.text.glossary import Glossary, Occurrence, capitalized, find_word
from transduce.text.inline_tags import (
    PlacedTerm,
    Span,
    agreement,
    num_letters,
    units,
    words_at,
)
from transduce.text.splitting import space_between
from transduce.text.tokenizer import Tokenizer, WordTokenizer, normalize

if TYPE_CHECKING:
    from transduce.decoding.translator import Translator

MAX_VARIANTS = 16
"""Number of variants of a translation that are scored to choose the forms of its terms,
unless a single term has more forms. It bounds the cost of a line: with a variant for
each form of each term, 200 terms would take a hundred times as long as the search."""


def with_terms(
    translator: "Translator",
    glossary: Glossary,
    parts: Sequence[Part],
    found: Iterable[tuple[int, Translation]],
    config: SearchConfig,
    pace: Pace,
) -> Iterator[tuple[int, Translation]]:
    """Yield the translations that are found, with the terms that their sources have.

    `found` has the number of each part and its translation. A translation of a source
    with terms has one hypothesis, whose score is that of the config, but without a
    penalty of coverage. Terms stay out of a translation whose words cannot be aligned
    (see `word_attention`); `pace.on_unplaced` is then called, or else a
    `TransduceWarning` given. `pace.on_step` is called between batches, too.
    """
    on_step = pace.on_step or (lambda: None)
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
        on_step()
    if unaligned:
        _leave_unplaced(list(unaligned.values()), pace)
    rounds = {each.number: each.rounds() for each in drafts}
    for k in range(max(map(len, rounds.values()), default=0)):
        chosen = [
            (each, rounds[each.number][k])
            for each in drafts
            if k < len(rounds[each.number])
        ]
        _choose_forms(translator, chosen, config, on_step)
    unscored = [each for each in drafts if each.written() != each.translation.text]
    sources = [each.part.source for each in unscored]
    texts = [each.written() for each in unscored]
    for each, translation in zip(
        unscored, _scored(translator, sources, texts, config, on_step), strict=True
    ):
        each.translation = translation
    for each in drafts:
        yield each.number, replace(each.translation, placed_terms=each.placed_terms())


def _leave_unplaced(drafts: Sequence["_Draft"], pace: Pace) -> None:
    """Mark drafts in which terms may be missing, and report their lines."""
    for each in drafts:
        each.translation = replace(each.translation, may_lack_terms=True)
    on_unplaced = pace.on_unplaced or _warn_of_unplaced
    on_unplaced(sorted({each.part.line + 1 for each in drafts}))


def _warn_of_unplaced(lines: Sequence[int]) -> None:
    warn_caller(
        f"Terms of the glossary may be missing in {listed_lines(lines)}: "
        f"{WHY_UNALIGNED}."
    )


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

    def rounds(self) -> list[list[_Place]]:
        """Return the places with several forms, grouped by the round that chooses.

        Each round has one place if the variants of all places are few enough, or else
        several, which are as far from each other as can be.
        """
        several = [each for each in self.places if len(each.term.forms) > 1]
        if not several:
            return []
        most_forms = max(len(each.term.forms) for each in several)
        number = min(max(MAX_VARIANTS // most_forms, 1), len(several))
        return [several[k::number] for k in range(number)]

    def variants(self, places: Sequence[_Place]) -> list["_Variant"]:
        """Return the translation with each form of the terms at some places.

        A place with fewer forms than others keeps its last one in the further variants.
        """
        variants = []
        for k in range(max(len(each.term.forms) for each in places)):
            for place in places:
                place.form = place.term.forms[min(k, len(place.term.forms) - 1)]
            text, spans = self.written_with_spans()
            own = [spans[self.places.index(each)][0] for each in places]
            variants.append(_Variant(text, own))
        return variants

    def placed_terms(self) -> tuple[PlacedTerm, ...]:
        """Return the terms with their places in the source and the translation."""
        _, spans = self.written_with_spans()
        return tuple(
            PlacedTerm(
                text=self.source[place.term.start : place.term.end],
                source=(place.term.start, place.term.end),
                target=(start, end),
            )
            for place, (start, end) in zip(self.places, spans, strict=True)
        )

    def written(self) -> str:
        """Return the translation with all terms in their forms."""
        return self.written_with_spans()[0]

    def written_with_spans(self) -> tuple[str, list[Span]]:
        """Return the translation with all terms, and the place of each of them."""
        text, end, spans = "", 0, []
        for place in self.places:
            text += self._text[end : place.start]
            is_added = place.start == place.end
            is_before_mark = text[-1:].strip() != ""
            if is_added or place.start == end:
                text = text.rstrip()
                text += space_between(text, place.form)
            is_small = text or place.term.is_kept or self._text[0].islower()
            start = len(text)
            text += place.form if is_small else capitalized(place.form)
            spans.append((start, len(text)))  # ß, as a capital, has two letters
            end = place.end
            if is_added and not is_before_mark:
                rest = self._text[end:].lstrip()
                text += space_between(text, rest)
                end = len(self._text) - len(rest)
        return text + self._text[end:], spans


def _choose_forms(
    translator: "Translator",
    chosen: Sequence[tuple[_Draft, list[_Place]]],
    config: SearchConfig,
    on_step: Callable[[], object],
) -> None:
    """Choose the likeliest form of the term at some places of each draft.

    Each variant of a draft has another form at all of these places.
    """
    variants = [draft.variants(places) for draft, places in chosen]
    scored = _scored(
        translator,
        [
            draft.part.source
            for (draft, _), own in zip(chosen, variants, strict=True)
            for _ in own
        ],
        [each.text for own in variants for each in own],
        config,
        on_step,
    )
    rest = iter(scored)
    for (draft, places), own in zip(chosen, variants, strict=True):
        translations = list(islice(rest, len(own)))
        stretches = [
            each.stretches(translation, translator.tokenizer)
            for each, translation in zip(own, translations, strict=True)
        ]
        for i, place in enumerate(places):
            place.form = _likeliest_form(place.term.forms, stretches, i, config)
        found = {each.text: t for each, t in zip(own, translations, strict=True)}
        draft.translation = found.get(draft.written(), draft.translation)


@dataclass(frozen=True, slots=True)
class _Variant:
    """Translation of a draft with some of the forms of its terms."""

    text: str
    starts: list[int]
    """Where the terms begin whose forms are chosen."""

    def stretches(
        self, translation: Translation, tokenizer: Tokenizer
    ) -> list[tuple[float, ...]]:
        """Return the log-probabilities of the tokens from each start to the next.

        The first stretch begins with the text, and the last one has the end token.
        """
        [hypothesis] = translation.hypotheses
        pieces: Sequence[str] = hypothesis.tokens
        if isinstance(tokenizer, WordTokenizer):  # unknown words are the piece <unk>
            pieces = tokenizer.split(self.text)
        ends = list(accumulate(map(num_letters, pieces), initial=0))
        # Tokens may lack some letters of a text: those that the vocabulary lacks.
        share = ends[-1] / max(num_letters(self.text), 1)
        inner = (num_letters(self.text[:start]) * share for start in self.starts[1:])
        each_token = hypothesis.token_log_probabilities
        cuts = [0, *(bisect_left(ends, letters) for letters in inner), len(each_token)]
        return [each_token[begin:end] for begin, end in pairwise(cuts)]


def _likeliest_form(
    forms: Sequence[str],
    stretches: Sequence[Sequence[tuple[float, ...]]],
    place: int,
    config: SearchConfig,
) -> str:
    """Return the form at a place whose variant is likeliest from there to the next one.

    Each variant has the stretches of its tokens. Those of the first one surround the
    stretch at the place, so that the score of a whole translation decides.
    """
    before, after = stretches[0][:place], stretches[0][place + 1 :]
    scores = []
    for variant in stretches[: len(forms)]:
        tokens = list(chain(*before, variant[place], *after))
        scores.append(config.score(sum(tokens), len(tokens)))
    return forms[scores.index(max(scores))]


def _scored(
    translator: "Translator",
    sources: Sequence[list[int]],
    texts: Sequence[str],
    config: SearchConfig,
    on_step: Callable[[], object],
) -> list[Translation]:
    """Return given translations of sources, with their scores."""
    ids = translator.tokenizer.encode_targets(texts)
    scores: dict[int, TargetScore] = {}
    for i, score in score_pairs(
        translator.models, sources, ids, translator.batch_positions
    ):
        scores[i] = score
        on_step()
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
