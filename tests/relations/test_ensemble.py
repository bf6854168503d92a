"""An ensemble has the mean probabilities of its members."""

import numpy as np
import pytest
import torch

from beam_kinds import beam_search
from transduce.decoding.search import Decoder, Ensemble
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])


@pytest.fixture
def models(tiny: ModelConfig) -> list[Transformer]:
    return [Transformer(tiny).eval() for _ in range(3)]


def decoder(model: Transformer) -> TorchDecoder:
    return TorchDecoder(model, model.encode(SOURCE))


def search(steps: Decoder) -> list[list[tuple[int, ...]]]:
    found = beam_search(
        steps, [9, 7, 8], SearchConfig(), bos=BOS, eos=EOS, excluded=(PAD, BOS)
    )
    return [[h.ids for h in beam] for beam in found]


@torch.no_grad()
def test_an_ensemble_of_a_model_with_itself_equals_the_model(
    models: list[Transformer],
) -> None:
    model = models[0]
    alone = search(decoder(model))
    assert search(Ensemble([decoder(model)])) == alone
    assert search(Ensemble([decoder(model), decoder(model)])) == alone


@torch.no_grad()
def test_probabilities_are_the_mean_over_the_members(models: list[Transformer]) -> None:
    together = Ensemble([decoder(model) for model in models])
    apart = [decoder(model) for model in models]
    first, rows = np.full((3, 1), BOS), np.array([[2, 2], [0, 0]])
    for steps in (together, *apart):
        steps.step(first)
        steps.reorder(rows)
    last_ids = np.array([[4, 5], [6, 7]])
    mean = sum(m.step(last_ids).softmax(-1) for m in apart) / 3
    torch.testing.assert_close(together.step(last_ids).exp(), mean)
