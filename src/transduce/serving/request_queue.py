"""Queue that combines requests of many callers into batches for one model."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from transduce.decoding.parser import Parse
from transduce.decoding.translations import Pace, Translation, listed
from transduce.decoding.translator import Translator, require_translation
from transduce.errors import (
    BusyError,
    ConfigError,
    OverdueError,
    RequestError,
    TimeLimitError,
    TooLongError,
    counted,
    in_seconds,
)
from transduce.search_config import SearchConfig
from transduce.settings import convert_and_check, require_config
from transduce.text.glossary import Glossary
from transduce.text.languages import without_invisible
from transduce.trees.penn_words import penn_words

Result = TypeVar("Result")
Found = TypeVar("Found", covariant=True)

MAX_SLICED = 64
"""Maximum number of waiting new requests that are other work than a search."""
MAX_TIMEOUT_S = 86_400.0
STUCK_AFTER_S = 5.0
"""Seconds after which abandoned work that still runs counts as stuck."""
SHUTTING_DOWN = "The server is shutting down; try again later."


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Limits on waiting sentences, time, batch size and length."""

    max_waiting: int = 1024
    """Maximum number of waiting sentences of all callers."""
    timeout_s: float = 30.0
    """Seconds that a request may take, including its wait."""
    batch_size: int = 64
    """Maximum number of sentences translated or parsed in one batch."""
    max_tokens: int = 10_000
    """Maximum number of tokens of all texts of a request. Tokens bound the cost;
    characters do not, since a rare one may take several tokens."""

    def __post_init__(self) -> None:
        convert_and_check(self)
        for name in ("max_waiting", "batch_size", "max_tokens"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"The timeout must be above 0 seconds and at most {MAX_TIMEOUT_S:,.0f},"
                f" but is {self.timeout_s}."
            )


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of a request."""

    seconds: float
    """Time limit in seconds."""
    at: float
    """Deadline on the clock of `time.monotonic` and of event loops."""

    def overdue_error(self) -> OverdueError:
        """Error of work that still waits at the deadline."""
        return OverdueError(
            f"The request had no turn within {in_seconds(self.seconds)}, as others "
            "were before it; try again later."
        )

    def time_limit_error(self) -> TimeLimitError:
        """Error of work that is running at the deadline."""
        return TimeLimitError(
            f"The request takes longer than {in_seconds(self.seconds)}; send less at "
            "once."
        )


class _Task(Protocol[Found]):
    """Kind of work on sentences; sentences of equal tasks share a batch."""

    def __call__(
        self, translator: Translator, sentences: list[str], pace: Pace
    ) -> Iterable[Found]: ...


@dataclass(frozen=True, slots=True)
class _Translate:
    search: SearchConfig
    tag: str
    glossary: Glossary | None

    def __call__(
        self, translator: Translator, sentences: list[str], pace: Pace
    ) -> Iterable[Translation]:
        if self.tag:
            translator = translator.with_tag(self.tag)
        if self.glossary is not None:
            translator = translator.with_glossary(self.glossary)
        return translator.translate_stream(sentences, self.search, None, pace)


@dataclass(frozen=True, slots=True)
class _Parse:
    is_constrained: bool

    def __call__(
        self, translator: Translator, sentences: list[str], pace: Pace
    ) -> Iterable[Parse]:
        return translator.parser().parse_stream(
            map(penn_words, sentences), constrained=self.is_constrained, pace=pace
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Sentences:
    """Waiting sentences of one caller, keyed by the futures of their results."""

    task: _Task[Any]
    deadline: Deadline
    waiting: dict[Future[Any], str]

    def overdue(self) -> Iterator[tuple[Future[Any], Exception]]:
        """Yield the waiting futures, each with its error at the deadline."""
        for future in list(self.waiting):
            yield future, self.deadline.overdue_error()


@dataclass(slots=True, kw_only=True, eq=False)
class _Slices:
    """Other work of one caller, which runs one slice per turn."""

    slices: Callable[[], Iterator[Any]]
    """Function that returns an iterator; each of its items is the result of a slice."""
    deadline: Deadline
    is_new: bool
    """Whether it is a request of its own, and not the rest of an accepted one."""
    future: Future[Any] = field(default_factory=Future)
    has_begun: bool = False
    rest: Iterator[Any] | None = None
    """Slices that have not run; None before the first."""
    results: list[Any] = field(default_factory=list)

    def overdue(self) -> Iterator[tuple[Future[Any], Exception]]:
        """Yield the future with its error at the deadline, between two turns."""
        if self.has_begun:
            yield self.future, self.deadline.time_limit_error()
        else:
            yield self.future, self.deadline.overdue_error()


@dataclass(frozen=True, slots=True)
class _Assigned(Generic[Found]):
    """Sentence of a batch, with its request and the future of its result."""

    request: _Sentences
    sentence: str
    future: Future[Found]


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    """Work in progress, with the deadline of each result."""

    deadlines: dict[Future[Any], Deadline]

    @property
    def is_wanted(self) -> bool:
        """Whether a caller still waits for one of the results."""
        return not all(future.done() for future in self.deadlines)

    @property
    def ends(self) -> float:
        """Last of the deadlines."""
        return max(deadline.at for deadline in self.deadlines.values())

    def require_wanted(self) -> None:
        """Raise `_GivenUpError`, which ends the search, if no caller waits any more."""
        if not self.is_wanted:
            raise _GivenUpError


class _GivenUpError(Exception):
    """No caller waits for the results of the current work any more."""


class RequestQueue:
    """Lets callers in any thread or event loop share a model.

    The model works in one thread, on one batch at a time. Each caller has a share of
    the batch, so that a caller with many sentences does not block the others. A
    cancelled sentence leaves the queue at once; if the model is searching for its
    translation, the search ends between two steps. A caller gets its answer or an error
    within the timeout, even if the model hangs. A fork of the process needs a queue of
    its own, as threads do not survive a fork.
    """

    def __init__(
        self, translator: Translator, config: QueueConfig | None = None
    ) -> None:
        require_config("translator", translator, Translator)
        self.config = QueueConfig() if config is None else config
        require_config("config", self.config, QueueConfig)
        self.translator = translator
        translator.get_ready()  # not while the first caller waits
        self.on_batch: Callable[[int], None] = lambda _: None
        """Callback that receives the size of each batch."""
        self._changed = threading.Condition(threading.RLock())
        self._requests: dict[_Sentences | _Slices, None] = {}
        """Requests in round-robin order; after its turn, a request moves to the end."""
        self._num_waiting = 0
        self._running: _Running | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._worker = threading.Thread(target=self._work, name="model", daemon=True)
        self._watch = threading.Thread(target=self._expire, name="watch", daemon=True)
        self._worker.start()
        self._watch.start()

    def __enter__(self) -> "RequestQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def is_stuck(self) -> bool:
        """Whether the model hangs in work past its deadline."""
        running = self._running
        return running is not None and time.monotonic() > running.ends + STUCK_AFTER_S

    def deadline(self) -> Deadline:
        """Deadline of a request that begins now."""
        seconds = self.config.timeout_s
        return Deadline(seconds, time.monotonic() + seconds)

    def submit(
        self,
        sentences: Sequence[str],
        search: SearchConfig | None = None,
        deadline: Deadline | None = None,
        tag: str = "",
        glossary: Glossary | None = None,
    ) -> list[Future[Translation]]:
        """Enqueue sentences; return a future of each translation.

        A tag is as in `Translator.with_tag`, and a glossary as in `with_glossary`. By
        default, the search is the model's own, and the deadline a new one. Raises
        `BusyError` if too many sentences wait, `TooLongError` if the new ones alone are
        too many, `RequestError` if the model is a parser, `sentences` is a string, or
        this process is a fork. A future raises `OverdueError` if its sentence was not
        started in time, and `TimeLimitError` if the sentence was started, but took too
        long.
        """
        require_translation(self.translator)
        task = _Translate(search or self.translator.search, tag, glossary)
        return self._submit(sentences, task, deadline)

    def open_request(
        self,
        search: SearchConfig,
        deadline: Deadline,
        tag: str = "",
        glossary: Glossary | None = None,
    ) -> Callable[[str], Future[Translation]]:
        """Begin a request whose sentences come one by one from other work.

        Returns a function that enqueues a sentence and returns the future of its
        translation. The sentences have the turns of one request, and none is refused
        because others wait: a refusal would waste the other work. Call `require_room`
        before that work.
        """
        require_translation(self.translator)
        task = _Translate(search, tag, glossary)
        request = _Sentences(task=task, deadline=deadline, waiting={})

        def enqueue(sentence: str) -> Future[Translation]:
            [future] = self._enqueue(request, [sentence], is_new=False)
            return future

        return enqueue

    def submit_to_parser(
        self,
        sentences: Sequence[str],
        *,
        constrained: bool = False,
        deadline: Deadline | None = None,
    ) -> list[Future[Parse]]:
        """Enqueue raw English sentences; return a future of each parse.

        Raises the errors of `submit`, and `RequestError` if the model is a translator.
        """
        self.translator.parser()
        return self._submit(sentences, _Parse(constrained), deadline)

    async def translate(
        self,
        sentences: Sequence[str],
        search: SearchConfig | None = None,
        deadline: Deadline | None = None,
        tag: str = "",
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        """Translate sentences in order.

        Raises the errors of `submit`, and `TooLongError` for too many tokens.
        """
        deadline = deadline or self.deadline()
        self.require_few(len(sentences))
        await self.require_short(sentences, deadline)
        futures = self.submit(sentences, search, deadline, tag, glossary)
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:  # one failed, or the caller was cancelled
                future.cancel()

    def translate_sync(
        self, sentences: Sequence[str], search: SearchConfig | None = None
    ) -> list[Translation]:
        """Translate sentences in order; block until all are done.

        Raises the errors of `submit`; the number of tokens is not checked.
        """
        return [future.result() for future in self.submit(sentences, search)]

    def require_few(self, count: int, noun: str = "sentence") -> None:
        """Raise `TooLongError` for more sentences, or texts, than may wait.

        Call it first: counting tokens takes much longer.
        """
        if count > (most := self.config.max_waiting):
            raise TooLongError(
                f"A request must have at most {counted(most, noun)}, but has "
                f"{count:,}; send it in parts."
            )

    def require_room(self, count: int) -> None:
        """Raise `TooLongError` as `require_few`, and `BusyError` for more sentences
        than may wait beside those that do."""
        self.require_few(count)
        if self._num_waiting + count > (most := self.config.max_waiting):
            raise BusyError(
                f"At most {most:,} sentences may wait, and {self._num_waiting:,} do; "
                "try again later."
            )

    async def require_short(
        self, texts: Sequence[str], deadline: Deadline, most_each: int | None = None
    ) -> None:
        """Raise `TooLongError` if texts, together or singly, have too many tokens.

        A thread counts them; raises `TimeLimitError` if that takes too long.
        """
        encode = self.translator.tokenizer.encode_sources
        encoded = await in_thread(
            deadline, lambda: encode(list(map(without_invisible, texts)))
        )
        counts = [len(ids) + 1 for ids in encoded]  # with the end token
        if sum(counts) > self.config.max_tokens:
            raise TooLongError(
                f"A request may have at most {self.config.max_tokens:,} tokens, but "
                f"has {sum(counts):,}; send it in parts."
            )
        if most_each is not None and max(counts, default=0) > most_each:
            raise TooLongError(
                f"A text may have at most {most_each:,} tokens here, but one has "
                f"{max(counts):,}."
            )

    async def run(
        self,
        work: Callable[[], Result],
        deadline: Deadline | None = None,
        *,
        is_new: bool = True,
    ) -> Result:
        """Run other work with the model, in its thread and in turn.

        `is_new` and the errors are as in `run_in_slices`.
        """

        def only_slice() -> Iterator[Result]:
            yield work()

        [found] = await self.run_in_slices(only_slice, deadline, is_new=is_new)
        return found

    async def run_in_slices(
        self,
        slices: Callable[[], Iterator[Result]],
        deadline: Deadline | None = None,
        *,
        is_new: bool = True,
    ) -> list[Result]:
        """Run work slice by slice, with turns of other requests in between.

        Raises `BusyError` if too much such work waits, and the errors of `submit`. Work
        that is not new is the rest of an accepted request, and is never refused: a
        refusal would waste the search, and break off an answer that has begun.
        """
        self._require_own_process()
        request = _Slices(
            slices=slices, deadline=deadline or self.deadline(), is_new=is_new
        )
        with self._changed:
            self._require_open()
            num_waiting = sum(
                isinstance(each, _Slices) and each.is_new for each in self._requests
            )
            if is_new and num_waiting >= MAX_SLICED:
                raise BusyError(
                    f"At most {MAX_SLICED} other requests may wait, and the queue is "
                    "full; try again later."
                )
            self._requests[request] = None
            self._changed.notify_all()
        request.future.add_done_callback(lambda _: self._remove_slices(request))
        return await asyncio.wrap_future(request.future)

    def close(self) -> None:
        """Accept no more requests, and finish the accepted ones."""
        if os.getpid() != self._process:
            return  # the requests are another process's
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # By then all work is done, or is stuck and ends with the process.
        self._worker.join(self.config.timeout_s + STUCK_AFTER_S)

    def _submit(
        self, sentences: Sequence[str], task: _Task[Found], deadline: Deadline | None
    ) -> list[Future[Found]]:
        request = _Sentences(
            task=task, deadline=deadline or self.deadline(), waiting={}
        )
        return self._enqueue(request, listed(sentences), is_new=True)

    def _enqueue(
        self, request: _Sentences, sentences: Sequence[str], *, is_new: bool
    ) -> list[Future[Any]]:
        self._require_own_process()
        waiting: dict[Future[Any], str] = {Future(): each for each in sentences}
        futures = list(waiting)
        with self._changed:
            self._require_open()
            if is_new:
                self.require_room(len(futures))
            request.waiting |= waiting
            if futures:
                self._requests.setdefault(request)
            self._num_waiting += len(futures)
            self._changed.notify_all()
        for future in futures:
            future.add_done_callback(lambda done: self._remove_sentence(request, done))
        return futures

    def _require_own_process(self) -> None:
        """Raise `RequestError` in a fork, which may have inherited a held lock."""
        if os.getpid() != self._process:
            raise RequestError(
                "A queue must be used in the process that made it, but this is a fork "
                "of that process; make a queue after the fork."
            )

    def _require_open(self) -> None:
        if self._is_closed:
            raise OverdueError(SHUTTING_DOWN)

    def _remove_sentence(self, request: _Sentences, future: Future[Any]) -> None:
        """Remove a sentence that is done or cancelled from the queue."""
        if future.cancelled():
            future.set_running_or_notify_cancel()
        with self._changed:
            if request.waiting.pop(future, None) is not None:
                self._num_waiting -= 1
                if not request.waiting:
                    self._requests.pop(request, None)

    def _remove_slices(self, request: _Slices) -> None:
        """Remove work that is done or cancelled from the queue."""
        if request.future.cancelled():
            request.future.set_running_or_notify_cancel()
        with self._changed:
            self._requests.pop(request, None)

    def _work(self) -> None:
        """Serve requests in turn until the queue is closed and empty."""
        while True:
            with self._changed:
                while not self._requests:
                    if self._is_closed:
                        return
                    self._changed.wait()
                request = next(iter(self._requests))
                run = self._begin(request)
                self._changed.notify_all()  # wake the watch for the new deadline
            run()
            with self._changed:
                self._running = None
                self._changed.notify_all()
                if isinstance(request, _Slices) and not request.future.done():
                    self._requests[request] = None

    def _begin(self, request: _Sentences | _Slices) -> Callable[[], None]:
        """Take the next work out of the queue; return a function that does it."""
        if isinstance(request, _Slices):
            del self._requests[request]
            request.has_begun = True
            self._running = _Running(deadlines={request.future: request.deadline})
            return partial(_run_slice, request)
        batch = self._take_batch(request.task)
        self._running = _Running(
            deadlines={each.future: each.request.deadline for each in batch}
        )
        return partial(self._run_batch, batch, self._running)

    def _take_batch(self, task: _Task[Found]) -> list[_Assigned[Found]]:
        """Take a batch of sentences for a task out of the queue.

        Each request has an equal share; places that are left go to the first requests.
        """
        alike = [
            each
            for each in self._requests
            if isinstance(each, _Sentences) and each.task == task
        ]
        room = self.config.batch_size
        share = max(room // len(alike), 1)
        batch: list[_Assigned[Found]] = []
        for most in (share, room):
            for request in alike:
                batch += _take(request, min(most, room - len(batch)))
        served = {each.request: None for each in batch}
        for request in served:
            del self._requests[request]
            if request.waiting:
                self._requests[request] = None
        self._num_waiting -= len(batch)
        return batch

    def _run_batch(self, batch: list[_Assigned[Any]], running: _Running) -> None:
        """Run a batch; a request that fails does not fail the others."""
        self.on_batch(len(batch))
        error = self._run_task(batch, running)
        if error is None:
            return
        left = [each for each in batch if not each.future.done()]
        requests = list({each.request: None for each in left})
        for request in requests:
            own = [each for each in left if each.request is request]
            own_error = error if len(requests) == 1 else self._run_task(own, running)
            for each in own:
                if own_error is not None:
                    _settle(each.future, error=own_error)

    def _run_task(
        self, batch: list[_Assigned[Any]], running: _Running
    ) -> BaseException | None:
        """Compute and deliver results; return the error if the search fails."""
        sentences = [each.sentence for each in batch]
        task = batch[0].request.task
        pace = Pace(
            on_step=running.require_wanted, on_unplaced=lambda _: _log_unplaced()
        )
        try:
            running.require_wanted()
            found = task(self.translator, sentences, pace)
            for each, result in zip(batch, found, strict=True):
                _settle(each.future, result)
        except _GivenUpError:
            return None
        except BaseException as error:  # also a library's panic: callers wait
            return error
        return None

    def _expire(self) -> None:
        """Fail requests at their deadlines, even if the model hangs."""
        while True:
            with self._changed:
                if self._is_closed and not self._requests and self._running is None:
                    return
                now = time.monotonic()
                overdue = list(self._overdue(now))
                if not overdue:
                    until = min(self._deadlines(), default=None)
                    self._changed.wait(None if until is None else until - now)
            for future, error in overdue:
                _settle(future, error=error)

    def _deadlines(self) -> Iterator[float]:
        """Deadlines of the waiting requests and of the running work."""
        for request in self._requests:
            yield request.deadline.at
        for _, deadline in self._pending():
            yield deadline.at

    def _overdue(self, now: float) -> Iterator[tuple[Future[Any], Exception]]:
        """Yield the futures whose deadline has passed, each with its error."""
        for request in self._requests:
            if request.deadline.at <= now:
                yield from request.overdue()
        for future, deadline in self._pending():
            if deadline.at <= now:
                yield future, deadline.time_limit_error()

    def _pending(self) -> list[tuple[Future[Any], Deadline]]:
        """Return the futures of the running work that are not done."""
        running = {} if self._running is None else self._running.deadlines
        return [each for each in running.items() if not each[0].done()]


async def in_thread(
    deadline: Deadline, work: Callable[..., Result], *arguments: object
) -> Result:
    """Run work that would block the event loop in a thread; return its result.

    A failure affects this request only. Raises `TimeLimitError` at the deadline.
    """

    def contained() -> Result:
        try:
            return work(*arguments)
        except Exception:
            raise
        except BaseException as error:
            raise _wrapped(error) from error

    try:
        async with asyncio.timeout(deadline.at - time.monotonic()):
            return await asyncio.to_thread(contained)
    except TimeoutError:
        raise deadline.time_limit_error() from None


Given = TypeVar("Given")


def when_done(
    first: Future[Given], then: Callable[[Given], Result | Future[Result]]
) -> Future[Result]:
    """Return the future of what `then` makes of a result, at once or as a future.

    Cancelling it cancels the work that is going on.
    """
    last: Future[Result] = Future()

    def go_on(done: Future[Any], then: Callable[[Any], Any]) -> None:
        try:
            found = then(done.result())
        except BaseException as error:  # also a library's panic: callers wait
            _settle(last, error=error)
            return
        if isinstance(found, Future):
            last.add_done_callback(lambda _: found.cancel())
            found.add_done_callback(partial(go_on, then=lambda result: result))
        else:
            _settle(last, found)

    last.add_done_callback(lambda _: first.cancel())
    first.add_done_callback(partial(go_on, then=then))
    return last


def in_own_thread(work: Callable[[], Result]) -> Future[Result]:
    """Run work in a new thread; return the future of its result.

    The thread ends with the work, whether or not a caller still waits.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            _settle(future, work())
        except BaseException as error:  # also a library's panic: callers wait
            _settle(future, error=error)

    threading.Thread(target=run, name="loading").start()
    return future


