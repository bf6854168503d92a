"""Layers compiled by PyTorch compute what they did; where it cannot, all goes on."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from transduce.data.batches import Batcher, BatchingConfig
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.fusing import LEAST_UPDATES, fuse_layers, is_worth_fusing
from transduce.training.loss.batch_loss import BatchLoss
from transduce.training.loss.guidance import Guidance
from transduce.training.trainer import Trainer

pytestmark = [
    pytest.mark.usefixtures("compiling"),
    # The compiler calls what PyTorch itself warns of.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def compiling(unchecked_types, monkeypatch) -> Iterator[None]:
    """PyTorch's compiler as in a process that begins, without making machine code.

    That takes a minute on a CPU.
    """
    compile_ = partialmethod(nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(nn.Module, "compile", compile_)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    torch.compiler.set_stance("default")


@pytest.fixture
def batcher(make_dataset, random_pairs) -> Batcher:
    batching = BatchingConfig(source_tokens=40, target_tokens=40, batch_tokens=40)
    return Batcher(make_dataset(random_pairs(24, 9)), batching, seed=1)


@pytest.fixture
def batch_loss(tiny, cpu) -> BatchLoss:
    # In float64 there are no kernels of ours, as there are none on a GPU.
    model = Transformer(replace(tiny, num_layers=3)).double()
    return BatchLoss(model, 0.1, cpu)


def losses_and_gradients(batch_loss: BatchLoss, batcher: Batcher) -> list[list[Tensor]]:
    """Of every batch of an epoch."""
    found = []
    for update in batcher.epoch(0):
        for indices in update.batches:
            loss = batch_loss(batcher.load(indices)).smoothed
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in batch_loss.parameters())])
            batch_loss.zero_grad()
    return found


def test_fused_layers_compute_the_same_and_are_compiled_once(batch_loss, batcher):
    expected = losses_and_gradients(batch_loss, batcher)
    assert fuse_layers(batch_loss, batcher) is None
    num_graphs = counters["stats"]["unique_graphs"]
    actual = losses_and_gradients(batch_loss, batcher)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    # Once more where lengths differ that were equal, or the other way.
    assert counters["stats"]["unique_graphs"] <= 2 * num_graphs
    num_graphs = counters["stats"]["unique_graphs"]
    losses_and_gradients(batch_loss, batcher)
    assert counters["stats"]["unique_graphs"] == num_graphs


def test_where_pytorch_cannot_compile_all_goes_on(batch_loss, batcher, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("There is no compiler.\n\nLook elsewhere.")

    expected = losses_and_gradients(batch_loss, batcher)
    compile_ = partialmethod(nn.Module.compile, backend=fail)
    monkeypatch.setattr(nn.Module, "compile", compile_)
    reason = fuse_layers(batch_loss, batcher)
    assert reason is not None
    assert "There is no compiler." in reason
    assert "Look elsewhere." not in reason
    actual = losses_and_gradients(batch_loss, batcher)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_it_is_worth_it_for_a_long_training_on_a_gpu(batch_loss, cpu):
    gpu = replace(cpu, device=torch.device("cuda", 0))
    assert is_worth_fusing(batch_loss, gpu, LEAST_UPDATES)
    assert not is_worth_fusing(batch_loss, gpu, LEAST_UPDATES - 1)
    assert not is_worth_fusing(batch_loss, cpu, LEAST_UPDATES)


def test_attention_that_is_watched_is_not_fused(batch_loss, cpu, tiny):
    is_word = torch.ones(tiny.vocab_size, dtype=torch.bool)
    guidance = Guidance(weight=1.0, begins_word=is_word, takes_word=is_word)
    guided = BatchLoss(batch_loss.model, 0.1, cpu, guidance)
    gpu = replace(cpu, device=torch.device("cuda", 0))
    assert not is_worth_fusing(guided, gpu, LEAST_UPDATES)


def test_a_trainer_fuses_where_it_is_worth_it(batch_loss, batcher, cpu, monkeypatch):
    config = TrainingConfig(steps=1)
    model = Transformer(batch_loss.model.config)
    trainer = Trainer(model, batcher, config, cpu)
    assert trainer.fit().unfused is None
    module = "transduce.training.trainer"
    monkeypatch.setattr(f"{module}.is_worth_fusing", lambda *_: True)
    monkeypatch.setattr(f"{module}.fuse_layers", lambda *_: "It cannot.")
    assert trainer.fit().unfused == "It cannot."
