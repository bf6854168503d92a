"""Sampled segmentations have exactly the probabilities of their definitions."""

import functools
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise, product
from typing import Any

import numpy as np
import pytest
import sentencepiece

from transduce.grammar.corpus import Grammar
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.subword_sampling import (
    MAX_SYMBOLS,
    BytePairSampler,
    Sampler,
    UnigramSampler,
    can_drop_merges,
)
from transduce.text.tokenizer import (
    SubwordTokenizer,
    Tokenizer,
    byte_pair_tokenizer,
    learn_tokenizer,
)
from transduce.text.vocabulary import (
    BYTE_PIECES,
    EOS,
    SPECIAL_PIECES,
    TokenizerConfig,
)

MERGES = [
    ("a", "b"), (" ", "a"), ("b", "a"), ("ab", "ab"), (" ", "ab"), (" a", "ba"),
]  # fmt: skip
TEXTS = [
    "The dog runs, the cats don't!",
    "naïve café Straße 😀😀 \u0301 (1990-2000)",
    "我们在这里测试 hello 没有学过的汉字",
    "",
    "aaaaa abababab " + "ha" * 40,
]


def by_hand() -> SubwordTokenizer:
    """Make a tokenizer with a few merges that overlap."""
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, *" ab."]
    pieces += ["".join(merge) for merge in MERGES]
    return byte_pair_tokenizer(list(dict.fromkeys(pieces)), MERGES)


@functools.cache
def learned() -> SubwordTokenizer:
    pairs = islice(Grammar.built_in().training_sentences(seed=5), 300)
    lines = chain(TEXTS * 3, *((pair.source, pair.target) for pair in pairs))
    return learn_tokenizer(lines, TokenizerConfig(vocab_size=700))


def sampled(
    sampler: Sampler, sentences: Sequence[Sequence[int]], seed: int = 1
) -> list[list[int]]:
    ids = np.array([*chain.from_iterable(sentences)], dtype="<u4")
    offsets = np.cumsum([0, *map(len, sentences)], dtype="<i8")
    new, bounds = sampler.sample(ids, offsets, np.random.default_rng(seed))
    assert (new.dtype, bounds.dtype) == (ids.dtype, offsets.dtype)
    return [new[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def assert_follows(
    counts: Counter[tuple[str, ...]], expected: dict[tuple[str, ...], float]
) -> None:
    """Assert by a chi-square test that counts follow probabilities."""
    total = counts.total()
    assert sum(expected.values()) == pytest.approx(1)
    assert counts.keys() <= expected.keys()
    frequent = {key: p for key, p in expected.items() if p * total >= 5}
    assert len(frequent) > 3
    observed = [counts[key] for key in frequent]
    wanted = [p * total for p in frequent.values()]
    observed.append(total - sum(observed))
    wanted.append(total - sum(wanted))
    statistic = sum(
        (o - w) ** 2 / max(w, 1) for o, w in zip(observed, wanted, strict=True)
    )
    degrees = len(frequent)
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)


def exact_dropout(
    symbols: tuple[str, ...], rate: float
) -> dict[tuple[str, ...], float]:
    """Return the probabilities of segmentations, from all sets of dropped merges."""
    places = [
        (MERGES.index(pair), place)
        for place, pair in enumerate(pairwise(symbols))
        if pair in MERGES
    ]
    found: Counter[tuple[str, ...]] = Counter()
    for drops in product((False, True), repeat=len(places)):
        chance = math.prod(rate if drop else 1 - rate for drop in drops)
        kept = [each for each, drop in zip(places, drops, strict=True) if not drop]
        if not kept:
            found[symbols] += chance
            continue
        _, at = min(kept)
        joined = (*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :])
        for end, probability in exact_dropout(joined, rate).items():
            found[end] += chance * probability
    return dict(found)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
def test_segmentations_with_dropout_have_the_probabilities_of_the_algorithm(rate):
    tokenizer = by_hand()
    rows = sampled(BytePairSampler(tokenizer, rate), [tokenizer.encode("abab")] * 6000)
    counts = Counter(tuple(tokenizer.pieces(row)) for row in rows)
    assert_follows(counts, exact_dropout(tuple(" abab"), rate))


def test_words_of_one_sentence_are_sampled_independently():
    tokenizer = by_hand()
    text = " ".join(["ab"] * 2)
    rows = sampled(BytePairSampler(tokenizer, 0.5), [tokenizer.encode(text)] * 4000)
    counts = Counter(tuple(tokenizer.pieces(row)) for row in rows)
    one = exact_dropout((" ", "a", "b"), 0.5)
    assert_follows(
        counts,
        {(*a, *b): p * q for (a, p), (b, q) in product(one.items(), one.items())},
    )


