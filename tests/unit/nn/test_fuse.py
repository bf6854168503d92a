"""Fused modules: their parameters, and PyTorch's attention on a CPU."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from transduce.model.attention import MultiHeadAttention, causal_mask
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn import fuse as fusing
from transduce.nn.fuse import FEW_KEYS, FusedAttention, FusedTransformer, fuse

CPU = torch.device("cpu")
D_MODEL = 12


def random_attention() -> MultiHeadAttention:
    module = MultiHeadAttention(D_MODEL, 3, 4, 2, "scaled")
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def test_a_fused_model_has_the_parameters_of_the_plain_one(tiny: ModelConfig):
    plain = Transformer(tiny)
    fused = fuse(plain)
    assert list(fused.state_dict()) == list(plain.state_dict())
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        assert ours is theirs


def test_fusing_leaves_the_plain_model_unchanged(tiny: ModelConfig):
    plain = Transformer(tiny)
    fused = fuse(plain)
    assert not any(isinstance(each, FusedAttention) for each in plain.modules())
    assert any(isinstance(each, FusedAttention) for each in fused.modules())
    fused.train()
    plain.eval()
    assert fused.encoder_layers[0].training


def test_fusing_a_fused_model_changes_nothing(tiny: ModelConfig):
    fused = fuse(Transformer(tiny))
    assert list(map(type, fuse(fused).modules())) == list(map(type, fused.modules()))


@pytest.mark.parametrize("has_bf16", [True, False])
def test_sentences_are_packed_on_a_gpu_that_does_not_emulate_bf16(
    tiny: ModelConfig, monkeypatch: pytest.MonkeyPatch, has_bf16: bool
):
    on_gpu = property(lambda _: SimpleNamespace(is_cuda=True))
    monkeypatch.setattr(FusedTransformer, "output_weight", on_gpu)
    monkeypatch.setattr(fusing, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bf16)
    model = fuse(Transformer(replace(tiny, d_k=16, d_v=16)))
    assert model.can_pack(torch.bfloat16) is has_bf16


def test_attention_on_a_cpu_is_computed_in_fp32():
    module, seen = fuse(random_attention()), []
    module.weights_tap.register_forward_hook(lambda _, __, out: seen.append(out))
    x = torch.randn(2, 6, D_MODEL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(x, x, causal_mask(6, 6, CPU))
    assert (found.dtype, seen[0].dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(seen[0].sum(dim=-1), torch.ones(2, 3, 6))


def test_pytorchs_fused_attention_gets_fp32_on_a_cpu(monkeypatch):
    fused, seen = functional.scaled_dot_product_attention, []

    def note(*factors: Tensor, **settings: object) -> Tensor:
        seen.extend(each.dtype for each in factors[:3])
        return fused(*factors, **settings)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", note)
    module, x = fuse(random_attention()), torch.randn(2, FEW_KEYS + 1, D_MODEL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x, x, None)
    assert seen == [torch.float32] * 3


@pytest.mark.parametrize("masked", [True, False])
def test_pytorchs_fused_attention_equals_plain_attention(masked):
    plain, length = random_attention(), FEW_KEYS + 1
    x, upstream = torch.randn(2, 2, length, D_MODEL)
    mask = causal_mask(length, length, CPU) if masked else None
    found = []
    for module in (plain, fuse(plain)):
        module.zero_grad()
        inputs = x.clone().requires_grad_()
        outputs = module(inputs, inputs, mask)
        outputs.backward(upstream)
        gradients = [weight.grad for weight in module.parameters()]
        found.append([outputs, inputs.grad, *gradients])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
