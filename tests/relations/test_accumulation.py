"""The gradient of an update does not depend on its micro-batches, up to rounding."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from transduce.data.batches import Batcher, BatchingConfig
from transduce.model.transformer import Transformer
from transduce.nn import cross_entropy as module
from transduce.training.config import TrainingConfig
from transduce.training.trainer import StepReport, Trainer

ONE_UPDATE = BatchingConfig(
    source_tokens=100_000, target_tokens=100_000, batch_tokens=100_000
)
VARIANTS = {
    "the paper's": {},
    "pre-norm": {"norm": "pre"},
    "additive": {"scores": "additive"},
    "neighbourhood": {"neighbourhood": 2},
    "learned positions": {"positions": "learned"},
    "an output bias": {"output_bias": True, "activation": "silu"},
    "layers in one call": {"d_model": 32, "d_ff": 32, "d_k": 16, "d_v": 16},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def gradients(request, tiny, make_dataset, cpu):
    """Compute the gradients of one update by batches of a given size."""

    def make(pairs, batch_tokens: int) -> tuple[list[Tensor], StepReport]:
        torch.manual_seed(2)
        model = Transformer(replace(tiny, num_layers=1, **request.param))
        batching = replace(ONE_UPDATE, batch_tokens=batch_tokens)
        batcher = Batcher(make_dataset(pairs), batching, seed=1)
        config = TrainingConfig(steps=1, checkpoint_minutes=1_000.0)
        reports: list[StepReport] = []
        trainer = Trainer(model, batcher, config, cpu)
        trainer.train(on_step=reports.append)
        return [parameter.grad for parameter in model.parameters()], reports[0]

    return make


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_two_half_batches_have_the_gradient_of_one_batch(gradients):
    # Lengths differ, so that a mean of means would be another number.
    pairs = [([5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]), ([5, 9], [7])]
    halves, _ = gradients(pairs, batch_tokens=1)
    whole, _ = gradients(pairs, batch_tokens=1_000)
    assert_same(halves, whole)


@pytest.mark.parametrize("batch_tokens", [1, 40])
def test_the_size_of_batches_does_not_change_the_gradient(
    gradients, random_pairs, batch_tokens
):
    pairs = random_pairs(12, 9)
    cut, report = gradients(pairs, batch_tokens)
    whole, whole_report = gradients(pairs, 100_000)
    assert_same(cut, whole)
    assert report.loss == pytest.approx(whole_report.loss, rel=1e-5)
    assert report.perplexity == pytest.approx(whole_report.perplexity, rel=1e-5)
    assert report.num_target_tokens == whole_report.num_target_tokens


@pytest.mark.parametrize("rows", [1, 30])
def test_the_rows_of_logits_at_a_time_do_not_change_the_gradient(
    gradients, random_pairs, monkeypatch, rows
):
    pairs = random_pairs(12, 9)
    whole, _ = gradients(pairs, 100_000)
    monkeypatch.setattr(module, "MIN_LOGIT_ROWS", rows)
    monkeypatch.setattr(module, "MAX_LOGITS", 0)
    cut, _ = gradients(pairs, 100_000)
    assert_same(cut, whole)
