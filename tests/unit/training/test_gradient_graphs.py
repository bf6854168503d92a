"""CUDA graphs of an update's gradients, with stand-ins for the graphs."""

import gc
from contextlib import nullcontext

import pytest
import torch

from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware
from transduce.errors import TransduceWarning
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn.cross_entropy import Loss
from transduce.training import gradients
from transduce.training.gradients import GraphedGradients
from transduce.training.loss import BatchLoss


class Graph:
    """Stand-in for a graph, which is recorded by one run."""

    def pool(self) -> None:
        return None

    def replay(self) -> None: ...


@pytest.fixture
def batch() -> PackedBatch:
    ids = torch.tensor([[5, 6, 7]])
    return Batch(source=ids, target_in=ids, target_out=ids).packed()


@pytest.fixture
def graphs(
    tiny: ModelConfig, cpu: Hardware, monkeypatch: pytest.MonkeyPatch
) -> GraphedGradients:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(GraphedGradients, "_fits_in_memory", lambda _: True)
    monkeypatch.setattr(BatchLoss, "forward", forward)
    return GraphedGradients(BatchLoss(Transformer(tiny), 0.1, cpu))


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
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`"),
    ],
    ids=["PyTorch", "graph", "library"],
)
def test_a_graph_that_lacks_memory_ends_the_recording_but_not_training(
    graphs: GraphedGradients,
    batch: PackedBatch,
    monkeypatch: pytest.MonkeyPatch,
    error: RuntimeError,
):
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(gradients, "_GradientGraph", refuse)
    with pytest.warns(TransduceWarning, match="Memory suffices for 0 CUDA graphs"):
        twice(graphs, batch)
    twice(graphs, batch)
    assert len(graphs) == 0


@torch.enable_grad()
def test_another_error_of_a_recording_is_raised(
    graphs: GraphedGradients, batch: PackedBatch, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gradients, "_GradientGraph", refuse)
    with pytest.raises(RuntimeError, match="illegal"):
        twice(graphs, batch)
