"""Names and shapes of parameters computed from a config equal those of the model."""

from dataclasses import replace

import pytest

from transduce.model.config import ModelConfig, parameter_shapes
from transduce.model.transformer import Transformer

VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 7},
    {"norm": "pre"},
    {"scores": "additive"},
    {"d_k": 6, "d_v": 10, "num_heads": 3},
    {"decoder_layers": 3, "num_layers": 1},
    {"output_bias": True},
    {"target_vocab_size": 40},
    {"target_vocab_size": 40, "output_bias": True},
    {"decoder_self_attention": "ssru", "d_k": 6},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_names_and_shapes_equal_those_of_the_model(
    tiny: ModelConfig, variant: dict[str, object]
) -> None:
    config = replace(tiny, **variant)
    weights = Transformer(config).state_dict()
    assert parameter_shapes(config) == {n: tuple(w.shape) for n, w in weights.items()}
