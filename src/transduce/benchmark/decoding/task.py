"""What is translated, and how, in a comparison of decoding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from transduce.decoding.translation.parts import MAX_SOURCE_TOKENS
from transduce.errors import ConfigError
from transduce.search_config import MAX_BEAM_SIZE, MAX_TOKENS
from transduce.settings import require_between
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

SENTENCES_OF_ONE = 12
"""Translated one at a time in a turn."""
SENTENCES_OF_SEVERAL = 256
"""Translated in a turn, several at a time, or as many as fill a batch or some."""
MOST_SENTENCES = 100_000
"""Greatest number of sentences in a batch, since a task has its text in memory."""
MOST_BATCHES = 8
"""In a turn."""
WARM_UP_SENTENCES = 32
"""At most, translated in a turn before what is measured: others ran before, and what is
in the caches is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to translate."""

    batch_size: int
    """Sentences given at once."""
    beam_size: int
    forced_length: int | None = None
    """Tokens of each translation, its end counted; by nature if not given."""

    def __post_init__(self) -> None:
        require_between("batch_size", self.batch_size, 1, MOST_SENTENCES)
        require_between("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        require_between("length", self.forced_length, 2, MAX_TOKENS)

    @property
    def num_sentences(self) -> int:
        """Translated in one turn."""
        if self.batch_size == 1:
            return SENTENCES_OF_ONE
        batches = SENTENCES_OF_SEVERAL // self.batch_size
        return min(max(batches, 1), MOST_BATCHES) * self.batch_size

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

    def batches(self, setting: Setting) -> list[list[str]]:
        """The sentences of a turn, again from the first if there are too few."""
        tokenizer = load_tokenizer(self.models / "ours" / TOKENIZER_FILE)
        chosen = fitting(self.sentences, setting, tokenizer)
        texts = [chosen[i % len(chosen)] for i in range(setting.num_sentences)]
        starts = range(0, len(texts), setting.batch_size)
        return [texts[start : start + setting.batch_size] for start in starts]


def warm_up(batches: Sequence[list[str]]) -> list[list[str]]:
    """The first of a turn's batches, or a part of the first."""
    count = max(WARM_UP_SENTENCES // len(batches[0]), 1)
    return [texts[:WARM_UP_SENTENCES] for texts in batches[:count]]


def fitting(
    sentences: Sequence[str], setting: Setting, tokenizer: Tokenizer
) -> list[str]:
    """The sentences that no model cuts or translates in parts.

    If a length is forced, shorter ones: ours may be as long as its source.
    `ConfigError` if there are none.
    """
    longest = (setting.forced_length or MAX_SOURCE_TOKENS) - 1
    ids = tokenizer.encode_sources(sentences)
    chosen = [
        text
        for text, source in zip(sentences, ids, strict=True)
        if 0 < len(source) <= longest
    ]
    if not chosen:
        raise ConfigError(
            f"The sentences must have one of at most {longest} tokens, but have none."
        )
    return chosen
