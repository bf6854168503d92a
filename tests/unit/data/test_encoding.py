"""Pairs are encoded in order, a few chunks ahead."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from transduce.data import prepared_corpus
from transduce.data.dataset import EncodedPair
from transduce.data.prepared_corpus import PairEncoder, encode_pairs, filter_reason
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import Tokenizer
from transduce.trees.linearization import SymbolVocabulary

CHUNK = 3


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_corpus, "CHUNK_PAIRS", CHUNK)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 8, 9, 10, 40])
def test_encoded_pairs_keep_their_order(tokenizer: Tokenizer, count: int) -> None:
    pairs = [
        SentencePair(source="one " * i, target="eins " * (count - i))
        for i in range(count)
    ]
    assert list(encode_pairs(pairs, PairEncoder(tokenizer=tokenizer))) == [
        EncodedPair(
            source=tokenizer.encode(pair.source), target=tokenizer.encode(pair.target)
        )
        for pair in pairs
    ]


@pytest.mark.usefixtures("_small_chunks")
def test_the_input_is_read_only_a_few_chunks_ahead(tokenizer: Tokenizer) -> None:
    read = []

    def pairs() -> Iterator[SentencePair]:
        for number in range(1_000):
            read.append(number)
            yield SentencePair(source="one", target="eins")

    encoded = encode_pairs(pairs(), PairEncoder(tokenizer=tokenizer))
    next(encoded)
    assert len(read) == CHUNK * (prepared_corpus.CHUNKS_AHEAD + 1)
    encoded.close()


@pytest.mark.parametrize(
    ("length", "reason"),
    [(0, "empty"), (1, "kept"), (11, "kept"), (12, "overlong")],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_end_token_counts_towards_the_maximum_length(
    side: str, length: int, reason: str
) -> None:
    pair = replace(EncodedPair(source=[5], target=[5]), **{side: [5] * length})
    assert filter_reason(pair, max_length=12) == reason


def test_only_the_target_is_encoded_as_symbols(tokenizer: Tokenizer) -> None:
    symbols = SymbolVocabulary("xx", ("(S", ")S", "XX"))
    encoder = PairEncoder(tokenizer=tokenizer, symbols=symbols)
    pair = SentencePair(source="one two", target="(S XX XX )S")
    assert encoder.encode([pair]) == [
        EncodedPair(source=tokenizer.encode("one two"), target=[4, 6, 6, 5])
    ]
