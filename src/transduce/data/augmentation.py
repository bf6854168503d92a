"""Augmentation of a corpus during training: each part is encoded anew, with changes.

The pairs of a part are decoded, changed and encoded again, in chunks, by processes in
the background, while the part before is trained on. A chunk depends only on its pairs,
the settings and its own seed: not on the number of processes, nor on other chunks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from queue import SimpleQueue
from random import Random
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Integer

from transduce.data.dataset import OFFSET_TYPE, Dataset, EncodedSide
from transduce.errors import ConfigError, RequestError
from transduce.machine import num_cores
from transduce.processes import WorkerLostError, WorkerProcess
from transduce.text.corpus import SentencePair
from transduce.text.languages import LanguagesConfig
from transduce.text.pair_changes import (
    CASES,
    Case,
    TextAugmentationConfig,
    in_case,
    joined,
    with_typos,
    without_end,
)
from transduce.text.sentence_pieces import (
    SentencePieceModel,
    SentencePieceTokenizer,
    UnigramModel,
)
from transduce.text.subword_sampling import (
    BytePairSampler,
    Ids,
    Sampler,
    UnigramSampler,
    can_drop_merges,
)
from transduce.text.tokenizer import Tokenizer, WordTokenizer
from transduce.text.vocabulary import TokenizerConfig, is_tag, languages_of

CHUNK_PAIRS = 2**13
"""Number of pairs that are augmented at once."""
LENGTHENED = 4
"""Largest length of a changed sentence, as a multiple of the longest of the corpus."""
CORES_PER_PROCESS = 4
"""Number of cores for which there is a process that augments."""
MAX_PROCESSES = 4
"""Maximum number of these processes: as many as keep up with a GPU."""
NICENESS = 5
"""Niceness of these processes, whose priority is below that of training."""

Seed = tuple[int, ...]


def require_suitable(
    config: TextAugmentationConfig, tokenizer: Tokenizer | TokenizerConfig
) -> None:
    """Raise `ConfigError` if a tokenizer, or one to be learned, does not allow the
    settings."""
    name = next(iter(config.used), None)
    if name is None:
        return
    kind = _kind(tokenizer)
    if kind == "word":
        raise ConfigError(
            f"`augmentation.{name}` needs a vocabulary of sub-words or characters, as "
            "most changed words would be unknown, but this one is of words; set it to "
            '0, or `tokenizer.kind` to "bpe".'
        )
    is_foreign = kind == "SentencePiece"
    if config.subword_dropout and kind != "bpe":
        instead = "set `augmentation.subword_alpha`" if is_foreign else "set it to 0"
        raise ConfigError(
            "`augmentation.subword_dropout` drops merges of byte-pair encoding, but "
            f"this tokenizer has none; {instead}."
        )
    if config.subword_alpha and not is_foreign:
        raise ConfigError(
            "`augmentation.subword_alpha` samples from the unigram models of a "
            "SentencePiece tokenizer, but this one has none; set it to 0, or "
            "`augmentation.subword_dropout` for byte-pair encoding."
        )


def _kind(tokenizer: Tokenizer | TokenizerConfig) -> str:
    match tokenizer:
        case TokenizerConfig():
            return tokenizer.kind
        case SentencePieceTokenizer():
            models = (tokenizer.source, tokenizer.target)
            are_unigrams = all(isinstance(each, UnigramModel) for each in models)
            return "SentencePiece" if are_unigrams else "other"
        case WordTokenizer():
            return "word"
        case _:
            return "bpe" if can_drop_merges(tokenizer) else "other"


def largest_length(dataset: Dataset, max_length: int) -> int:
    """Return the maximum length of a changed sentence, with the end token.

    It bounds the memory of training: pairs that a change would make longer stay as
    they are.
    """
    sides = (dataset.source.offsets, dataset.target.offsets)
    longest = max(int(np.diff(side).max()) for side in sides) + 1
    return min(LENGTHENED * longest, max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentedPart:
    """Part of a corpus with changed pairs."""

    pairs: Dataset
    numbers: Integer[np.ndarray, " pairs"]
    """Number of each pair in the part; that of the first one if two were joined."""


class PairAugmenter:
    """Changes the text of encoded pairs, and samples their sub-words."""

    def __init__(
        self,
        config: TextAugmentationConfig,
        tokenizer: Tokenizer,
        languages: LanguagesConfig,
        max_length: int,
    ) -> None:
        """`max_length` bounds changed sentences, with the end token; pairs that would
        be longer stay as they are. Raises `ConfigError` if the tokenizer does not allow
        the settings."""
        require_suitable(config, tokenizer)
        self._config = config
        self._tokenizer = tokenizer
        self._languages = languages
        self.max_length = max_length
        pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
        self._tags = {i for i, piece in pieces if is_tag(piece)}
        tags = tokenizer.language_tags
        self._language_of = dict(
            zip(map(tokenizer.tag_id, tags), languages_of(tags), strict=True)
        )
        """Target language by the id of its tag."""
        sides = config.subword_sides
        self._source_sampler = self._sampler("source") if sides != "target" else None
        self._target_sampler = self._sampler("target") if sides != "source" else None

    def __call__(self, part: Dataset, seed: Seed) -> AugmentedPart:
        """Return the pairs with changes that the seed determines.

        The text of a pair changes only if its ids decode to a text with the same ids.
        Joined pairs take the place of the first; the second is left out.
        """
        random = _generator(seed)
        changed = AugmentedPart(pairs=part, numbers=np.arange(len(part)))
        if self._config.changes_text:
            changed = self._with_changed_text(part, random)
        pairs = Dataset(
            source=self._sampled(changed.pairs.source, self._source_sampler, random),
            target=self._sampled(changed.pairs.target, self._target_sampler, random),
        )
        return replace(changed, pairs=pairs)

    def _sampler(self, side: Literal["source", "target"]) -> Sampler | None:
        config, tokenizer = self._config, self._tokenizer
        if isinstance(tokenizer, SentencePieceTokenizer):
            if not config.subword_alpha:
                return None
            model: SentencePieceModel = getattr(tokenizer, side)
            assert isinstance(model, UnigramModel)  # by `require_suitable`
            size = tokenizer.target_vocab_size if side == "target" else None
            return UnigramSampler(tokenizer, model, config.subword_alpha, size)
        rate = config.subword_dropout
        return BytePairSampler(tokenizer, rate) if rate else None

    def _sampled(
        self, side: EncodedSide, sampler: Sampler | None, random: np.random.Generator
    ) -> EncodedSide:
        """Sample the sub-words of a side; sentences that become too long stay."""
        if sampler is None:
            return side
        ids, offsets = sampler.sample(side.ids, side.offsets, random)
        number = len(offsets) - 1
        is_overlong = np.diff(offsets) >= self.max_length
        sampled = EncodedSide(ids=ids, offsets=offsets)
        if not is_overlong.any():
            return sampled
        return _appended(sampled, side).picked(np.arange(number) + number * is_overlong)

    def _with_changed_text(
        self, part: Dataset, random: np.random.Generator
    ) -> AugmentedPart:
        number = len(part)
        tags = [self._tags_before(part.source[i].tolist()) for i in range(number)]
        drawn = _draw_changes(tags, self._config, random)
        changes, sources, targets = self._made(part, drawn, tags, random)
        picked, is_kept = np.arange(number), np.ones(number, dtype=bool)
        for i, change in enumerate(changes):
            if all(0 < len(side[i]) < self.max_length for side in (sources, targets)):
                picked[change.first] = number + i
                if change.second is not None:
                    is_kept[change.second] = False
        # The changed pairs come after those of the part.
        both = Dataset(
            source=_appended(part.source, EncodedSide.of(sources)),
            target=_appended(part.target, EncodedSide.of(targets)),
        )
        return AugmentedPart(
            pairs=both.picked(picked[is_kept]), numbers=np.flatnonzero(is_kept)
        )

    def _made(
        self,
        part: Dataset,
        changes: Sequence["_Change"],
        tags: Sequence[Ids],
        random: np.random.Generator,
    ) -> tuple[list["_Change"], list[list[int]], list[list[int]]]:
        """Make changes; return those that are possible, with sources and targets."""
        pairs = self._restored(part, changes, tags)
        draw = Random(int(random.integers(2**63)))
        made: list[tuple[_Change, SentencePair]] = []
        for change in changes:
            language = self._target_language(tags[change.first])
            if pair := self._changed(change, pairs, language, draw):
                made.append((change, pair))
        sources, targets = self._encode([pair for _, pair in made])
        possible = [change for change, _ in made]
        tagged = [
            [*tags[change.first], *source]
            for change, source in zip(possible, sources, strict=True)
        ]
        return possible, tagged, targets

    def _tags_before(self, source: list[int]) -> Ids:
        """Return the tags before a source that are tokens of their own."""
        return tuple(takewhile(self._tags.__contains__, source))

    def _target_language(self, tags: Ids) -> str | None:
        """Return the language that a pair's tags name, or else that of the run."""
        named = (self._language_of[tag] for tag in tags if tag in self._language_of)
        return next(named, self._languages.target)

    def _restored(
        self, part: Dataset, changes: Sequence["_Change"], tags: Sequence[Ids]
    ) -> dict[int, SentencePair]:
        """Decode the pairs to change, without those whose text has other ids."""
        numbers = sorted({i for change in changes for i in change.pairs})
        ids = [
            (part.source[i].tolist()[len(tags[i]) :], part.target[i].tolist())
            for i in numbers
        ]
        decode = self._tokenizer.decode
        pairs = [
            SentencePair(source=decode(source), target=decode(target))
            for source, target in ids
        ]
        again = zip(*self._encode(pairs), strict=True)
        return {
            i: pair
            for i, pair, before, after in zip(numbers, pairs, ids, again, strict=True)
            if before == after
        }

    def _encode(
        self, pairs: Sequence[SentencePair]
    ) -> tuple[list[list[int]], list[list[int]]]:
        return (
            self._tokenizer.encode_sources([pair.source for pair in pairs]),
            self._tokenizer.encode_targets([pair.target for pair in pairs]),
        )

    def _changed(
        self,
        change: "_Change",
        pairs: Mapping[int, SentencePair],
        target_language: str | None,
        draw: Random,
    ) -> SentencePair | None:
        """Make a change; None if a pair cannot be decoded, or two cannot be joined."""
        found = [pairs[i] for i in change.pairs if i in pairs]
        if len(found) < len(change.pairs):
            return None
        pair = found[0] if change.second is None else joined(*found)
        if pair is None:
            return None
        if change.case is not None:
            pair = SentencePair(
                source=in_case(pair.source, change.case, self._languages.source),
                target=in_case(pair.target, change.case, target_language),
            )
        if change.loses_end:
            pair = without_end(pair)
        if change.has_typos:
            pair = replace(pair, source=with_typos(pair.source, draw))
        return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Changes of one pair, or of two that are joined."""

    first: int
    second: int | None
    case: Case | None
    loses_end: bool
    has_typos: bool

    @property
    def pairs(self) -> tuple[int, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)


def _draw_changes(
    tags: Sequence[Ids], config: TextAugmentationConfig, random: np.random.Generator
) -> list[_Change]:
    """Draw the changes of the pairs with these tags; pairs without one are left out."""
    number = len(tags)
    bounds = np.cumsum([getattr(config, case) for case in CASES])
    cases = np.searchsorted(bounds, random.random(number), side="right")
    loses_end, has_typos, is_joined = (
        random.random(number) < share
        for share in (config.no_end, config.typos, config.joined)
    )
    second_of = _partners(np.flatnonzero(is_joined).tolist(), tags)
    seconds = set(second_of.values())
    is_changed = (cases < len(CASES)) | loses_end | has_typos | is_joined
    return [
        _Change(
            first=i,
            second=second_of.get(i),
            case=CASES[cases[i]] if cases[i] < len(CASES) else None,
            loses_end=bool(loses_end[i]),
            has_typos=bool(has_typos[i]),
        )
        for i in np.flatnonzero(is_changed).tolist()
        if i not in seconds
    ]


def _partners(numbers: Sequence[int], tags: Sequence[Ids]) -> dict[int, int]:
    """Pair up the numbers that have the same tags; return the second by the first."""
    second_of: dict[int, int] = {}
    waiting: dict[Ids, int] = {}
    for number in numbers:
        if (first := waiting.pop(tags[number], None)) is None:
            waiting[tags[number]] = number
        else:
            second_of[first] = number
    return second_of


def _generator(seed: Seed) -> np.random.Generator:
    first, *others = seed
    return np.random.default_rng(np.random.SeedSequence(first, spawn_key=others))


def _appended(*sides: EncodedSide) -> EncodedSide:
    """Return the sentences of all sides, one side after the other."""
    lengths = np.concatenate([np.diff(side.offsets) for side in sides])
    return EncodedSide(
        ids=np.concatenate([side.ids for side in sides]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(OFFSET_TYPE),
    )


Worker: TypeAlias = WorkerProcess[[Dataset, Seed], AugmentedPart]


class Augmentation:
    """Augmentation of the parts of a corpus, by processes in the background.

    Call `close` at the end, or use it as a context manager.
    """

    def __init__(
        self,
        augment: PairAugmenter,
        num_processes: int,
        warn: Callable[[str], None],
    ) -> None:
        """Augment in that many processes; with 0 in this one, when a part is used.

        `warn` is called, in the thread that uses the parts, if a process has ended.
        """
        self._augment = augment
        self._warn = warn
        self._warnings = SimpleQueue[str]()
        self._num_processes = num_processes
        self._threads = ThreadPoolExecutor(num_processes) if num_processes else None
        self._workers: list[Worker] = []
        # None stands for this process, in place of one that cannot be started.
        self._idle = SimpleQueue[Worker | None]()
        self._pending: _PendingPart | None = None
        self._is_closed = False

    @property
    def max_length(self) -> int:
        """Maximum length of a changed sentence in tokens, with the end token."""
        return self._augment.max_length

    def begin(self, part: Dataset, seed: Seed) -> None:
        """Begin to augment a part in the background, to use it next."""
        if self._threads is not None:
            self._pending = self._begun(part, seed, self._threads)

    def augmented(self, part: Dataset, seed: Seed) -> AugmentedPart:
        """Return the augmented part; wait for it if it is not finished."""
        if self._threads is None:
            chunks = enumerate(_chunks(part))
            return _joined([self._augment(c, (*seed, number)) for number, c in chunks])
        pending, self._pending = self._pending, None
        if pending is not None and not pending.is_of(part, seed):
            for unused in pending.chunks:
                unused.cancel()
            pending = None
        pending = pending or self._begun(part, seed, self._threads)
        parts = [chunk.result() for chunk in pending.chunks]
        while not self._warnings.empty():
            self._warn(self._warnings.get())
        return _joined(parts)

    def _begun(
        self, part: Dataset, seed: Seed, threads: ThreadPoolExecutor
    ) -> "_PendingPart":
        while len(self._workers) < self._num_processes:
            try:
                worker = WorkerProcess(self._augment, NICENESS)
            except OSError as error:
                raise RequestError(
                    "A process that augments must be started, but the system allows "
                    f"none ({error.strerror}); end others, or train without "
                    "`augmentation`."
                ) from None
            self._workers.append(worker)
            self._idle.put(worker)
        chunks = [
            threads.submit(self._by_worker, chunk, (*seed, number))
            for number, chunk in enumerate(_chunks(part))
        ]
        return _PendingPart(part=part, seed=seed, chunks=chunks)

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> "Augmentation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_worker(self, chunk: Dataset, seed: Seed) -> AugmentedPart:
        worker = self._idle.get()
        try:
            return worker(chunk, seed) if worker else self._augment(chunk, seed)
        except WorkerLostError as error:
            if self._is_closed:
                raise CancelledError from None
            assert worker is not None
            worker = self._replaced(worker, str(error))
            return self._augment(chunk, seed)
        finally:
            self._idle.put(worker)

    def _replaced(self, lost: Worker, reason: str) -> Worker | None:
        """Start a process in place of one that has ended, unless it made no chunk."""
        new: Worker | None = None
        if lost.has_worked:
            with suppress(OSError):
                new = WorkerProcess(self._augment, NICENESS)
        lost.end()
        if new is None:
            remedy = "the training process does its work, which takes longer"
        else:
            remedy = "another takes its place"
            self._workers[self._workers.index(lost)] = new
            if self._is_closed:  # meanwhile
                new.end()
        self._warnings.put(f"A process that augments {reason}; {remedy}.")
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingPart:
    """Part that is augmented in the background."""

    part: Dataset
    seed: Seed
    chunks: list[Future[AugmentedPart]]

    def is_of(self, part: Dataset, seed: Seed) -> bool:
        """Whether it was computed from these pairs with this seed."""
        return self.seed == seed and all(
            np.array_equal(mine.offsets, side.offsets)
            and np.array_equal(mine.ids, side.ids)
            for mine, side in (
                (self.part.source, part.source),
                (self.part.target, part.target),
            )
        )


def processes_per_training(trainings_here: int) -> int:
    """Return how many processes augment for each training process on this machine."""
    number = num_cores() // (CORES_PER_PROCESS * trainings_here)
    return max(min(number, MAX_PROCESSES), 1)


def _chunks(part: Dataset) -> Iterator[Dataset]:
    for start in range(0, len(part), CHUNK_PAIRS):
        yield part.picked(np.arange(start, min(start + CHUNK_PAIRS, len(part))))


def _joined(chunks: Sequence[AugmentedPart]) -> AugmentedPart:
    starts = CHUNK_PAIRS * np.arange(len(chunks))
    numbers = [
        start + chunk.numbers for start, chunk in zip(starts, chunks, strict=True)
    ]
    return AugmentedPart(
        pairs=Dataset(
            source=_appended(*(chunk.pairs.source for chunk in chunks)),
            target=_appended(*(chunk.pairs.target for chunk in chunks)),
        ),
        numbers=np.concatenate(numbers),
    )
