"""Loss of a batch (`BatchLoss`): smoothed cross-entropy (section 5.4), and others.

Guided attention (Garg et al., 2019) is for parsers. A parser writes one symbol for each
word, in their order, so the next word is known in training. An additional loss teaches
one head of cross-attention to attend to it, because small treebanks do not teach a
model to count.

Expected reward (Wu et al., 2016, section 5) replaces the likelihood of a reference,
which does not tell a nearly right target from a wrong one. It is the mean reward of the
targets that the model itself would draw. Its gradient is estimated from samples, each
weighted by its reward minus the mean reward of its sentence (Williams, 1992; Ranzato et
al., 2016).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from transduce.architectures.interface import AuxiliaryLoss, TransductionModel
from transduce.architectures.mixture_layers import MixtureOfExperts
from transduce.data.tensors import Batch, PackedBatch, pad_rows
from transduce.device import Hardware
from transduce.errors import ConfigError
from transduce.metrics.scores import gleu_of_counts, n_grams
from transduce.model.attention import recorded_weights
from transduce.model.config import FORWARDS_PER_UPDATE
from transduce.nn.cross_entropy import Loss, smoothed_cross_entropy
from transduce.nn.fuse import FusedTransformer
from transduce.text.vocabulary import BOS, EOS, PAD

SAMPLE_LOGITS = 2**25
"""Maximum number of logits of samples that are in memory at a time."""


class BatchLoss(nn.Module):
    """Model and loss as one module, which data-parallel training wraps.

    Raises `ConfigError` for `guidance` of a model that has no cross-attention.
    """

    def __init__(
        self,
        model: TransductionModel,
        label_smoothing: float,
        hardware: Hardware,
        guidance: "GuidedAttention | None" = None,
        likelihood_weight: float = 0.0,
        consistency: float = 0.0,
    ) -> None:
        super().__init__()
        if guidance is not None and not model.cross_attention_taps:
            raise ConfigError(
                "Guided attention must have cross-attention to guide, but the model's "
                "architecture has none."
            )
        self.model = model
        self._label_smoothing = label_smoothing
        self._hardware = hardware
        self._guidance = guidance
        self._likelihood_weight = likelihood_weight
        self._consistency = consistency

    @property
    def is_guided(self) -> bool:
        """Whether training guides a head of attention, which needs hooks."""
        return self._guidance is not None

    @property
    def can_pack(self) -> bool:
        """Whether the loss can be computed without padding, on packed sentences."""
        model = self.model
        return (
            not self.is_guided
            and self._consistency == 0
            and isinstance(model, FusedTransformer)
            and model.can_pack(self._hardware.dtype)
        )

    def forward(
        self, batch: Batch | PackedBatch, samples: "Samples | None" = None
    ) -> Loss:
        """Return the losses of a batch; with samples, a `RewardLoss`."""
        if isinstance(batch, PackedBatch):
            return self._packed_cross_entropy(batch)
        if samples is None and self.can_pack:
            packed = batch.packed()
            # Padding has no target. Only the loss that computes gradients ignores such
            # rows; the other needs a target for each.
            return self._packed_cross_entropy(
                packed.padded_to_bucket() if torch.is_grad_enabled() else packed
            )
        batch = batch.to(self._hardware.device)
        if samples is not None:
            return self._reward_loss(batch, samples.to(self._hardware.device))
        if not self.model.training:
            return self._cross_entropy(batch)
        return self._training_loss(batch)

    def _training_loss(self, batch: Batch) -> Loss:
        """Return the losses of a batch in training; they are means of the passes."""
        # Unlike the paper: two passes over a batch, which differ by their dropout, can
        # be trained to predict the same (Liang et al., 2021). Off by default:
        # `training.consistency`.
        num_passes = 1 if self._consistency == 0 else 2
        pairs = batch if num_passes == 1 else batch.repeated(num_passes)
        if self._guidance is None:
            loss = self._cross_entropy(pairs, self._consistency)
            smoothed = loss.smoothed
        else:
            with recorded_attention(self.model) as recorded:
                loss = self._cross_entropy(pairs, self._consistency)
            [weights] = recorded
            guidance = self._guidance.loss(weights, pairs)
            smoothed = loss.smoothed + guidance / num_passes
        return replace(loss, smoothed=smoothed + self._auxiliary(batch))

    def _cross_entropy(self, batch: Batch, consistency: float = 0.0) -> Loss:
        """Return the losses of a padded batch."""
        states, is_token = self._states(batch)
        return self._loss(states[is_token], batch.target_out[is_token], consistency)

    def _states(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "batch target d_model"], Bool[Tensor, "batch target"]]:
        """Return the decoder's states, and which of them predict a token."""
        with self._hardware.autocast():
            memory = self.model.encode(batch.source)
            states = self.model.decode(batch.target_in, memory)
        return states, batch.target_out != PAD

    def _loss(
        self,
        states: Float[Tensor, "rows d_model"],
        targets: Int[Tensor, " rows"],
        consistency: float = 0.0,
    ) -> Loss:
        """Return the losses of decoder states, each with the token it predicts."""
        output_weight = self.model.output_weight
        if (bias := self.model.output_bias) is not None:
            # The bias is one more column of the matrix, times a state of one.
            states = functional.pad(states, (0, 1), value=1.0)
            output_weight = torch.cat([output_weight, bias[:, None]], dim=1)
        return smoothed_cross_entropy(
            states,
            output_weight,
            targets,
            self._label_smoothing,
            self._hardware.dtype,
            consistency,
        )

    def _packed_cross_entropy(self, batch: PackedBatch) -> Loss:
        """Return the losses of a batch without padding."""
        assert isinstance(self.model, FusedTransformer)
        batch = batch.to(self._hardware.device)
        states = self.model.packed_states(batch, self._hardware.dtype)
        return self._loss(states, batch.target_out)

    def _auxiliary(self, batch: Batch) -> Float[Tensor, ""] | float:
        """Return the auxiliary loss of the last pass over a batch; 0 without one."""
        if not isinstance(self.model, AuxiliaryLoss):
            return 0.0
        return (batch.target_out != PAD).sum() * self.model.auxiliary_loss()

    def _reward_loss(self, batch: Batch, samples: "Samples") -> "RewardLoss":
        """Return the mixed objective of Wu et al. (2016, equation 9)."""
        # Unlike the paper: a run can end with updates that raise the reward of samples.
        # Mixtures keep their balance by the references, and choose experts for samples
        # as when these were drawn. Off by default: `training.reward`.
        train_mixtures(self.model, True)
        loss = self._cross_entropy(batch)
        auxiliary = self._auxiliary(batch)
        train_mixtures(self.model, False)
        expected = self._weighted_likelihood(samples.batch, samples.advantages)
        return RewardLoss(
            smoothed=(loss.smoothed + auxiliary).detach(),
            negative_log_likelihood=loss.negative_log_likelihood,
            objective=self._likelihood_weight * loss.smoothed + auxiliary - expected,
        )

    def _weighted_likelihood(
        self, batch: Batch, weights: Float[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Return the sum of the log-likelihoods of targets, each times its weight.

        With the advantages of samples as weights, its gradient estimates that of the
        expected reward. Only the logits of some rows are in memory at a time, so the
        backward pass computes them again.
        """
        states, is_token = self._states(batch)
        rows = max(SAMPLE_LOGITS // len(self.model.output_weight), 1)
        targets = batch.target_out[is_token]
        token_weights = weights[:, None].expand_as(is_token)[is_token]
        sums = [
            # No random number is drawn here. With `preserve_rng_state`, PyTorch would
            # still set back the generator, which other threads use, too.
            checkpoint(
                self._likelihood, *part, use_reentrant=False, preserve_rng_state=False
            )
            for part in zip(
                *(x.split(rows) for x in (states[is_token], targets, token_weights)),
                strict=True,
            )
        ]
        return torch.stack(sums).sum()

    def _likelihood(
        self,
        states: Float[Tensor, "rows d_model"],
        targets: Int[Tensor, " rows"],
        weights: Float[Tensor, " rows"],
    ) -> Float[Tensor, ""]:
        """Return the sum of log-likelihoods of tokens, each times its weight."""
        with self._hardware.autocast():
            logits = self.model.logits(states)
        chosen = functional.cross_entropy(logits.float(), targets, reduction="none")
        return -(weights * chosen).sum()


def word_beginnings(pieces: Iterable[str]) -> Bool[Tensor, " source_vocab"]:
    """Return for each id whether it begins a word; the end token is the last word."""
    return torch.tensor([i == EOS or p.startswith(" ") for i, p in enumerate(pieces)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedAttention:
    """Loss of one head's attention to the source word that a target symbol stands for.

    The tensors are on the device of the batches.
    """

    weight: float
    """Weight of this loss relative to the cross-entropy."""
    begins_word: Bool[Tensor, " source_vocab"]
    """Whether each source id begins a word: the result of `word_beginnings`."""
    takes_word: Bool[Tensor, " target_vocab"]
    """Whether each target id stands for the next word."""

    def next_word(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Bool[Tensor, "batch target source"]:
        """Return a mask that is True at the tokens of the next word of the source.

        After the last word it is True at the end token.
        """
        words = self.begins_word[source].cumsum(1) - 1
        taken = self.takes_word[target_in].cumsum(1)
        is_next = words[:, None, :] == taken[:, :, None]
        return is_next & (source != PAD)[:, None, :]

    def loss(
        self, weights: Float[Tensor, "batch heads target source"], batch: Batch
    ) -> Float[Tensor, ""]:
        """Compute the first head's cross-entropy with the next word, a sum in nats."""
        # Unlike the paper: one head of a parser can be taught where to attend to. Off
        # by default: `treebank.guidance`.
        is_next = self.next_word(batch.source, batch.target_in)
        attention = (weights[:, 0].float() * is_next).sum(dim=-1)
        # Weights may underflow, and log(0) is -inf.
        epsilon = torch.finfo(attention.dtype).eps
        is_token = batch.target_out != PAD
        return -self.weight * attention[is_token].clamp(min=epsilon).log().sum()


def recorded_attention(
    model: TransductionModel,
) -> AbstractContextManager[list[Float[Tensor, "batch heads target source"]]]:
    """Record the cross-attention weights of the decoder's last layer but one.

    Garg et al. (2019) guide this layer, as its heads align words best without guidance.
    """
    *others, last = model.cross_attention_taps
    return recorded_weights(others[-1] if others else last)


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
