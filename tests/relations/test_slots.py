"""Keys and values of hypotheses that are gone leave their place to others."""

from dataclasses import replace

import numpy as np
import pytest

from compiled_reading import after
from step_sequence import SOURCES
from transduce.decoding.compiled.compiled_model import CompiledModel
from transduce.decoding.kernels.library import kernels
from transduce.decoding.next_token_models.ready_model import PACKS
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

BEAM = 4
SENTENCES = np.arange(len(SOURCES))[:, None]
FIRST = SENTENCES + 7


@pytest.fixture(autouse=True)
def room_for_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first."""
    monkeypatch.setattr("transduce.model.sizes.room.STEPS_AHEAD", 16)


def compiled(config: ModelConfig) -> CompiledModel:
    weights = Transformer(config).state_dict()
    arrays = {name: each.numpy() for name, each in weights.items()}
    return CompiledModel(config, arrays, PACKS["fp32"])


def one_survives(step: int) -> np.ndarray:
    """That hypothesis of each sentence, in all places of the beam."""
    return BEAM * SENTENCES + np.full(BEAM, step % BEAM)


def test_one_past_takes_no_more_slots_than_it_has_positions(
    tiny: ModelConfig,
) -> None:
    model = compiled(tiny)
    beams, alone = after(model, SOURCES), after(model, SOURCES)
    beams.step(FIRST)
    alone.step(FIRST)
    beams.reorder(SENTENCES + np.zeros(BEAM, np.int64))
    at_first = beams._state
    for step in range(30):
        ids = FIRST + step + np.arange(BEAM)
        survivor = ids[:, [step % BEAM]]
        found = beams.step(ids % 23)[:, step % BEAM]
        expected = alone.step(survivor % 23)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        beams.reorder(one_survives(step))
        # 16 slots, of which those that are read now take four.
        assert (beams._state is at_first) == (step < 12)


def test_what_is_too_far_back_takes_none(tiny: ModelConfig) -> None:
    decoder = after(compiled(replace(tiny, neighbourhood=2)), SOURCES)
    for step in range(14):
        decoder.step((FIRST + step) % 23)
    # The newest position and two before it.
    assert decoder._state._past[:, 0, :14].tolist() == len(SOURCES) * [
        [0, 1, 2, *3 * [0, 1, 2], 0, 1]
    ]


def test_a_beam_wider_than_its_room_has_more_made(tiny: ModelConfig) -> None:
    model, beam = compiled(tiny), 100
    beams, alone = after(model, SOURCES), after(model, SOURCES)
    beams.step(FIRST)
    alone.step(FIRST)
    beams.reorder(SENTENCES + np.zeros(beam, np.int64))
    made = None
    for step in range(12):
        found = beams.step((FIRST + step + np.arange(beam)) % 23)[:, step]
        expected = alone.step((FIRST + 2 * step) % 23)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        beams.reorder(beam * SENTENCES + np.full(beam, step))
        # Room for all that are read while those before stay is room for what follows.
        made = made or beams._state
        assert beams._state is made
