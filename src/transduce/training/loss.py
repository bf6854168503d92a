"""Loss of a batch (`BatchLoss`): smoothed cross-entropy (section 5.4), and others.

Guided attention (Garg et al., 2019) is for parsers. A parser writes one symbol for each
word, in their order, so the next word is known in training. An additional loss teaches
one head of cross-attention to attend to it, because small treebanks do not teach a
model to count.

The loss of updates by reward is in `_reward_loss`; `reward` draws their samples.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from transduce.architectures.interface import AuxiliaryLoss, TransductionModel
from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware
from transduce.errors import ConfigError
from transduce.model.attention import recorded_weights
from transduce.nn.cross_entropy import Loss, smoothed_cross_entropy
from transduce.nn.fuse import FusedTransformer
from transduce.text.vocabulary import EOS, PAD
from transduce.training.reward import RewardLoss, Samples, train_mixtures

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
        self, batch: Batch | PackedBatch, samples: Samples | None = None
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

    def _reward_loss(self, batch: Batch, samples: Samples) -> RewardLoss:
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
