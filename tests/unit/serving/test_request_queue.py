import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import (
    BusyError,
    ConfigError,
    OverdueError,
    RequestError,
    TimeLimitError,
    TooLongError,
)
from transduce.search_config import SearchConfig
from transduce.serving import request_queue
from transduce.serving.request_queue import Deadline, QueueConfig, RequestQueue
from transduce.serving.translation import (
    DocumentOptions,
    Step,
    translate_documents,
)
from waiting import PATIENCE_S

LINES = ["one", "two three", "", "four five six seven", "eight eight"]


class Gate:
    """Blocks the worker until it is opened."""

    def __init__(self, queue: RequestQueue) -> None:
        self._open = threading.Event()
        self._held = threading.Event()
        self.batches: list[int] = []
        queue.on_batch = self._pass

    def _pass(self, size: int) -> None:
        self.batches.append(size)
        self._held.set()
        self._open.wait()

    def wait_until_held(self) -> None:
        self._held.wait()

    def open(self) -> None:
        self._open.set()


def within(seconds: float) -> Deadline:
    """Deadline of one request; all others have the long one of their queue."""
    return Deadline(seconds, time.monotonic() + seconds)


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


@pytest.fixture
def queue(translator: Translator) -> Iterator[RequestQueue]:
    config = QueueConfig(max_waiting=5, batch_size=3)
    with RequestQueue(translator, config) as queue:
        yield queue


@pytest.fixture
def gate(queue: RequestQueue) -> Iterator[Gate]:
    """Gate that blocks the worker at a first sentence, so that all later ones wait."""
    gate = Gate(queue)
    queue.submit(["one"])
    gate.wait_until_held()
    yield gate
    gate.open()


def test_translations_equal_those_of_the_translator(
    queue: RequestQueue, translator: Translator
) -> None:
    found = queue.translate_sync(LINES)
    assert [t.text for t in found] == [t.text for t in translator.translate(LINES)]


def test_concurrent_callers_get_their_own_results(
    queue: RequestQueue, translator: Translator
) -> None:
    async def ask() -> list[str]:
        calls = [queue.translate([line]) for line in LINES]
        return [t.text for [t] in await asyncio.gather(*calls)]

    expected = [each.text for each in translator.translate(LINES)]
    assert asyncio.run(ask()) == expected


def test_the_default_search_is_the_models_own(trained_checkpoint: Checkpoint) -> None:
    own = replace(trained_checkpoint, search=SearchConfig(beam_size=2))
    with RequestQueue(Translator(own, torch.device("cpu"))) as queue:
        [found] = queue.translate_sync(["one two"])
        [wider] = queue.translate_sync(["one two"], Step(queue=queue).search(2))
    assert len(found.hypotheses) <= 2
    assert len(wider.hypotheses) == 3


def test_an_empty_request_has_an_empty_answer(queue: RequestQueue) -> None:
    assert queue.translate_sync([]) == []


def test_waiting_sentences_are_gathered_into_batches(
    queue: RequestQueue, gate: Gate
) -> None:
    futures = [queue.submit([line])[0] for line in LINES]
    assert queue.num_waiting == 5
    gate.open()
    assert len([future.result() for future in futures]) == 5
    assert gate.batches == [1, 3, 2]


def test_different_search_settings_have_separate_batches(
    queue: RequestQueue, gate: Gate
) -> None:
    greedy, several = SearchConfig(beam_size=1), SearchConfig(num_best=4)
    futures = [
        *queue.submit(["one", "two"], several), *queue.submit(["one"], greedy),
        *queue.submit(["two"], several),
    ]  # fmt: skip
    gate.open()
    found = [future.result() for future in futures]
    assert gate.batches == [1, 3, 1]
    assert len(found[0].hypotheses) == 4
    assert len(found[2].hypotheses) == 1


def test_a_full_queue_refuses(queue: RequestQueue, gate: Gate) -> None:
    queue.submit(["one"] * 4)
    with pytest.raises(BusyError, match="At most 5 sentences may wait, and 4 do"):
        queue.submit(["two", "three"])
    queue.submit(["two"])


def test_a_request_larger_than_the_queue_is_too_long(queue: RequestQueue) -> None:
    with pytest.raises(TooLongError, match="at most 5 sentences, but has 6"):
        queue.submit(["one"] * 6)


