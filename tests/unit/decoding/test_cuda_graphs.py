"""CUDA graphs, with stand-ins that record the calls."""

import gc

import pytest
import torch

from cuda_stand_in import CudaStandIn, Graph, needs_no_cuda
from transduce.decoding.graphed_decoder import CudaGraphs

pytestmark = needs_no_cuda
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of CUDA in order, all by stand-ins."""
    return CudaStandIn(monkeypatch).asked


def test_a_run_is_captured_on_its_own_stream_and_replayed(asked: list[str]):
    result = torch.ones(2)

    def run() -> torch.Tensor:
        asked.append("run")
        return result

    graphs = CudaGraphs(DEVICE)
    again = graphs.record(run)
    assert asked == [
        "the record waits for the rest",
        "graph 1 begins in memory 1, thread_local",
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
    asked: list[str], error: RuntimeError
):
    is_collecting: list[bool] = []

    def too_large() -> torch.Tensor:
        is_collecting.append(gc.isenabled())
        raise error

    def run() -> torch.Tensor:
        return torch.ones(1)

    graphs = CudaGraphs(DEVICE)
    assert graphs.record(too_large) is too_large
    assert asked[-2:] == ["graph 1 ends", "the cache is freed"]
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
