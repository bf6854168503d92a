"""Sentence pairs as ids: all cores at work, nothing held but what is in the making."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transduce.data.dataset import EncodedPair, write_dataset
from transduce.parsing.vocabulary import SymbolVocabulary
from transduce.phrases import counted
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import Tokenizer

CHUNK_PAIRS = 10_000
"""Encoded in one go."""
CHUNKS_AHEAD = 2
"""Encoded while those before them are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounts:
    """What became of the pairs of a corpus."""

    kept: int
    empty: int
    """With a side that holds nothing but white space."""
    overlong: int
    """With a side of more tokens than `batching.max_length`."""

    @property
    def total(self) -> int:
        return self.kept + self.empty + self.overlong

    def __str__(self) -> str:
        total = counted(self.total, "pair")
        return (
            f"{self.kept:,} of {total} kept ({self.empty:,} empty and "
            f"{self.overlong:,} overlong left out)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEncoder:
    """What cuts both sides of a pair: the tokenizer, or else symbols the target."""

    tokenizer: Tokenizer
    symbols: SymbolVocabulary | None = None

    def encode(self, pairs: Sequence[SentencePair]) -> list[EncodedPair]:
        sources = self.tokenizer.encode_sources([pair.source for pair in pairs])
        target = self.symbols or self.tokenizer
        targets = target.encode_targets([pair.target for pair in pairs])
        return [
            EncodedPair(source=source, target=target)
            for source, target in zip(sources, targets, strict=True)
        ]


def encode_corpus(
    pairs: Iterable[SentencePair], encoder: PairEncoder, max_length: int, folder: Path
) -> PairCounts:
    """Write the ids of the pairs that are fit to train on, and count the others."""
    fates: Counter[str] = Counter()

    def fit() -> Iterator[EncodedPair]:
        for pair in encode_pairs(pairs, encoder):
            fate = fate_of(pair, max_length)
            fates[fate] += 1
            if fate == "kept":
                yield pair

    write_dataset(fit(), folder)
    return PairCounts(
        kept=fates["kept"], empty=fates["empty"], overlong=fates["overlong"]
    )


def encode_pairs(
    pairs: Iterable[SentencePair], encoder: PairEncoder
) -> Iterator[EncodedPair]:
    """The pairs as ids, in their order, a few chunks ahead of what is asked for."""
    stream = iter(pairs)
    with ThreadPoolExecutor(CHUNKS_AHEAD) as threads:
        ahead: deque[Future[list[EncodedPair]]] = deque()
        while chunk := list(islice(stream, CHUNK_PAIRS)):
            ahead.append(threads.submit(encoder.encode, chunk))
            if len(ahead) > CHUNKS_AHEAD:
                yield from ahead.popleft().result()
        for encoded in ahead:
            yield from encoded.result()


def fate_of(pair: EncodedPair, max_length: int) -> str:
    """Whether a pair is "kept", or left out as "empty" or "overlong"."""
    if not pair.source or not pair.target:
        return "empty"
    # The end token counts.
    if max(len(pair.source), len(pair.target)) + 1 > max_length:
        return "overlong"
    return "kept"
