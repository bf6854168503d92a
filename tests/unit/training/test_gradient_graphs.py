"""CUDA graphs of an update's gradients, with stand-ins for the graphs."""

import gc
from collections.abc import Callable

import pytest
import torch

from cuda_stand_in import CudaStandIn, Graph, needs_no_cuda
from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware
from transduce.errors import TransduceWarning
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn.cross_entropy import Loss
from transduce.training.gpu_gradients import GraphedGradients
from transduce.training.loss import BatchLoss

pytestmark = needs_no_cuda


@pytest.fixture
def batch() -> PackedBatch:
    ids = torch.tensor([[5, 6, 7]])
    return Batch(source=ids, target_in=ids, target_out=ids).packed()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaStandIn:
    return CudaStandIn(monkeypatch)


@pytest.fixture
def batch_loss(tiny: ModelConfig, cpu: Hardware) -> BatchLoss:
    return BatchLoss(Transformer(tiny), 0.1, cpu)


@pytest.fixture
def graphs(
    batch_loss: BatchLoss, cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch
) -> GraphedGradients:
    monkeypatch.setattr(GraphedGradients, "_fits_in_memory", lambda _: True)
    monkeypatch.setattr(BatchLoss, "forward", forward)
    return GraphedGradients(batch_loss)


def forward(batch_loss: BatchLoss, _: PackedBatch) -> Loss:
    total = batch_loss.model.output_weight.sum()
    return Loss(smoothed=total, negative_log_likelihood=total.detach())


def twice(graphs: GraphedGradients, batch: PackedBatch) -> None:
    """Compute a batch without a graph, and then record one if that is possible."""
    for _ in range(2):
        graphs.backward(batch, weight=1.0, is_alone=True)


@torch.enable_grad()
def test_garbage_is_not_collected_while_a_graph_is_recorded(
    graphs: GraphedGradients, batch: PackedBatch, monkeypatch: pytest.MonkeyPatch
):
    is_collecting: list[bool] = []

    def watched(batch_loss: BatchLoss, batch: PackedBatch) -> Loss:
        is_collecting.append(gc.isenabled())
        return forward(batch_loss, batch)

    monkeypatch.setattr(BatchLoss, "forward", watched)
    twice(graphs, batch)
    assert len(graphs) == 1
    assert is_collecting == [True, False]
    assert gc.isenabled()


@torch.enable_grad()
def test_graphs_share_their_memory_and_their_stream(
    graphs: GraphedGradients, batch: PackedBatch, cuda: CudaStandIn
):
    twice(graphs, batch)
    ids = torch.tensor([[5, 6, 7, 8]])
    twice(graphs, Batch(source=ids, target_in=ids, target_out=ids).packed())
    assert cuda.asked == [
        "the cache is freed",
        "the record waits for the rest",
        "graph 1 begins in memory 1, thread_local",
        "graph 1 ends",
        "graph 1 again",
        "the cache is freed",
        "the record waits for the rest",
        "graph 2 begins in the memory of graph 1, thread_local",
        "graph 2 ends",
        "graph 2 again",
    ]


MEMORY_ERRORS = {
    "PyTorch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    "graph": RuntimeError("CUDA error: out of memory"),
    "library": RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
}


def fail_in_recording(
    cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    """Let the computation fail on the stream of graphs."""

    def fail(batch_loss: BatchLoss, batch: PackedBatch) -> Loss:
        if cuda.current_stream.name == "the record":
            raise error
        return forward(batch_loss, batch)

    monkeypatch.setattr(BatchLoss, "forward", fail)


def fail_at_the_end(monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> None:
    """Let the end of each recording fail."""

    def end(_: Graph) -> None:
        raise error

    monkeypatch.setattr(Graph, "capture_end", end)


@pytest.fixture
def assert_training_goes_on(
    graphs: GraphedGradients,
    batch: PackedBatch,
    batch_loss: BatchLoss,
    cuda: CudaStandIn,
) -> Callable[[], None]:
    """Assert that batches are computed without a graph, on the stream as before."""

    def check() -> None:
        with pytest.warns(TransduceWarning, match="Memory suffices for 0 CUDA graphs"):
            twice(graphs, batch)
        assert cuda.current_stream.name == "the rest"
        assert gc.isenabled()
        twice(graphs, batch)
        assert len(graphs) == 0
        gradient = batch_loss.model.output_weight.grad
        assert gradient is not None
        assert gradient.unique().tolist() == [4.0]  # of all four batches

    return check


@torch.enable_grad()
@pytest.mark.parametrize("error", MEMORY_ERRORS.values(), ids=MEMORY_ERRORS)
def test_a_graph_that_lacks_memory_ends_the_recording_but_not_training(
    assert_training_goes_on: Callable[[], None],
    cuda: CudaStandIn,
    monkeypatch: pytest.MonkeyPatch,
    error: RuntimeError,
):
    fail_in_recording(cuda, monkeypatch, error)
    assert_training_goes_on()
    assert cuda.asked[-1] == "graph 1 ends"


@torch.enable_grad()
def test_a_graph_that_cannot_be_completed_does_not_end_training(
    assert_training_goes_on: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    """CUDA takes memory for a graph as such at the end of its recording."""
    fail_at_the_end(monkeypatch, MEMORY_ERRORS["graph"])
    assert_training_goes_on()


@torch.enable_grad()
def test_an_error_that_makes_a_recording_invalid_does_not_end_training(
    assert_training_goes_on: Callable[[], None],
    cuda: CudaStandIn,
    monkeypatch: pytest.MonkeyPatch,
):
    """Its end reports another error then."""
    fail_in_recording(cuda, monkeypatch, MEMORY_ERRORS["library"])
    consequence = "operation failed due to a previous error during capture"
    fail_at_the_end(monkeypatch, RuntimeError(f"CUDA error: {consequence}"))
    assert_training_goes_on()
    assert "memory 1 is released" in cuda.asked


@torch.enable_grad()
def test_another_error_of_a_recording_is_raised(
    graphs: GraphedGradients,
    batch: PackedBatch,
    cuda: CudaStandIn,
    monkeypatch: pytest.MonkeyPatch,
):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    fail_in_recording(cuda, monkeypatch, error)
    with pytest.raises(RuntimeError, match="illegal"):
        twice(graphs, batch)
    assert cuda.current_stream.name == "the rest"
