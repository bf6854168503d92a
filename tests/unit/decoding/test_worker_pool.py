"""Sentences are all translated, whatever happens to the processes."""

import errno
import gc
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from multiprocessing import get_context
from pathlib import Path
from threading import Timer
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding import translator as translator_module
from transduce.decoding import worker_pool
from transduce.decoding.search import (
    Hypothesis,
    SearchResult,
    SearchTask,
    Sentence,
    StepRows,
)
from transduce.decoding.translator import Translator, load
from transduce.decoding.worker_pool import (
    MAX_PROCESSES,
    MIN_SHARE,
    WorkerPool,
    batch_messages,
    default_processes,
    shares_of,
)
from transduce.errors import ConfigError, RequestError, TransduceError, TransduceWarning
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.signals import unwound_on_termination
from waiting import PATIENCE_S, children_of, runs, wait_until

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
ROWS = StepRows(per_sentence=1, overhead=4)
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SENTENCES = [
    " ".join(WORDS[i % 8 : i % 8 + 1 + i % 5]) for i in range(3 * MIN_SHARE)
] + ["", "one " * 300]


def children() -> set[int]:
    """Ids of running child processes."""
    files = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    return set(filter(runs, pids))


@pytest.fixture(autouse=True)
def _none_of_earlier_tests() -> None:
    gc.collect()


@pytest.fixture
def alone(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, CPU)


@pytest.fixture
def others() -> set[int]:
    """Ids of child processes that other tests have left."""
    return children()


@pytest.fixture
def shared(trained_checkpoint: Checkpoint, others: set[int]) -> Translator:
    return Translator(trained_checkpoint, CPU, num_processes=3)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_several_processes_find_what_one_finds(
    alone: Translator, shared: Translator, beam_size: int
) -> None:
    expected = alone.translate(SENTENCES, beam_size=beam_size)
    copies = children()
    for _ in range(2):
        found = shared.translate(SENTENCES, beam_size=beam_size)
        assert [each.text for each in found] == [each.text for each in expected]
        assert [each.score for each in found] == pytest.approx(
            [each.score for each in expected], abs=1e-5
        )
    assert children() == copies


def test_few_sentences_are_translated_in_the_first_process(
    shared: Translator, others: set[int]
) -> None:
    for pid in children() - others:
        os.kill(pid, signal.SIGKILL)
    assert len(shared.translate(SENTENCES[: 2 * MIN_SHARE - 1])) == 2 * MIN_SHARE - 1


def test_sentences_of_a_killed_process_are_translated_in_the_first(
    alone: Translator, shared: Translator, others: set[int]
) -> None:
    expected = [each.text for each in alone.translate(SENTENCES)]
    first, *_ = before = children() - others
    os.kill(first, signal.SIGSTOP)  # so that it cannot finish first
    Timer(0.5, os.kill, (first, signal.SIGKILL)).start()
    message = f"Process {first}, which searches, was killed, as happens when memory"
    with pytest.warns(TransduceWarning, match=message):
        found = [each.text for each in shared.translate_stream(SENTENCES)]
    assert found == expected
    assert [each.text for each in shared.translate(SENTENCES)] == expected
    assert len(children() - others - before) == 1


def found_here() -> Sentence:
    """Sentence whose only hypothesis is the number of this process."""
    sentence = Sentence()
    sentence.hypotheses.append(Hypothesis((os.getpid(),), 0.0, (0.0,), 0.0))
    return sentence


class OneStep:
    """Stand-in for `RunningSearch` that is done after one step."""

    def __init__(self, _searcher: object, sentences: list[int]) -> None:
        self.search = SimpleNamespace(live=[found_here() for _ in sentences])

    def step(self) -> None:
        self.search.live = []


SHORT: SearchTask[object, int] = SearchTask(
    sentences=range(3_000),
    lengths=[10] * 3_000,
    capacity=512,
    start=OneStep,  # type: ignore[arg-type] # has all that the search uses
)
"""Large task of which three processes have 800 sentences each, and 600 wait."""


