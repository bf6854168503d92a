"""Text in, text out, or trees."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice, repeat, zip_longest
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.checkpoint import Checkpoint, load_model
from transduce.data.batches import pad_rows
from transduce.decoding.beam_search import BeamSearch
from transduce.decoding.greedy_search import GreedySearch
from transduce.decoding.next_token_models.coverage import CoverageDecoder
from transduce.decoding.next_token_models.ensemble import Ensemble
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.quantization import (
    Precision,
    PreparedModel,
    prepared,
)
from transduce.decoding.parsing.parser import Parse, Parser
from transduce.decoding.sampling import Sampling, SamplingConfig
from transduce.decoding.scoring import TargetScore, score_targets, similar_lengths
from transduce.decoding.search import (
    BATCH_POSITIONS,
    WINDOW_LINES,
    Decoding,
    Hypothesis,
    JoinableModel,
    require_numbers,
    search_all,
)
from transduce.decoding.search_config import SearchConfig
from transduce.device import choose_hardware
from transduce.errors import RequestError
from transduce.special_ids import BOS, EOS, PAD
from transduce.text.splitting import split_long
from transduce.text.tokenizer import Tokenizer

MAX_SOURCE_TOKENS = 250
"""A longer source is translated in parts: few models were trained on such."""
EXCLUDED = (PAD, BOS)
"""Ids that are never put out."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The best translation, and those it was chosen from."""

    text: str
    score: float
    hypotheses: tuple[TranslationHypothesis, ...]
    """Best first; none for an empty source, whose translation is empty."""
    num_parts: int = 1
    """In how many the source was translated, more than one if it was over-long; the
    scores of the parts are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A source, or a part of one that is over-long, as the model reads it."""

    line: int
    number: int
    """Among the parts of its line."""
    source: list[int]
    prefix: list[int]

    def max_length(self, extra_length: int) -> int:
        """Tokens of its translation at most; the end token counts on both sides."""
        return max(len(self.source), len(self.prefix)) + 1 + extra_length


Start = Callable[[Sequence[_Part]], Decoding]
"""Reads sources, and begins to look for their translations."""


