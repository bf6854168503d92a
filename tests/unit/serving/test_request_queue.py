import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial

import pytest
import torch

from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import BusyError, ConfigError, RequestError, TooLongError
from transduce.search_config import SearchConfig
from transduce.serving import request_queue
from transduce.serving.request_queue import QueueConfig, RequestQueue
from transduce.serving.translation import search_for

LINES = ["one", "two three", "", "four five six seven", "eight eight"]


class Gate:
    """Holds the worker up until it is opened."""

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
    """With a sentence before it, so that all that follows waits."""
    gate = Gate(queue)
    queue.submit(["one"])
    gate.wait_until_held()
    yield gate
    gate.open()


def test_translations_are_those_of_the_translator(
    queue: RequestQueue, translator: Translator
) -> None:
    found = queue.translate_sync(LINES)
    assert [t.text for t in found] == [t.text for t in translator.translate(LINES)]


def test_callers_of_many_tasks_each_have_their_own(
    queue: RequestQueue, translator: Translator
) -> None:
    async def ask() -> list[str]:
        calls = [queue.translate([line]) for line in LINES]
        return [t.text for [t] in await asyncio.gather(*calls)]

    expected = [each.text for each in translator.translate(LINES)]
    assert asyncio.run(ask()) == expected


def test_the_search_is_the_models_own(trained_checkpoint: Checkpoint) -> None:
    own = replace(trained_checkpoint, search=SearchConfig(beam_size=2))
    with RequestQueue(Translator(own, torch.device("cpu"))) as queue:
        [found] = queue.translate_sync(["one two"])
        [wider] = queue.translate_sync(["one two"], search_for(own.search, 2))
    assert len(found.hypotheses) <= 2
    assert len(wider.hypotheses) == 3


def test_nothing_asked_is_nothing_answered(queue: RequestQueue) -> None:
    assert queue.translate_sync([]) == []


def test_what_waits_is_gathered(queue: RequestQueue, gate: Gate) -> None:
    futures = [queue.submit([line])[0] for line in LINES]
    assert queue.num_waiting == 5
    gate.open()
    assert len([future.result() for future in futures]) == 5
    assert gate.batches == [1, 3, 2]


def test_other_searches_are_other_batches(queue: RequestQueue, gate: Gate) -> None:
    greedy, several = SearchConfig(beam_size=1), SearchConfig(num_best=4)
    futures = [
        *queue.submit(["one", "two"], several), *queue.submit(["one"], greedy),
        *queue.submit(["two"], several),
    ]  # fmt: skip
    gate.open()
    found = [future.result() for future in futures]
    assert gate.batches == [1, 2, 1, 1]
    assert len(found[0].hypotheses) == 4
    assert len(found[2].hypotheses) == 1


def test_a_full_queue_refuses(queue: RequestQueue, gate: Gate) -> None:
    queue.submit(["one"] * 4)
    with pytest.raises(BusyError, match="At most 5 sentences may wait, and 4 do"):
        queue.submit(["two", "three"])
    queue.submit(["two"])


def test_what_would_never_have_room_is_too_long(queue: RequestQueue) -> None:
    with pytest.raises(TooLongError, match="at most 5 sentences, but has 6"):
        queue.submit(["one"] * 6)


def test_a_sentence_whose_caller_has_gone_is_not_translated(
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


def test_a_sentence_has_its_turn_in_time_or_never(translator: Translator) -> None:
    with RequestQueue(translator, QueueConfig(timeout_s=0.05)) as queue:
        gate = Gate(queue)
        queue.submit(["one"])
        gate.wait_until_held()
        [late] = queue.submit(["two"])
        time.sleep(0.1)
        gate.open()
        with pytest.raises(BusyError, match="within 0.05 seconds"):
            late.result()


def test_an_error_reaches_all_who_wait_for_it_and_no_one_else(
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


def test_closing_finishes_what_was_taken(translator: Translator) -> None:
    queue = RequestQueue(translator)
    gate = Gate(queue)
    futures = queue.submit(LINES)
    closing = threading.Thread(target=queue.close)
    closing.start()
    gate.open()
    closing.join()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        queue.submit(["one"])


def test_other_work_is_done_in_turn_and_not_without_end(
    queue: RequestQueue, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "MAX_WORK", 2)

    async def ask() -> int:
        tasks = [asyncio.create_task(queue.run(lambda: 1)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="At most 2 other requests may wait"):
            await queue.run(lambda: 1)
        gate.open()
        return sum(await asyncio.gather(*tasks)) + await queue.run(lambda: 1)

    assert asyncio.run(ask()) == 3


def test_other_work_has_its_turn_between_batches(
    queue: RequestQueue, gate: Gate
) -> None:
    async def ask() -> int:
        before = queue.submit(["one"])
        work = asyncio.create_task(queue.run(lambda: len(gate.batches)))
        await asyncio.sleep(0)
        # More than a batch, which would have kept the model from all else.
        later = queue.submit(["two", "three", "four", "five"])
        gate.open()
        found = await work
        await asyncio.gather(*map(asyncio.wrap_future, [*before, *later]))
        return found

    assert asyncio.run(ask()) == 2
    assert gate.batches == [1, 3, 2]


def test_other_work_has_its_turn_in_time_or_never(translator: Translator) -> None:
    with RequestQueue(translator, QueueConfig(timeout_s=0.05)) as queue:
        gate = Gate(queue)
        queue.submit(["one"])
        gate.wait_until_held()

        async def ask() -> None:
            task = asyncio.create_task(queue.run(lambda: 1))
            await asyncio.sleep(0.1)
            gate.open()
            with pytest.raises(BusyError, match="within 0.05 seconds"):
                await task

        asyncio.run(ask())


def test_trees_are_those_of_the_parser(parsing_checkpoint: Checkpoint) -> None:
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


def test_what_the_model_does_not_do_is_refused_at_once(queue: RequestQueue) -> None:
    with pytest.raises(RequestError, match="but this one translates"):
        queue.submit_to_parser(["one"])


def test_waiting_can_be_given_up_by_future(queue: RequestQueue, gate: Gate) -> None:
    [future] = queue.submit(["one"])
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_waiting": 0}, "`max_waiting` must be at least 1, but is 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, but is 0"),
        ({"timeout_s": 0.0}, "The timeout must be above 0 seconds, but is 0.0"),
    ],
)
def test_an_impossible_setting_is_refused(
    setting: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        QueueConfig(**setting)
