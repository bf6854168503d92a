"""Decoding steps of a Transformer on a GPU that are recorded once and then replayed.

A step launches about 25 kernels a layer, and launching them takes the CPU longer than a
GPU needs to run them. CUDA graphs record a step once, and replay it with one call.

`CudaGraphs` records, `StaticStep` is a step at fixed addresses, `StepGraphs` keeps such
steps for all decoders of a model, and `GraphedDecoder` is the decoder that a search
uses.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Protocol, runtime_checkable
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.decoding.cache import DecodingState
from transduce.decoding.torch_decoder import FusedStep, TorchDecoder
from transduce.device import for_inference, is_out_of_memory, recorded_graph
from transduce.errors import warn_caller
from transduce.model.attention import additive_mask
from transduce.model.transformer import Memory

REFUSED = "The GPU refuses to record decoding steps, so they take longer. Its message: "

Run = Callable[[], Tensor]


class CudaGraphs:
    """Recorder of graphs of one model on its GPU; the graphs share their memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._latest: torch.cuda.CUDAGraph | None = None
        """Graph that keeps the memory for the next one."""
        self._is_refused = False
        # Graphs share memory: no other may run before a result is copied.
        self._lock = Lock()

    def record(self, run: Run) -> Run:
        """Record `run` and return a function that replays it.

        `run` must read and write tensors that stay in place, must not synchronise with
        the GPU, and must have been called before, which loads its kernels.

        Warns (`TransduceWarning`) if the GPU refuses, and returns `run` itself then and
        for all later calls. Where memory is short, it returns `run` this time only.
        """
        with self._lock, torch.cuda.device(self._device):
            if self._is_refused:
                return run
            try:
                graph, result = self._recorded(run)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    torch.cuda.empty_cache()
                    return run
                self._is_refused = True
                warn_caller(f"{REFUSED}{error}")
                return run

        def replay() -> Tensor:
            with self._lock, torch.cuda.device(self._device):
                graph.replay()
                return result.clone()

        return replay

    def _recorded(self, run: Run) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        pool = None if self._latest is None else self._latest.pool()
        if self._stream is None:
            # Only graphs use this stream: memory that libraries allocate for it belongs
            # to the graphs, and lives as long.
            self._stream = torch.cuda.Stream()
        # Cached memory is not freed before: that takes longer than many steps.
        with recorded_graph(self._stream, pool) as graph:
            result = run()
        self._latest = graph
        return graph, result


@runtime_checkable
class Recorder(Protocol):
    """`CudaGraphs`, or a stand-in for tests."""

    def record(self, run: Run) -> Run:
        """Return a function that does the same, in the same places of memory."""
        ...


MIN_POSITIONS, MIN_SLOTS, MIN_TOKENS = 32, 64, 512
"""Smallest size of a step in positions of the source, in slots and in tokens."""
MAX_ENLARGED = 32_768
"""Largest number of positions, or slots, of all sentences together that a small size is
rounded up to: many short sentences must not take much more memory than they need."""


def _rounded_up(number: int, minimum: int = 1) -> int:
    """Round up to a power of two, or to three quarters of one."""
    power = 1 << max(number - 1, 0).bit_length()
    three_quarters = 3 * power // 4
    return max(three_quarters if number <= three_quarters else power, minimum)


