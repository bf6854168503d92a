"""Guided attention learns to attend to the next word."""

import math
from dataclasses import replace

import pytest
import torch

from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.loss import (
    BatchLoss,
    GuidedAttention,
    recorded_attention,
    word_beginnings,
)

# Source: 2 is the end, 3 and 4 start words, 5 continues one. Target: 6 and 7 are words.
GUIDANCE = GuidedAttention(
    weight=0.5,
    begins_word=torch.tensor([False, False, True, True, True, False]),
    takes_word=torch.tensor([False] * 6 + [True, True]),
)
BATCH = Batch(
    source=torch.tensor([[3, 5, 4, 2], [4, 2, 0, 0]]),
    target_in=torch.tensor([[1, 6, 5, 7, 5], [1, 5, 7, 0, 0]]),
    target_out=torch.tensor([[6, 5, 7, 5, 2], [5, 7, 2, 0, 0]]),
)


def test_words_begin_with_a_space_and_the_end_token_is_one():
    pieces = ["<pad>", "<s>", "</s>", " the", " do", "gs", " ", "<0xE4>"]
    begun = [False, False, True, True, True, False, True, False]
    assert word_beginnings(pieces).tolist() == begun


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    return Transformer(replace(tiny, vocab_size=6, target_vocab_size=8))


def test_the_next_word_is_the_first_untaken_one() -> None:
    first, second = GUIDANCE.next_word(BATCH.source, BATCH.target_in).int().tolist()
    dog_s, barks, end = [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]
    assert first == [dog_s, barks, barks, end, end]
    # One word and the end; padding is no word.
    assert second[:3] == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_the_loss_is_the_negative_log_of_the_first_heads_weight() -> None:
    weights = torch.rand(2, 3, 5, 4).softmax(dim=-1)
    first = weights[:, 0]
    sought = [
        first[0, 0, 0] + first[0, 0, 1],
        *(first[0, 1, 2], first[0, 2, 2], first[0, 3, 3], first[0, 4, 3]),
        *(first[1, 0, 0], first[1, 1, 0], first[1, 2, 1]),
    ]
    expected = -0.5 * sum(math.log(weight) for weight in sought)
    assert GUIDANCE.loss(weights, BATCH).item() == pytest.approx(expected, rel=1e-5)


def test_zero_attention_has_a_bounded_loss() -> None:
    weights = torch.zeros(2, 1, 5, 4, requires_grad=True)
    loss = GUIDANCE.loss(weights, BATCH)
    loss.backward()
    assert loss.isfinite()
    assert weights.grad is not None
    assert weights.grad.isfinite().all()


def test_guidance_applies_in_training_only(model: Transformer, cpu: Hardware) -> None:
    free, guided = BatchLoss(model, 0.1, cpu), BatchLoss(model, 0.1, cpu, GUIDANCE)
    assert not free.is_guided
    assert guided.is_guided
    with recorded_attention(model) as watched:
        expected = free(BATCH)
    model.eval()
    assert guided(BATCH).smoothed.item() == free(BATCH).smoothed.item()
    model.train()
    found = guided(BATCH)
    torch.testing.assert_close(
        found.smoothed, expected.smoothed + GUIDANCE.loss(watched[0], BATCH)
    )
    torch.testing.assert_close(
        found.negative_log_likelihood, expected.negative_log_likelihood
    )


def test_two_passes_have_the_mean_loss_of_guided_attention(
    model: Transformer, cpu: Hardware
) -> None:
    once, twice = (
        BatchLoss(model, 0.1, cpu, GUIDANCE, consistency=alpha) for alpha in (0.0, 3.0)
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.testing.assert_close(once(BATCH).smoothed, twice(BATCH).smoothed)


def test_a_model_learns_the_guided_attention(model: Transformer, cpu: Hardware) -> None:
    loss = BatchLoss(model, 0.0, cpu, replace(GUIDANCE, weight=1.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss(BATCH).smoothed.backward()
        optimizer.step()
    with recorded_attention(model) as watched:
        loss(BATCH)
    [weights] = watched
    is_next = GUIDANCE.next_word(BATCH.source, BATCH.target_in)
    looked = (weights[:, 0] * is_next).sum(dim=-1)[BATCH.target_out != 0]
    assert looked.min() > 0.9