def test_a_cancelled_sentence_is_not_translated(
    queue: RequestQueue, gate: Gate
) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.translate(["one", "two"]), timeout=0.01)

    asyncio.run(give_up())
    [kept] = queue.submit(["three"])
    gate.open()
    kept.result()
    assert gate.batches == [1, 1]


def test_an_error_reaches_the_callers_of_its_batch_only(
    queue: RequestQueue, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(translator, "translate_stream", partial(explode))
        futures = queue.submit(["one", "two"])
        for future in futures:
            with pytest.raises(MemoryError, match="no room"):
                future.result()
    assert queue.translate_sync(["one"])[0].text


def explode(*_: object) -> Iterator[object]:
    raise MemoryError("no room")


def test_a_value_that_is_no_string_reaches_no_batch(
    queue: RequestQueue, gate: Gate, unchecked_types: None
) -> None:
    [future] = queue.submit(["two"])
    with pytest.raises(RequestError, match="must be a string, but number 2 is bytes"):
        queue.submit(["two", b"three"])
    gate.open()
    assert future.result().text


def test_closing_finishes_accepted_sentences(translator: Translator) -> None:
    queue = RequestQueue(translator)
    gate = Gate(queue)
    futures = queue.submit(LINES)
    closing = threading.Thread(target=queue.close)
    closing.start()
    gate.open()
    closing.join()
    assert all(future.done() for future in futures)
    with pytest.raises(OverdueError, match="is shutting down"):
        queue.submit(["one"])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_queue_is_refused_in_a_fork(queue: RequestQueue) -> None:
    if (child := os.fork()) == 0:
        code = 1
        try:
            queue.submit(["one"])
        except RequestError as error:
            code = 0 if "make a queue after the fork" in str(error) else 2
        finally:
            queue.close()
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
    assert queue.translate_sync(["one"])


def test_other_work_waits_its_turn_in_a_bounded_queue(
    queue: RequestQueue, gate: Gate
) -> None:
    async def ask() -> int:
        tasks = [asyncio.create_task(queue.run(lambda: 1)) for _ in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="At most 64 other requests may wait"):
            await queue.run(lambda: 1)
        gate.open()
        return sum(await asyncio.gather(*tasks)) + await queue.run(lambda: 1)

    assert asyncio.run(ask()) == 65


def test_the_rest_of_an_accepted_request_is_never_refused(
    queue: RequestQueue, gate: Gate
) -> None:
    async def ask() -> int:
        deadline = queue.deadline()
        rests = [queue.run(lambda: 1, deadline, is_new=False) for _ in range(70)]
        tasks = list(map(asyncio.create_task, rests))
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(queue.run(lambda: 1)))  # 70 do not count
        await asyncio.sleep(0)
        gate.open()
        return sum(await asyncio.gather(*tasks))

    assert asyncio.run(ask()) == 71


def test_tags_are_placed_even_if_no_other_work_may_wait(
    queue: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "MAX_SLICED", 0)
    options = DocumentOptions(format="html")
    texts = ["<b>one</b> two", "<i>three</i>"]
    found = asyncio.run(translate_documents([Step(queue=queue)], texts, options, 0))
    assert all(tag in each.text for tag, each in zip("bi", found, strict=True))


def test_other_work_runs_between_batches(queue: RequestQueue, gate: Gate) -> None:
    async def ask() -> int:
        before = queue.submit(["one"])
        work = asyncio.create_task(queue.run(lambda: len(gate.batches)))
        await asyncio.sleep(0)
        # More than one batch, which would have blocked all other work.
        later = queue.submit(["two", "three", "four", "five"])
        gate.open()
        found = await work
        await asyncio.gather(*map(asyncio.wrap_future, [*before, *later]))
        return found

    assert asyncio.run(ask()) == 2
    assert gate.batches == [1, 3, 2]


def test_other_work_that_waits_too_long_times_out(
    queue: RequestQueue, gate: Gate
) -> None:
    with pytest.raises(OverdueError, match=r"no turn within 0\.05 seconds"):
        asyncio.run(queue.run(lambda: 1, within(0.05)))


def test_each_caller_has_a_share_of_a_batch(queue: RequestQueue, gate: Gate) -> None:
    done: list[str] = []
    for words in (["one", "two", "three", "four"], ["five"]):
        for word, future in zip(words, queue.submit(words), strict=True):
            future.add_done_callback(lambda _, word=word: done.append(word))  # type: ignore[misc] # bound now
    gate.open()
    queue.close()
    assert gate.batches == [1, 3, 2]
    assert set(done[:3]) == {"one", "two", "five"}


