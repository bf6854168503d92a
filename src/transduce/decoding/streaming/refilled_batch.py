"""Sentences decoded in one batch: who is done leaves, who waits takes the place.

So the batch stays as full as memory and matrix products like it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.search import Decoding, SentenceSearch

BATCH_POSITIONS = 2_048
"""Source positions of a batch times its hypotheses, padding included: enough for the
matrix products, and what passes between them stays in a processor's caches."""
POSITION_BYTES = 2**20
"""Of a GPU's memory for each such position, logits and all: what is there for most
models several times over."""
REFILL_SHARE = 0.5
"""Of a batch's room that must be free before others join, all of it being copied."""

Begin = Callable[[list[int]], Decoding]
"""Reads the sentences of some numbers."""


def batch_positions(device: str) -> int:
    """As many as keep the device busy and have room in its memory."""
    if not device.startswith("cuda"):
        return BATCH_POSITIONS
    import torch  # which is loaded then, and is not needed otherwise

    memory = torch.cuda.get_device_properties(device).total_memory
    return max(memory // POSITION_BYTES, BATCH_POSITIONS)


def search_in_steps(
    lengths: Sequence[int],
    room: int,
    begin: Begin,
    on_step: Callable[[], object] | None = None,
) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
    """The number and the hypotheses of each sentence, soon after it is done.

    Those are together that are done by the same steps, of which some do none. The batch
    has `room` for so many positions, padding included, or for one sentence that is
    longer. The longest come first, so that few are padded much. `on_step` is called
    between steps, and what it raises ends the search.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    waiting = deque(order)
    batch = _Batch(lengths, room)
    while waiting or batch.is_live:
        if waiting and batch.has_room_for(waiting[0]):
            batch.add(batch.take(waiting), begin)
        else:
            batch.advance(batch.num_to_go_on(waiting), on_step)
        yield batch.take_done()


class _Batch:
    """What is decoded together."""

    def __init__(self, lengths: Sequence[int], room: int) -> None:
        self._lengths = lengths
        self._room = room
        self._running: Decoding | None = None
        self._numbers: dict[SentenceSearch, int] = {}
        """Of those that have not been taken."""

    @property
    def is_live(self) -> bool:
        return bool(self._live)

    def has_room_for(self, number: int) -> bool:
        """Whether it is time for this sentence, and others after it, to join."""
        if not self.is_live:
            return True
        capacity, num_live = self._capacity(number), len(self._live)
        return num_live < capacity and num_live <= self._few(capacity)

    def num_to_go_on(self, waiting: Sequence[int]) -> int:
        """Of the sentences, before others may join; none if none waits."""
        return self._few(self._capacity(waiting[0])) if waiting else 0

    def take(self, waiting: deque[int]) -> list[int]:
        """As many as there is room for, but one at least."""
        count = max(self._capacity(waiting[0]) - len(self._live), 1)
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def add(self, numbers: list[int], begin: Begin) -> None:
        """Begin with sentences and, once they have grown, let them join."""
        newcomers = begin(numbers)
        self._numbers.update(zip(newcomers.search.live, numbers, strict=True))
        newcomers.advance()
        if self._running is None or not self.is_live:
            self._running = newcomers
        elif newcomers.search.live:
            self._running.join(newcomers)

    def advance(self, few: int, on_step: Callable[[], object] | None) -> None:
        """Until some of the sentences are done; no more steps once so few go on."""
        assert self._running is not None
        self._running.advance_until_some_are_done(few, on_step)

    def take_done(self) -> list[tuple[int, list[Hypothesis]]]:
        """Those that are done and have not been taken, by number."""
        live = set(self._live)
        done = [each for each in self._numbers if each not in live]
        return [(self._numbers.pop(each), each.hypotheses()) for each in done]

    @property
    def _live(self) -> Sequence[SentenceSearch]:
        return [] if self._running is None else self._running.search.live

    def _few(self, capacity: int) -> int:
        """Live ones of that capacity, at most, that others may join."""
        return int((1 - REFILL_SHARE) * capacity)

    def _capacity(self, number: int) -> int:
        """Sentences that there is room for once this one is in, all padded alike."""
        lengths = [self._lengths[self._numbers[each]] for each in self._live]
        return self._room // max(self._lengths[number], *lengths, 1)
