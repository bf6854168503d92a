"""Lines split into parts, and translations without duplicates, joined to lines."""

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from transduce.decoding.search import Hypothesis
from transduce.decoding.translations import (
    EMPTY,
    Part,
    Translation,
    TranslationHypothesis,
    allowed_tokens,
    detokenize,
    encode_lines,
    join_lines,
    join_parts,
    with_best,
)
from transduce.errors import CheckpointError
from transduce.search_config import SearchConfig
from transduce.text.shortlist import Shortlist
from transduce.text.tokenizer import Tokenizer, learn_tokenizer
from transduce.text.vocabulary import EOS, TokenizerConfig


@pytest.mark.parametrize(
    ("prefix", "search", "is_used"),
    [
        ([], {}, True),
        ([7], {}, False),
        # Of four candidates the first three could be excluded, or all.
        ([], {"min_length": 2}, True),
        ([], {"min_length": 3}, False),
        ([], {"min_length": 1, "bad_words": ((5,), (6,))}, False),
    ],
)
def test_a_part_uses_its_shortlist_if_a_candidate_must_be_left(
    prefix: list[int], search: dict[str, Any], is_used: bool
) -> None:
    shortlist = Shortlist(
        frequent=np.array([5, 6], dtype=np.int32),
        always=np.array([EOS], dtype=np.int32),
        ends=np.array([0] * 8 + [1], dtype=np.int64),
        targets=np.array([7], dtype=np.int32),
        target_vocab_size=9,
        tokenizer="",
    )
    part = Part(line=0, number=0, source=[7], prefix=prefix)
    [found] = allowed_tokens(shortlist, [part], SearchConfig(**search))
    assert (found is not None) == is_used
    if found is not None:
        assert found.tolist() == [EOS, 5, 6, 7]


def hypothesis(text: str, score: float) -> TranslationHypothesis:
    return TranslationHypothesis(
        text=text,
        score=score,
        log_probability=2 * score,
        tokens=(text,),
        token_log_probabilities=(2 * score,),
    )


def translation(*texts: str) -> Translation:
    found = tuple(hypothesis(text, -float(i)) for i, text in enumerate(texts))
    return Translation(text=texts[0], score=0.0, hypotheses=found)


def join(*translations: Translation, within_word: Sequence[int] = ()) -> Translation:
    parts = [
        Part(line=0, number=i, source=[5], prefix=[], continues_word=i in within_word)
        for i in range(len(translations))
    ]
    return join_parts(parts, translations)


@pytest.mark.parametrize(
    ("texts", "places"),
    [
        ("", ()),
        ("a", (0,)),
        ("abc", (0, 1, 2)),
        ("aab", (0, 2)),
        ("abab", (0, 1)),
        ("abba", (0, 1)),
    ],
)
def test_the_better_of_equal_texts_is_kept(texts: str, places: tuple[int, ...]) -> None:
    found = translation(*texts) if texts else EMPTY
    expected = tuple(found.hypotheses[place] for place in places)
    assert with_best(found, 3).hypotheses == expected
    assert with_best(found, 2).hypotheses == expected[:2]


def test_a_line_of_one_part_equals_that_part() -> None:
    assert join(translation("a", "b")) == translation("a", "b")


def test_the_scores_of_parts_are_added_up() -> None:
    whole = join(translation("a b", "c"), EMPTY, translation("d"), translation("e"))
    assert (whole.text, whole.num_parts) == ("a b d e", 4)
    [only] = whole.hypotheses
    assert only.tokens == ("a b", "d", "e")
    assert only.token_log_probabilities == ()


