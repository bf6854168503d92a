from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

IN_ONE_CALL = {"d_model": 32, "d_ff": 32, "d_k": 16, "d_v": 16}
"""Model widths that the kernel of whole stacks supports."""
VARIANTS = {
    "the paper's": {},
    "widths of heads apart": {"num_heads": 3, "d_k": 5, "d_v": 7},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "fewer positions than tokens": {"positions": "learned", "max_positions": 3},
    "unscaled": {"scores": "unscaled"},
    "additive": {"scores": "additive"},
    "neighbourhood": {"neighbourhood": 1},
    "two vocabularies": {"target_vocab_size": 29},
    "a deep decoder": {"decoder_layers": 3, "activation": "silu"},
    "an output bias": {"output_bias": True},
    "layers in one call": IN_ONE_CALL,
}


@pytest.fixture(autouse=True)
def little_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small initial capacity, so that caches grow even with few short sentences."""
    monkeypatch.setattr("transduce.decoding.cache.FIRST_SLOTS", 1)
    monkeypatch.setattr("transduce.decoding.cache.STEPS_AHEAD", 4)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def model(request: pytest.FixtureRequest, tiny: ModelConfig) -> Iterator[Transformer]:
    """Model of every kind, with weights so large that errors are visible."""
    model = Transformer(replace(tiny, **request.param))
    for name, parameter in model.named_parameters():
        if not name.endswith(("embedding.weight", "positions.weight")):
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        yield model.eval()


@pytest.fixture(scope="module")
def quick_runs(no_learning_curves: None, no_type_checks: None) -> None:
    """Draw no learning curves and check no types, which takes longer than training."""
