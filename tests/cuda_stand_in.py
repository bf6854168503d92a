"""Stand-ins for streams and graphs of CUDA, which record their calls."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import pytest
import torch

needs_no_cuda = pytest.mark.skipif(
    torch.version.cuda is not None, reason="what is stood in for is there"
)


class Stream(torch.cuda.Stream):
    """Stand-in for a stream that records what it waits for."""

    def __new__(cls, *_: object) -> "Stream":
        return object.__new__(cls)

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self._asked = name, asked

    def wait_stream(self, stream: "Stream") -> None:
        self._asked.append(f"{self.name} waits for {stream.name}")


class Graph(torch.cuda.CUDAGraph):
    """Stand-in for a graph that records its calls."""

    def __new__(cls, *_: object) -> "Graph":
        return object.__new__(cls)

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self._asked = name, asked

    def __del__(self) -> None:
        """Do nothing: there is no graph to destroy."""

    def pool(self) -> str:
        return f"the memory of {self.name}"

    def capture_begin(self, pool: str, capture_error_mode: str) -> None:
        self._asked.append(f"{self.name} begins in {pool}, {capture_error_mode}")

    def capture_end(self) -> None:
        self._asked.append(f"{self.name} ends")

    def replay(self) -> None:
        self._asked.append(f"{self.name} again")


class CudaStandIn:
    """Stand-in for the functions of CUDA that recording calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        """Calls in order."""
        self.is_end_known = False
        """Whether the allocator knows the end of a recording that has failed."""
        self._streams = [Stream("the rest", self.asked)]
        graphs, pools = count(1), count(1)
        gpu: dict[str, Any] = {
            "device": lambda _: nullcontext(),
            "stream": self._stream,
            "current_stream": lambda *_: self.current_stream,
            "current_device": lambda: 0,
            "synchronize": lambda: None,
            "empty_cache": lambda: self.asked.append("the cache is freed"),
            "Stream": lambda *_: Stream("the record", self.asked),
            "CUDAGraph": lambda: Graph(f"graph {next(graphs)}", self.asked),
            "graph_pool_handle": lambda: f"memory {next(pools)}",
        }
        for name, stand_in in gpu.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr("torch._C._cuda_endAllocateToPool", self._end)
        monkeypatch.setattr("torch._C._cuda_releasePool", self._release)

    @property
    def current_stream(self) -> Stream:
        return self._streams[-1]

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        self._streams.append(stream)
        try:
            yield
        finally:
            self._streams.pop()

    def _end(self, device: int, pool: str) -> None:
        if self.is_end_known:
            raise RuntimeError(f"not currently recording to {pool}")

    def _release(self, device: int, pool: str) -> None:
        self.asked.append(f"{pool} is released")
