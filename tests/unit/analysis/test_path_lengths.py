"""Path lengths are those of Table 1, whatever the architecture."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from callers_modes import MODES
from transduce.analysis.path_lengths import (
    PathLengths,
    SteppedRecurrence,
    measure_path_lengths,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

SMALL = {"vocab_size": 400, "d_model": 16, "d_ff": 32, "num_heads": 2}


def transformer(num_layers: int, neighbourhood: int | None = None) -> Transformer:
    config = ModelConfig(
        **SMALL, d_k=8, d_v=8, num_layers=num_layers, neighbourhood=neighbourhood
    )
    return Transformer(config)


@pytest.mark.parametrize("n", [4, 12])
def test_attention_connects_all_positions_in_one_step(n: int) -> None:
    found = measure_path_lengths(transformer(2), n)
    assert found == PathLengths(n=n, encoder=1, between=1, decoder=1)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_modes_of_the_caller_do_not_change_path_lengths(
    mode: Callable[[], AbstractContextManager[object]],
) -> None:
    model = transformer(2)
    expected = measure_path_lengths(model, 5)
    with mode():
        assert measure_path_lengths(model, 5) == expected


def test_restricted_attention_needs_a_layer_for_each_neighbourhood() -> None:
    found = measure_path_lengths(transformer(4, neighbourhood=3), 10)
    assert found == PathLengths(n=10, encoder=3, between=1, decoder=3)


def test_positions_out_of_reach_have_no_path() -> None:
    found = measure_path_lengths(transformer(2, neighbourhood=3), 10)
    assert found == PathLengths(n=10, encoder=None, between=1, decoder=None)


def test_a_recurrent_decoder_needs_a_step_for_each_position() -> None:
    config = ModelConfig(
        **SMALL, d_k=8, d_v=8, num_layers=1, decoder_self_attention="ssru"
    )
    found = measure_path_lengths(Transformer(config), 7)
    assert found == PathLengths(n=7, encoder=1, between=1, decoder=7)


@dataclass(frozen=True)
class Encoded:
    states: Tensor
    mask: Tensor


class Recurrent(Transformer):
    """Encoder and decoder of one recurrence each; the second reads the first's end."""

    def __init__(self, *, bidirectional: bool) -> None:
        super().__init__(ModelConfig(**SMALL, d_k=8, d_v=8, num_layers=1))
        self.tokens = nn.Embedding(400, 8)
        width = 4 if bidirectional else 8
        self.encoder = nn.LSTM(8, width, batch_first=True, bidirectional=bidirectional)
        self.decoder = nn.GRU(16, 8, batch_first=True)

    def encode(self, source: Tensor) -> Encoded:
        return Encoded(self.encoder(self.tokens(source))[0], source[:, None, None] > 0)

    def decode(self, target: Tensor, memory: Encoded) -> Tensor:
        last = memory.states[:, -1:].expand(-1, target.size(1), -1)
        return self.decoder(torch.cat([self.tokens(target), last], dim=-1))[0]


@pytest.mark.parametrize("n", [5, 11])
def test_a_recurrence_needs_a_step_for_each_position(n: int) -> None:
    found = measure_path_lengths(Recurrent(bidirectional=True), n)
    # The last state has read the first token in n steps, and the decoder needs one.
    # Leaving the encoder is another.
    assert found == PathLengths(n=n, encoder=n, between=n + 2, decoder=n)


def test_one_direction_leaves_earlier_positions_without_a_path() -> None:
    found = measure_path_lengths(Recurrent(bidirectional=False), 5)
    assert found.encoder is None


@pytest.mark.parametrize("width", [4, 3])
def test_measuring_leaves_the_model_as_it_is(width: int) -> None:
    model = transformer(1)
    before = {name: w.clone() for name, w in model.state_dict().items()}
    measure_path_lengths(model, width)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    assert not model.encoder_layers[0].self_attention._forward_hooks


RECURRENCES = {
    "lstm": nn.LSTM(6, 4, batch_first=True),
    "two layers": nn.LSTM(6, 4, num_layers=2),
    "both directions": nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True),
    "projected": nn.LSTM(6, 4, proj_size=3, batch_first=True),
    "gru": nn.GRU(6, 4, batch_first=True),
    "without bias": nn.LSTM(6, 4, bias=False, batch_first=True),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", RECURRENCES)
def test_a_stepped_recurrence_equals_the_whole(kind: str) -> None:
    whole = RECURRENCES[kind]
    x = torch.randn(3, 5, 6)
    expected, last = whole(x)
    found, found_last = SteppedRecurrence(whole, 0.5)(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_last, last)
    again, _ = SteppedRecurrence(whole, 0.5)(x, last)
    torch.testing.assert_close(again, whole(x, last)[0])