def test_a_late_process_holds_nobody_up(others: set[int]) -> None:
    pool = WorkerPool(object(), 3, "cpu")
    late, *_ = children() - others
    os.kill(late, signal.SIGSTOP)
    found: list[SearchResult] = []
    before = monotonic()

    def wake() -> None:
        if len(found) == 2_200 or monotonic() - before > PATIENCE_S:
            os.kill(late, signal.SIGCONT)

    for results in pool.search(SHORT, wake):
        found += results
    assert sorted(number for number, _ in found) == list(range(3_000))
    searched = Counter(hypotheses[0].ids[0] for _, hypotheses in found)
    assert len(searched) == 3
    assert searched[late] == 800


def test_the_first_process_takes_over_what_waits_if_all_are_killed(
    others: set[int],
) -> None:
    pool = WorkerPool(object(), 3, "cpu")
    for pid in children() - others:
        os.kill(pid, signal.SIGSTOP)
        Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.warns(TransduceWarning, match="was killed"):
        found = list(chain.from_iterable(pool.search(SHORT)))
    assert sorted(number for number, _ in found) == list(range(3_000))
    assert {hypotheses[0].ids[0] for _, hypotheses in found} == {os.getpid()}


class TwoSteps(OneStep):
    """Stand-in for `RunningSearch` that is done after two steps."""

    def step(self) -> None:
        pass

    def step_until_some_are_done(
        self, _few: int, on_step: Callable[[], object] | None
    ) -> None:
        if on_step is not None:
            on_step()
        self.search.live = []


def test_a_search_can_be_cancelled_after_all_processes_are_killed(
    others: set[int],
) -> None:
    pool = WorkerPool(object(), 3, "cpu")
    workers = children() - others
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
        Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()

    def cancel() -> None:
        if not workers & children():
            raise InterruptedError

    task = replace(SHORT, start=TwoSteps)  # type: ignore[arg-type]
    with warnings.catch_warnings(action="ignore"), pytest.raises(InterruptedError):
        list(pool.search(task, cancel))


def test_a_process_killed_while_idle_is_replaced(
    alone: Translator, shared: Translator, others: set[int]
) -> None:
    before = children() - others
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not children() - others)
    texts = [each.text for each in shared.translate(SENTENCES)]
    assert texts == [each.text for each in alone.translate(SENTENCES)]
    assert len(children() - others) == len(before) == 3
    # The program has waited for the killed ones, so that none is left as a zombie.
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)


