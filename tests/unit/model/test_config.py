"""Model settings default to the paper's, and impossible ones are refused."""

from dataclasses import FrozenInstanceError, asdict

import pytest

from transduce.errors import ConfigError
from transduce.model.config import ModelConfig

SIZES = [
    "vocab_size", "target_vocab_size", "num_layers", "d_model", "d_ff", "num_heads",
    "d_k", "d_v", "max_positions", "neighbourhood", "decoder_layers",
]  # fmt: skip


def test_the_defaults_are_the_papers_base_model():
    assert asdict(ModelConfig()) == {
        "vocab_size": 37_000,
        "target_vocab_size": None,
        "num_layers": 6,
        "decoder_layers": None,
        "d_model": 512,
        "d_ff": 2048,
        "num_heads": 8,
        "d_k": 64,
        "d_v": 64,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "relu_dropout": 0.0,
        "positions": "sinusoidal",
        "max_positions": 1024,
        "norm": "post",
        "scores": "scaled",
        "activation": "relu",
        "position_base": 10_000.0,
        "neighbourhood": None,
        "norm_epsilon": 1e-6,
        "output_bias": False,
        "tied_output": True,
        "decoder_self_attention": "attention",
        "learned_start": True,
    }


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -2])
def test_a_size_below_one_is_refused(name, value):
    message = f"`model.{name}` must be at least 1, but is {value}\\."
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**{name: value})


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_rate_outside_0_to_1_is_refused(dropout):
    message = f"`model.dropout` must be at least 0 and below 1, but is {dropout}\\."
    with pytest.raises(ConfigError, match=message):
        ModelConfig(dropout=dropout)


@pytest.mark.parametrize("epsilon", [0.0, -1e-6, 1.0, float("nan")])
def test_an_epsilon_outside_its_range_is_refused(epsilon):
    message = f"`model.norm_epsilon` must be above 0 and below 1, but is {epsilon}\\."
    with pytest.raises(ConfigError, match=message):
        ModelConfig(norm_epsilon=epsilon)


def test_the_decoder_has_as_many_layers_by_default():
    assert ModelConfig(num_layers=4).num_decoder_layers == 4
    assert ModelConfig(num_layers=4, decoder_layers=2).num_decoder_layers == 2


def test_sinusoids_need_an_even_width():
    with pytest.raises(ConfigError, match="must be even for sinusoidal .* is 63"):
        ModelConfig(d_model=63)


def test_heads_may_have_an_odd_width():
    assert ModelConfig(d_k=3, d_v=5).d_k == 3


def test_learned_positions_may_have_an_odd_width():
    assert ModelConfig(d_model=63, positions="learned").d_model == 63


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("positions", '"sinusoidal" or "learned"'),
        ("norm", '"post" or "pre"'),
        ("scores", '"scaled", "unscaled" or "additive"'),
        ("activation", '"relu" or "silu"'),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_choice_is_refused_with_the_known_ones(name, choices):
    message = f'`model.{name}` must be {choices}, but is "other"\\.'
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**{name: "other"})


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ModelConfig().d_model = 8
