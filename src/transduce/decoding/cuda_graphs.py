"""CUDA graphs: a decoding step that a GPU records once and replays with one call.

A decoding step launches about 25 kernels a layer, and launching them takes the CPU
longer than the GPU needs to run them.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from transduce.decoding.cache import DecodingState, RecurrentState
from transduce.decoding.torch_decoder import FusedStep, TorchDecoder
from transduce.model.attention import additive_mask
from transduce.model.transformer import Memory

REFUSED = "The GPU refuses to record decoding steps, so they take longer. Its message: "
Run = Callable[[], Tensor]
one_record = Lock()
"""Lock: PyTorch records only one graph at a time in a process."""


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

        Warns (`RuntimeWarning`) if the GPU refuses, and returns `run` itself then and
        for all later calls. Where memory is short, it returns `run` this time only.
        """
        with one_record, self._lock, torch.cuda.device(self._device):
            if self._is_refused:
                return run
            try:
                graph, result = self._recorded(run)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return run
            except RuntimeError as error:
                self._is_refused = True
                warnings.warn(f"{REFUSED}{error}", RuntimeWarning, stacklevel=2)
                return run

        def again() -> Tensor:
            with self._lock, torch.cuda.device(self._device):
                graph.replay()
                return result.clone()

        return again

    def _recorded(self, run: Run) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph, pool = torch.cuda.CUDAGraph(), None
        if self._stream is None:
            # Only graphs use this stream: what libraries allocate for it is in the
            # graphs' memory and lives as long.
            self._stream = torch.cuda.Stream()
        if self._latest is not None:
            pool = self._latest.pool()
        self._stream.wait_stream(torch.cuda.current_stream())
        # Not `torch.cuda.graph`, which first collects garbage and frees cached memory:
        # that takes longer than many steps.
        with torch.cuda.stream(self._stream), _no_collection():
            # Other threads may go on.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:
                with suppress(RuntimeError):  # a consequence of the first error
                    graph.capture_end()
                raise
            graph.capture_end()
        self._latest = graph
        return graph, result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: freeing an older graph would end the recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@runtime_checkable
class Recorder(Protocol):
    """`CudaGraphs`, or a stand-in for tests."""

    def record(self, run: Run) -> Run:
        """Return a function that does the same, in the same places of memory."""
        ...


class StaticStep:
    """A decoding step at fixed addresses: first run, then recorded, then replayed.

    It is valid until the keys and values move or the size of groups changes.
    """

    def __init__(
        self,
        step: FusedStep,
        x: Float[Tensor, "sentences group d_model"],
        state: DecodingState | RecurrentState,
        recorder: Recorder,
    ) -> None:
        sentences, group, _ = x.shape
        self._recorder = recorder
        self._x = torch.empty_like(x)
        self._slots = torch.zeros(group, dtype=torch.int64, device=x.device)
        # All slots are masked at first, as they belong to no hypothesis.
        lowest, capacity = torch.finfo(x.dtype).min, state.capacity
        self._self_mask = x.new_full((sentences, 1, group, capacity), lowest)
        cross_mask = additive_mask(state.memory_mask, x.dtype)
        # Not a method: a reference cycle would keep the memory until a collection.
        masks = self._self_mask, cross_mask
        self._run = partial(step.logits, self._x, state.layers, *masks, self._slots)
        self._has_run = False
        self._replay: Run | None = None

    def __call__(
        self,
        x: Float[Tensor, "sentences group d_model"],
        mask: Bool[Tensor, "sentences 1 group slots"],
    ) -> Float[Tensor, "sentences group vocab"]:
        """Return logits from embedded tokens and the mask of slots."""
        group, num_slots = mask.shape[2:]
        self._x.copy_(x)
        self._self_mask[..., :num_slots] = additive_mask(mask, x.dtype)
        torch.arange(num_slots - group, num_slots, out=self._slots)
        if self._replay is not None:
            return self._replay()
        if self._has_run:
            self._replay = self._recorder.record(self._run)
            return self._replay()
        self._has_run = True
        return self._run()


class GraphedDecoder(TorchDecoder):
    """A decoder that drops finished sentences only once half of all are finished.

    Dropping a sentence moves the keys and values of the others, which makes the
    recorded graph invalid.
    """

    @torch.inference_mode()
    def __init__(self, stepper: FusedStep, memory: Memory, recorder: Recorder) -> None:
        super().__init__(stepper, memory)
        self._fused = stepper
        self._state: DecodingState | RecurrentState
        self._recorder = recorder
        self._live = np.arange(len(memory.mask))
        """Places of unfinished sentences, in the order of the search."""
        self._static: StaticStep | None = None

    @torch.inference_mode()
    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        num_places = len(self._state.memory_mask)
        ids = np.zeros((num_places, last_ids.shape[1]), dtype=np.int64)
        ids[self._live] = last_ids
        logits = self._step_of_all(self._as_tensor(ids))
        if np.array_equal(self._live, np.arange(num_places)):
            return logits
        return logits[torch.from_numpy(self._live).to(logits.device)]

    @torch.inference_mode()
    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        before = self._state.group_size
        sentences, parents = rows[:, :1] // before, rows % before
        self._live = self._live[sentences[:, 0]]
        live_rows = self._live[:, None] * before + parents
        num_places = len(self._state.memory_mask)
        if 2 * len(self._live) <= num_places:
            self._keep(live_rows)
            return
        if rows.shape[1] != before:
            self._static = None
        all_rows = np.repeat(np.arange(num_places)[:, None] * before, rows.shape[1], 1)
        all_rows[self._live] = live_rows
        super().reorder(all_rows)

    @torch.inference_mode()
    def join(self, other: TorchDecoder) -> None:
        """Append the sentences of another decoder."""
        assert isinstance(other, GraphedDecoder)
        for each in (self, other):
            group = np.arange(each._state.group_size)
            each._keep(each._live[:, None] * len(group) + group)
        super().join(other)
        self._live = np.arange(len(self._state.memory_mask))

    def _keep(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Drop all hypotheses but these rows."""
        self._static = None  # frees its memory before keys and values move
        super().reorder(rows)
        self._live = np.arange(len(rows))

    def _step_of_all(
        self, last_ids: Int64[Tensor, "places group"]
    ) -> Float[Tensor, "places group vocab"]:
        """Take a step for all places, also those of finished sentences."""
        if not self._state.has_capacity:
            self._static = None  # as in `_keep`
        if self._fused.is_watched:  # a replay runs no hooks
            return self._fused.step(last_ids, self._state)
        x, mask = self._fused.enter(last_ids, self._state)
        if self._static is None:
            self._static = StaticStep(self._fused, x, self._state, self._recorder)
        return self._static(x, mask)
