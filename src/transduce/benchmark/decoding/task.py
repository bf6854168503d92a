"""What is translated, and how, in a comparison of decoding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer

SENTENCES_OF_ONE = 12
"""Translated one at a time in a turn."""
BATCHES = 2
"""Of several sentences each, in a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to translate."""

    batch_size: int
    """Sentences given at once."""
    beam_size: int
    forced_length: int | None = None
    """Tokens of each translation, its end counted; by nature if not given."""

    @property
    def num_sentences(self) -> int:
        """Translated in one turn."""
        return SENTENCES_OF_ONE if self.batch_size == 1 else BATCHES * self.batch_size

    def __str__(self) -> str:
        length = f", {self.forced_length} tokens" if self.forced_length else ""
        return f"batch {self.batch_size}, beam {self.beam_size}{length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingTask:
    """What every contestant is to do, a setting at each turn."""

    models: Path
    """Holds the model as each library has it: `ours`, `ctranslate2`, `marian`."""
    sentences: tuple[str, ...]
    settings: tuple[Setting, ...]
    rounds: int
    """The first is to warm up."""
    device: torch.device

    def jobs(self) -> Iterator[Setting]:
        """One a turn."""
        for _ in range(self.rounds):
            yield from self.settings

    def batches(self, setting: Setting) -> Iterator[list[str]]:
        """The sentences of a turn."""
        chosen = self._fit(setting)
        # Again from the first if there are too few.
        texts = [chosen[i % len(chosen)] for i in range(setting.num_sentences)]
        for start in range(0, len(texts), setting.batch_size):
            yield texts[start : start + setting.batch_size]

    def _fit(self, setting: Setting) -> Sequence[str]:
        """If a length is forced, shorter ones: ours may be as long as its source."""
        if setting.forced_length is None:
            return self.sentences
        tokenizer = Tokenizer.load(self.models / "ours" / TOKENIZER_FILE)
        ids = tokenizer.encode_batch(self.sentences)
        return [
            text
            for text, source in zip(self.sentences, ids, strict=True)
            if len(source) < setting.forced_length
        ]
