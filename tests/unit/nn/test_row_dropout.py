"""Dropout within sub-layers: native against its formula in double precision."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from instruction_sets import chosen_isa, runnable_isas
from transduce.model import attention as attention_module
from transduce.model.attention import MultiHeadAttention, attention_weights
from transduce.model.layers import FeedForward
from transduce.nn.fuse import fuse
from transduce.nn.native_layers import Heads, native_attention
from transduce.nn.operators import (
    RowDropout,
    dropout_scale,
    num_dropped,
)

pytestmark = [
    pytest.mark.skipif(not runnable_isas(), reason="there is no native library"),
    pytest.mark.usefixtures("isa"),
]

RATE = 0.3
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def mixed(x: np.ndarray) -> np.ndarray:
    """Hash `lowbias32`, reimplemented in numpy."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def factors(seed: int, rows: int, width: int, rate: float) -> Tensor:
    """Dropout factors of each row, drawn as after `manual_seed`."""
    torch.manual_seed(seed)
    one, other = torch.empty(2, dtype=torch.int64).random_(2**32).tolist()
    half = -(-width // 32) * 16
    places = np.arange(rows * half, dtype=np.uint32).reshape(rows, half)
    random = mixed(mixed(places ^ np.uint32(one)) + np.uint32(other))
    values = np.concatenate([random & np.uint32(0xFFFF), random >> np.uint32(16)], 1)
    dropped = num_dropped(rate)
    kept = torch.from_numpy(values[:, :width].astype(np.int64)) >= dropped
    return kept.double() * dropout_scale(dropped)


def heads_of(count: int, width: int) -> Heads:
    return Heads(count=count, d_k=width, d_v=width, scale=1 / math.sqrt(width))


def by_formula(
    query: Tensor, key_value: Tensor, mask: Tensor, heads: Heads, left: Tensor
) -> Tensor:
    """Attention in the precision of the inputs; `left` multiplies the weights."""
    keys, values = key_value.chunk(2, dim=-1)
    parts = [
        part.unflatten(-1, (heads.count, -1)).transpose(1, 2)
        for part in (query, keys, values)
    ]
    weights = attention_weights(parts[0] @ parts[1].mT * heads.scale, mask)
    return (weights * left.view_as(weights) @ parts[2]).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 1), (3, 7), (5, 8), (4, 16), (6, 17), (17, 33), (9, 64), (3, 130), (2, 300)],
)
def test_attention_and_its_gradients_equal_the_formulas(queries, keys):
    heads = heads_of(3, 16)
    query = torch.randn(2, queries, 48, requires_grad=True)
    key_value = torch.randn(2, keys, 96, requires_grad=True)
    mask = torch.rand(2, 1, queries, keys) < 0.8
    torch.manual_seed(5)
    output = native_attention(query, key_value, mask, heads, RATE)
    left = factors(5, 2 * 3 * queries, keys, RATE)
    exact = query.detach().double().requires_grad_()
    exact_memory = key_value.detach().double().requires_grad_()
    expected = by_formula(exact, exact_memory, mask, heads, left)
    torch.testing.assert_close(output.double(), expected, **TOLERANCE)
    outer = torch.randn_like(output)
    ours = torch.autograd.grad(output, (query, key_value), outer)
    theirs = torch.autograd.grad(expected, (exact, exact_memory), outer.double())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, **TOLERANCE)


@pytest.mark.parametrize("width", [1, 5, 16, 31, 32, 33, 48, 256, 2049])
def test_masks_of_any_width_equal_the_formulas(width):
    torch.manual_seed(9)
    found = RowDropout(RATE).train()(torch.ones(7, width))
    expected = factors(9, 7, width, RATE)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_weights_are_dropped_at_the_given_rate(rate):
    heads = heads_of(4, 16)
    query, memory = torch.zeros(20, 40, 64), torch.zeros(20, 50, 128)
    memory[..., 64:] = 1  # so the output is the sum of the weights left
    torch.manual_seed(2)
    sums = native_attention(query, memory, None, heads, rate)[..., ::16]
    # Each weight is 1/50 before, and 1/50/(1 - rate) or nothing after.
    kept = (sums * 50 * (1 - rate)).double()
    deviation = (rate * (1 - rate) / (20 * 40 * 4 * 50)) ** 0.5
    assert kept.mean().item() / 50 == pytest.approx(1 - rate, abs=4 * deviation)
    assert sums.var().item() == pytest.approx(rate / (1 - rate) / 50, rel=0.15)


