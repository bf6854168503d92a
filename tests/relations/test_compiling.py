"""Compiled layers compute the same, and a failing compiler does not stop training."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod
from typing import NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.nn import functional

from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.tensors import Batch
from transduce.model.transformer import Transformer
from transduce.nn.cross_entropy import Loss
from transduce.nn.fuse import FusedAttention, fuse
from transduce.nn.operators import Dropout, current_rate
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.gpu_gradients import (
    MIN_UPDATES,
    compile_layers,
    is_worth_compiling,
)
from transduce.training.loss import BatchLoss, GuidedAttention
from transduce.training.trainer import Trainer

COMPILE = nn.Module.compile
NUM_KINDS = 2
"""Layers of the encoder, and of the decoder."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("compiling"),
    # The compiler calls what PyTorch itself warns of.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def compiling(unchecked_types, monkeypatch) -> Iterator[None]:
    """PyTorch's compiler as in a fresh process, without making machine code.

    Machine code would take a minute on a CPU.
    """
    compile_ = partialmethod(nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(nn.Module, "compile", compile_)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8, suppress_errors=False):
        yield
    torch._dynamo.reset()


@pytest.fixture
def capturing(compiling, monkeypatch) -> None:
    """PyTorch's compiler that runs the graphs of the forward pass as they are.

    That is enough where only matters which layers are compiled, and takes half as long.
    """
    compile_ = partialmethod(COMPILE, backend="eager")
    monkeypatch.setattr(nn.Module, "compile", compile_)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch) -> None:
    """Attention and dropout by PyTorch's own operators."""

    def drop(dropout: Dropout, x: Tensor) -> Tensor:
        return functional.dropout(x, rate) if (rate := current_rate(dropout)) else x

    monkeypatch.setattr(Dropout, "forward", drop)
    monkeypatch.setattr(FusedAttention, "is_faster_unfused", lambda *_: False)
    monkeypatch.setattr(FusedAttention, "uses_native_attention", lambda *_: False)


@pytest.fixture
def batcher(make_dataset, random_pairs) -> Batcher:
    batching = BatchingConfig(source_tokens=40, target_tokens=40, batch_tokens=40)
    return Batcher(make_dataset(random_pairs(24, 9)), batching, seed=1)


@pytest.fixture
def batch_loss(tiny, cpu) -> BatchLoss:
    # Native kernels do not compute in float64, as they do not on a GPU.
    dropouts = {"dropout": 0.1, "attention_dropout": 0.1, "relu_dropout": 0.1}
    model = fuse(Transformer(replace(tiny, num_layers=3, **dropouts)).double())
    return BatchLoss(model, 0.1, cpu)


def fail(*_: object) -> NoReturn:
    raise RuntimeError("There is no compiler.\n\nLook elsewhere.")


def losses_and_gradients(batch_loss: BatchLoss, batcher: Batcher) -> list[list[Tensor]]:
    """Losses and gradients of every batch of an epoch."""
    found = []
    batch_loss.train()
    for update in batcher.epoch(0):
        for indices in update.batches:
            torch.manual_seed(3)
            loss = batch_loss(batcher.dataset.load(indices)).smoothed
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in batch_loss.parameters())])
            batch_loss.zero_grad()
    return found


def losses_at_rest(batch_loss: BatchLoss, batcher: Batcher) -> list[Tensor]:
    """Losses in evaluation of the longest batch and of its first pair alone."""
    batch_loss.eval()
    pairs = batcher.longest_batch()
    with torch.no_grad():
        batches = [batcher.dataset.load(each) for each in (pairs, pairs[:1])]
        return [batch_loss(each).smoothed for each in batches]


def test_compiled_layers_compute_the_same_and_each_kind_is_compiled_once(
    batch_loss, batcher, cpu
):
    expected = losses_and_gradients(batch_loss, batcher)
    expected_at_rest = losses_at_rest(batch_loss, batcher)
    assert compile_layers(batch_loss, batcher, cpu) is None
    assert counters["stats"]["unique_graphs"] == NUM_KINDS
    actual = losses_and_gradients(batch_loss, batcher)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    # Compiled once more where lengths that were equal differ, or the other way round.
    assert counters["stats"]["unique_graphs"] <= 2 * NUM_KINDS
    assert not counters["graph_break"]
    num_graphs = counters["stats"]["unique_graphs"]
    losses_and_gradients(batch_loss, batcher)
    assert counters["stats"]["unique_graphs"] == num_graphs
    # In evaluation, too.
    actual = losses_at_rest(batch_loss, batcher)
    torch.testing.assert_close(actual, expected_at_rest, rtol=1e-9, atol=1e-12)
    assert counters["stats"]["unique_graphs"] > num_graphs
    assert not counters["graph_break"]


