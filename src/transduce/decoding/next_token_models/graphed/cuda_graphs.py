"""CUDA graphs: work that a GPU records once and replays by one call.

A decoding step has some 25 operators a layer. Launching each of them takes the
processor longer than the GPU needs to run it.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

import torch
from torch import Tensor

REFUSED = "The GPU refuses to record decoding steps, so they take longer. Its message: "
Run = Callable[[], Tensor]
one_record = Lock()
"""PyTorch records one graph at a time in a process."""


class CudaGraphs:
    """Graphs of one model on its GPU, which share their memory."""

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
