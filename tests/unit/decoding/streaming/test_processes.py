"""What is shared out among processes: nothing is lost, whatever becomes of them."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.streaming import processes
from transduce.decoding.streaming.processes import (
    MAX_PROCESSES,
    MIN_SHARE,
    SearchProcesses,
    default_processes,
)
from transduce.decoding.translator import Translator, load
from transduce.errors import ConfigError, RequestError, TransduceError
from waiting import wait_until

CPU = torch.device("cpu")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SENTENCES = [
    " ".join(WORDS[i % 8 : i % 8 + 1 + i % 5]) for i in range(3 * MIN_SHARE)
] + ["", "one " * 300]


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    for child in active_children():
        child.kill()
        child.join()


@pytest.fixture
def alone(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, CPU)


@pytest.fixture
def shared(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, CPU, num_processes=3)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_processes_find_what_one_finds(
    alone: Translator, shared: Translator, beam_size: int
) -> None:
    expected = alone.translate(SENTENCES, beam_size=beam_size)
    copies = active_children()
    for _ in range(2):
        found = shared.translate(SENTENCES, beam_size=beam_size)
        assert [each.text for each in found] == [each.text for each in expected]
        assert [each.score for each in found] == pytest.approx(
            [each.score for each in expected], abs=1e-5
        )
    assert set(active_children()) == set(copies)


def test_few_sentences_are_translated_here(shared: Translator) -> None:
    for child in active_children():
        child.kill()
    assert len(shared.translate(SENTENCES[: 2 * MIN_SHARE - 1])) == 2 * MIN_SHARE - 1


def test_a_killed_process_is_told_of_and_replaced(
    alone: Translator, shared: Translator
) -> None:
    first = active_children()[0]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_alive())
    with pytest.raises(TransduceError, match="did, with exit code -9; if memory"):
        shared.translate(SENTENCES)
    texts = [each.text for each in shared.translate(SENTENCES)]
    assert texts == [each.text for each in alone.translate(SENTENCES)]


def test_what_nobody_wants_any_more_is_not_in_the_way(
    alone: Translator, shared: Translator
) -> None:
    stream = shared.translate_stream(SENTENCES)
    next(stream)
    del stream
    texts = [each.text for each in shared.translate(SENTENCES)]
    assert texts == [each.text for each in alone.translate(SENTENCES)]


def test_two_streams_at_a_time_do_not_mix(
    alone: Translator, shared: Translator
) -> None:
    first, other = SENTENCES, SENTENCES[::-1]
    streams = zip(
        shared.translate_stream(first), shared.translate_stream(other), strict=True
    )
    texts = [(one.text, two.text) for one, two in streams]
    expected = [each.text for each in alone.translate(first)]
    assert texts == list(zip(expected, expected[::-1], strict=True))


def test_an_error_in_a_process_is_raised_here(trained_checkpoint: Checkpoint) -> None:
    weights = {
        name: torch.full_like(weight, torch.nan)
        for name, weight in trained_checkpoint.weights.items()
    }
    broken = Checkpoint(
        config=trained_checkpoint.config,
        weights=weights,
        tokenizer=trained_checkpoint.tokenizer,
        step=0,
    )
    translator = Translator(broken, CPU, num_processes=2)
    with pytest.raises(TransduceError, match="must put out numbers"):
        translator.translate(SENTENCES)


def _fail(_: object, __: object) -> None:
    raise ZeroDivisionError("as a mistake of ours would")


def test_a_mistake_in_a_process_is_raised_here(alone: Translator) -> None:
    copies = SearchProcesses(alone, 2, CPU)
    task = processes.SearchTask(
        sentences=SENTENCES,
        lengths=[1] * len(SENTENCES),
        room=10,
        begin=partial(_fail),  # type: ignore[arg-type]
    )
    with pytest.raises(ZeroDivisionError, match="as a mistake"):
        list(copies.found(task))


def test_the_copies_end_with_the_translator(trained_checkpoint: Checkpoint) -> None:
    translator = Translator(trained_checkpoint, CPU, num_processes=2)
    assert len(active_children()) == 2
    translator.close()
    assert active_children() == []
    assert len(translator.translate(SENTENCES)) == len(SENTENCES)


def test_copies_of_a_process_that_is_killed_end(
    trained_checkpoint: Checkpoint,
) -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        Translator(trained_checkpoint, CPU, num_processes=2)
        pids = [child.pid for child in active_children()]
        os.write(writing, " ".join(map(str, pids)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    for pid in map(int, os.read(reading, 100).split()):
        wait_until(lambda: not _runs(pid))  # noqa: B023


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [0, -1])
def test_there_must_be_a_process(trained_checkpoint: Checkpoint, number: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 1, but is {number}"):
        Translator(trained_checkpoint, CPU, num_processes=number)


@pytest.mark.parametrize(
    ("platform", "device"), [("darwin", "cpu"), ("win32", "cpu"), ("linux", "cuda")]
)
def test_where_a_process_cannot_be_copied_there_is_one(
    alone: Translator, platform: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.sys, "platform", platform)
    assert default_processes(torch.device(device)) == 1
    with pytest.raises(RequestError, match=f"2 are asked for on {platform} and"):
        SearchProcesses(alone, 2, torch.device(device))


@pytest.mark.parametrize(("threads", "number"), [(1, 1), (2, 2), (64, MAX_PROCESSES)])
def test_there_are_as_many_as_threads(
    threads: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert default_processes(CPU) == number


def test_none_is_as_many_as_pay(
    trained_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    translator = load(tmp_path / "model", num_processes=None)
    assert len(active_children()) == 2
    assert len(list(islice(translator.translate_stream(SENTENCES), 3))) == 3