def test_a_worker_that_the_program_has_waited_for_is_replaced(
    alone: Translator,
    shared: Translator,
    others: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As the handler of SIGCHLD of a server that starts processes, or the system where
    # the signal is ignored.
    [*_, pid] = children() - others
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    texts = [each.text for each in shared.translate(SENTENCES)]
    assert texts == [each.text for each in alone.translate(SENTENCES)]
    assert not killed  # as the number may be another program's by now


def test_an_abandoned_stream_does_not_delay_the_next_translation(
    alone: Translator, shared: Translator
) -> None:
    stream = shared.translate_stream(SENTENCES)
    next(stream)
    del stream
    texts = [each.text for each in shared.translate(SENTENCES)]
    assert texts == [each.text for each in alone.translate(SENTENCES)]


@pytest.mark.usefixtures("is_native")
def test_workers_can_sum_attention(
    trained_checkpoint: Checkpoint, others: set[int]
) -> None:
    config = SearchConfig(coverage_penalty=0.2, max_length=20)
    alone = Translator(trained_checkpoint, CPU)
    shared = Translator(trained_checkpoint, CPU, num_processes=3)
    expected = [each.text for each in alone.translate_stream(SENTENCES, config)]
    before, after = children() - others, []
    for _ in range(2):
        found = shared.translate_stream(SENTENCES, config)
        assert [each.text for each in found] == expected
        after.append(children() - others)
    assert len(before) == len(after[0]) == 3
    assert before == after[0] == after[1]


def test_workers_draw_the_same_samples(alone: Translator, shared: Translator) -> None:
    config = SamplingConfig(number=2, seed=3)
    expected = [each.text for each in alone.sample(SENTENCES, config)]
    assert [each.text for each in shared.sample(SENTENCES, config)] == expected


def test_processes_closed_during_a_task_end_after_it(
    alone: Translator, shared: Translator, others: set[int]
) -> None:
    expected = [each.text for each in alone.translate(SENTENCES)]
    stream = shared.translate_stream(SENTENCES)
    found = [next(stream)]
    shared.close()
    found += stream
    assert [each.text for each in found] == expected
    wait_until(lambda: not children() - others)
    assert [each.text for each in shared.translate(SENTENCES)] == expected


def test_two_concurrent_streams_do_not_mix(
    alone: Translator, shared: Translator
) -> None:
    first, other = SENTENCES, SENTENCES[::-1]
    streams = zip(
        shared.translate_stream(first), shared.translate_stream(other), strict=True
    )
    texts = [(one.text, two.text) for one, two in streams]
    expected = [each.text for each in alone.translate(first)]
    assert texts == list(zip(expected, expected[::-1], strict=True))


def test_an_error_in_a_process_is_raised_in_the_first(
    trained_checkpoint: Checkpoint,
) -> None:
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
    with pytest.raises(TransduceError, match="must output numbers"):
        translator.translate(SENTENCES)


def _fail(_: object, __: object) -> None:
    raise ZeroDivisionError("as a mistake of ours would")


def test_an_unexpected_error_in_a_process_is_raised_with_its_traceback(
    alone: Translator,
) -> None:
    copies = WorkerPool(alone, 2, "cpu")
    task = SearchTask(
        sentences=SENTENCES,
        lengths=[1] * len(SENTENCES),
        capacity=10,
        step_rows=ROWS,
        start=partial(_fail),  # type: ignore[arg-type]
    )
    with pytest.raises(ZeroDivisionError, match="as a mistake") as raised:
        list(copies.search(task))
    assert "in _fail" in raised.value.__notes__[0]


def found_until_it_fails(number: int) -> Iterator[list[SearchResult]]:
    for i in range(number):
        yield [(i, [])]
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("moment", "messages"),
    [(60.0, [[(0, []), (1, []), (2, [])]]), (0.0, [[(0, [])], [(1, [])], [(2, [])]])],
)
def test_results_found_within_a_moment_are_sent_together(
    moment: float, messages: list[list[SearchResult]]
) -> None:
    *told, error = batch_messages(found_until_it_fails(3), moment)
    assert told == messages
    assert isinstance(error, ZeroDivisionError)
    assert list(batch_messages(iter(messages), moment)) == messages
    assert not list(batch_messages(iter([[], []]), moment))


def test_after_a_message_results_are_collected_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = count(0.0, 0.6)  # two readings are apart by more than the interval
    monkeypatch.setattr(
        worker_pool, "time", SimpleNamespace(monotonic=partial(next, clock))
    )
    found = [[(number, [])] for number in range(6)]
    messages = list(batch_messages(iter(found), interval_s=1.0))
    assert [len(each) for each in messages] == [2, 2, 2]


def test_results_are_sent_without_waiting_for_more() -> None:
    found = [(0, [])]

    def slowly() -> Iterator[list[SearchResult]]:
        yield found
        sleep(0.02)
        yield []
        raise AssertionError("is not asked for before what there is is told")

    assert next(batch_messages(slowly(), interval_s=0.01)) == found


@pytest.mark.parametrize(("room", "are_alike"), [(20 * 15, True), (20 * 15 - 1, False)])
def test_shares_hold_sentences_of_similar_length_if_each_fits_one_batch(
    room: int, are_alike: bool
) -> None:
    lengths = [*[60] * 4, *[15] * 20]
    task = SearchTask(
        sentences=range(24),
        lengths=lengths,
        capacity=room,
        step_rows=ROWS,
        start=partial(_fail),
    )
    long = [sum(lengths[i] == 60 for i in share) for share in shares_of(task, 2)]
    assert sorted(long) == ([0, 4] if are_alike else [2, 2])


def test_a_minimum_length_makes_sentences_equally_long() -> None:
    task = SearchTask(
        sentences=range(24),
        lengths=[*[60] * 4, *[5] * 20],
        capacity=24 * 60,
        step_rows=ROWS,
        start=partial(_fail),
        min_steps=60,
    )
    assert list(map(len, shares_of(task, 2))) == [12, 12]
    assert list(map(len, shares_of(task.subset(range(20)), 2))) == [10, 10]


