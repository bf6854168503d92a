"""Slots of dropped hypotheses are reused for keys and values of others."""

from dataclasses import replace

import numpy as np
import pytest

from native_reading import after
from step_sequence import SOURCE, SOURCES
from transduce.decoding.native_decoder import NativeDecoder, NativeModel
from transduce.decoding.torch_decoder import FusedStep, TorchDecoder
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")

BEAM = 4
SENTENCES = np.arange(len(SOURCES))[:, None]
FIRST = SENTENCES + 7


def native(config: ModelConfig) -> NativeModel:
    weights = Transformer(config).state_dict()
    arrays = {name: each.numpy() for name, each in weights.items()}
    return NativeModel(config, arrays, "fp32")


def capacity(decoder: NativeDecoder) -> int:
    """Return the slots of each sentence."""
    native = api()
    assert native is not None
    return int(native.decode.decoder_capacity(decoder.handle))


def one_survives(step: int) -> np.ndarray:
    """Rows in which one hypothesis of each sentence takes all places of the beam."""
    return BEAM * SENTENCES + np.full(BEAM, step % BEAM)


def test_a_common_past_takes_one_slot_per_position(
    tiny: ModelConfig,
) -> None:
    model = native(tiny)
    beams, alone = after(model, SOURCES), after(model, SOURCES)
    beams.step(FIRST)
    alone.step(FIRST)
    beams.reorder(SENTENCES + np.zeros(BEAM, np.int64))
    at_first = capacity(beams)
    for step in range(at_first + 10):
        ids = FIRST + step + np.arange(BEAM)
        survivor = ids[:, [step % BEAM]]
        found = beams.step(ids % 23)[:, step % BEAM]
        expected = alone.step(survivor % 23)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        beams.reorder(one_survives(step))
        # The tokens of this step take BEAM slots.
        assert (capacity(beams) == at_first) == (step < at_first - BEAM)


def test_a_wide_beam_extends_the_capacity_once(tiny: ModelConfig) -> None:
    model, beam = native(tiny), 100
    beams, alone = after(model, SOURCES), after(model, SOURCES)
    beams.step(FIRST)
    alone.step(FIRST)
    beams.reorder(SENTENCES + np.zeros(beam, np.int64))
    made = 0
    for step in range(12):
        found = beams.step((FIRST + step + np.arange(beam)) % 23)[:, step]
        expected = alone.step((FIRST + 2 * step) % 23)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        beams.reorder(beam * SENTENCES + np.full(beam, step))
        # Capacity for one step beside the tokens before it suffices afterwards.
        made = made or capacity(beams)
        assert capacity(beams) == made


def test_restricted_attention_keeps_the_slots_of_a_neighbourhood(
    tiny: ModelConfig,
) -> None:
    restricted = replace(tiny, neighbourhood=3)
    transformer = Transformer(restricted).eval()
    weights = {name: each.numpy() for name, each in transformer.state_dict().items()}
    beams = after(NativeModel(restricted, weights, "fp32"), SOURCES)
    plain = FusedStep(transformer)
    slots = TorchDecoder(plain, transformer.encode(SOURCE))
    for decoder in (beams, slots):
        decoder.step(FIRST)
        decoder.reorder(SENTENCES + np.zeros(BEAM, np.int64))
    used = []
    for step in range(150):
        ids = (FIRST + step + np.arange(BEAM)) % 23
        found, expected = beams.step(ids), slots.step(ids)
        if step % 20 == 0:
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        parents = BEAM * SENTENCES + (np.arange(BEAM) * step) % BEAM
        for decoder in (beams, slots):
            decoder.reorder(parents)
        used.append(slots.state.past.size(-1))
    # Four positions of each hypothesis are in use, and four more in a step.
    assert capacity(beams) <= 128
    assert max(used) <= 128