def test_cancelled_sentences_leave_the_queue_at_once(
    queue: RequestQueue, gate: Gate
) -> None:
    waiting = queue.submit(["one"] * 5)
    for future in waiting[:3]:
        future.cancel()
    assert queue.num_waiting == 2
    queue.submit(["two"] * 3)
    with pytest.raises(BusyError, match="and 5 do"):
        queue.submit(["three"])


def test_a_caller_of_a_busy_model_times_out(queue: RequestQueue) -> None:
    gate = Gate(queue)
    # Long enough to begin on a busy machine.
    [at_work] = queue.submit(["one"], deadline=within(0.5))
    gate.wait_until_held()
    [waits] = queue.submit(["two"], deadline=within(0.1))
    with pytest.raises(OverdueError, match=r"no turn within 0\.1 seconds"):
        waits.result()
    assert queue.num_waiting == 0
    with pytest.raises(TimeLimitError, match=r"longer than 0\.5 seconds"):
        at_work.result()
    gate.open()
    [after] = queue.submit(["three"])
    assert after.result().text


def test_other_work_that_does_not_end_times_out(
    queue: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "STUCK_AFTER_S", PATIENCE_S)
    ends = threading.Event()

    async def ask() -> None:
        assert not queue.is_stuck
        with pytest.raises(TimeLimitError):
            await queue.run(ends.wait, within(0.5))
        await asyncio.sleep(0.01)
        assert not queue.is_stuck
        monkeypatch.setattr(request_queue, "STUCK_AFTER_S", 0.0)
        assert queue.is_stuck
        with pytest.raises(OverdueError):
            await queue.run(lambda: 1, within(0.05))
        ends.set()
        assert await queue.run(lambda: 2) == 2
        assert not queue.is_stuck

    asyncio.run(ask())


def test_starting_work_does_not_extend_its_deadline(
    queue: RequestQueue, gate: Gate
) -> None:
    ends = threading.Event()

    async def ask() -> None:
        deadline = Deadline(7.0, time.monotonic() + 1.0)
        work = asyncio.create_task(queue.run(ends.wait, deadline))
        await asyncio.sleep(0)
        gate.open()
        with pytest.raises(TimeLimitError, match="longer than 7 seconds"):
            await asyncio.wait_for(work, 10.0)
        ends.set()

    asyncio.run(ask())


def test_all_sentences_of_a_document_share_one_deadline(
    queue: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Deadline] = []
    deadline = queue.deadline

    def counted() -> Deadline:
        begun.append(deadline())
        return begun[-1]

    monkeypatch.setattr(queue, "deadline", counted)
    options = DocumentOptions(format="html")
    document = "<p>one <b>two</b> three</p>"
    [found] = asyncio.run(
        translate_documents([Step(queue=queue)], [document], options, 1)
    )
    assert found.text.startswith("<p>")
    assert len(begun) == 1


def test_a_cancelled_search_ends_between_two_steps(
    trained_checkpoint: Checkpoint,
) -> None:
    endless = SearchConfig(beam_size=2, min_length=10**5, extra_length=10**5)
    own = replace(trained_checkpoint, search=endless)
    with RequestQueue(Translator(own, torch.device("cpu"))) as queue:
        futures = queue.submit(["one", "two three four", "five six"])
        while queue.num_waiting:
            time.sleep(0.001)
        for future in futures:
            future.cancel()
        [kept] = queue.submit(["one"], SearchConfig(beam_size=1))
        assert kept.result().text


def test_a_cancelled_search_in_several_processes_ends(
    trained_checkpoint: Checkpoint,
) -> None:
    endless = SearchConfig(beam_size=2, min_length=100_000, extra_length=100_000)
    own = replace(trained_checkpoint, search=endless)
    translator = Translator(own, torch.device("cpu"), num_processes=2)
    with RequestQueue(translator) as queue:
        futures = queue.submit(["one two"] * 64, deadline=within(1.0))
        for future in futures:
            with pytest.raises(TimeLimitError):
                future.result()
        [after] = queue.submit(["one"], SearchConfig(beam_size=1))
        assert after.result().text
    translator.close()


def test_other_requests_run_between_slices(queue: RequestQueue, gate: Gate) -> None:
    async def ask() -> list[int]:
        slices = asyncio.create_task(
            queue.run_in_slices(lambda: (len(gate.batches) for _ in range(3)))
        )
        await asyncio.sleep(0)
        queue.submit(["two"])
        gate.open()
        return await slices

    assert asyncio.run(ask()) == [1, 2, 2]