@pytest.mark.usefixtures("shared")
def test_processes_yield_the_processor_to_the_first(others: set[int]) -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("who runs the tests has chosen how they are scheduled")
    copies = children() - others
    assert len(copies) == 3
    for pid in copies:
        wait_until(lambda pid=pid: os.sched_getscheduler(pid) == os.SCHED_BATCH)


def test_workers_end_with_the_translator(
    trained_checkpoint: Checkpoint, others: set[int]
) -> None:
    translator = Translator(trained_checkpoint, CPU, num_processes=2)
    assert len(children() - others) == 2
    translator.close()
    assert not children() - others
    assert len(translator.translate(SENTENCES)) == len(SENTENCES)
    new = children() - others
    assert len(new) == 2
    assert len(translator.translate(SENTENCES)) == len(SENTENCES)
    assert children() - others == new
    del translator
    gc.collect()
    assert not children() - others


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_when_the_first_is_killed(
    trained_checkpoint: Checkpoint, end: signal.Signals
) -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        _kept.append(Translator(trained_checkpoint, CPU, num_processes=2))
        os.write(writing, " ".join(map(str, children())).encode())
        os.kill(os.getpid(), end)
    os.waitpid(parent, 0)
    copies = list(map(int, os.read(reading, 100).split()))
    assert len(copies) == 2
    try:
        wait_until(lambda: not any(map(runs, copies)))
    finally:
        for copy in filter(runs, copies):
            os.kill(copy, signal.SIGKILL)


def test_a_signal_to_the_group_ends_only_the_first_process(
    alone: Translator, shared: Translator
) -> None:
    stream = shared.translate_stream(SENTENCES)
    texts = [next(stream).text]
    for pid in children():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    texts += [each.text for each in stream]
    assert texts == [each.text for each in alone.translate(SENTENCES)]


def test_a_fork_of_the_first_process_starts_its_own_processes(
    alone: Translator, shared: Translator
) -> None:
    expected = [each.text for each in alone.translate(SENTENCES)]
    before = children()
    context = get_context("fork")
    with context.Pool(2, _keep, (shared,)) as pool:
        for found in pool.map(_translate_kept, [SENTENCES] * 4, chunksize=1):
            assert found == expected
    assert before <= children()
    assert [each.text for each in shared.translate(SENTENCES)] == expected
    assert before <= children()


_kept: list[Translator] = []


def _keep(translator: Translator) -> None:
    _kept.append(translator)


def _translate_kept(sentences: list[str]) -> list[str]:
    return [each.text for each in _kept[0].translate(sentences)]