@cache
def _log_unplaced() -> None:
    """Log at the first call that a translation may lack terms of its glossary."""
    logging.getLogger("transduce.serving").warning(
        "A translation may lack terms of its glossary, as words of the sentence and "
        "the translation could not be aligned; further ones are not logged."
    )


def _take(request: _Sentences, count: int) -> list[_Assigned[Any]]:
    """Take the first waiting sentences of a request, at most `count`."""
    futures = list(islice(request.waiting, count))
    return [
        _Assigned(request, request.waiting.pop(future), future) for future in futures
    ]


def _run_slice(request: _Slices) -> None:
    """Run the next slice of a request."""
    try:
        if request.rest is None:
            request.rest = request.slices()
        request.results.append(next(request.rest))
    except StopIteration:
        _settle(request.future, request.results)
    except BaseException as error:  # also a library's panic: a caller waits
        _settle(request.future, error=error)


def _settle(
    future: Future[Any], result: object = None, error: BaseException | None = None
) -> None:
    """Set a future's result or error, unless it is done already."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(_wrapped(error))


def _wrapped(error: BaseException) -> Exception:
    """Return an exception that is safe to raise where the result is awaited.

    A library's panic or SystemExit would end more than a request, so it is wrapped.
    """
    if isinstance(error, Exception):
        return error
    wrapper = RuntimeError(f"{type(error).__name__}: {error}")
    wrapper.__cause__ = error
    return wrapper