def test_parts_of_a_word_are_sampled_independently():
    tokenizer = by_hand()
    rows = sampled(
        BytePairSampler(tokenizer, 0.3), [tokenizer.encode("ab.abab")] * 6000
    )
    counts = Counter(tuple(tokenizer.pieces(row)) for row in rows)
    parts = [exact_dropout(tuple(part), 0.3) for part in (" ab", "abab")]
    assert_follows(
        counts,
        {
            (*a, ".", *b): p * q
            for (a, p), (b, q) in product(*(part.items() for part in parts))
        },
    )


@pytest.mark.parametrize("rate", [0.0, 1e-12])
def test_words_without_a_dropped_merge_have_their_usual_pieces(rate):
    usual = learned().encode_sources(TEXTS)
    assert sampled(BytePairSampler(learned(), rate), usual) == usual


def test_words_without_any_merge_are_characters_and_bytes():
    usual = learned().encode_sources(TEXTS)
    rows = sampled(BytePairSampler(learned(), 1.0), usual)
    assert {len(piece) for row in rows for piece in learned().pieces(row)} <= {1, 6}
    assert [learned().decode(row) for row in rows] == [*map(learned().decode, usual)]


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_sampled_pieces_spell_the_same_text(rate):
    usual = learned().encode_sources(TEXTS * 50)
    rows = sampled(BytePairSampler(learned(), rate), usual)
    assert rows != usual
    assert [learned().decode(row) for row in rows] == [*map(learned().decode, usual)]


def test_no_piece_crosses_the_border_of_a_word():
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, " ", "a", " a", "aa", "aaaa"]
    merges = [("a", "a"), (" ", "a"), ("aa", "aa")]
    tokenizer = byte_pair_tokenizer(pieces, merges)
    usual = tokenizer.encode("a" * 100)  # longer than a run
    assert sampled(BytePairSampler(tokenizer, 1e-12), [usual]) == [usual]
    for row in sampled(BytePairSampler(tokenizer, 0.3), [usual] * 50):
        assert 65 in np.cumsum([*map(len, tokenizer.pieces(row))])


def test_samples_do_not_depend_on_what_was_sampled_before():
    usual = learned().encode_sources(TEXTS * 20)
    fresh, used = (BytePairSampler(learned(), 0.3) for _ in range(2))
    sampled(used, usual, seed=7)
    assert sampled(used, usual) == sampled(fresh, usual)


def test_a_full_cache_is_emptied_without_an_effect(monkeypatch):
    usual = learned().encode_sources(TEXTS * 20)
    expected = sampled(BytePairSampler(learned(), 0.3), usual)
    monkeypatch.setattr("transduce.text.subword_sampling.MAX_CACHED", 3)
    sampler = BytePairSampler(learned(), 0.3)
    assert sampled(sampler, usual) == expected
    assert len(sampler._histories) <= 3  # noqa: SLF001 - memory shows in no result


@pytest.mark.parametrize("tag", [">>de<<", "<bt>", "<bt>ab"])
def test_dropout_does_not_cut_tags(tag):
    tokenizer = learned()
    usual = tokenizer.encode(f"{tag} the dog")
    length = len(tokenizer.encode(tag))
    rows = sampled(BytePairSampler(tokenizer, 0.9), [usual] * 20)
    assert all(row[:length] == usual[:length] for row in rows)
    assert all(row[length:] != usual[length:] for row in rows)


def test_a_very_long_word_keeps_its_usual_pieces():
    usual = learned().encode("测" * (MAX_SYMBOLS + 1) + " the dog")
    [row] = sampled(BytePairSampler(learned(), 1.0), [usual])
    assert row[: -len(" the dog")] == usual[: -len(learned().encode("the dog"))]


@pytest.mark.parametrize("kind", ["word-piece", "character"])
def test_only_byte_pair_encoding_has_merges_to_drop(kind):
    config = TokenizerConfig(kind=kind, vocab_size=400)
    assert not can_drop_merges(learn_tokenizer(iter(["the dog runs"]), config))
    assert can_drop_merges(learned())


@functools.cache
def proto(**changes: Any) -> bytes:
    pairs = islice(Grammar.built_in().training_sentences(seed=5), 300)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([pair.source for pair in pairs]),
        model_writer=model, vocab_size=400, hard_vocab_limit=False, minloglevel=2,
        **changes,
    )  # fmt: skip
    return model.getvalue()


def imported(**changes: Any) -> SentencePieceTokenizer:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = ModelProto()
    model.ParseFromString(proto(**changes))
    unigrams = UnigramModel(
        pieces=tuple((each.piece, each.score) for each in model.pieces[3:]),
        character_map=model.normalizer_spec.precompiled_charsmap,
        adds_space=True,
        removes_spaces=True,
    )
    pieces = [piece for piece, _ in unigrams.pieces]
    return SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", ">>deu<<", *pieces),
        source=unigrams,
        target=unigrams,
    )


