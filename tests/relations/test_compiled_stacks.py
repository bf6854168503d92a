"""Encoder and decoder in one call each are those of operators."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from step_sequence import SOURCE, steps
from transduce.decoding.kernels.library import kernels
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.prepared_model import (
    DecodingPrecision,
    PreparedModel,
    prepared,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.special_ids import PAD

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

CPU = torch.device("cpu")
VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 1},
    {"scores": "unscaled"},
    {"d_k": 4, "d_v": 6},
    {"d_k": 20, "d_v": 70},
    {"activation": "silu", "output_bias": True, "decoder_layers": 2},
    {"target_vocab_size": 40},
]


ROUNDING: dict[DecodingPrecision, float] = {
    "fp32": 1e-5,
    # Where a number falls between two of 8 bits, the last bit of a sum decides.
    "int8": 0.05,
}
"""How far outputs may be off, in standard deviations."""


@pytest.fixture(params=ROUNDING)
def precision(request: pytest.FixtureRequest) -> DecodingPrecision:
    found: DecodingPrecision = request.param
    return found


def perturbed(config: ModelConfig) -> Transformer:
    """A new model, without biases of zero."""
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def prepared_model(config: ModelConfig, precision: DecodingPrecision) -> PreparedModel:
    return prepared(perturbed(config), precision, CPU)


def require_near(found: Tensor, expected: Tensor, precision: DecodingPrecision) -> None:
    off = float((found - expected).abs().max() / expected.std())
    assert off < ROUNDING[precision]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_the_encoder_says_the_same(
    tiny: ModelConfig, precision: DecodingPrecision, variant: dict[str, object]
):
    ready = prepared_model(replace(tiny, **variant), precision)
    found, expected = ready.encode(SOURCE), ready.model.encode(SOURCE)
    assert torch.equal(found.mask, expected.mask)
    is_text = SOURCE != PAD
    require_near(found.states[is_text], expected.states[is_text], precision)
    assert (found.states[~is_text] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_the_decoder_says_the_same(
    tiny: ModelConfig, precision: DecodingPrecision, variant: dict[str, object]
):
    ready = prepared_model(replace(tiny, **variant), precision)
    memory = ready.model.encode(SOURCE)
    made = [ready.start(memory) for _ in range(2)]
    flat = [IncrementalDecoder(ready.model, memory, ready.step) for _ in range(2)]
    for found, expected in zip(steps(*made), steps(*flat), strict=True):
        require_near(found, expected, precision)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_in_fp32_they_are_the_model(tiny: ModelConfig, variant: dict[str, object]):
    torch.manual_seed(1)
    plain = perturbed(replace(tiny, **variant))
    torch.manual_seed(1)
    ready = prepared_model(replace(tiny, **variant), "fp32")
    memory = plain.encode(SOURCE)
    is_text = SOURCE != PAD
    require_near(ready.encode(SOURCE).states[is_text], memory.states[is_text], "fp32")
    made = [ready.read(SOURCE) for _ in range(2)]
    by_modules = [IncrementalDecoder(plain, memory, plain.step) for _ in range(2)]
    for found, expected in zip(steps(*made), steps(*by_modules), strict=True):
        require_near(found, expected, "fp32")


@torch.no_grad()
def test_a_sentence_does_not_depend_on_those_beside_it(
    tiny: ModelConfig, precision: DecodingPrecision
):
    ready = prepared_model(tiny, precision)
    ids = torch.tensor([[7], [8], [9]])
    together, lengths = ready.read(SOURCE), (SOURCE != PAD).sum(dim=1)
    first, second = together.step(ids), together.step(ids + 3)
    for row, length in enumerate(lengths):
        alone = ready.read(SOURCE[row : row + 1, :length])
        own = slice(row, row + 1)
        assert torch.equal(alone.step(ids[own]), first[own])
        assert torch.equal(alone.step(ids[own] + 3), second[own])


@torch.no_grad()
def test_who_looks_at_attention_sees_it(
    tiny: ModelConfig, precision: DecodingPrecision
):
    ready = prepared_model(tiny, precision)
    ids, seen = torch.tensor([[7], [8], [9]]), []
    expected = ready.read(SOURCE).step(ids)
    tap = ready.model.decoder_layers[0].memory_attention.weights_tap
    hook = tap.register_forward_hook(lambda _, __, weights: seen.append(weights))
    found = ready.read(SOURCE).step(ids)
    hook.remove()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].sum(dim=-1), torch.ones(3, 2, 1))
    require_near(found, expected, precision)


@torch.no_grad()
def test_who_looks_on_for_a_step_changes_nothing(
    tiny: ModelConfig, precision: DecodingPrecision
):
    ready = prepared_model(tiny, precision)
    ids = torch.tensor([[7], [8], [9]])
    watched, alone = ready.read(SOURCE), ready.read(SOURCE)
    tap = ready.model.decoder_layers[0].memory_attention.weights_tap
    for step in range(4):
        hook = tap.register_forward_hook(lambda *_: None) if step in (0, 2) else None
        found = watched.step(ids + step)
        if hook is not None:
            hook.remove()
        require_near(found, alone.step(ids + step), precision)


@torch.no_grad()
def test_sources_may_stand_in_columns(tiny: ModelConfig, precision: DecodingPrecision):
    ready = prepared_model(tiny, precision)
    in_columns = SOURCE.t().contiguous().t()
    assert torch.equal(ready.encode(in_columns).states, ready.encode(SOURCE).states)


@torch.no_grad()
def test_what_is_no_token_is_refused(tiny: ModelConfig, precision: DecodingPrecision):
    ready, ids = prepared_model(tiny, precision), torch.tensor([[7], [8], [9]])
    decoder, other = ready.read(SOURCE), ready.read(SOURCE)
    with pytest.raises(IndexError, match="Ids must be those of tokens, but one is"):
        decoder.step(torch.full((3, 1), tiny.vocab_size))
    assert torch.equal(decoder.step(ids), other.step(ids))


@torch.no_grad()
def test_a_weight_that_is_no_number_shows(
    tiny: ModelConfig, precision: DecodingPrecision
):
    ready = prepared_model(tiny, precision)
    ready.model.decoder_layers[0].after_self_attention.norm.weight[3] = torch.nan
    assert ready.read(SOURCE).step(torch.tensor([[7], [8], [9]])).isnan().all()
    ready.model.encoder_layers[0].after_self_attention.norm.bias[3] = torch.nan
    states = ready.encode(SOURCE).states
    assert states[SOURCE != PAD].isnan().all()


@torch.no_grad()
def test_a_model_that_is_cast_leaves_what_was_made_of_it(
    tiny: ModelConfig, precision: DecodingPrecision
):
    ready, ids = prepared_model(tiny, precision), torch.tensor([[7], [8], [9]])
    decoder, other = ready.read(SOURCE), ready.read(SOURCE)
    expected = other.step(ids)
    for weight in ready.model.double().parameters():
        weight.fill_(torch.nan)
    assert torch.equal(decoder.step(ids), expected)


@torch.no_grad()
def test_threads_change_nothing(tiny: ModelConfig, precision: DecodingPrecision):
    ready, before = prepared_model(tiny, precision), torch.get_num_threads()
    # Enough that all is shared: attention, norms, and rows put in order.
    source, ids = SOURCE.repeat(64, 1), torch.arange(5, 197)[:, None] % tiny.vocab_size
    found = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            decoder = ready.read(source)
            logits = [decoder.step(ids), decoder.step(ids.flip(0))]
            found.append((ready.encode(source).states, *logits))
    finally:
        torch.set_num_threads(before)
    for shared in found[1:]:
        assert all(map(torch.equal, found[0], shared))