def layer_of(scores: str = "scaled") -> MultiHeadAttention:
    torch.manual_seed(1)
    return fuse(MultiHeadAttention(64, 4, 16, 16, scores, RATE).train())


@pytest.mark.parametrize("keys", [8, 130])
def test_a_layer_drops_the_same_weights_with_and_without_its_kernel(keys, monkeypatch):
    layer = layer_of()
    query, memory = torch.randn(3, 6, 64), torch.randn(3, keys, 64)
    mask = torch.rand(3, 1, 1, keys) < 0.8

    def found() -> list[Tensor]:
        torch.manual_seed(4)
        output = layer(query, memory, mask)
        learned = list(layer.parameters())
        return [output, *torch.autograd.grad(output.square().sum(), learned)]

    ours = found()
    layer.weights_tap.register_forward_hook(lambda *_: None)
    for one, other in zip(ours, found(), strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)
    assert not torch.equal(ours[0], layer.eval()(query, memory, mask))


def test_hooks_get_the_weights_before_dropout():
    layer, seen = layer_of(), []
    layer.weights_tap.register_forward_hook(lambda *said: seen.append(said[-1]))
    x = torch.randn(2, 9, 64)
    layer(x, x, None)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 4, 9))


def test_dropout_masks_are_the_same_without_gradients():
    layer, x = layer_of(), torch.randn(2, 9, 64)
    torch.manual_seed(3)
    expected = layer(x, x, None)
    torch.manual_seed(3)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, x, None), expected, **TOLERANCE)


def test_dropout_of_weights_works_without_kernels(monkeypatch):
    monkeypatch.setattr(attention_module, "attention_weights", lambda s, _: s * 0 + 1)
    layer, x = layer_of(), torch.randn(2, 70, 64)
    layer.project_key_value = torch.nn.Linear(64, 128)
    torch.nn.init.ones_(layer.project_key_value.bias)
    torch.nn.init.zeros_(layer.project_key_value.weight)
    layer.project_output = torch.nn.Identity()
    with chosen_isa("none"):
        kept = layer(x, x, None) * (1 - RATE)  # how many of 70 weights are left
    assert kept.mean().item() == pytest.approx(70 * (1 - RATE), rel=0.02)
    assert kept.var().item() == pytest.approx(70 * RATE * (1 - RATE), rel=0.3)


def test_additive_attention_has_weight_dropout_too():
    layer, x = layer_of("additive"), torch.randn(2, 5, 64)
    assert not torch.equal(layer(x, x, None), layer(x, x, None))


def test_relu_dropout_is_active_in_training_only():
    network = fuse(FeedForward(8, 4_096, "relu", RATE).train())
    network.inner.bias.data.fill_(1.0)
    network.inner.weight.data.zero_()
    network.outer.weight.data.fill_(1 / 4_096)
    torch.manual_seed(1)
    found = network(torch.zeros(1, 30, 8))
    deviation = (RATE / (1 - RATE) / 4_096) ** 0.5
    assert found[0, :, 0].std().item() == pytest.approx(deviation, rel=0.5)
    assert found.mean().item() == pytest.approx(1.0, abs=4 * deviation)
    assert network.eval()(torch.zeros(1, 3, 8)).eq(1).all()


def test_nan_stays_nan_under_dropout():
    heads = heads_of(2, 16)
    query, memory = torch.randn(2, 3, 32), torch.randn(2, 5, 64)
    memory[0, 2, 40] = torch.nan
    output = native_attention(query, memory, None, heads, 0.9)
    assert output[0, :, 8].isnan().all()
    assert output[1].isfinite().all()


def test_no_masks_are_drawn_at_rate_zero():
    layer = fuse(MultiHeadAttention(64, 4, 16, 16, "scaled", 0.0).train())
    x = torch.randn(2, 5, 64)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    layer(x, x, None)
    assert torch.equal(torch.rand(1), expected)