def test_a_worker_holds_no_file_open(shared: Translator, others: set[int]) -> None:
    copies = children() - others
    assert len(copies) == 3

    def num_files(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    for pid in copies:  # which may still be closing some
        wait_until(lambda pid=pid: num_files(pid) <= 4)
        # Standard input, output and error, and the connection to this process.
        assert num_files(pid) == 4
    assert shared.symbols is None


def test_a_process_that_searches_is_killed_before_the_first(
    shared: Translator, others: set[int]
) -> None:
    def score(process: int) -> int:
        return int(Path(f"/proc/{process}/oom_score_adj").read_text())

    for pid in children() - others:
        wait_until(lambda pid=pid: score(pid) > score(os.getpid()))
    assert shared.symbols is None


def test_a_worker_starts_soon_however_many_files_may_be_open(
    others: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a call of the system, each of a billion numbers would be tried.
    monkeypatch.delattr(os, "closerange")
    pool = WorkerPool(object(), 2, "cpu")
    found = list(chain.from_iterable(pool.search(SHORT)))
    searched = {hypotheses[0].ids[0] for _, hypotheses in found}
    assert searched == children() - others


def test_a_system_that_forbids_new_processes_is_reported(
    alone: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    with pytest.raises(
        RequestError, match="allows none .Resource temp.*single process"
    ):
        WorkerPool(alone, 2, "cpu")


@pytest.mark.parametrize("num_left", [0, 2])
@pytest.mark.parametrize("function", ["fork", "Pipe"])
def test_a_search_goes_on_if_no_process_replaces_a_killed_one(
    others: set[int], function: str, num_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    pool = WorkerPool(object(), 3, "cpu")
    workers = sorted(children() - others)
    for pid in workers[num_left:]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(children() - others) == num_left)
    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fork" else worker_pool, function, refused)
        message = "allows no further process.*Cannot allocate memory.*with fewer"
        with pytest.warns(TransduceWarning, match=message):
            found = list(chain.from_iterable(pool.search(SHORT)))
    assert sorted(number for number, _ in found) == list(range(3_000))
    searched = {hypotheses[0].ids[0] for _, hypotheses in found}
    assert searched == ({os.getpid()} if num_left == 0 else set(workers[:num_left]))
    list(pool.search(SHORT))
    assert len(children() - others) == 3


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "at least 1, but is 0"),
        (-1, "at least 1, but is -1"),
        (
            100_000,
            "at most [0-9]+ on this machine, but is 100,000; more processes than cores",
        ),
        (2.5, "a whole number, but is 2.5"),
        (True, "a whole number, but is True"),
        ("2", "a whole number, but is '2'"),
    ],
)
def test_the_number_of_processes_is_from_1_to_the_machines_limit(
    trained_checkpoint: Checkpoint, number: Any, message: str, unchecked_types: None
) -> None:
    with pytest.raises(ConfigError, match=message):
        Translator(trained_checkpoint, CPU, num_processes=number)


@pytest.mark.parametrize(
    ("platform", "device"), [("darwin", "cpu"), ("win32", "cpu"), ("linux", "cuda")]
)
def test_without_fork_there_is_one_process(
    alone: Translator, platform: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool.sys, "platform", platform)
    assert default_processes(device) == 1
    with pytest.raises(RequestError, match=f"2 are requested on {platform} and"):
        WorkerPool(alone, 2, device)


@pytest.mark.parametrize(("threads", "number"), [(1, 1), (2, 2), (64, MAX_PROCESSES)])
def test_the_default_number_of_processes_is_that_of_threads(
    threads: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert default_processes("cpu") == number


def test_num_processes_of_none_means_the_default(
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: set[int],
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    # Not `torch.get_num_threads`, whose patch the copies would inherit.
    monkeypatch.setattr(translator_module, "default_processes", lambda _: 2)
    translator = load(tmp_path / "model", num_processes=None)
    assert len(children() - others) == 2
    assert len(list(islice(translator.translate_stream(SENTENCES), 3))) == 3


def test_a_signal_during_a_fork_ends_the_program(
    trained_checkpoint: Checkpoint, others: set[int]
) -> None:
    """Python drops exceptions of handlers that run in functions around a fork."""
    unsent = [signal.SIGTERM]

    def send() -> None:
        while unsent:
            os.kill(os.getpid(), unsent.pop())

    os.register_at_fork(before=send)  # it stays, but sends nothing more
    with pytest.raises(SystemExit), unwound_on_termination():
        Translator(trained_checkpoint, CPU, num_processes=3)
    gc.collect()
    assert not children() - others


def test_searching_processes_end_when_the_first_is_killed(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Copies end even if they send nothing for a long time."""
    save_model(trained_checkpoint, tmp_path / "model")
    lines = tmp_path / "lines"
    lines.write_text("one two three four five six seven eight\n" * 2_000)
    endless = ("--min-length", "100000", "--extra-length", "100000")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "transduce", "translate", str(tmp_path / "model")),
            *("--input", str(lines), "--output", str(tmp_path / "output"), *endless),
            *("--device", "cpu", "--processes", "2"),
        ],
    )
    wait_until(lambda: len(children_of(process.pid)) == 2)
    copies = children_of(process.pid)
    wait_until(lambda: all(seconds_used_by(copy) > 0.2 for copy in copies))
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not any(map(runs, copies)))
    finally:
        for copy in filter(runs, copies):
            os.kill(copy, signal.SIGKILL)


def seconds_used_by(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")
