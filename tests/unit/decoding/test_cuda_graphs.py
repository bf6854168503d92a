"""CUDA graphs, with stand-ins that record the calls."""

import gc
from contextlib import nullcontext

import pytest
import torch

from transduce.decoding import graphed_decoder
from transduce.decoding.graphed_decoder import CudaGraphs

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="what is stood in for is there"
)
DEVICE = torch.device("cuda", 0)


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

    def capture_begin(self, pool: str | None, capture_error_mode: str) -> None:
        self._asked.append(f"{self.name} begins in {pool}, {capture_error_mode}")

    def capture_end(self) -> None:
        self._asked.append(f"{self.name} ends")

    def replay(self) -> None:
        self._asked.append(f"{self.name} again")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of CUDA in order, all by stand-ins."""
    asked: list[str] = []
    numbers = iter(range(1, 9))
    gpu = {
        "device": lambda _: nullcontext(),
        "stream": lambda _: nullcontext(),
        "current_stream": lambda: Stream("the rest", asked),
        "Stream": lambda: Stream("the record", asked),
        "CUDAGraph": lambda: Graph(f"graph {next(numbers)}", asked),
    }
    for name, stand_in in gpu.items():
        monkeypatch.setattr(graphed_decoder.torch.cuda, name, stand_in)
    return asked


def test_a_run_is_captured_on_its_own_stream_and_replayed(asked: list[str]):
    result = torch.ones(2)

    def run() -> torch.Tensor:
        asked.append("run")
        return result

    graphs = CudaGraphs(DEVICE)
    again = graphs.record(run)
    assert asked == [
        "the record waits for the rest",
        "graph 1 begins in None, thread_local",
        "run",
        "graph 1 ends",
    ]
    asked.clear()
    first = again()
    result.zero_()  # as the next replay would write there
    assert first.tolist() == [1, 1]
    assert again().tolist() == [0, 0]
    assert asked == ["graph 1 again"] * 2
    asked.clear()
    graphs.record(run)
    assert asked == [
        "the record waits for the rest",
        "graph 2 begins in the memory of graph 1, thread_local",
        "run",
        "graph 2 ends",
    ]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("too large"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`"),
    ],
    ids=["PyTorch", "graph", "library"],
)
def test_a_run_that_exhausts_memory_is_not_captured_but_others_are(
    asked, monkeypatch, error: RuntimeError
):
    monkeypatch.setattr(graphed_decoder.torch.cuda, "empty_cache", lambda: None)
    is_collecting: list[bool] = []

    def too_large() -> torch.Tensor:
        is_collecting.append(gc.isenabled())
        raise error

    def run() -> torch.Tensor:
        return torch.ones(1)

    graphs = CudaGraphs(DEVICE)
    assert graphs.record(too_large) is too_large
    assert asked[-1] == "graph 1 ends"
    assert (is_collecting, gc.isenabled()) == ([False], True)
    assert graphs.record(run) is not run


@pytest.mark.usefixtures("asked")
def test_the_original_error_is_reported_if_ending_the_capture_fails(
    monkeypatch, recwarn
):
    def end(_: Graph) -> None:
        raise RuntimeError("there is no record to end")

    def run() -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Graph, "capture_end", end)
    assert CudaGraphs(DEVICE).record(run) is run
    [warning] = recwarn
    assert str(warning.message).endswith("Its message: no such kernel")


@pytest.mark.usefixtures("asked")
def test_a_gpu_that_refuses_captures_is_tried_once_with_a_warning(monkeypatch, recwarn):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(Graph, "capture_begin", refuse)
    graphs = CudaGraphs(DEVICE)
    runs = [lambda: torch.ones(1), lambda: torch.zeros(1)]
    assert [graphs.record(run) for run in runs] == runs
    [warning] = recwarn
    assert "Its message: no graphs today" in str(warning.message)
