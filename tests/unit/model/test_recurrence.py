"""The simpler simple recurrent unit, against a formula of numpy, and in a decoder."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.errors import ConfigError
from transduce.model.config import ModelConfig
from transduce.model.layers import SSRU
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import PAD

WIDTH = 6


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    return Transformer(replace(tiny, decoder_self_attention="ssru")).eval()


def randomized(unit: SSRU) -> SSRU:
    for weight in unit.parameters():
        torch.nn.init.normal_(weight)
    return unit


def by_formula(unit: SSRU, x: Tensor) -> np.ndarray:
    """Outputs of one sequence [length, width], in double precision."""
    names = {n: w.detach().double().numpy() for n, w in unit.named_parameters()}
    cell, outputs = np.zeros(WIDTH), []
    for row in x.double().numpy():
        gate = names["forget_gate.weight"] @ row + names["forget_gate.bias"]
        forget = 1 / (1 + np.exp(-gate))
        cell = forget * cell + (1 - forget) * (names["candidate.weight"] @ row)
        outputs.append(np.maximum(cell, 0))
    return np.array(outputs)


def test_outputs_equal_the_formula_of_the_paper() -> None:
    unit, x = randomized(SSRU(WIDTH)), torch.randn(3, 9, WIDTH)
    expected = np.stack([by_formula(unit, each) for each in x])
    np.testing.assert_allclose(unit(x).detach().numpy(), expected, atol=1e-5)


def test_a_sequence_without_positions_has_no_outputs() -> None:
    assert SSRU(WIDTH)(torch.zeros(2, 0, WIDTH)).shape == (2, 0, WIDTH)


def test_cells_are_in_fp32_though_the_weights_are_in_bf16() -> None:
    unit = randomized(SSRU(WIDTH)).bfloat16()
    gate, candidate = torch.full((2, 1, 300, WIDTH), 4.0).bfloat16()
    # Gates near 1: in bf16, the cell would stop short of its limit of 4.
    cells = unit.outputs(gate, candidate)
    assert cells.dtype == torch.float32
    assert cells[0, -1].min() > 3.97
    assert unit(torch.randn(1, 2, WIDTH).bfloat16()).dtype == torch.bfloat16


def test_the_decoder_sees_no_later_token(model: Transformer) -> None:
    inputs: list[Tensor] = []
    model.decoder_layers[0].register_forward_pre_hook(
        lambda _, given: inputs.append(given[0].requires_grad_())
    )
    target = torch.tensor([[1, 7, 8, 9, 10], [1, 11, 12, PAD, PAD]])
    states = model.decode(target, model.encode(torch.tensor([[5, 6, 2], [4, 2, PAD]])))
    (gradient,) = torch.autograd.grad(states[:, 2].sum(), inputs)
    assert (gradient[:, 3:] == 0).all()
    assert (gradient[:, :3] != 0).any(dim=-1).all()


@torch.no_grad()
def test_states_depend_neither_on_padding_nor_on_other_sentences(
    model: Transformer,
) -> None:
    source, target = torch.tensor([[5, 6, 2], [4, 2, PAD]]), torch.tensor([[1, 7, 8]])
    longer = torch.tensor([[1, 9, 9, 9, 9], [1, 7, 8, PAD, PAD]])
    together = model.decode(longer, model.encode(source))[1, :3]
    alone = model.decode(target, model.encode(source[1:, :2]))[0]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_a_model_without_a_recurrence_has_the_parameters_of_the_paper(
    tiny: ModelConfig, model: Transformer
) -> None:
    assert not any("recurrence" in name for name in Transformer(tiny).state_dict())
    names = set(model.state_dict())
    assert not any("decoder_layers.0.self_attention" in name for name in names)
    assert "decoder_layers.1.recurrence.candidate.weight" in names
    assert "decoder_layers.1.recurrence.candidate.bias" not in names


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_decoder_is_refused() -> None:
    message = (
        '`model.decoder_self_attention` must be "attention" or "ssru", but is "gru".'
    )
    with pytest.raises(ConfigError, match=message):
        ModelConfig(decoder_self_attention="gru")  # type: ignore[arg-type]
