"""What a GPU does again and again, recorded once and begun by one call (CUDA graphs).

A step of the decoder is some 25 operators a layer. To begin each of them takes a
processor longer than a GPU takes to do it.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

import torch
from torch import Tensor

REFUSED = (
    "The GPU refuses to record the steps of decoding, so they take longer; what it "
    "says: "
)
Run = Callable[[], Tensor]
one_record = Lock()
"""PyTorch records one graph at a time in a process."""


class CudaGraphs:
    """Records for one model, on its GPU, in memory that all records share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._latest: torch.cuda.CUDAGraph | None = None
        """That keeps the memory for the next."""
        self._is_refused = False
        # Records share memory: no other may run before a result is copied.
        self._lock = Lock()

    def record(self, run: Run) -> Run:
        """What does the same again, in the same places of memory.

        So it must read and write tensors that stay where they are, and ask the GPU for
        no number. It must have been run before: kernels are loaded then.

        A `RuntimeWarning` if the GPU refuses; then it is run as it is, and all others.
        Where memory is short, it alone is.
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
            # Nothing else is to run there: what libraries then hold for it is in the
            # memory of the records, and stays as long as these.
            self._stream = torch.cuda.Stream()
        if self._latest is not None:
            pool = self._latest.pool()
        self._stream.wait_stream(torch.cuda.current_stream())
        # Not `torch.cuda.graph`, which has all garbage collected and cached memory
        # given back first: that takes longer than many steps.
        with torch.cuda.stream(self._stream), _no_collection():
            # Other threads may go on.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:
                with suppress(RuntimeError):  # what that says comes of the first
                    graph.capture_end()
                raise
            graph.capture_end()
        self._latest = graph
        return graph, result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage may hold an older record, whose end would end the one that is made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
