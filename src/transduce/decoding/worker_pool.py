"""Processes that search for shares of a task.

Each process has one thread and its own batches. Two such processes are faster than one
with two threads: while one runs Python code, the other multiplies matrices, and no
thread waits for another after each product. Workers are forks, so they share the memory
of the weights.
"""

import gc
import os
import signal
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import accumulate, chain, pairwise
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NoReturn, cast

from transduce.decoding.search import (
    Searcher,
    SearchResult,
    SearchTask,
    StepRows,
    longest_first,
    search_in_batches,
)
from transduce.errors import RequestError, warn_caller
from transduce.machine import num_threads, require_number_of_processes, use_threads
from transduce.signals import end_with_parent, signals_held, terminations

MIN_SHARE = 8
"""Minimum number of sentences of a process; with fewer, another one saves no time."""
LATE_FRACTION = 0.2
"""Fraction of a large task that is kept for the processes that finish first."""
MAX_LATE_SHARES = 4
"""Maximum number of shares, for each process, into which that fraction is cut."""


def shares_of(task: SearchTask[Any, Any], num_processes: int) -> list[list[int]]:
    """Split the numbers of the sentences into shares, in the order of their start.

    The first ones, at most one for each process, have about equal cost. A large task
    has further, small shares of short sentences, for the processes that are done first:
    none waits for a process whose core is busy with another program.
    """
    number = max(min(num_processes, len(task.sentences) // MIN_SHARE), 1)
    if number == 1:
        return [list(range(len(task.sentences)))]
    steps = [max(length, task.min_steps, 1) for length in task.lengths]
    if sum(task.lengths) <= task.capacity * number:
        shares = similar_shares(steps, task.step_rows, number)
        if all(_is_one_batch(task, share) for share in shares):
            return shares
    late = _late_shares(task, number)
    taken = set(chain.from_iterable(late))
    first = [i for i in range(len(steps)) if i not in taken]
    shares = mixed_shares([steps[i] for i in first], task.step_rows, number)
    return [*([first[i] for i in share] for share in shares if share), *late]


def _is_one_batch(task: SearchTask[Any, Any], share: Sequence[int]) -> bool:
    return len(share) * max(task.lengths[i] for i in share) <= task.capacity


def _late_shares(task: SearchTask[Any, Any], number: int) -> list[list[int]]:
    """Return shares of the shortest sentences, each of at least about a batch."""
    max_tokens = LATE_FRACTION * sum(task.lengths)
    num_batches = int(max_tokens / max(task.capacity, 1))
    num_shares = min(num_batches, MAX_LATE_SHARES * number)
    if num_shares == 0:
        return []
    order = longest_first(task.lengths)
    sizes = accumulate(task.lengths[i] for i in reversed(order))
    num_late = sum(size <= max_tokens for size in sizes)
    late = order[len(order) - num_late :]
    bounds = [num_late * k // num_shares for k in range(num_shares + 1)]
    return [late[a:b] for a, b in pairwise(bounds) if a < b]


def mixed_shares(steps: Sequence[int], rows: StepRows, number: int) -> list[list[int]]:
    """Return shares of long and short sentences, from the steps of each.

    This suits many sentences: the shares stay balanced if all long sentences take
    longer than estimated. Each sentence, longest first, goes to the cheapest share.
    """
    shares: list[list[int]] = [[] for _ in range(number)]
    costs = [(0, i) for i in range(number)]
    for sentence in longest_first(steps):
        cost, i = heappop(costs)
        shares[i].append(sentence)
        cost += rows.cost(steps[sentence], is_first=len(shares[i]) == 1)
        heappush(costs, (cost, i))
    return shares


def similar_shares(
    steps: Sequence[int], rows: StepRows, number: int
) -> list[list[int]]:
    """Return shares of sentences of similar length, from the steps of each.

    This suits shares of one batch each: a batch takes as many steps as its longest
    sentence, so only one share takes as many as the longest of all. The costliest share
    costs as little as possible.
    """
    order = longest_first(steps)
    lengths = [steps[sentence] for sentence in order]
    # Binary search for the least cost that no share needs to exceed.
    low, high = 0, sum(rows.cost(each, is_first=True) for each in lengths)
    while low < high:
        middle = (low + high) // 2
        if len(list(_cut(lengths, rows, middle))) <= number:
            high = middle
        else:
            low = middle + 1
    return [order[share] for share in _cut(lengths, rows, high)]


def _cut(lengths: Sequence[int], rows: StepRows, max_cost: int) -> Iterator[slice]:
    """Yield consecutive shares, each as large as its cost may be."""
    begin, cost = 0, 0
    for i, steps in enumerate(lengths):
        cost += rows.cost(steps, is_first=i == begin)
        if cost > max_cost and i > begin:
            yield slice(begin, i)
            begin, cost = i, rows.cost(steps, is_first=True)
    yield slice(begin, len(lengths))


MAX_PROCESSES = 16
"""Default limit of the number of processes, which take some hundred megabytes each. A
number that the user gives may be as large as the number of cores."""
MESSAGE_INTERVAL_S = 0.02
"""Least time between two messages of a worker: each interrupts another process."""
POLL_S = 0.05
"""Time between two calls of `on_step` while workers search."""
OOM_SCORE, MAX_OOM_SCORE = 50, 1000
"""Increase of a worker's score by which Linux chooses what to kill when memory runs
out, in thousandths of the memory, and the largest score."""
FIRST_FILE = 3
"""Number of the first file after standard input, output and error."""


def default_processes(device: str) -> int:
    """Return one process for each thread of PyTorch's default, at most 16.

    Returns 1 where processes cannot be forked: on a GPU, and except under Linux.
    """
    if not _can_fork(device):
        return 1
    return min(num_threads(), MAX_PROCESSES)


def _can_fork(device: str) -> bool:
    """Return whether forks work: not with CUDA, nor with macOS's libraries."""
    return sys.platform == "linux" and device == "cpu"


class WorkerPool(Generic[Searcher]):
    """A searcher and forks of this process, which search for shares of a task.

    Workers have one thread each, since threads do not survive a fork. They end with
    this object, or with this process.
    """

    def __init__(self, searcher: Searcher, number: int, device: str) -> None:
        """Start `number` workers, or none for 1.

        Raises `ConfigError` if the number is below 1 or too large for the machine, and
        `RequestError` if this process cannot be forked.
        """
        require_number_of_processes(number, MAX_PROCESSES)
        if number > 1 and not _can_fork(device):
            raise RequestError(
                "Only under Linux and on a CPU can several processes search, but "
                f"{number} are requested on {sys.platform} and {device}."
            )
        self._searcher = searcher
        self.number = number
        """Number of processes that search."""
        self._idle: list[_Worker] = []
        self._task_lock = Lock()
        """Held while workers search for a task, so that there is one at a time."""
        self._is_closing = False
        """Whether the workers are to be ended before the next task."""
        try:
            self._fill(number if number > 1 else 0)
        except OSError as error:
            raise RequestError(
                "A process that searches must be started, but the system allows none "
                f"({error.strerror}); use a single process."
            ) from None

    def search(
        self,
        task: SearchTask[Searcher, Any],
        on_step: Callable[[], object] | None = None,
    ) -> Iterator[list[SearchResult]]:
        """Yield finished sentences soon after they are done, as `search_in_batches`.

        This process searches alone if there are few sentences or the workers are busy
        with another task. It also searches for what a killed worker leaves undone, with
        a `TransduceWarning`. If the system allows no process in place of a killed one,
        a warning says so, and those that are left search. An exception of `on_step` or
        of a worker ends the search.
        """
        shares = shares_of(task, self.number)
        if len(shares) == 1 or not self._task_lock.acquire(blocking=False):
            yield from search_in_batches(task, self._searcher, on_step)
            return
        yield from self._search_by_workers(task, shares, on_step)

    def close(self) -> None:
        """End the workers, once they are idle; a later search starts new ones."""
        self._is_closing = True
        self._end_workers_if_idle()

    def _end_workers_if_idle(self) -> None:
        """End the workers if the pool is closing; a task in progress does it later."""
        if self._is_closing and self._task_lock.acquire(blocking=False):
            try:
                self._end_workers_if_closing()
            finally:
                self._task_lock.release()

    def _end_workers_if_closing(self) -> None:
        """End the workers if the pool is closing; the task lock must be held."""
        if self._is_closing:
            self._is_closing = False
            while self._idle:
                self._idle.pop().end()

    def _search_by_workers(
        self,
        task: SearchTask[Searcher, Any],
        shares: list[list[int]],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        busy: dict[Connection, _Worker] = {}
        try:
            self._end_workers_if_closing()
            try:
                self._fill(min(len(shares), self.number))
            except OSError as error:  # memory or the limit of processes is exhausted
                warn_caller(
                    f"The system allows no further process that searches "
                    f"({error.strerror}); the search goes on with fewer."
                )
            number = min(len(shares), len(self._idle))
            for share in shares[:number]:
                worker = self._idle.pop()
                busy[worker.connection] = worker
                worker.start(task, share)
            yield from self._received(task, busy, deque(shares[number:]), on_step)
        finally:
            # Workers that are still searching, for results that nobody reads, end.
            try:
                for worker in busy.values():
                    worker.end()
            finally:
                self._task_lock.release()
            self._end_workers_if_idle()

    def _received(
        self,
        task: SearchTask[Searcher, Any],
        busy: dict[Connection, "_Worker"],
        waiting: deque[list[int]],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        """Yield what busy workers find; give those that are done a waiting share."""
        while busy:
            for connection in _ready(busy, on_step):
                worker = busy[connection]
                try:
                    found = worker.receive()
                except EOFError:
                    del busy[connection]
                    yield from self._undone(task, worker, on_step)
                    continue
                # Before the yield, as the caller may never ask for more.
                if worker.is_done and waiting:
                    worker.start(task, waiting.popleft())
                elif worker.is_done:
                    self._idle.append(busy.pop(connection))
                yield found
        for share in waiting:  # all workers were killed
            yield from self._search_alone(task, share, on_step)

    def _undone(
        self,
        task: SearchTask[Searcher, Any],
        killed: "_Worker",
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        """Search in this process for what a killed worker leaves undone."""
        killed.end()
        # With its number, as in the system's log; equal warnings would be shown once.
        warn_caller(
            f"Process {killed.pid}, which searches, was killed, as happens when memory "
            "runs out; its sentences are searched for by the first process."
        )
        yield from self._search_alone(task, sorted(killed.missing), on_step)

    def _search_alone(
        self,
        task: SearchTask[Searcher, Any],
        numbers: list[int],
        on_step: Callable[[], object] | None,
    ) -> Iterator[list[SearchResult]]:
        """Search for some sentences of the task in this process."""
        for found in search_in_batches(task.subset(numbers), self._searcher, on_step):
            yield [(numbers[i], hypotheses) for i, hypotheses in found]

    def _fill(self, number: int) -> None:
        """Start workers until `number` are idle; drop those that have ended.

        Raises `OSError` if the system allows no further process.
        """
        for worker in [each for each in self._idle if not each.is_alive]:
            # Killed while it was idle, or started before this process was forked.
            self._idle.remove(worker)
            worker.end()
        while len(self._idle) < number:
            self._idle.append(_Worker(self._searcher))


def _ready(
    busy: Iterable[Connection], on_step: Callable[[], object] | None
) -> list[Connection]:
    """Return connections with a message; with `on_step`, none after `POLL_S`."""
    if on_step is not None:
        on_step()
    return cast(list[Connection], wait(list(busy), None if on_step is None else POLL_S))


class _Worker:
    """A fork of this process that searches for the sentences that it receives."""

    def __init__(self, searcher: object) -> None:
        """Fork; raise `OSError` if the system allows no further process or file."""
        self.connection, theirs = Pipe()
        self._parent = os.getpid()
        with signals_held():  # one that ends this process must also end the worker
            self.pid = os.fork()
            if self.pid == 0:
                _run_worker(searcher, theirs, self._parent)
            self.end = weakref.finalize(
                self, _end, self._parent, self.pid, self.connection
            )
            """Ends the worker, once; also called when this object is collected."""
        theirs.close()
        self.missing: set[int] = set()
        """Numbers of the sentences without a result."""

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs and is a child of this process."""
        if os.getpid() != self._parent:
            return False
        return _has_ended(self.pid) is False

    @property
    def is_done(self) -> bool:
        return not self.missing

    def start(self, task: SearchTask[Any, Any], numbers: list[int]) -> None:
        """Send some of the sentences to the worker."""
        self.numbers, self.missing = numbers, set(numbers)
        with suppress(OSError):  # it was killed; `receive` raises then
            self.connection.send(task.subset(numbers))

    def receive(self) -> list[SearchResult]:
        """Return the next results; raise `EOFError` if the worker was killed."""
        try:
            found: list[SearchResult] | Exception = self.connection.recv()
        except OSError:
            raise EOFError from None
        if isinstance(found, Exception):
            raise found
        numbered = [(self.numbers[i], hypotheses) for i, hypotheses in found]
        self.missing.difference_update(number for number, _ in numbered)
        return numbered


def _has_ended(pid: int) -> bool | None:
    """Return whether a child of this process has ended; None if it is no child of it.

    A process is no longer a child once the program has waited for it. If the program
    ignores SIGCHLD, Linux has done so.
    """
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended is not None


def _end(parent: int, pid: int, connection: Connection) -> None:
    connection.close()
    # Otherwise the worker is a child of another process, or another process may have
    # its number by now.
    if os.getpid() == parent and _has_ended(pid) is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # a worker has no state to save
            os.waitpid(pid, 0)


def _run_worker(searcher: object, connection: Connection, parent: int) -> NoReturn:
    """Search in the worker until the first process closes the connection."""
    try:
        # Signals reach all processes of a group; only the first one handles them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in terminations():
            signal.signal(number, signal.SIG_IGN)
        # The kernel's parent-death signal would also come when only the thread that
        # started this process ends.
        end_with_parent(parent, signal.SIGKILL)
        # Otherwise a worker that receives its task may occupy the processor at once,
        # before the first process has sent the next worker its task.
        with suppress(OSError):  # where the system forbids it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not as the user chose
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _close_files(connection.fileno())
        _die_first()
        use_threads(1)
        gc.freeze()  # inherited objects stay, so collections need not visit them
        with suppress(EOFError, OSError):  # the first process has ended
            while True:
                task = connection.recv()
                for message in batch_messages(search_in_batches(task, searcher)):
                    connection.send(message)
    finally:
        os._exit(0)  # buffers and exit handlers belong to the first process


def _close_files(kept: int) -> None:
    """Close inherited files; a file that the first process closes must not stay open.

    Only open ones are closed, since the limit may be a billion, as in containers, and
    not every system closes a range of files at once.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(2):
        os.dup2(null, standard)
    try:
        inherited = map(int, os.listdir("/proc/self/fd"))
    except OSError:  # there is no /proc
        os.closerange(FIRST_FILE, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        return
    for descriptor in inherited:
        if descriptor >= FIRST_FILE and descriptor != kept:
            with suppress(OSError):  # the file of the list itself is closed by now
                os.close(descriptor)


def _die_first() -> None:
    """Let the system kill this process rather than the first when memory runs out.

    They are about equally large, as they share the weights, but the first process can
    replace another, and has the results of all.
    """
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        before = int(score.read_text(encoding="ascii"))
        score.write_text(str(min(before + OOM_SCORE, MAX_OOM_SCORE)), encoding="ascii")


def batch_messages(
    found: Iterator[list[SearchResult]], interval_s: float = MESSAGE_INTERVAL_S
) -> Iterator[list[SearchResult] | Exception]:
    """Yield results, collected for `interval_s` seconds, and the exception, if any."""
    held: list[SearchResult] = []
    sent = time.monotonic()
    try:
        for each in found:
            held += each
            if held and time.monotonic() - sent >= interval_s:
                yield held
                held, sent = [], time.monotonic()
    except Exception as error:  # raised again in the first process
        if held:
            yield held
        error.add_note(traceback.format_exc())
        yield error
        return
    if held:
        yield held
