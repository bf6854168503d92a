import math

import pytest
import torch

from transduce.decoding.torch_model import score_targets
from transduce.metrics.scores import TargetScore
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import BOS, EOS

SOURCE = torch.tensor([[5, 6, 7, EOS]])


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    return Transformer(tiny).eval()


def test_a_target_has_the_product_of_its_tokens_probabilities(
    model: Transformer,
) -> None:
    [score] = score_targets(model, SOURCE, [[8, 9]])
    with torch.no_grad():
        probabilities = model(SOURCE, torch.tensor([[BOS, 8, 9]]))[0].softmax(-1)
    product = probabilities[0, 8] * probabilities[1, 9] * probabilities[2, EOS]
    assert score.log_probability == pytest.approx(math.log(product), abs=1e-5)


def test_the_end_token_counts_as_a_token(model: Transformer) -> None:
    scores = score_targets(model, SOURCE.repeat(2, 1), [[8, 9], []])
    assert [score.num_tokens for score in scores] == [3, 1]


def test_an_empty_target_has_the_probability_of_ending_at_once(
    model: Transformer,
) -> None:
    [score] = score_targets(model, SOURCE, [[]])
    with torch.no_grad():
        end = model(SOURCE, torch.tensor([[BOS]]))[0, 0].log_softmax(-1)[EOS]
    assert score.log_probability == pytest.approx(float(end), abs=1e-5)


def test_padding_does_not_change_the_score_of_a_target(model: Transformer) -> None:
    targets = [[8, 9], [10, 11, 12, 13, 14], []]
    together = score_targets(model, SOURCE.repeat(3, 1), targets)
    alone = [score_targets(model, SOURCE, [target])[0] for target in targets]
    assert [s.log_probability for s in together] == pytest.approx(
        [s.log_probability for s in alone], abs=1e-5
    )


def test_perplexity_is_per_token() -> None:
    score = TargetScore(token_log_probabilities=(-math.log(3),) * 4)
    assert score.perplexity == pytest.approx(3)


def test_scoring_leaves_no_gradients(model: Transformer) -> None:
    score_targets(model, SOURCE, [[8]])
    assert all(parameter.grad is None for parameter in model.parameters())
