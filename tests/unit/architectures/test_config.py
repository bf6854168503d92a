"""All architectures' settings are scaled alike."""

import re
from dataclasses import fields, replace

import pytest

from transduce.architectures.config import (
    CONFIGS,
    WIDTHS,
    ExpertsConfig,
    num_parameters,
    num_positions,
    scaled,
)
from transduce.experiments.presets import PRESETS

NUMBERS = {
    *("vocab_size", "target_vocab_size", "num_layers", "encoder_layers"),
    *("decoder_layers", "num_blocks", "decoder_blocks", "columns", "num_heads"),
    *("num_experts", "num_groups", "top_k", "residual_from"),
    *("max_positions", "neighbourhood", "kernel", "largest_dilation"),
}
"""Settings that are numbers of things or distances, which do not scale."""


def test_each_whole_number_is_a_width_or_does_not_scale() -> None:
    kinds = [*CONFIGS.values(), ExpertsConfig]
    settings = {each.name: str(each.type) for kind in kinds for each in fields(kind)}
    whole = {name for name, kind in settings.items() if re.search(r"\bint\b", kind)}
    assert whole == {*WIDTHS, *NUMBERS}


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_the_number_of_learned_positions_of_a_model_is_known(kind: type) -> None:
    names = {each.name for each in fields(kind)}
    learned = {"positions": "learned"} if "positions" in names else {}
    limit = {"max_positions": 300} if "max_positions" in names else {}
    assert num_positions(kind(**learned, **limit)) == limit.get("max_positions")


@pytest.mark.parametrize(
    "name", ["base", "gnmt-en-de", "deep-att-en-de", "convs2s-en-de", "bytenet-en-de"]
)
def test_with_widths_of_half_layers_have_a_quarter_of_the_weights(name: str) -> None:
    # A vocabulary's weights would become half.
    model = replace(PRESETS[name].model, vocab_size=1, target_vocab_size=None)
    share = num_parameters(scaled(model, 0.5)) / num_parameters(model)
    assert share == pytest.approx(0.25, abs=0.02)
