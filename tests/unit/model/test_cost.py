"""Costs of a model against PyTorch's FLOP counter and against the paper."""

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from transduce.architectures.config import num_parameters
from transduce.checkpoint import build
from transduce.experiments.presets import PRESETS, TABLE_3
from transduce.model.config import (
    ModelConfig,
    count_parameters,
    forward_flops,
    update_flops,
)
from transduce.model.transformer import Transformer


def small(config: ModelConfig) -> ModelConfig:
    """Narrow config with the heads and layers of another."""
    return replace(
        config,
        vocab_size=41,
        d_model=config.d_model // 16,
        d_ff=config.d_ff // 32,
        d_k=config.d_k // 8,
        d_v=config.d_v // 8,
        max_positions=30,
    )


ODD = ModelConfig(
    vocab_size=37, num_layers=2, d_model=20, d_ff=28, num_heads=3, d_k=6, d_v=7,
    max_positions=30,
)  # fmt: skip
VARIANTS = {
    "h * d_k is not d_model": {},
    "one head": {"num_heads": 1},
    "pre-norm": {"norm": "pre"},
    "additive": {"scores": "additive"},
    "unscaled": {"scores": "unscaled"},
    "neighbourhood": {"neighbourhood": 2},
    "learned positions": {"positions": "learned"},
    "a shallow decoder": {"decoder_layers": 1},
    "a deep decoder, pre-norm": {"decoder_layers": 3, "norm": "pre"},
    "an output bias": {"output_bias": True},
    "a recurrent decoder": {"decoder_self_attention": "ssru"},
    "an untied output": {"tied_output": False, "output_bias": True},
}
CONFIGS = {row: small(run.model) for row, run in TABLE_3.items()} | {
    name: replace(ODD, **changes) for name, changes in VARIANTS.items()
}
SHAPE = (3, 5, 7)
"""Pairs, source positions, target positions."""
CASES = {
    **{name: (config, SHAPE) for name, config in CONFIGS.items()},
    "source is longer": (ODD, (2, 9, 4)),
    "one token": (ODD, (1, 1, 1)),
}


def show_products(model: Transformer) -> None:
    """Compute attention by counted matrix products, not by a fused kernel."""
    for name, module in model.named_modules():
        if name.endswith("weights_tap"):
            module.register_forward_hook(lambda *_: None)


def counted(model: Transformer, shape: tuple[int, int, int]) -> tuple[int, int]:
    """FLOPs by PyTorch's counter in a forward pass, and in forward and backward."""
    pairs, source, target = shape
    with FlopCounterMode(display=False) as counter:
        logits = model(
            torch.randint(3, 30, (pairs, source)), torch.randint(3, 30, (pairs, target))
        )
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops()


def lengths(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    pairs, source, target = shape
    return np.full(pairs, source), np.full(pairs, target)


@pytest.mark.parametrize(("config", "shape"), CASES.values(), ids=CASES.keys())
def test_flops_equal_those_of_pytorchs_counter(config, shape):
    model = Transformer(config).train()
    show_products(model)
    forward, both = counted(model, shape)
    assert forward == forward_flops(config, *lengths(shape)).total
    assert both == update_flops(config, *lengths(shape))


def test_pytorchs_counter_misses_at_most_fused_attention():
    model = Transformer(ODD)
    forward, _ = counted(model, SHAPE)
    ours = forward_flops(ODD, *lengths(SHAPE))
    assert forward in (ours.total, ours.total - ours.attention)


def test_flops_are_grouped_by_component():
    # One layer of one head, one pair of two source tokens and three target tokens.
    config = ModelConfig(
        vocab_size=10, num_layers=1, d_model=4, d_ff=5, num_heads=1, d_k=2, d_v=3
    )
    flops = forward_flops(config, np.array([2]), np.array([3]))
    assert asdict(flops) == {
        "projections": 2 * (2 + 3 + (2 + 3) / 2) * 4 * (2 + 2 + 3 + 3),
        "attention": 2 * (2 * 2 + 3 * 3 + 3 * 2) * (2 + 3),
        "feed_forward": 2 * (2 + 3) * (4 * 5 + 5 * 4),
        "output": 2 * 3 * 4 * 10,
    }


def multiply_adds(config: ModelConfig, length: int) -> float:
    """Multiply-adds of a source and a target token in sentences of a given length.

    Decoder self-attention is causal, so only half of its scores count.
    """
    d, ff = config.d_model, config.d_ff
    heads = config.num_heads * (config.d_k + config.d_v)  # 2 d if h * d_k is d
    encoder = 2 * d * heads + 2 * d * ff + length * heads
    memory = d * heads
    decoder = 3 * d * heads + length * heads / 2 + length * heads + 2 * d * ff
    return config.num_layers * (encoder + memory + decoder) + d * config.vocab_size


def flops_a_token(row):
    config = replace(PRESETS[row].model, vocab_size=37_000)
    length = np.array([27])
    return update_flops(config, length, length) / 27


@pytest.mark.parametrize("row", TABLE_3)
def test_flops_per_token_equal_an_independent_formula(row):
    config = replace(PRESETS[row].model, vocab_size=37_000)
    expected = 6 * multiply_adds(config, 27)
    assert flops_a_token(row) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("row", "giga"), [("base", 0.380), ("big", 1.29)])
def test_flops_per_token_of_the_papers_models_are_these(row, giga):
    assert flops_a_token(row) == pytest.approx(giga * 1e9, rel=0.01)


def test_the_flops_of_an_update_are_the_sum_over_its_pairs():
    source, target = np.array([4, 9, 1]), np.array([6, 2, 5])
    each = [
        update_flops(ODD, source[i : i + 1], target[i : i + 1])
        for i in range(len(source))
    ]
    assert update_flops(ODD, source, target) == sum(each)
    assert update_flops(ODD, source[:0], target[:0]) == 0


def test_short_integers_do_not_overflow():
    lengths = np.array([100_000], dtype=np.int32)
    scores = 3 * 100_000**2
    flops = forward_flops(ODD, lengths, lengths)
    assert flops.attention == 2 * 2 * scores * 3 * (6 + 7)


@pytest.mark.parametrize("name", [*PRESETS, *VARIANTS])
def test_settings_agree_with_the_model_about_its_size_and_attention(name):
    config = PRESETS[name].model if name in PRESETS else CONFIGS[name]
    with torch.device("meta"):
        model = build(config)
    assert num_parameters(config) == model.num_parameters()
    assert config.has_cross_attention == bool(model.cross_attention_taps)


def group_of(name: str, modules: dict[str, nn.Module]) -> str:
    if isinstance(modules[name.rpartition(".")[0]], nn.LayerNorm):
        return "norms"
    groups = ("cross_attention", "self_attention", "recurrence", "feed_forward")
    return next((g for g in (*groups, "positions") if f"{g}." in name), "embedding")


@pytest.mark.parametrize("name", ["base", "E-learned", *VARIANTS])
def test_parameters_are_grouped_by_component(name):
    config = CONFIGS[name]
    model = Transformer(config)
    modules, counts = dict(model.named_modules()), Counter()
    for parameter, weight in model.named_parameters():
        counts[group_of(parameter, modules)] += weight.numel()
    expected = {key: n for key, n in asdict(count_parameters(config)).items() if n}
    assert counts == expected
