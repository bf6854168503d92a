"""Updates by reward: samples of a batch's sources, and their rewards.

Expected reward (Wu et al., 2016, section 5) replaces the likelihood of a reference,
which does not tell a nearly right target from a wrong one. It is the mean reward of the
targets that the model itself would draw. Its gradient is estimated from samples, each
weighted by its reward minus the mean reward of its sentence (Williams, 1992; Ranzato et
al., 2016).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from transduce.architectures.interface import TransductionModel
from transduce.architectures.mixture_layers import MixtureOfExperts
from transduce.data.tensors import Batch, pad_rows
from transduce.metrics.scores import gleu_of_counts, n_grams
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.nn.cross_entropy import Loss
from transduce.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardLoss(Loss):
    """Losses of references, and the objective that replaces them in training."""

    objective: Float[Tensor, ""]
    """Weighted smoothed loss of the references minus the expected reward, up to a
    constant: a sum over sentences."""


Reward = Callable[[Sequence[Sequence[int]], Sequence[int]], list[float]]
"""Function of samples and their reference, as ids without end tokens, that returns the
reward of each sample."""


def gleu_rewards(
    samples: Sequence[Sequence[int]], reference: Sequence[int]
) -> list[float]:
    """Return the GLEU of each sample (Wu et al., 2016)."""
    right = n_grams(reference)
    return [gleu_of_counts(n_grams(sample), right) for sample in samples]


REWARDS: dict[str, Reward] = {"gleu": gleu_rewards}
"""Reward by its name in the settings."""


@runtime_checkable
class Sampler(Protocol):
    """Function that draws targets from a model, always as many for each source.

    Training and decoding do not import each other, so a run passes it to its trainer:
    `ModelSampler` of `decoding.torch_decoder`.
    """

    def __call__(
        self,
        model: TransductionModel,
        sources: Sequence[list[int]],
        max_lengths: Sequence[int],
        seeds: Sequence[tuple[int, ...]],
    ) -> list[list[tuple[int, ...]]]:
        """Return the samples of each source, which has an end token.

        Samples have end tokens too, unless they are cut short at their source's maximum
        length. The random numbers of a source depend on its seed alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Sampler and reward of updates by reward (Wu et al., 2016)."""

    sampler: Sampler
    reward: Reward
    likelihood_weight: float
    """Weight of the log-likelihood of the references, beside the expected reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of the sources of a batch, with their rewards."""

    batch: Batch
    """Samples as targets, each with its source."""
    advantages: Float[Tensor, " samples"]
    """Reward of each sample above the mean of its sentence, divided by the number of
    samples of a sentence."""
    reward: float
    """Sum over sentences of the mean reward of their samples."""

    def to(self, device: torch.device) -> "Samples":
        """Return the samples on a device."""
        return Samples(
            batch=self.batch.to(device),
            advantages=self.advantages.to(device),
            reward=self.reward,
        )


MAX_EXTRA_TOKENS = 10
"""Largest number of tokens that a sample may have beyond its reference."""


@torch.no_grad()
def draw_samples(
    model: TransductionModel,
    batch: Batch,
    seeds: Sequence[tuple[int, ...]],
    refinement: Refinement,
) -> Samples:
    """Draw samples of a batch's sources, without dropout, and reward them.

    There is one of the `seeds` for each source.
    """
    model.eval()
    sources = [_without_padding(row) for row in batch.source.tolist()]
    references = [_without_padding(row)[:-1] for row in batch.target_out.tolist()]
    limits = [len(each) + 1 + MAX_EXTRA_TOKENS for each in references]
    drawn = refinement.sampler(model, sources, limits, seeds)
    rewards = torch.tensor(
        [
            refinement.reward([_without_end(each) for each in samples], reference)
            for samples, reference in zip(drawn, references, strict=True)
        ],
        dtype=torch.float32,
        device="cpu",
    )
    mean = rewards.mean(dim=1, keepdim=True)
    targets = [list(each) for samples in drawn for each in samples]
    number = rewards.size(1)
    return Samples(
        batch=Batch(
            source=batch.source.repeat_interleave(number, dim=0),
            target_in=pad_rows([[BOS, *each[:-1]] for each in targets]),
            target_out=pad_rows(targets),
        ),
        advantages=((rewards - mean) / number).flatten(),
        reward=float(mean.sum()),
    )


def sample_flops(
    model: TransductionModel,
    source_lengths: Integer[np.ndarray, " pairs"],
    sample_lengths: Integer[np.ndarray, "pairs samples"],
) -> int:
    """FLOPs of drawing samples and of the gradient of their likelihood.

    Padding is left out. Drawing is a forward pass that encodes each source once; the
    gradient is computed with each sample beside its source.
    """
    number = sample_lengths.shape[1]
    gradient = model.update_flops(
        np.repeat(source_lengths, number), sample_lengths.ravel()
    )
    encoding = model.update_flops(source_lengths, np.zeros_like(source_lengths))
    drawing = (gradient - (number - 1) * encoding) // FORWARDS_PER_UPDATE
    return gradient + drawing


def without_dropout(model: TransductionModel) -> None:
    """Turn off dropout in a model whose gradient is computed.

    cuDNN computes the gradients of recurrent layers in training mode only.
    """
    model.eval()
    for _, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout == 0:
            module.train()


def train_mixtures(model: TransductionModel, mode: bool) -> None:
    """Set mixtures of experts, which have no dropout, to training or to evaluation.

    In training they choose experts by the batch or with noise, and have losses.
    """
    for _, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            module.train(mode)


def _without_padding(ids: list[int]) -> list[int]:
    return [each for each in ids if each != PAD]


def _without_end(sample: tuple[int, ...]) -> tuple[int, ...]:
    return sample[:-1] if sample[-1:] == (EOS,) else sample