@dataclass(frozen=True, slots=True)
class StepSize:
    """Size of the tensors of a decoding step."""

    sentences: int
    group: int
    source: int
    """Positions of the source."""
    slots: int
    max_tokens: int
    """Most tokens that a hypothesis can have."""

    @classmethod
    def fitting(cls, state: DecodingState) -> "StepSize":
        """Return a size that a state fits into, rounded up so that few sizes occur."""
        sentences = _rounded_up(len(state.lengths))
        enlarged = max(MAX_ENLARGED // sentences, 1)
        source, slots = state.memory_mask.size(-1), state.capacity
        return cls(
            sentences=sentences,
            group=state.group_size,
            source=_rounded_up(source, min(MIN_POSITIONS, enlarged)),
            # Recurrent units have no slots.
            slots=_rounded_up(slots, min(MIN_SLOTS, enlarged)) if slots else 0,
            max_tokens=_rounded_up(state.max_length + 1, MIN_TOKENS),
        )


class StaticStep:
    """A decoding step at fixed addresses: first run, then recorded, then replayed.

    It serves all states of one size, one at a time.
    """

    def __init__(
        self,
        step: FusedStep,
        size: StepSize,
        like: DecodingState,
        recorder: Recorder,
    ) -> None:
        """Allocate the memory for states of a size; `like` is a state of the model."""
        self.size = size
        self._recorder = recorder
        self._state = like.zeros(size.sentences, size.source, size.slots)
        device = self._state.lengths.device
        rows = size.sentences * size.group
        self._host_inputs = np.zeros(2 * rows + 1, dtype=np.int64)
        """The next `_inputs`: the first slot to fill, the last tokens, the parents."""
        self._inputs = torch.zeros(2 * rows + 1, dtype=torch.int64, device=device)
        # The graph reads these rows by their address.
        encodings = step.model.positions(0, size.max_tokens, device)
        # Not a method: a reference cycle would keep the memory until a collection.
        self._plain: Run = partial(
            _static_step, step, self._state, self._inputs, encodings
        )
        self._run: Run = self._plain
        """Function that takes the step: `_plain` until it is recorded."""
        self._has_run = False
        weight = step.model.output_weight
        views = self._state.views(*self._shape)
        self.num_bytes = rows * len(weight) * weight.element_size() + sum(
            each.numel() * each.element_size() for each in views
        )
        """Memory of the state and of the logits."""

    def load(self, state: DecodingState) -> DecodingState:
        """Copy a state to this memory; sentences beyond its own are padding.

        Returns the state here, which is valid until the next call.
        """
        # Masked slots have a weight of 0, but 0 times infinity is NaN.
        torch._foreach_zero_(self._state.views(*self._shape))
        size = len(state.lengths), state.memory_mask.size(-1), state.num_slots
        torch._foreach_copy_(self._state.views(*size), state.views(*size))
        # The state that the graph reads must keep its tensors.
        here = self._state.alias()
        here.num_slots, here.max_length = state.num_slots, state.max_length
        return here

    def __call__(
        self,
        last_ids: Int64[np.ndarray, "places group"],
        parents: Int64[np.ndarray, "places group"],
        first_slot: int,
    ) -> Float[Tensor, "all_places group vocab"]:
        """Continue hypotheses by a token each, and return the logits of the next.

        `parents` are numbers of hypotheses in their groups. Returns logits for all
        sentences; the last ones may be padding.
        """
        self._host_inputs[0] = first_slot
        ids, rows = self._host_inputs[1:].reshape(
            2, self.size.sentences, self.size.group
        )
        ids[: len(last_ids)], rows[: len(parents)] = last_ids, parents
        # From memory that is not pinned, the copy is made before the call returns.
        self._inputs.copy_(torch.from_numpy(self._host_inputs))
        # The first run loads kernels. Where memory is short, `record` returns its
        # argument, and the next step tries again.
        if self._has_run and self._run is self._plain:
            self._run = self._recorder.record(self._plain)
        logits = self._run()
        self._has_run = True
        return logits

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.size.sentences, self.size.source, self.size.slots


def _static_step(
    step: FusedStep,
    state: DecodingState,
    inputs: Int64[Tensor, " inputs"],
    encodings: Float[Tensor, "max_tokens d_model"],
) -> Float[Tensor, "sentences group vocab"]:
    """Take a step with a state that stays in place.

    `inputs` are the first slot to fill, the last tokens, and the parents.
    """
    group = state.group_size
    last_ids, parents = inputs[1:].view(2, -1, group)
    state.continue_from(parents)
    slots = inputs[0] + torch.arange(group, device=inputs.device)
    x = step.model.output_embedding(last_ids)
    x = x + encodings[state.lengths][:, None].to(x.dtype)
    self_mask = additive_mask(state.fill(slots), x.dtype)
    cross_mask = additive_mask(state.memory_mask, x.dtype)
    return step.logits(x, state.layers, self_mask, cross_mask, slots)


MAX_IDLE = 128
"""Maximum number of idle steps, which no decoder has borrowed: each graph takes
memory."""


class StepGraphs:
    """Recorded steps of a model, which decoders borrow.

    Recording a step takes as long as several steps, so its memory is kept for the next
    decoder of that size.
    """

    def __init__(
        self, step: FusedStep, recorder: Recorder, max_idle_bytes: float = math.inf
    ) -> None:
        """Keep idle steps in at most `max_idle_bytes` of memory."""
        self._step = step
        self._recorder = recorder
        self._max_idle_bytes = max_idle_bytes
        self._lock = Lock()
        self._idle: list[StaticStep] = []
        """Steps that no decoder has, the latest last."""
        self._returned: deque[StaticStep] = deque()
        """Steps given back since, as the garbage collector must not wait for a lock."""

    def borrow(self, state: DecodingState) -> StaticStep:
        """Return a step for a state, which the caller alone has until `give_back`.

        Raises an error that `is_out_of_memory` recognizes if there is no memory for it,
        even after all idle steps have been freed.
        """
        size = StepSize.fitting(state)
        with self._lock:
            while self._returned:
                self._idle.append(self._returned.popleft())
            for number in reversed(range(len(self._idle))):
                if self._idle[number].size == size:
                    return self._idle.pop(number)
            self._drop_oldest()
            try:
                return StaticStep(self._step, size, state, self._recorder)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._idle.clear()
            torch.cuda.empty_cache()
            return StaticStep(self._step, size, state, self._recorder)

    def give_back(self, steps: list[StaticStep]) -> None:
        """Keep steps for other decoders."""
        self._returned.extend(steps)

    def _drop_oldest(self) -> None:
        """Free the memory of the steps that have been idle for the longest time."""
        while (
            sum(each.num_bytes for each in self._idle) > self._max_idle_bytes
            or len(self._idle) > MAX_IDLE
        ):
            del self._idle[0]


class GraphedDecoder(TorchDecoder):
    """A decoder that replays recorded steps, in memory that it borrows.

    Its state is either in the memory of a borrowed step, where it has one place for
    each sentence and others that are free, or outside, in tensors of its own. `step`
    moves it in, unless a hook reads attention weights or there is no memory.

    `reorder` leaves the state as it is: it only notes in which places sentences are
    unfinished, and with which hypotheses the next step continues. Dropping a sentence
    moves the others to memory of another size, so sentences are dropped only once half
    of the places are free.
    """

    @for_inference
    def __init__(self, stepper: FusedStep, memory: Memory, graphs: StepGraphs) -> None:
        super().__init__(stepper, memory)
        self._fused = stepper
        self.state: DecodingState
        self._graphs = graphs
        self._live = np.arange(len(memory.mask))
        """Places of unfinished sentences, in the order of the search."""
        self._parents = _identity_parents(self.state)
        """Hypotheses of each place with which the next step continues."""
        self._borrowed: list[StaticStep] = []
        """The step in whose memory the state is, or was last; at most one. It is a list
        so that the step is given back when the decoder is deleted."""
        self._is_inside = False
        """Whether the state is in that memory."""
        self._refused: StepSize | None = None
        """Size for which there was no memory."""
        finalize(self, graphs.give_back, self._borrowed).atexit = False

    @for_inference
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        # A replay runs no hooks.
        static = None if self._fused.has_weight_hooks else self._step_with_state()
        if static is None:
            self._move_out()
            return self._fused.step(self._as_tensor(last_ids), self.state)
        ids = np.zeros(self._parents.shape, dtype=np.int64)
        ids[self._live] = last_ids
        logits = static(ids, self._parents, self.state.num_slots)
        self.state.count_step()
        self._parents = _identity_parents(self.state)
        if np.array_equal(self._live, np.arange(len(self._live))):
            return logits[: len(self._live)]
        return logits[torch.from_numpy(self._live).to(logits.device)]

    @for_inference
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        before = self.state.group_size
        sentences, parents = rows[:, 0] // before, rows % before
        self._live = self._live[sentences]
        continued = np.take_along_axis(self._parents[self._live], parents, axis=1)
        num_places = len(self.state.memory_mask)
        if rows.shape[1] == before and num_places < 2 * len(self._live):
            self._parents[self._live] = continued
            return
        self._keep(self._live[:, None] * before + continued)

    @for_inference
    def join(self, other: TorchDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, GraphedDecoder)
        self._move_out()
        other._move_out()
        super().join(other)
        self._live = np.arange(len(self.state.memory_mask))
        self._parents = _identity_parents(self.state)

    def _step_with_state(self) -> StaticStep | None:
        """Return a step whose memory holds the state and has space for another token.

        Moves the state there if it is elsewhere. Returns None if memory is short.
        """
        if self._is_inside and self.state.has_capacity:
            [step] = self._borrowed
            if self.state.max_length < step.size.max_tokens:
                return step
        if not self.state.has_capacity:
            self._move_out()
            self.state.grow()
        if (size := StepSize.fitting(self.state)) == self._refused:
            return None
        try:
            step = self._graphs.borrow(self.state)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._refused = size
            return None
        self._move_into(step)
        return step

    def _move_into(self, step: StaticStep) -> None:
        """Move the state to the memory of a step, and give the one before back."""
        self.state = step.load(self.state)
        self._graphs.give_back(self._borrowed)
        self._borrowed[:] = [step]
        self._is_inside = True
        num_free = len(self.state.memory_mask) - len(self._parents)
        self._parents = np.pad(self._parents, ((0, num_free), (0, 0)))

    def _move_out(self) -> None:
        """Keep live hypotheses alone, in tensors of the state's own."""
        rows = self._live[:, None] * self.state.group_size + self._parents[self._live]
        self._keep(rows)

    def _keep(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Drop all hypotheses but these rows."""
        self._is_inside = False
        super().reorder(rows)
        self._live = np.arange(len(rows))
        self._parents = _identity_parents(self.state)


def _identity_parents(
    state: DecodingState,
) -> Int64[np.ndarray, "sentences group"]:
    """Return the numbers of hypotheses in their groups."""
    shape = len(state.memory_mask), state.group_size
    return np.tile(np.arange(shape[1]), (shape[0], 1))