def test_cancelled_slices_are_not_run(queue: RequestQueue, gate: Gate) -> None:
    done = []

    async def give_up() -> None:
        work = queue.run_in_slices(lambda: (done.append(i) for i in range(9)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, timeout=0.01)

    asyncio.run(give_up())
    gate.open()
    asyncio.run(queue.run(lambda: None))
    assert done == []


class Panic(BaseException):
    """Exception like those of a library in another language."""


def panic_at_two(sentences: list[str], *_: object) -> Iterator[object]:
    if "two" in sentences:
        raise Panic("at two")
    return iter(sentences)


def test_a_panic_reaches_its_caller_only(
    queue: RequestQueue, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue.translator, "translate_stream", panic_at_two)
    fails, works = queue.submit(["two"]), queue.submit(["three"])
    gate.open()
    with pytest.raises(RuntimeError, match="Panic: at two"):
        fails[0].result()
    assert works[0].result() == "three"


def test_too_many_tokens_are_too_long(translator: Translator) -> None:
    config = QueueConfig(max_tokens=50)
    with RequestQueue(translator, config) as queue:
        asyncio.run(queue.require_short(["one"] * 10, queue.deadline()))
        hinted = [
            "o\u00adne" + "\u00ad" * 100
        ] * 10  # as the model reads no soft hyphens
        asyncio.run(queue.require_short(hinted, queue.deadline()))
        emoji = ["\N{GRINNING FACE}" * 13]  # of four bytes, each a token
        with pytest.raises(TooLongError, match="at most 50 tokens, but has 54"):
            asyncio.run(queue.translate(emoji))
        with pytest.raises(TooLongError, match="at most 3 tokens here, but one has"):
            asyncio.run(
                queue.require_short(["one two three four"], queue.deadline(), 3)
            )


def test_counting_tokens_times_out(
    queue: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    tokenizer = queue.translator.tokenizer
    monkeypatch.setattr(tokenizer, "encode_sources", lambda _: ends.wait())

    async def ask() -> None:
        with pytest.raises(TimeLimitError):
            await queue.translate(["one"], deadline=within(0.1))
        ends.set()

    asyncio.run(ask())


def test_trees_equal_those_of_the_parser(parsing_checkpoint: Checkpoint) -> None:
    search = SearchConfig(beam_size=2, extra_length=5)
    own = replace(parsing_checkpoint, search=search)
    translator = Translator(own, torch.device("cpu"))
    with RequestQueue(translator) as queue:
        futures = queue.submit_to_parser(["one two", "don't"], constrained=True)
        found = [future.result() for future in futures]
        with pytest.raises(RequestError, match="but this one parses"):
            queue.submit(["one"])
    words = [["one", "two"], ["do", "n't"]]
    parses = translator.parser().parse_stream(words, search, constrained=True)
    assert found == list(parses)


def test_a_task_of_another_kind_of_model_is_refused_at_once(
    queue: RequestQueue,
) -> None:
    with pytest.raises(RequestError, match="but this one translates"):
        queue.submit_to_parser(["one"])


def test_a_future_can_be_cancelled(queue: RequestQueue, gate: Gate) -> None:
    [future] = queue.submit(["one"])
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_waiting": 0}, "`max_waiting` must be at least 1, but is 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, but is 0"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1, but is 0"),
        ({"timeout_s": 0.0}, "The timeout must be above 0 seconds .* but is 0.0"),
        ({"timeout_s": 1e300}, "at most 86,400, but is 1e[+]300"),
        ({"timeout_s": "30"}, "`timeout_s` must be a number, but is '30'"),
        ({"batch_size": 2.5}, "`batch_size` must be a whole number, but is 2.5"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_an_impossible_setting_is_refused(
    setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueConfig(**setting)


@pytest.mark.usefixtures("unchecked_types")
def test_a_queue_refuses_what_is_no_translator_and_what_is_no_config(
    translator: Translator,
) -> None:
    path: Any = "runs/mine"
    with pytest.raises(ConfigError, match="`translator` must be a Translator, but"):
        RequestQueue(path)
    for config in ({"max_waiting": 3}, ()):
        wrong: Any = config
        with pytest.raises(ConfigError, match="`config` must be a QueueConfig, but"):
            RequestQueue(translator, wrong)
