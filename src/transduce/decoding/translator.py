"""Text in, text out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.checkpoint import Checkpoint, load_model
from transduce.data.batches import pad_rows
from transduce.decoding.beam_search import Hypothesis, beam_search
from transduce.decoding.greedy_search import greedy_search
from transduce.decoding.scoring import TargetScore, score_targets
from transduce.decoding.search_config import SearchConfig
from transduce.device import choose_hardware
from transduce.errors import RequestError
from transduce.model.cache import DecodingState
from transduce.model.transformer import Transformer
from transduce.special_ids import BOS, EOS, PAD
from transduce.text.tokenizer import Tokenizer

WINDOW_LINES = 2_048
"""Lines read ahead and sorted by length, so that a batch holds similar ones."""
BATCH_POSITIONS = 4_096
"""Source positions of a batch times its beam, padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationHypothesis:
    """One of the translations that search found."""

    text: str
    score: float
    """Log-probability over the length penalty; translations are ranked by it."""
    log_probability: float
    """Natural logarithm, the end token counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The best translation, and those it was chosen from."""

    text: str
    score: float
    hypotheses: tuple[TranslationHypothesis, ...]
    """Best first; none for an empty source, whose translation is empty."""


class Translator:
    """A model that translates raw text."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.model: Transformer = checkpoint.build().to(device)
        self.device = device

    def translate(
        self,
        sources: Sequence[str],
        *,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        extra_length: int = 50,
    ) -> list[Translation]:
        """Translate sentences; one for each, in their order (section 6.1)."""
        config = SearchConfig(
            beam_size=beam_size,
            length_penalty=length_penalty,
            extra_length=extra_length,
        )
        return list(self.translate_stream(sources, config))

    def translate_stream(
        self, sources: Iterable[str], config: SearchConfig
    ) -> Iterator[Translation]:
        """Translate without end, in order, a window of lines at a time."""
        lines = iter(sources)
        while window := list(islice(lines, WINDOW_LINES)):
            yield from self._translate_window(window, config)

    def score(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> list[TargetScore]:
        """How likely the model holds given translations."""
        if len(sources) != len(targets):
            raise RequestError(
                "Sources and targets must be equally many, but are "
                f"{len(sources)} and {len(targets)}."
            )
        source_ids = self.tokenizer.encode_batch(sources)
        target_ids = self.tokenizer.encode_batch(targets)
        scores: dict[int, TargetScore] = {}
        lengths = [
            max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)
        ]
        for batch in _similar_lengths(lengths, BATCH_POSITIONS):
            found = score_targets(
                self.model,
                self._pad([source_ids[i] for i in batch]),
                [target_ids[i] for i in batch],
            )
            scores.update(zip(batch, found, strict=True))
        return [scores[i] for i in range(len(sources))]

    def _translate_window(
        self, sources: list[str], config: SearchConfig
    ) -> list[Translation]:
        ids = self.tokenizer.encode_batch(sources)
        empty = Translation(text="", score=0.0, hypotheses=())
        translations = [empty] * len(sources)
        nonempty = [i for i, sentence in enumerate(ids) if sentence]
        chosen = [ids[i] for i in nonempty]
        lengths = [len(sentence) for sentence in chosen]
        for batch in _similar_lengths(lengths, BATCH_POSITIONS // config.beam_size):
            found = self._search([chosen[i] for i in batch], config)
            for i, hypotheses in zip(batch, found, strict=True):
                translations[nonempty[i]] = self._translation(hypotheses)
        return translations

    @torch.no_grad()
    def _search(
        self, source_ids: list[list[int]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        memory = self.model.encode(self._pad(source_ids))
        steps = IncrementalDecoder(self.model, self.model.start(memory))
        # The end token counts on both sides.
        limits = [len(ids) + 1 + config.extra_length for ids in source_ids]
        if config.beam_size == 1:
            greedy = greedy_search(
                steps,
                limits,
                config,
                bos=BOS,
                eos=EOS,
                excluded=(PAD, BOS),
            )
            return [[hypothesis] for hypothesis in greedy]
        return beam_search(steps, limits, config, bos=BOS, eos=EOS, excluded=(PAD, BOS))

    def _pad(self, source_ids: list[list[int]]) -> Int[Tensor, "batch source"]:
        return pad_rows([[*ids, EOS] for ids in source_ids]).to(self.device)

    def _translation(self, hypotheses: list[Hypothesis]) -> Translation:
        decoded = tuple(
            TranslationHypothesis(
                text=self.tokenizer.decode(hypothesis.ids),
                score=hypothesis.score,
                log_probability=hypothesis.log_probability,
            )
            for hypothesis in hypotheses
        )
        return Translation(
            text=decoded[0].text, score=decoded[0].score, hypotheses=decoded
        )


class IncrementalDecoder:
    """A model and its cache as what search needs: `step` and `reorder`."""

    def __init__(self, model: Transformer, state: DecodingState) -> None:
        self._model = model
        self._state = state

    def step(
        self, last_ids: Int[Tensor, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        device = self._state.memory_mask.device
        return self._model.step(last_ids.to(device), self._state)

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        self._state.reorder(rows)


def load(path: str | Path, device: str = "auto") -> Translator:
    """A translator from a model or run folder.

    `CheckpointError` if it is damaged, `RequestError` if the device is not there.
    """
    return Translator(load_model(Path(path)), choose_hardware(device).device)


def _similar_lengths(lengths: list[int], positions: int) -> Iterator[list[int]]:
    """Indices of sentences in batches, longest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        rows = max(positions // (lengths[order[start]] + 1), 1)
        yield order[start : start + rows]
        start += rows
