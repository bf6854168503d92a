"""Systems that `benchmark decoding` compares: each translates one setting per turn.

All systems get text, and tokenize it the same way.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from transduce.benchmark.measurement import Turns
from transduce.data.tensors import pad_rows
from transduce.decoding.native_model import DecodingPrecision
from transduce.decoding.translations import MAX_SOURCE_TOKENS
from transduce.decoding.translator import load
from transduce.errors import ConfigError
from transduce.interop.portable_tokenizer import portable_pieces
from transduce.search_config import MAX_BEAM_SIZE, MAX_TOKENS, SearchConfig
from transduce.settings import require_between
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

SENTENCES_OF_ONE = 12
"""Sentences per turn with a batch size of 1."""
SENTENCES_OF_SEVERAL = 256
"""Approximate sentences per turn with larger batches, rounded to whole batches."""
MOST_SENTENCES = 100_000
"""Largest batch in sentences, as the text is held in memory."""
MOST_BATCHES = 8
"""Most batches per turn."""
WARM_UP_SENTENCES = 32
"""Most sentences translated at the start of a turn without being measured, as the
caches hold another system's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Batch size and search settings of one measurement."""

    batch_size: int
    """Sentences per batch."""
    beam_size: int
    forced_length: int | None = None
    """Length that every translation is forced to, with the end token; None for the
    model's own lengths."""

    def __post_init__(self) -> None:
        require_between("batch_size", self.batch_size, 1, MOST_SENTENCES)
        require_between("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        require_between("length", self.forced_length, 2, MAX_TOKENS)

    @property
    def num_sentences(self) -> int:
        """Sentences per turn."""
        if self.batch_size == 1:
            return SENTENCES_OF_ONE
        batches = SENTENCES_OF_SEVERAL // self.batch_size
        return min(max(batches, 1), MOST_BATCHES) * self.batch_size

    def __str__(self) -> str:
        length = f", {self.forced_length} tokens" if self.forced_length else ""
        return f"batch {self.batch_size}, beam {self.beam_size}{length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingTask:
    """Sentences and settings that every system translates."""

    models: Path
    """Folder with the model of each library: `ours`, `ctranslate2`, `marian`."""
    sentences: tuple[str, ...]
    settings: tuple[Setting, ...]
    rounds: int
    """Rounds over all settings; the first is a warm-up."""
    device: torch.device

    def jobs(self) -> Iterator[Setting]:
        """Setting of each turn."""
        for _ in range(self.rounds):
            yield from self.settings

    def batches(self, setting: Setting) -> list[list[str]]:
        """Batches of a turn; the sentences are repeated if there are too few."""
        tokenizer = load_tokenizer(self.models / "ours" / TOKENIZER_FILE)
        chosen = fitting(self.sentences, setting, tokenizer)
        texts = [chosen[i % len(chosen)] for i in range(setting.num_sentences)]
        starts = range(0, len(texts), setting.batch_size)
        return [texts[start : start + setting.batch_size] for start in starts]


def warm_up(batches: Sequence[list[str]]) -> list[list[str]]:
    """Batches to translate before the measurement."""
    count = max(WARM_UP_SENTENCES // len(batches[0]), 1)
    return [texts[:WARM_UP_SENTENCES] for texts in batches[:count]]


def fitting(
    sentences: Sequence[str], setting: Setting, tokenizer: Tokenizer
) -> list[str]:
    """Sentences that no system truncates or translates in parts.

    With a forced length, only shorter ones, as our translations may be as long as the
    source. Raises `ConfigError` if there are none.
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
            f"At least one sentence must have at most {longest} tokens, but none has."
        )
    return chosen


LENGTH_PENALTY = 0.6
EXTRA_LENGTH = 50
"""Most tokens of a translation beyond the length of its source."""

Translate = Callable[[list[str], Setting], list[list[int]]]
"""Translates texts to token ids without special tokens."""
Prepare = Callable[[DecodingTask], Translate]
"""Loads a system's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOutcome:
    """Translations and times of one turn."""

    num_tokens: int
    """Tokens of the translations, with end tokens."""
    batch_seconds: tuple[float, ...]
    translations: tuple[tuple[int, ...], ...]
    load_seconds: float
    """Time to load the model, the same in every turn."""


def work_of(
    prepare: Prepare, library: str, task: DecodingTask
) -> Callable[[Turns[DecodingOutcome]], None]:
    """Work of a system's process; `library` is imported before the model is loaded."""
    return partial(_take_turns, prepare, library, task)


def _take_turns(
    prepare: Prepare,
    library: str,
    task: DecodingTask,
    turns: Turns[DecodingOutcome],
) -> None:
    import_module(library)  # not counted in the loading time
    started = time.perf_counter()
    translate = prepare(task)
    load_seconds = time.perf_counter() - started
    batches = {setting: task.batches(setting) for setting in task.settings}
    turns.begin()
    for setting in task.jobs():
        for texts in warm_up(batches[setting]):
            translate(texts, setting)
        seconds, found = [], []
        for texts in batches[setting]:
            started = time.perf_counter()
            found += translate(texts, setting)
            seconds.append(time.perf_counter() - started)
        forced = setting.forced_length
        turns.done(
            DecodingOutcome(
                num_tokens=sum(forced or len(ids) + 1 for ids in found),
                batch_seconds=tuple(seconds),
                translations=tuple(map(tuple, found)),
                load_seconds=load_seconds,
            )
        )


def ours(precision: DecodingPrecision, task: DecodingTask) -> Translate:
    """Translate as `transduce translate` does."""
    translator = load(
        task.models / "ours",
        device=task.device.type,
        precision=precision,
        num_processes=None,
    )
    translator.get_ready()
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        forced = setting.forced_length
        search = SearchConfig(
            beam_size=setting.beam_size,
            # As in the peers.
            patience=1,
            penalty="power",
            length_penalty=LENGTH_PENALTY,
            min_length=forced - 1 if forced else 0,
            extra_length=0 if forced else EXTRA_LENGTH,
        )
        found = translator.translate_stream(texts, search)
        return [[ids[piece] for piece in each.hypotheses[0].tokens] for each in found]

    return translate


def ctranslate2(compute_type: str, num_workers: int, task: DecodingTask) -> Translate:
    """`ctranslate2.Translator` on all cores, with our search settings.

    Its workers share the cores. Each gets a part of every batch with short and long
    sentences, as CTranslate2 does not split a batch by itself.
    """
    import ctranslate2 as library

    translator = library.Translator(
        str(task.models / "ctranslate2"),
        device=task.device.type,
        compute_type=compute_type,
        inter_threads=num_workers,
        intra_threads=max(torch.get_num_threads() // num_workers, 1),
    )
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)
    pieces = portable_pieces(tokenizer)
    ids = {piece: i for i, piece in enumerate(pieces)}
    never = [[SPECIAL_PIECES[PAD]], [SPECIAL_PIECES[BOS]]]

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        sources = tokenizer.encode_sources(texts)
        forced = setting.forced_length
        texts_of_pieces = [[pieces[i] for i in source] for source in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        shares = [order[i::num_workers] for i in range(num_workers)]
        running = [
            translator.translate_batch(
                [texts_of_pieces[i] for i in share],
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                min_decoding_length=forced or 0,
                max_decoding_length=forced or max(map(len, sources)) + 1 + EXTRA_LENGTH,
                suppress_sequences=never,
            )
            for share in shares
        ]
        found: list[list[int]] = [[] for _ in sources]
        for share, results in zip(shares, running, strict=True):
            for i, result in zip(share, results, strict=True):
                found[i] = [ids[piece] for piece in result.result().hypotheses[0]]
        return found

    return translate


def marian(dtype: torch.dtype, task: DecodingTask) -> Translate:
    """`MarianMTModel.generate` of Hugging Face."""
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model: Any = MarianMTModel.from_pretrained(task.models / "marian", dtype=dtype)
    model.to(task.device).eval()
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        source = pad_rows([[*ids, EOS] for ids in tokenizer.encode_sources(texts)])
        source = source.to(task.device)
        forced = setting.forced_length
        with torch.inference_mode():
            found = model.generate(
                source,
                attention_mask=(source != PAD).long(),
                num_beams=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                early_stopping=True,
                max_length=None,
                min_new_tokens=forced or 0,
                max_new_tokens=forced or source.size(1) + EXTRA_LENGTH,
            )
        return [[i for i in row if i > EOS] for row in found.tolist()]

    return translate
