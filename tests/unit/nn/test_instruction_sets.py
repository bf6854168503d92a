"""Native functions of training give the same results on all instruction sets."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from instruction_sets import chosen_isa, runnable_isas
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, DecoderStack
from transduce.nn.cross_entropy import smoothed_cross_entropy
from transduce.nn.fuse import fuse
from transduce.nn.muon import native_muon
from transduce.nn.native_layers import Heads, native_attention
from transduce.nn.operators import Dropout, normalized_sum

pytestmark = pytest.mark.skipif(
    len(runnable_isas()) < 2, reason="there are no two instruction sets to compare"
)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def attention() -> tuple[Tensor, ...]:
    heads = Heads(count=3, d_k=32, d_v=48, scale=1 / math.sqrt(32))
    query, key_value = drawn(4, 9, 96), drawn(4, 13, 240)
    output = native_attention(query, key_value, None, heads)
    return output, *grad(output.sum(), (query, key_value))


def masks() -> tuple[Tensor, ...]:
    return (Dropout(0.3).train()(torch.ones(5_000)),)


def residual_sum() -> tuple[Tensor, ...]:
    x, addend, norm = drawn(40, 96), drawn(40, 96), nn.LayerNorm(96)
    output = normalized_sum(x, addend, 0.3, norm)
    inputs = x, addend, norm.weight, norm.bias
    return output, *grad(output, inputs, torch.randn_like(output))


def loss() -> tuple[Tensor, ...]:
    states, matrix = drawn(9, 16), drawn(101, 16)
    found = smoothed_cross_entropy(
        states, matrix, torch.arange(9), 0.1, torch.float32
    ).smoothed
    return found.detach(), *grad(found, (states, matrix))


def muon() -> tuple[Tensor, ...]:
    weights, gradients, momenta = torch.randn(3, 4, 48, 80)
    native_muon(
        [*weights],
        [*gradients],
        [*momenta],
        count=1,
        gradient_weight=0.05,
        rate=0.1,
        dtype=torch.float32,
    )
    return weights, momenta


def layers() -> tuple[Tensor, ...]:
    config = ModelConfig(
        vocab_size=9, d_model=64, d_ff=48, num_heads=2, d_k=16, d_v=32, num_layers=2
    )
    stack = fuse(DecoderStack(DecoderLayer(config) for _ in range(2)).train())
    x, memory = drawn(5, 9, 64), drawn(5, 7, 64)
    masks = torch.ones(1, 1, 9, 9).bool(), torch.ones(5, 1, 1, 7).bool()
    output = stack(x, memory, *masks)
    inputs = x, memory, *stack.parameters()
    return output, *grad(output, inputs, torch.randn_like(output))


@pytest.mark.parametrize(
    "results", [attention, masks, residual_sum, loss, muon, layers]
)
@pytest.mark.parametrize("isa", runnable_isas()[1:])
def test_instruction_sets_give_the_same_results(
    isa: str, results: Callable[[], tuple[Tensor, ...]]
):
    def with_isa(name: str) -> tuple[Tensor, ...]:
        with chosen_isa(name):
            torch.manual_seed(5)
            return results()

    torch.testing.assert_close(
        with_isa(runnable_isas()[0]), with_isa(isa), rtol=1e-4, atol=1e-5
    )