@pytest.mark.usefixtures("capturing")
def test_compiled_layers_leave_the_scan_of_recurrent_units_uncompiled(
    batcher, tiny, cpu
):
    config = replace(tiny, decoder_self_attention="ssru")
    batch_loss = BatchLoss(fuse(Transformer(config).double()), 0.0, cpu)
    expected = losses_and_gradients(batch_loss, batcher)
    assert compile_layers(batch_loss, batcher, cpu) is None
    actual = losses_and_gradients(batch_loss, batcher)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    assert counters["graph_break"]


def test_layers_stay_uncompiled_if_pytorch_cannot_compile_them(
    batch_loss, batcher, cpu, monkeypatch
):
    expected = losses_and_gradients(batch_loss, batcher)
    compile_ = partialmethod(nn.Module.compile, backend=fail)
    with monkeypatch.context() as patches:
        patches.setattr(nn.Module, "compile", compile_)
        reason = compile_layers(batch_loss, batcher, cpu)
    assert reason is not None
    assert "There is no compiler." in reason
    assert "Look elsewhere." not in reason
    actual = losses_and_gradients(batch_loss, batcher)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    # Other layers can still be compiled.
    assert torch.compile(torch.sin, backend="eager")(torch.zeros(2)).sum() == 0
    assert counters["stats"]["unique_graphs"] > 0


def test_a_later_compilation_failure_falls_back_to_plain_layers(
    batcher, tiny, cpu, monkeypatch
):
    # Each layer is tried again with each batch.
    model = fuse(Transformer(replace(tiny, num_layers=1)).double())
    batch_loss = BatchLoss(model, 0.1, cpu)
    expected = losses_at_rest(batch_loss, batcher)
    is_broken = False

    def backend(graph: GraphModule, inputs: list[object]) -> Callable[..., object]:
        return fail() if is_broken else graph.forward

    monkeypatch.setattr(nn.Module, "compile", partialmethod(COMPILE, backend=backend))
    assert compile_layers(batch_loss, batcher, cpu) is None
    is_broken = True
    assert losses_at_rest(batch_loss, batcher) == expected


@pytest.mark.usefixtures("capturing")
def test_no_process_compiles_if_one_cannot(batch_loss, batcher, cpu):
    class WithOther(ProcessGroup):
        def all_reduce_any(self, is_so: bool, device: torch.device) -> bool:
            return True

    reason = compile_layers(batch_loss, batcher, cpu, WithOther())
    assert reason is not None
    assert "another process" in reason
    num_graphs = counters["stats"]["unique_graphs"]
    losses_and_gradients(batch_loss, batcher)
    losses_at_rest(batch_loss, batcher)
    assert counters["stats"]["unique_graphs"] == num_graphs


@pytest.mark.usefixtures("capturing")
def test_the_trial_batch_shrinks_until_it_fits_in_memory(
    batch_loss, batcher, cpu, monkeypatch
):
    tried, form = [], BatchLoss.forward

    def forward(batch_loss: BatchLoss, batch: Batch) -> Loss:
        tried.append(len(batch.source))
        if tried[-1] > 2:
            raise RuntimeError("CUDA error: out of memory")  # as of a library
        return form(batch_loss, batch)

    monkeypatch.setattr(BatchLoss, "forward", forward)
    assert compile_layers(batch_loss, batcher, cpu) is None
    assert tried[0] == len(batcher.longest_batch()) > 2
    assert tried[-1] in (1, 2)
    assert counters["stats"]["unique_graphs"] == NUM_KINDS


def test_compiling_pays_for_long_trainings_on_a_gpu(batch_loss, cpu):
    gpu = replace(cpu, device=torch.device("cuda", 0))
    assert is_worth_compiling(batch_loss, gpu, MIN_UPDATES)
    assert not is_worth_compiling(batch_loss, gpu, MIN_UPDATES - 1)
    assert not is_worth_compiling(batch_loss, cpu, MIN_UPDATES)


def test_attention_with_hooks_is_not_fused(batch_loss, cpu, tiny):
    is_word = torch.ones(tiny.vocab_size, dtype=torch.bool)
    guidance = GuidedAttention(weight=1.0, begins_word=is_word, takes_word=is_word)
    guided = BatchLoss(batch_loss.model, 0.1, cpu, guidance)
    gpu = replace(cpu, device=torch.device("cuda", 0))
    assert not is_worth_compiling(guided, gpu, MIN_UPDATES)


def test_a_trainer_compiles_where_it_pays(batch_loss, batcher, cpu, monkeypatch):
    config = TrainingConfig(steps=1)
    model = Transformer(batch_loss.model.config)
    trainer = Trainer(model, batcher, config, cpu)
    assert trainer.find_micro_batch().compile_error is None
    module = "transduce.training.trainer"
    monkeypatch.setattr(f"{module}.is_worth_compiling", lambda *_: True)
    monkeypatch.setattr(f"{module}.compile_layers", lambda *_: "It cannot.")
    assert trainer.find_micro_batch().compile_error == "It cannot."
