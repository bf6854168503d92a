"""Encoder and decoder in one call each are those of operators."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from compiled_reading import after
from step_sequence import SOURCE, SOURCES, steps
from transduce.decoding.compiled.compiled_decoder import CompiledDecoder
from transduce.decoding.compiled.compiled_model import (
    CompiledMemory,
    CompiledModel,
    padded_sources,
)
from transduce.decoding.kernels.library import kernels
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.prepared_model import PreparedModel, prepared
from transduce.decoding.next_token_models.ready_model import (
    PACKS,
    DecodingPrecision,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.special_ids import PAD

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 1},
    {"scores": "unscaled"},
    {"d_k": 4, "d_v": 6},
    {"d_k": 20, "d_v": 70},
    {"d_k": 32, "d_v": 56},
    {"d_model": 64, "d_ff": 128},
    {"activation": "silu", "output_bias": True, "decoder_layers": 2},
    {"target_vocab_size": 40},
    {"target_vocab_size": 40, "output_bias": True},
]
IS_TEXT = SOURCE != PAD
FIRST = np.array([[7], [8], [9]])

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


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def perturbed(config: ModelConfig) -> Transformer:
    """A new model, without biases of zero."""
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def arrays(model: Transformer) -> dict[str, np.ndarray]:
    return {name: weight.numpy().copy() for name, weight in model.state_dict().items()}


def compiled(model: Transformer, precision: DecodingPrecision) -> CompiledModel:
    return CompiledModel(model.config, arrays(model), PACKS[precision])


def both(
    config: ModelConfig, precision: DecodingPrecision
) -> tuple[CompiledModel, PreparedModel]:
    """By kernels, and by operators with the same linear maps."""
    model = perturbed(config)
    made = compiled(model, precision)
    return made, prepared(model, precision, torch.device("cpu"))


def read(model: CompiledModel) -> CompiledDecoder:
    return after(model, SOURCES)


def encoded(model: CompiledModel) -> Tensor:
    memory = model.encode(SOURCE.numpy())
    assert np.array_equal(memory.mask, IS_TEXT.numpy())
    return torch.from_numpy(memory.states)


def require_near(found: Tensor, expected: Tensor, precision: DecodingPrecision) -> None:
    off = float((found - expected).abs().max() / expected.std())
    assert off < ROUNDING[precision]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_encoder_says_the_same(
    tiny: ModelConfig, precision: DecodingPrecision, variant: dict[str, object]
) -> None:
    model, operators = both(replace(tiny, **variant), precision)
    found, expected = encoded(model), operators.model.encode(SOURCE).states
    require_near(found[IS_TEXT], expected[IS_TEXT], precision)
    assert (found[~IS_TEXT] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_decoder_says_the_same(
    tiny: ModelConfig, precision: DecodingPrecision, variant: dict[str, object]
) -> None:
    model, operators = both(replace(tiny, **variant), precision)
    memory = operators.model.encode(SOURCE)
    states = memory.states.contiguous().numpy()
    same = CompiledMemory(states=states, mask=IS_TEXT.numpy())
    made = [CompiledDecoder(model, model.start(same)) for _ in range(2)]
    flat = [
        IncrementalDecoder(operators.model, memory, operators.step) for _ in range(2)
    ]
    for found, expected in zip(steps(*made), steps(*flat), strict=True):
        require_near(found, expected, precision)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_in_fp32_they_are_the_model(
    tiny: ModelConfig, variant: dict[str, object]
) -> None:
    plain = perturbed(replace(tiny, **variant))
    model = compiled(plain, "fp32")
    memory = plain.encode(SOURCE)
    require_near(encoded(model)[IS_TEXT], memory.states[IS_TEXT], "fp32")
    by_modules = [IncrementalDecoder(plain, memory, plain.step) for _ in range(2)]
    found = steps(read(model), read(model))
    for ours, theirs in zip(found, steps(*by_modules), strict=True):
        require_near(ours, theirs, "fp32")


def test_a_sentence_does_not_depend_on_those_beside_it(
    tiny: ModelConfig, precision: DecodingPrecision
) -> None:
    model = compiled(perturbed(tiny), precision)
    together = read(model)
    first, second = together.step(FIRST), together.step(FIRST + 3)
    for row, source in enumerate(SOURCES):
        alone, own = after(model, [source]), slice(row, row + 1)
        assert np.array_equal(alone.step(FIRST[own]), first[own])
        assert np.array_equal(alone.step(FIRST[own] + 3), second[own])


def test_sources_are_padded_at_their_end() -> None:
    assert np.array_equal(padded_sources(SOURCES), SOURCE.numpy())


def test_sources_may_stand_in_columns(
    tiny: ModelConfig, precision: DecodingPrecision
) -> None:
    model = compiled(perturbed(tiny), precision)
    in_columns = np.asfortranarray(SOURCE.numpy())
    assert np.array_equal(
        model.encode(in_columns).states, model.encode(SOURCE.numpy()).states
    )


def test_what_is_no_token_is_refused(
    tiny: ModelConfig, precision: DecodingPrecision
) -> None:
    model = compiled(perturbed(tiny), precision)
    decoder, other = read(model), read(model)
    with pytest.raises(IndexError, match="Ids must be those of tokens, but one is"):
        decoder.step(np.full((3, 1), tiny.vocab_size))
    assert np.array_equal(decoder.step(FIRST), other.step(FIRST))
    for bad in (tiny.vocab_size, -1):
        with pytest.raises(IndexError, match="Ids must be those of tokens, but one is"):
            model.encode(np.array([[5, 6], [7, bad]]))


@pytest.mark.parametrize(
    "name", ["encoder_layers.0", "decoder_layers.0", "embedding.weight"]
)
def test_a_weight_that_is_no_number_shows(
    tiny: ModelConfig, precision: DecodingPrecision, name: str
) -> None:
    plain = perturbed(tiny)
    weights = arrays(plain)
    norm = f"{name}.after_self_attention.norm.bias"
    damaged = weights[name if name in weights else norm]
    damaged[..., 3] = np.nan
    model = CompiledModel(plain.config, weights, PACKS[precision])
    assert np.isnan(read(model).step(FIRST)).all()
    states = encoded(model)[IS_TEXT]
    assert bool(states.isnan().all()) == (name != "decoder_layers.0")


def test_threads_change_nothing(
    tiny: ModelConfig, precision: DecodingPrecision
) -> None:
    model, before = compiled(perturbed(tiny), precision), torch.get_num_threads()
    # Enough that all is shared: attention, norms, and rows put in order.
    ids = np.arange(5, 197)[:, None] % tiny.vocab_size
    found = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            decoder = after(model, SOURCES * 64)
            logits = [decoder.step(ids), decoder.step(ids[::-1])]
            found.append((model.encode(padded_sources(SOURCES * 64)).states, *logits))
    finally:
        torch.set_num_threads(before)
    for shared in found[1:]:
        assert all(map(np.array_equal, found[0], shared))
