from dataclasses import replace

import pytest
import torch
from torch import nn

from transduce.errors import CheckpointError
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.optimizer import (
    ADAM_MOMENTS,
    MUON_MOMENTS,
    Muon,
    WeightOptimizer,
    moments_of,
    orthogonalized,
    require_moments,
)

MUON = TrainingConfig(optimizer="muon")


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_singular_values_are_brought_near_one(shape):
    # Not too far apart, since the smallest ask for more steps.
    matrices = torch.randn(shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = torch.linspace(0.2, 5, min(shape[1:]))
    found = orthogonalized(left @ torch.diag(values) @ right)
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.65
    assert singular.max() < 1.25
    torch.testing.assert_close(found, left @ right, atol=0.35, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 0.01), (torch.bfloat16, 0.005)]
)
def test_muon_moves_as_that_of_torch_does(dtype, tolerance):
    """Which multiplies in bf16, and so only roughly."""
    ours = [nn.Parameter(torch.randn(6, 4)) for _ in range(2)]
    ours.append(nn.Parameter(torch.randn(3, 7)))
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    start = [weight.detach().clone() for weight in ours]
    mine = Muon(ours, dtype)
    mine.param_groups[0]["lr"] = 0.1
    peer = torch.optim.Muon(
        theirs,
        lr=0.1,
        weight_decay=0.0,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    for _ in range(3):
        for our, their in zip(ours, theirs, strict=True):
            our.grad = torch.randn_like(our)
            their.grad = our.grad.clone()
        mine.step()
        peer.step()
    for our, their, first in zip(ours, theirs, start, strict=True):
        assert (our - first).abs().mean() > 0.01
        torch.testing.assert_close(our, their, atol=tolerance, rtol=0)


def test_only_the_layers_matrices_have_muon(tiny):
    model = Transformer(replace(tiny, positions="learned", scores="additive"))
    moments = moments_of(model, MUON)
    matrices = {name for name, kept in moments.items() if kept == MUON_MOMENTS}
    assert "encoder_layers.0.feed_forward.inner.weight" in matrices
    assert "decoder_layers.1.memory_attention.project_key_value.weight" in matrices
    assert not any("bias" in name or "norm" in name for name in matrices)
    for name in ("embedding.weight", "positions.weight"):
        assert moments[name] == ADAM_MOMENTS
    assert set(moments_of(model, TrainingConfig()).values()) == {ADAM_MOMENTS}


def moved(model: Transformer, optimizer: WeightOptimizer, steps: int) -> None:
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids, ids).logsumexp(dim=-1).sum().backward()
        optimizer.step(0.01)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_a_restored_optimizer_goes_on_as_if_nothing_had_been(tiny, kind):
    config = TrainingConfig(optimizer=kind)
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, config)
    assert not optimizer.has_state
    moved(model, optimizer, 2)
    assert optimizer.has_state
    copy = Transformer(tiny)
    copy.load_state_dict(model.state_dict())
    restored = WeightOptimizer(copy, config)
    state = optimizer.state()
    require_moments(model, config, state)
    restored.restore(state, step=2)
    moved(model, optimizer, 2)
    moved(copy, restored, 2)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, copy.get_parameter(name)), name


def test_the_state_of_another_optimizer_is_refused(tiny):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, TrainingConfig())
    moved(model, optimizer, 1)
    with pytest.raises(CheckpointError, match=r"must hold `momentum\.encoder_layers"):
        require_moments(model, MUON, optimizer.state())


def test_a_cleared_optimizer_begins_anew(tiny):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, MUON)
    moved(model, optimizer, 1)
    optimizer.clear()
    assert not optimizer.has_state
