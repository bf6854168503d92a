"""Fused modules: their parameters, and PyTorch's attention on a CPU."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import Cell
from transduce.architectures.recurrent import RecurrentLayer
from transduce.device import is_good_at_bf16
from transduce.model.attention import MultiHeadAttention, causal_mask
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn import fuse as fusing
from transduce.nn.fuse import (
    FEW_KEYS,
    FEW_ROWS,
    FusedAttention,
    FusedTransformer,
    fuse,
)

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


class TestRecurrentLayer:
    @staticmethod
    def layers(cell: Cell, projection: int | None = None) -> list[RecurrentLayer]:
        """Return a layer in fp64, and the same layer fused."""
        plain = RecurrentLayer(cell, 6, 5, projection).double()
        return [plain, fuse(plain)]

    @staticmethod
    def count_calls(layer: RecurrentLayer) -> list[None]:
        """Return a list that grows with each call of PyTorch's layer."""
        calls: list[None] = []
        forward = layer.rnn.forward

        def counted(*given: Tensor) -> Tensor:
            calls.append(None)
            return forward(*given)

        layer.rnn.forward = counted
        return calls

    @pytest.mark.parametrize("num_rows", [1, 7])
    def test_one_position_is_computed_as_a_cell(self, num_rows: int):
        layers = self.layers("lstm")
        x = torch.randn(num_rows, 1, 6, dtype=torch.float64)
        state = torch.randn(num_rows, layers[0].state_width, dtype=torch.float64)
        calls = self.count_calls(layers[1])
        found: list[tuple[Tensor, ...]] = []
        for layer in layers:
            inputs = [x.clone().requires_grad_(), state.clone().requires_grad_()]
            outputs, last = layer(*inputs)
            loss = (outputs.sin() + last.cos().sum()).sum()
            wanted = [*inputs, *layer.parameters()]
            found.append((outputs, last, *torch.autograd.grad(loss, wanted)))
        assert not calls
        for ours, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, theirs)

    @pytest.mark.parametrize(
        ("cell", "length", "num_rows", "projection", "has_state"),
        [
            ("lstm", 2, 3, None, True),
            ("lstm", 1, FEW_ROWS + 1, None, True),
            ("lstm", 1, 3, 4, True),
            ("lstm", 1, 3, None, False),
            ("gru", 1, 3, None, True),
        ],
        ids=["positions", "many rows", "a projection", "no state", "a GRU"],
    )
    def test_all_else_is_computed_as_a_layer(
        self,
        cell: Cell,
        length: int,
        num_rows: int,
        projection: int | None,
        has_state: bool,
    ):
        plain, fused = self.layers(cell, projection)
        x = torch.randn(num_rows, length, 6, dtype=torch.float64)
        width = plain.state_width
        state = torch.randn(num_rows, width, dtype=torch.float64) if has_state else None
        calls = self.count_calls(fused)
        for ours, theirs in zip(fused(x, state), plain(x, state), strict=True):
            assert torch.equal(ours, theirs)
        assert calls

    def test_a_hook_sees_the_layer(self):
        _, fused = self.layers("lstm")
        seen: list[None] = []
        fused.rnn.register_forward_hook(lambda *_: seen.append(None))
        x, state = torch.randn(2, 1, 6), torch.randn(2, fused.state_width)
        fused(x.double(), state.double())
        assert seen

    def test_a_cell_in_bf16_differs_from_the_layer_by_rounding(self):
        if not is_good_at_bf16("cpu"):
            pytest.skip("without fast products in bf16")
        plain, fused = (each.float() for each in self.layers("lstm"))
        x, state = torch.randn(4, 1, 6), torch.randn(4, plain.state_width)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = fused(x, state), plain(x, state)
        for ours, theirs in zip(found, expected, strict=True):
            ours, theirs = ours.float(), theirs.float()
            torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.03)

    def test_bf16_is_left_to_the_layer_where_the_cpu_lacks_it(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(fusing, "is_good_at_bf16", lambda _: False)
        layer = fuse(RecurrentLayer("lstm", 6, 5))
        calls = self.count_calls(layer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.randn(2, 1, 6), torch.randn(2, layer.state_width))
        assert calls


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
