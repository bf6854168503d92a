"""Encoder and decoder of the native library compute what PyTorch computes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from native_reading import after
from step_sequence import SOURCE, SOURCES, steps
from transduce.decoding.native_decoder import (
    EncodedSources,
    NativeDecoder,
    NativeModel,
    NativePrecision,
)
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import TorchModel, prepare_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.text.vocabulary import PAD

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")

VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 1},
    {"scores": "unscaled"},
    {"d_k": 5, "d_v": 6},
    {"d_k": 20, "d_v": 70},
    {"d_k": 32, "d_v": 56},
    {"d_model": 64, "d_ff": 128},
    {"activation": "silu", "output_bias": True, "decoder_layers": 2},
    {"target_vocab_size": 40},
    {"target_vocab_size": 40, "output_bias": True},
    {"scores": "additive"},
    {"scores": "additive", "d_k": 20, "d_v": 12, "norm": "pre"},
    {"scores": "additive", "neighbourhood": 2, "num_heads": 3, "d_k": 7},
    {"decoder_self_attention": "ssru"},
    {"decoder_self_attention": "ssru", "d_model": 38, "norm": "pre", "d_k": 4},
]
IS_TEXT = SOURCE != PAD
LENGTHS = [len(ids) for ids in SOURCES]
FIRST = np.array([[7], [8], [9]])

ROUNDING: dict[NativePrecision, float] = {
    "fp32": 1e-5,
    # Where a value lies halfway between two of 8 bits, the last bit of a sum decides.
    "int8": 0.05,
}
"""Allowed errors of outputs, in standard deviations."""


@pytest.fixture(params=ROUNDING)
def precision(request: pytest.FixtureRequest) -> NativePrecision:
    found: NativePrecision = request.param
    return found


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def perturbed(config: ModelConfig) -> Transformer:
    """New model without zero biases."""
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def arrays(model: Transformer) -> dict[str, np.ndarray]:
    return {name: weight.numpy().copy() for name, weight in model.state_dict().items()}


def compiled(model: Transformer, precision: NativePrecision) -> NativeModel:
    return NativeModel(model.config, arrays(model), precision)


def both(
    config: ModelConfig, precision: NativePrecision
) -> tuple[NativeModel, TorchModel]:
    """The native model, and the PyTorch model with the same linear maps."""
    model = perturbed(config)
    made = compiled(model, precision)
    return made, prepare_model(model, precision, torch.device("cpu"))


def read(model: NativeModel) -> NativeDecoder:
    return after(model, SOURCES)


def encoded(model: NativeModel) -> Tensor:
    """Encoder states of the tokens, one sentence after another."""
    return torch.from_numpy(model.encode(SOURCES).states)


def require_near(found: Tensor, expected: Tensor, precision: NativePrecision) -> None:
    off = float((found - expected).abs().max() / expected.std())
    assert off < ROUNDING[precision]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_native_encoder_equals_pytorchs(
    tiny: ModelConfig, precision: NativePrecision, variant: dict[str, object]
) -> None:
    model, operators = both(replace(tiny, **variant), precision)
    found, expected = encoded(model), operators.model.encode(SOURCE).states
    require_near(found, expected[IS_TEXT], precision)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_native_decoder_equals_pytorchs(
    tiny: ModelConfig, precision: NativePrecision, variant: dict[str, object]
) -> None:
    model, operators = both(replace(tiny, **variant), precision)
    memory = operators.model.encode(SOURCE)
    same = EncodedSources(
        states=memory.states[IS_TEXT].numpy(), lengths=np.array(LENGTHS)
    )
    made = [model.start(same) for _ in range(2)]
    flat = [TorchDecoder(operators.stepper, memory) for _ in range(2)]
    for found, expected in zip(steps(*made), steps(*flat), strict=True):
        require_near(found, expected, precision)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_native_model_in_fp32_equals_the_plain_model(
    tiny: ModelConfig, variant: dict[str, object]
) -> None:
    plain = perturbed(replace(tiny, **variant))
    model = compiled(plain, "fp32")
    memory = plain.encode(SOURCE)
    require_near(encoded(model), memory.states[IS_TEXT], "fp32")
    by_modules = [TorchDecoder(plain, memory) for _ in range(2)]
    found = steps(read(model), read(model))
    for ours, theirs in zip(found, steps(*by_modules), strict=True):
        require_near(ours, theirs, "fp32")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_attention_of_given_targets_equals_pytorchs(
    tiny: ModelConfig, precision: NativePrecision, variant: dict[str, object]
) -> None:
    model, operators = both(replace(tiny, **variant), precision)
    targets = [[9, 7, 8], [], [5, 8]]
    found = model.cross_attention(SOURCES, targets)
    expected = operators.cross_attention(SOURCES, targets)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.sum(axis=-1), 1, atol=1e-5)
        np.testing.assert_allclose(ours, theirs, atol=ROUNDING[precision])


def test_a_sentence_does_not_depend_on_its_batch(
    tiny: ModelConfig, precision: NativePrecision
) -> None:
    model = compiled(perturbed(tiny), precision)
    together = read(model)
    first, second = together.step(FIRST), together.step(FIRST + 3)
    for row, source in enumerate(SOURCES):
        alone, own = after(model, [source]), slice(row, row + 1)
        assert np.array_equal(alone.step(FIRST[own]), first[own])
        assert np.array_equal(alone.step(FIRST[own] + 3), second[own])


def test_an_id_outside_the_vocabulary_is_refused(
    tiny: ModelConfig, precision: NativePrecision
) -> None:
    model = compiled(perturbed(tiny), precision)
    decoder, other = read(model), read(model)
    with pytest.raises(IndexError, match="token id is outside the vocabulary"):
        decoder.step(np.full((3, 1), tiny.vocab_size))
    assert np.array_equal(decoder.step(FIRST), other.step(FIRST))
    for bad in (tiny.vocab_size, -1):
        with pytest.raises(IndexError, match="token id is outside the vocabulary"):
            model.encode([[5, 6], [7, bad]])


@pytest.mark.parametrize(
    "name", ["encoder_layers.0", "decoder_layers.0", "embedding.weight"]
)
def test_a_nan_weight_makes_the_outputs_nan(
    tiny: ModelConfig, precision: NativePrecision, name: str
) -> None:
    plain = perturbed(tiny)
    weights = arrays(plain)
    norm = f"{name}.after_self_attention.norm.bias"
    damaged = weights[name if name in weights else norm]
    damaged[..., 3] = np.nan
    model = NativeModel(plain.config, weights, precision)
    assert np.isnan(read(model).step(FIRST)).all()
    states = encoded(model)
    assert bool(states.isnan().all()) == (name != "decoder_layers.0")


def test_the_number_of_threads_does_not_change_the_outputs(
    tiny: ModelConfig, precision: NativePrecision
) -> None:
    model, before = compiled(perturbed(tiny), precision), torch.get_num_threads()
    # Enough rows that all operators use several threads.
    ids = np.arange(5, 197)[:, None] % tiny.vocab_size
    found = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            decoder = after(model, SOURCES * 64)
            logits = [decoder.step(ids), decoder.step(ids[::-1])]
            found.append((model.encode(SOURCES * 64).states, *logits))
    finally:
        torch.set_num_threads(before)
    for shared in found[1:]:
        assert all(map(np.array_equal, found[0], shared))