@pytest.mark.parametrize(
    ("texts", "within_word", "whole"),
    [
        (("one.", "Two."), (), "one. Two."),
        (("Donaudampf", "schiff"), (1,), "Donaudampfschiff"),
        (("他走了。", "再也没有回来。"), (), "他走了。再也没有回来。"),
        (("「はい」", "カタカナ"), (), "「はい」カタカナ"),
        (("한국", "말"), (), "한국 말"),
        (("他走了。", "He left."), (), "他走了。 He left."),
        (("", "one", "", "two"), (), "one two"),
    ],
)
def test_parts_are_joined_as_their_script_is_written(
    texts: tuple[str, ...], within_word: tuple[int, ...], whole: str
) -> None:
    found = [translation(text) if text else EMPTY for text in texts]
    assert join(*found, within_word=within_word).text == whole


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_a_line_follows_once_its_parts_and_all_lines_before_it_are_done(
    order: tuple[int, ...],
) -> None:
    """The second of three lines has two parts."""
    lines = [
        [Part(line=line, number=i, source=[5], prefix=[]) for i in range(num_parts)]
        for line, num_parts in enumerate((1, 2, 1))
    ]
    last_part = [0, 2, 3]  # number of the last part of each line
    come: list[int] = []
    done: list[int] = []

    def numbered() -> Iterator[tuple[int, Translation]]:
        for number in order:
            come.append(number)
            yield number, translation("abcd"[number])

    texts = []
    for each in join_lines(lines, numbered(), lambda: done.append(len(come))):
        texts.append(each.text)
        assert set(range(last_part[len(texts) - 1] + 1)) <= set(come)
    assert texts == ["a", "b c", "d"]
    places = [order.index(i) + 1 for i in range(4)]
    assert sorted(done) == sorted([places[0], max(places[1:3]), places[3]])


def cut(text: str, tokenizer: Tokenizer) -> list[Part]:
    [parts] = encode_lines([(7, (text, "acht"))], tokenizer)
    return parts


def test_a_short_line_is_one_part(tokenizer: Tokenizer) -> None:
    [only] = cut("one two", tokenizer)
    assert only.source == tokenizer.encode("one two")
    assert only.prefix == tokenizer.encode("acht")
    assert (only.line, only.number, only.continues_word) == (7, 0, False)


@pytest.mark.parametrize(
    ("text", "continued"),
    [
        ("one two three four. five six! seven eight one two.", [False] * 3),
        ("zzzzzzzzzzzzzzzzzzzz", [False, True]),
        ("one two qqqqqqqqqqqqqqqqqqqq", [False, False, True, True, True]),
        # Word boundaries in Han script are unknown and not needed.
        ("中文中文中文", [False, False]),
    ],
)
def test_a_part_records_whether_it_continues_a_word(
    text: str, continued: list[bool], tokenizer: Tokenizer
) -> None:
    [found] = encode_lines([(7, (text, "acht"))], tokenizer, max_tokens=12)
    assert [part.continues_word for part in found] == continued
    assert [part.number for part in found] == list(range(len(found)))
    assert all(0 < len(part.source) <= 12 for part in found)
    assert [bool(part.prefix) for part in found] == [True] + [False] * (len(found) - 1)


@pytest.mark.parametrize(
    ("kind", "longest"), [("bpe", 250), ("word", 250), ("character", 600)]
)
def test_a_line_is_cut_above_600_characters_or_250_other_tokens(
    kind: str, longest: int, corpus: tuple[list[str], list[str]]
) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=300)
    tokenizer = learn_tokenizer([*corpus[0], *corpus[1]], config)
    number = longest // len(tokenizer.encode("one"))
    for words, num_parts in ((number, 1), (number + 1, 2)):
        [parts] = encode_lines([(0, ("one " * words, ""))], tokenizer)
        assert len(parts) == num_parts


def test_a_sample_of_nan_is_refused_at_any_place() -> None:
    tokenizer = learn_tokenizer(["one two"], TokenizerConfig(vocab_size=300))
    samples = [
        Hypothesis(
            ids=(), log_probability=each, token_log_probabilities=(each,), score=each
        )
        for each in (-1.0, math.nan)
    ]
    with pytest.raises(CheckpointError, match="but outputs NaN"):
        detokenize(samples, tokenizer)


def test_the_tag_of_a_language_counts_as_a_token_of_each_part() -> None:
    tag = ">>de<<"
    tokenizer = learn_tokenizer(["one two"], TokenizerConfig(vocab_size=300), [tag])
    line = tag + " one two" * 20
    [parts] = encode_lines([(0, (line, ""))], tokenizer, max_tokens=6)
    assert {part.source[0] for part in parts} == {tokenizer.tag_id(tag)}
    assert max(len(part.source) for part in parts) <= 6