def exact_unigram(
    text: str, tokenizer: SentencePieceTokenizer, alpha: float
) -> dict[tuple[str, ...], float]:
    """Return the probabilities of all segmentations of a text, spelt as pieces."""
    scores = dict(tokenizer.source.pieces)

    def segmentations(rest: str) -> list[tuple[tuple[str, ...], float]]:
        if not rest:
            return [((), 0.0)]
        return [
            ((rest[:end], *others), scores[rest[:end]] + score)
            for end in range(1, len(rest) + 1)
            if rest[:end] in scores
            for others, score in segmentations(rest[end:])
        ]

    weights = {pieces: math.exp(alpha * s) for pieces, s in segmentations(text)}
    total = sum(weights.values())
    return {pieces: weight / total for pieces, weight in weights.items()}


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_unigram_samples_have_the_probabilities_of_the_library(alpha):
    tokenizer = imported()
    expected = exact_unigram("\u2581thieves", tokenizer, alpha)
    usual = tokenizer.encode("thieves")
    sampler = UnigramSampler(tokenizer, tokenizer.source, alpha)
    rows = sampled(sampler, [usual] * 4000)
    assert_follows(
        Counter(tuple(tokenizer.vocabulary[i] for i in row) for row in rows), expected
    )
    sentencepiece.set_random_generator_seed(1)
    library = sentencepiece.SentencePieceProcessor(model_proto=proto())
    found = Counter(
        tuple(
            library.encode(
                "thieves",
                out_type=str,
                enable_sampling=True,
                alpha=alpha,
                nbest_size=-1,
            )
        )
        for _ in range(4000)
    )
    assert_follows(found, expected)


def test_pieces_across_words_are_sampled():
    tokenizer = imported(split_by_whitespace=False)
    text = "\u2581turned\u2581o"
    assert text in tokenizer.vocabulary
    sampler = UnigramSampler(tokenizer, tokenizer.source, 0.3)
    rows = sampled(sampler, [[*map(tokenizer.vocabulary.index, text)]] * 4000)
    assert_follows(
        Counter(tuple(tokenizer.vocabulary[i] for i in row) for row in rows),
        exact_unigram(text, tokenizer, 0.3),
    )


@pytest.mark.parametrize("changes", [{}, {"split_by_whitespace": False}])
def test_unigram_samples_spell_the_same_text(changes):
    tokenizer = imported(**changes)
    text = "The teacher wants an empty chair though the boy was nervous."
    usual = tokenizer.encode(text)
    sampler = UnigramSampler(tokenizer, tokenizer.source, 0.2)
    rows = sampled(sampler, [usual] * 100)
    assert {tokenizer.decode(row) for row in rows} == {text}
    assert len({*map(tuple, rows)}) > 50


def test_unknown_pieces_and_tags_are_not_sampled():
    tokenizer = imported()
    usual = tokenizer.encode(">>deu<<the 龘thieves")
    unknown = tokenizer.vocabulary.index("<unk>")
    assert unknown in usual
    sampler = UnigramSampler(tokenizer, tokenizer.source, 0.0)
    rows = sampled(sampler, [usual] * 20)
    assert {row[0] for row in rows} == {usual[0]}
    assert all(row.count(unknown) == usual.count(unknown) for row in rows)
    assert {tokenizer.decode(row) for row in rows} == {tokenizer.decode(usual)}
    assert len({tuple(row[row.index(unknown) :]) for row in rows}) > 5


def test_added_tokens_that_are_pieces_are_not_sampled():
    plain = imported()
    pieces = [piece for piece, _ in plain.source.pieces if "\u2581" not in piece]
    added = max(pieces, key=len)
    tokenizer = replace(plain, added=(added,))
    usual = tokenizer.encode(f"the {added}")
    assert usual[-1] == tokenizer.vocabulary.index(added)
    sampler = UnigramSampler(tokenizer, tokenizer.source, 0.0)
    assert {row[-1] for row in sampled(sampler, [usual] * 20)} == {usual[-1]}


@pytest.mark.parametrize("make", [by_hand, imported])
def test_empty_sentences_stay_empty(make):
    tokenizer: Tokenizer = make()
    sampler = (
        BytePairSampler(tokenizer, 0.5)
        if isinstance(tokenizer, SubwordTokenizer)
        else UnigramSampler(tokenizer, tokenizer.source, 0.5)
    )
    assert sampled(sampler, []) == []
    assert sampled(sampler, [[], []]) == [[], []]
    [empty, row, end] = sampled(sampler, [[], tokenizer.encode("ab"), []])
    assert (empty, end) == ([], [])
    assert all(i > EOS for i in row)