class Translator:
    """A model, or several that decide together, to translate raw text."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        *others: Checkpoint,
        precision: Precision = "fp32",
    ) -> None:
        """`RequestError` if the others have not the tokenizer of the first.

        Or if the device cannot compute in the precision.
        """
        if any(other.tokenizer != checkpoint.tokenizer for other in others):
            raise RequestError(
                "Models that translate together must have one tokenizer, but have "
                "different ones; train them on the same text with the same settings."
            )
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.models: list[PreparedModel] = [
            prepared(each.build(), precision, device) for each in (checkpoint, *others)
        ]
        self.device = device
        self.symbols = checkpoint.symbols

    def parse(self, texts: Sequence[str], *, constrained: bool = False) -> list[Parse]:
        """The trees of raw English sentences, as `Parser.parse` finds them."""
        return self.parser().parse(texts, constrained=constrained)

    def parser(self) -> Parser:
        """What parses with the first model; `RequestError` if it translates."""
        if self.symbols is None:
            raise RequestError(
                "A model that parses must be trained on trees (train --trees), but "
                "this one translates; use `transduce translate`."
            )
        return Parser(self.models[0], self.tokenizer, self.symbols, self.device)

    def translate(
        self,
        sources: Sequence[str],
        *,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        min_length: int = 0,
        extra_length: int = 50,
        prefixes: Sequence[str] | None = None,
    ) -> list[Translation]:
        """Translate sentences; one for each, in their order (section 6.1).

        The settings are those of `SearchConfig`, and `translate_stream` takes all of
        them. If there are prefixes, each translation begins with the tokens of its own,
        unless its source is empty. Of an over-long source each part has `min_length`,
        the first has the prefix, and only the best translation is known.
        """
        config = SearchConfig(
            beam_size=beam_size,
            length_penalty=length_penalty,
            min_length=min_length,
            extra_length=extra_length,
        )
        return list(self.translate_stream(sources, config, prefixes))

    def translate_stream(
        self,
        sources: Iterable[str],
        config: SearchConfig,
        prefixes: Iterable[str] | None = None,
    ) -> Iterator[Translation]:
        """Translate without end, in order, a window of lines at a time.

        `RequestError` if there are prefixes, but not one for each source.
        """
        self.require_translation()
        if config.coverage_penalty > 0 and len(self.models) > 1:
            raise RequestError(
                "A coverage penalty must be used with one model, whose attention it "
                f"counts, but {len(self.models)} are loaded."
            )
        start = partial(self._search, config=config)
        return self._in_windows(sources, prefixes, start, config.beam_size)

    def sample(
        self, sources: Iterable[str], config: SamplingConfig
    ) -> Iterator[Translation]:
        """Translations drawn at random: each source's by its place and the seed."""
        self.require_translation()
        start = partial(self._sample, config=config)
        return self._in_windows(sources, None, start, config.num_samples)

    def score(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> list[TargetScore]:
        """How likely the model holds given translations.

        `RequestError` if they are not as many as the sources, or several models are
        to decide.
        """
        self.require_translation()
        if len(self.models) > 1:
            raise RequestError(
                f"Translations must be scored by one model, but {len(self.models)} "
                "are loaded."
            )
        if len(sources) != len(targets):
            raise RequestError(
                "Sources and targets must be equally many, but are "
                f"{len(sources)} and {len(targets)}."
            )
        source_ids = self.tokenizer.encode_sources(sources)
        target_ids = self.tokenizer.encode_targets(targets)
        scores: dict[int, TargetScore] = {}
        lengths = [
            max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)
        ]
        for batch in similar_lengths(lengths, BATCH_POSITIONS):
            found = score_targets(
                self.models[0].model,
                self._padded([source_ids[i] for i in batch]),
                [target_ids[i] for i in batch],
            )
            scores.update(zip(batch, found, strict=True))
        return [scores[i] for i in range(len(sources))]

    def require_translation(self) -> None:
        """`RequestError` if the first model parses."""
        if self.symbols is not None:
            raise RequestError(
                "A model that translates must be trained on text, but this one parses; "
                "use `transduce parse`."
            )

    def _in_windows(
        self,
        sources: Iterable[str],
        prefixes: Iterable[str] | None,
        start: Start,
        group_size: int,
    ) -> Iterator[Translation]:
        pairs = zip(count(), _paired(sources, prefixes))
        while window := list(islice(pairs, WINDOW_LINES)):
            source_ids = self.tokenizer.encode_sources([s for _, (s, _) in window])
            prefix_ids = self.tokenizer.encode_targets([p for _, (_, p) in window])
            lines = [
                self._parts(number, text, source, prefix)
                for (number, (text, _)), source, prefix in zip(
                    window, source_ids, prefix_ids, strict=True
                )
            ]
            parts = list(chain.from_iterable(lines))
            found = iter(self._translate_parts(parts, start, group_size))
            for line in lines:
                yield _joined(list(islice(found, len(line))))

    def _parts(
        self, line: int, text: str, source: list[int], prefix: list[int]
    ) -> list[_Part]:
        """One, unless the source is too long for the model."""
        sources = [source]
        if len(source) > MAX_SOURCE_TOKENS:
            code = self.tokenizer.language(text)
            rest = text.removeprefix(code)
            texts = split_long(rest, MAX_SOURCE_TOKENS, self._count_tokens)
            sources = self.tokenizer.encode_sources([code + part for part in texts])
        return [
            _Part(line=line, number=i, source=ids, prefix=[] if i else prefix)
            for i, ids in enumerate(sources)
        ]

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        return list(map(len, self.tokenizer.encode_sources(texts)))

    @torch.inference_mode()
    def _translate_parts(
        self, parts: list[_Part], start: Start, group_size: int
    ) -> list[Translation]:
        empty = Translation(text="", score=0.0, hypotheses=())
        translations = [empty] * len(parts)
        filled = [i for i, part in enumerate(parts) if part.source]
        lengths = [len(parts[i].source) + 1 for i in filled]
        found = search_all(
            lengths,
            BATCH_POSITIONS // group_size,
            lambda numbers: start([parts[filled[i]] for i in numbers]),
        )
        for i, hypotheses in zip(filled, found, strict=True):
            translations[i] = self._translation(hypotheses)
        return translations

    def _search(self, parts: Sequence[_Part], config: SearchConfig) -> Decoding:
        least = config.min_length + 1
        limits = [max(part.max_length(config.extra_length), least) for part in parts]
        prefixes = [part.prefix for part in parts]
        if config.beam_size == 1:
            greedy = GreedySearch(limits, config, EOS, EXCLUDED, prefixes)
            return Decoding(self._read(parts), greedy, BOS)
        if config.coverage_penalty > 0:
            only = self.models[0]
            memory = only.model.encode(self._source(parts))
            watched = CoverageDecoder(only.model, memory, only.step)
            beams = BeamSearch(
                limits, config, EOS, EXCLUDED, prefixes, watched.coverage
            )
            return Decoding(watched, beams, BOS)
        beams = BeamSearch(limits, config, EOS, EXCLUDED, prefixes)
        return Decoding(self._read(parts), beams, BOS)

    def _sample(self, parts: Sequence[_Part], config: SamplingConfig) -> Decoding:
        limits = [part.max_length(config.extra_length) for part in parts]
        names = [(part.line, part.number) for part in parts]
        search = Sampling(limits, names, config, EOS, EXCLUDED)
        return Decoding(self._read(parts), search, BOS)

    def _read(self, parts: Sequence[_Part]) -> JoinableModel:
        """What has read the sources, and is asked for the next tokens."""
        source = self._source(parts)
        members = [
            IncrementalDecoder(each.model, each.model.encode(source), each.step)
            for each in self.models
        ]
        return members[0] if len(members) == 1 else Ensemble(members)

    def _source(self, parts: Sequence[_Part]) -> Int[Tensor, "batch source"]:
        return self._padded([part.source for part in parts])

    def _padded(self, source_ids: list[list[int]]) -> Int[Tensor, "batch source"]:
        return pad_rows([[*ids, EOS] for ids in source_ids]).to(self.device)

    def _translation(self, hypotheses: list[Hypothesis]) -> Translation:
        require_numbers(hypotheses)
        decoded = tuple(
            TranslationHypothesis(
                text=self.tokenizer.decode(hypothesis.ids),
                score=hypothesis.score,
                log_probability=hypothesis.log_probability,
                tokens=tuple(self.tokenizer.pieces(hypothesis.ids)),
                token_log_probabilities=hypothesis.token_log_probabilities,
            )
            for hypothesis in hypotheses
        )
        return Translation(
            text=decoded[0].text, score=decoded[0].score, hypotheses=decoded
        )


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Translator:
    """A translator from a model or run folder, or from several that decide together.

    In precision "bf16" or "int8" it is faster, where the processor is made for it, and
    no longer exact. `CheckpointError` if a model is damaged, `RequestError` if the
    device is not there or cannot compute so, or the models have not one tokenizer.
    """
    first, *rest = (load_model(Path(each)) for each in (path, *others))
    on = choose_hardware(device).device
    return Translator(first, on, *rest, precision=precision)


def _paired(
    sources: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Each source and its prefix; `RequestError` where one of them is missing."""
    if prefixes is None:
        yield from zip(sources, repeat(""))
        return
    for number, (source, prefix) in enumerate(zip_longest(sources, prefixes), start=1):
        if source is None or prefix is None:
            raise RequestError(
                "Sources and prefixes must be equally many, but the "
                f"{'sources' if source is None else 'prefixes'} end before number "
                f"{number:,}."
            )
        yield source, prefix


def _joined(parts: list[Translation]) -> Translation:
    """The parts of a line as one translation, of which only the best is known."""
    if len(parts) == 1:
        return parts[0]
    best = [part.hypotheses[0] for part in parts if part.hypotheses]
    whole = TranslationHypothesis(
        text=" ".join(hypothesis.text for hypothesis in best if hypothesis.text),
        score=sum(hypothesis.score for hypothesis in best),
        log_probability=sum(hypothesis.log_probability for hypothesis in best),
        tokens=tuple(chain.from_iterable(h.tokens for h in best)),
        token_log_probabilities=(),
    )
    return Translation(
        text=whole.text,
        score=whole.score,
        hypotheses=(whole,),
        num_parts=len(parts),
    )
