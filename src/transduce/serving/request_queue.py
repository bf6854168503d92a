"""Requests of many callers, gathered into batches for one model."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Generic, Protocol, TypeVar

from transduce.decoding.parsing.parser import Parse
from transduce.decoding.parsing.penn_words import penn_words
from transduce.decoding.translation.parts import require_lists
from transduce.decoding.translation.translations import Translation
from transduce.decoding.translator import Translator
from transduce.errors import BusyError, ConfigError, TooLongError
from transduce.search_config import SearchConfig

Result = TypeVar("Result")
Found = TypeVar("Found", covariant=True)

MAX_WORK = 64
"""Requests that wait for something other than a translation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How much waits, how long, and how much is translated at once."""

    max_waiting: int = 1024
    """Sentences, of all callers."""
    timeout_s: float = 30.0
    """How long a sentence, or other work, may wait for its turn."""
    batch_size: int = 64
    """Sentences that are translated, or parsed, together at most."""

    def __post_init__(self) -> None:
        for name in ("max_waiting", "batch_size"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
        if not self.timeout_s > 0:
            raise ConfigError(
                f"The timeout must be above 0 seconds, but is {self.timeout_s}."
            )


class _Task(Protocol[Found]):
    """What is done with sentences; those of equal tasks are done together."""

    def __call__(
        self, translator: Translator, sentences: list[str]
    ) -> Iterable[Found]: ...


@dataclass(frozen=True, slots=True)
class _Translate:
    search: SearchConfig

    def __call__(
        self, translator: Translator, sentences: list[str]
    ) -> Iterable[Translation]:
        return translator.translate_stream(sentences, self.search)


@dataclass(frozen=True, slots=True)
class _Parse:
    is_constrained: bool

    def __call__(self, translator: Translator, sentences: list[str]) -> Iterable[Parse]:
        return translator.parser().parse_stream(
            map(penn_words, sentences), constrained=self.is_constrained
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting(Generic[Found]):
    """A sentence and what became of it."""

    sentence: str
    task: _Task[Found]
    deadline: float
    future: Future[Found] = field(default_factory=Future)


class RequestQueue:
    """Lets callers in any thread or event loop share a model.

    All that the model does, it does in one thread, so a caller may come from anywhere.
    A sentence whose caller has gone before its turn is left out.
    """

    def __init__(
        self, translator: Translator, config: QueueConfig | None = None
    ) -> None:
        self.translator = translator
        translator.get_ready()  # not while the first caller waits
        self.config = config or QueueConfig()
        self.on_batch: Callable[[int], None] = lambda _: None
        """Told of the size of each batch."""
        self._waiting: deque[_Waiting[Any]] = deque()
        self._lock = threading.Lock()
        self._num_working = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")

    def __enter__(self) -> "RequestQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self, sentences: Sequence[str], search: SearchConfig | None = None
    ) -> list[Future[Translation]]:
        """The translations to come, one for each sentence.

        The search is the model's own by default. `BusyError` if too many wait, and in
        place of a translation if its time is up; `TooLongError` if these alone are too
        many; `RequestError` if the model parses, or the sentences are one string.
        """
        self.translator.require_translation()
        return self._submit(sentences, _Translate(search or self.translator.search))

    def submit_to_parser(
        self, sentences: Sequence[str], *, constrained: bool = False
    ) -> list[Future[Parse]]:
        """The trees to come of raw English sentences, by the model's own search.

        Errors as of `submit`; `RequestError` if the model translates.
        """
        self.translator.parser()
        return self._submit(sentences, _Parse(constrained))

    async def translate(
        self, sentences: Sequence[str], search: SearchConfig | None = None
    ) -> list[Translation]:
        """Translations in the order of the sentences; errors as of `submit`."""
        futures = self.submit(sentences, search)
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    def translate_sync(
        self, sentences: Sequence[str], search: SearchConfig | None = None
    ) -> list[Translation]:
        """As `translate`, for callers in threads."""
        return [future.result() for future in self.submit(sentences, search)]

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do something else with the model, in its thread and in turn.

        `BusyError` if too much of this waits, or if its time is up.
        """
        deadline = self._deadline()

        def work_in_time() -> Result:
            if time.monotonic() > deadline:
                raise self._too_late()
            return work()

        with self._lock:
            if self._num_working >= MAX_WORK:
                raise BusyError(
                    f"At most {MAX_WORK} other requests may wait, and so many do; try "
                    "again later."
                )
            self._num_working += 1
        future = self._worker.submit(work_in_time)
        future.add_done_callback(self._worked)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Finish what was taken; nothing more is."""
        self._worker.shutdown()

    def _submit(
        self, sentences: Sequence[str], task: _Task[Found]
    ) -> list[Future[Found]]:
        require_lists(sentences)
        deadline = self._deadline()
        waiting = [
            _Waiting(sentence=sentence, task=task, deadline=deadline)
            for sentence in sentences
        ]
        with self._lock:
            self._require_room(len(waiting))
            self._waiting.extend(waiting)
        # A batch at a time, so that other work has its turn between them: there are
        # never fewer turns than batches, as these may hold more than was submitted.
        for _ in range(0, len(waiting), self.config.batch_size):
            self._worker.submit(self._do_batch)
        return [each.future for each in waiting]

    def _deadline(self) -> float:
        return time.monotonic() + self.config.timeout_s

    def _too_late(self) -> BusyError:
        return BusyError(
            f"A request must have its turn within {self.config.timeout_s:g} seconds, "
            "but others were before it; try again later."
        )

    def _require_room(self, count: int) -> None:
        most = self.config.max_waiting
        if count > most:
            raise TooLongError(
                f"A request must have at most {most:,} sentences, but has {count:,}; "
                "send it in parts."
            )
        if len(self._waiting) + count > most:
            raise BusyError(
                f"At most {most:,} sentences may wait, and {len(self._waiting):,} do; "
                "try again later."
            )

    def _worked(self, _: object) -> None:
        with self._lock:
            self._num_working -= 1

    def _do_batch(self) -> None:
        """Do what has gathered, as far as it is one batch."""
        if batch := [each for each in self._gather() if self._is_due(each)]:
            self.on_batch(len(batch))
            self._find(batch)

    def _gather(self) -> list[_Waiting[Any]]:
        """The next sentences with which the same is done."""
        with self._lock:
            first = list(islice(self._waiting, self.config.batch_size))
            alike = list(takewhile(lambda each: each.task == first[0].task, first))
            for _ in alike:
                self._waiting.popleft()
        return alike

    def _is_due(self, waiting: _Waiting[Any]) -> bool:
        if not waiting.future.set_running_or_notify_cancel():
            return False
        if time.monotonic() <= waiting.deadline:
            return True
        waiting.future.set_exception(self._too_late())
        return False

    def _find(self, batch: list[_Waiting[Any]]) -> None:
        sentences = [each.sentence for each in batch]
        try:
            found = batch[0].task(self.translator, sentences)
            for each, result in zip(batch, found, strict=True):
                each.future.set_result(result)
        except Exception as error:
            # A caller that waits must hear of it, whatever it is.
            for each in batch:
                if not each.future.done():
                    each.future.set_exception(error)
