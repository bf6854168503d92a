"""Sentence pairs read by a model: what it attends to, and what it makes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transduce.analysis.attention_maps import AttentionMaps, attention_maps
from transduce.data.tensors import pad_rows
from transduce.decoding.scoring_by_torch import score_targets
from transduce.decoding.translator import Translator
from transduce.model.transformer import Transformer
from transduce.special_ids import BOS, EOS

BATCH_PAIRS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPair:
    """A pair as a model reads it, without its special tokens."""

    source: list[int]
    target: list[int]

    @property
    def num_tokens(self) -> int:
        """Of the longer side."""
        return max(len(self.source), len(self.target))


def read_pairs(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[ReadPair]:
    """The ids of pairs; the targets of a model that parses are lines of symbols."""
    written = translator.symbols or translator.tokenizer
    ids = zip(
        translator.tokenizer.encode_sources(sources),
        written.encode_targets(targets),
        strict=True,
    )
    return [ReadPair(source=source, target=target) for source, target in ids]


def maps_of(model: Transformer, pairs: Sequence[ReadPair]) -> Iterator[AttentionMaps]:
    """The maps of each pair, in order."""
    device = next(model.parameters()).device
    for batch in _batches(pairs):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        target_in = pad_rows([[BOS, *pair.target] for pair in batch]).to(device)
        yield from attention_maps(model, source, target_in)


def loss(model: Transformer, pairs: Sequence[ReadPair]) -> float:
    """Nats per target token, the end counted, without label smoothing."""
    device = next(model.parameters()).device
    by_length = sorted(pairs, key=lambda pair: len(pair.source) + len(pair.target))
    total, num_tokens = 0.0, 0
    for batch in _batches(by_length):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        for score in score_targets(model, source, [pair.target for pair in batch]):
            total -= score.log_probability
            num_tokens += score.num_tokens
    return total / num_tokens


def _batches(pairs: Sequence[ReadPair]) -> Iterator[Sequence[ReadPair]]:
    for start in range(0, len(pairs), BATCH_PAIRS):
        yield pairs[start : start + BATCH_PAIRS]
