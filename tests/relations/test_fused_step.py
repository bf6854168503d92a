"""The fused decoding step has the logits of the model's own."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from step_sequence import SOURCE, steps
from transduce.decoding.torch_decoder import (
    FusedStep,
    LinearMap,
    TorchDecoder,
    plain_linear,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 2},
    {"scores": "unscaled"},
    {"scores": "additive"},
    {"d_k": 4, "d_v": 6},
    {"activation": "silu", "output_bias": True, "decoder_layers": 2},
    {"decoder_self_attention": "ssru"},
    {"decoder_self_attention": "ssru", "norm": "pre", "neighbourhood": 2},
]


def test_a_scaled_weight_in_bf16_is_rounded_once(tiny: ModelConfig):
    # The root of 6 is no power of two, so rounding and scaling do not commute.
    model = Transformer(replace(tiny, d_k=6)).eval()
    projection = model.decoder_layers[0].cross_attention.project_query
    scaled = (projection.weight * 6**-0.5).detach().bfloat16()
    assert not torch.equal(scaled, projection.weight.bfloat16() * 6**-0.5)
    made: list[Tensor] = []

    def make_linear(weight: Tensor, bias: Tensor) -> LinearMap:
        made.append(weight)
        return plain_linear(weight, bias)

    FusedStep(model, make_linear, torch.bfloat16)
    assert any(torch.equal(each, scaled) for each in made)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_the_fused_step_has_the_logits_of_the_model(
    tiny: ModelConfig, variant: dict[str, object]
):
    model = Transformer(replace(tiny, **variant)).eval()
    for weight in model.parameters():
        weight.add_(0.1 * torch.randn_like(weight))  # no zero bias, no unit gain
    memory = model.encode(SOURCE)
    flat = FusedStep(model, plain_linear)
    found = steps(*(TorchDecoder(flat, memory) for _ in range(2)))
    expected = steps(*(TorchDecoder(model, memory) for _ in range(2)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
