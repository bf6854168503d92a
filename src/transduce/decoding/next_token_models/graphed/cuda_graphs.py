"""What a GPU does again and again, recorded once and begun by one call (CUDA graphs).

A step of the decoder is some 25 operators a layer. To begin each of them takes a
processor longer than a GPU takes to do it.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

REFUSED = (
    "The GPU refuses to record the steps of decoding, so they take longer; what it "
    "says: "
)
Run = Callable[[], Tensor]


class CudaGraphs:
    """Records for one model, on its GPU, in memory that all records share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._latest: torch.cuda.CUDAGraph | None = None
        """That keeps the memory for the next."""
        self._is_refused = False
        # What is run between two runs of a record may be put where its result was.
        self._lock = Lock()

    def record(self, run: Run) -> Run:
        """What does the same again, in the same places of memory.

        So it must read and write tensors that stay where they are, and ask the GPU for
        no number. It must have been run before: kernels are loaded then.

        A `RuntimeWarning` if the GPU refuses; then it is run as it is, and all others.
        """
        with self._lock, torch.cuda.device(self._device):
            if self._is_refused:
                return run
            try:
                graph, result = self._recorded(run)
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
        current = torch.cuda.current_stream()
        stream = self._stream_for(run, current)
        if self._latest is not None:
            pool = self._latest.pool()
        # Not `torch.cuda.graph`, which has all garbage collected and cached memory
        # given back first: that takes longer than many steps.
        with torch.cuda.stream(stream):
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

    def _stream_for(self, run: Run, current: torch.cuda.Stream) -> torch.cuda.Stream:
        """A stream of its own, as recording must have; libraries have memory for it."""
        is_new = self._stream is None
        stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(current)
        if is_new:
            with torch.cuda.stream(stream):
                run()
            current.wait_stream(stream)
            self._stream = stream
        return stream
