"""Updates by reward raise the reward of a model that likelihood has half trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transduce.data.batches import Batcher, BatchingConfig
from transduce.experiments.run_training import refinement_of
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.trainer import StepReport, Trainer

LIKELIHOOD = TrainingConfig(
    steps=120,
    warmup_steps=20,
    schedule="constant",
    learning_rate=5e-3,
    label_smoothing=0.0,
    checkpoint_minutes=1_000.0,
)
REWARD = replace(
    LIKELIHOOD, steps=144, reward="gleu", reward_steps=24, reward_samples=8
)
MODEL = ModelConfig(
    vocab_size=13, num_layers=1, d_model=32, d_ff=64, num_heads=2, d_k=16, d_v=16,
    dropout=0.0,
)  # fmt: skip


def reports_of(trainer: Trainer) -> list[StepReport]:
    reports: list[StepReport] = []
    trainer.train(on_step=reports.append)
    return reports


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_types")
def test_the_reward_of_samples_rises(make_dataset, cpu) -> None:
    random = np.random.default_rng(3)
    words = [random.integers(3, 13, size=random.integers(3, 7)) for _ in range(400)]
    dataset = make_dataset([(each.tolist(), each.tolist()) for each in words])
    batching = BatchingConfig(source_tokens=200, target_tokens=200, batch_tokens=200)
    torch.manual_seed(1)
    trainer = Trainer(
        Transformer(MODEL),
        Batcher(dataset, batching, seed=1),
        REWARD,
        cpu,
        refinement=refinement_of(REWARD),
    )
    rewards = [r.reward for r in reports_of(trainer) if r.reward is not None]
    assert len(rewards) == 24
    before, after = np.mean(rewards[:5]), np.mean(rewards[-5:])
    assert before < 0.8
    assert after > before + 0.07
