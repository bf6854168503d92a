"""A fused model has the values, gradients and dropout masks of the plain one."""

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.layers import FeedForward, ResidualConnection
from transduce.model.transformer import Transformer
from transduce.nn.fuse import fuse
from transduce.nn.operators import Dropout, RowDropout
from transduce.text.vocabulary import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])
TARGET_IN = torch.tensor([[1, 6, 22, 7], [1, 11, PAD, PAD], [1, 4, 4, PAD]])
RATES = [(0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3)]
"""Rates of dropout of sub-layer outputs, of attention weights and after the ReLU."""


def found(model: Transformer) -> list[Tensor]:
    """Logits, and the gradients of a loss."""
    torch.manual_seed(3)
    logits = model(SOURCE, TARGET_IN)
    loss = logits.log_softmax(-1)[TARGET_IN != PAD][:, 5:9].square().sum()
    return [logits, *torch.autograd.grad(loss, list(model.parameters()))]


def with_masks_of_fused(model: Transformer) -> Transformer:
    """Let a plain model draw the dropout masks of a fused one."""
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention | FeedForward):
            module.dropout.__class__ = RowDropout
        elif type(module) is nn.Dropout:
            module.__class__ = Dropout
    return model


def set_rates(model: Transformer, outputs: float, weights: float, relu: float) -> None:
    """Set the three dropout rates of all layers."""
    model.dropout.p = outputs
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.dropout.p = weights
        elif isinstance(module, FeedForward):
            module.dropout.p = relu
        elif isinstance(module, ResidualConnection):
            module.dropout.p = outputs


@pytest.mark.parametrize("rates", RATES, ids=str)
def test_a_fused_model_has_the_values_and_gradients_of_the_plain_one(
    model: Transformer, rates: tuple[float, float, float]
):
    set_rates(model.train(), *rates)
    with torch.enable_grad():
        fused = found(fuse(model))
        plain = found(with_masks_of_fused(model))
    for ours, theirs in zip(fused, plain, strict=True):
        largest = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * (1 + largest))


def test_a_fused_model_in_evaluation_has_the_logits_of_the_plain_one(
    model: Transformer,
):
    set_rates(model, 0.3, 0.3, 0.3)
    logits = fuse(model)(SOURCE, TARGET_IN)
    torch.testing.assert_close(logits, model(SOURCE, TARGET_IN), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_fused_model_of_another_dtype_trains_as_the_plain_one(
    model: Transformer, dtype: torch.dtype
):
    set_rates(model.train().to(dtype), 0.3, 0.3, 0.3)
    with torch.enable_grad():
        fused = found(fuse(model))
        plain = found(with_masks_of_fused(model))
    for ours, theirs in zip(fused, plain, strict=True):
        assert ours.dtype == dtype
        tolerance = 100 * torch.finfo(dtype).eps * (1 + theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_hooks_of_the_plain_model_get_the_weights_of_the_fused_one(tiny: ModelConfig):
    plain, seen = Transformer(tiny).eval(), []
    tap = plain.decoder_layers[0].cross_attention.weights_tap
    tap.register_forward_hook(lambda *call: seen.append(call[-1]))
    fuse(plain)(SOURCE, TARGET_IN)
    plain(SOURCE, TARGET_IN)
    torch.testing.assert_close(seen[0], seen[1])
