"""The loss of a batch, from token ids on."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.models import TransductionModel
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.text.vocabulary import PAD
from transduce.training.cross_entropy import Loss, smoothed_cross_entropy
from transduce.training.guided_attention import Guidance, watched_attention


class BatchLoss(nn.Module):
    """Model and loss as one module; in training, attention may be guided."""

    def __init__(
        self,
        model: TransductionModel,
        label_smoothing: float,
        hardware: Hardware,
        guidance: Guidance | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._hardware = hardware
        self._guidance = guidance

    @property
    def is_guided(self) -> bool:
        """Whether a head of attention is guided in training, which needs hooks."""
        return self._guidance is not None

    def forward(self, batch: Batch) -> Loss:
        batch = batch.to(self._hardware.device)
        if self._guidance is None or not self.model.training:
            return self._cross_entropy(batch)
        with watched_attention(self.model) as watched:
            loss = self._cross_entropy(batch)
        [weights] = watched
        smoothed = loss.smoothed + self._guidance.loss(weights, batch)
        return replace(loss, smoothed=smoothed)

    def _cross_entropy(self, batch: Batch) -> Loss:
        with self._hardware.autocast():
            memory = self.model.encode(batch.source)
            states = self.model.decode(batch.target_in, memory)
        is_token = batch.target_out != PAD
        states, output_weight = states[is_token], self.model.output_weight
        if (bias := self.model.output_bias) is not None:
            # One more column of the matrix, for a state that is always one.
            states = functional.pad(states, (0, 1), value=1.0)
            output_weight = torch.cat([output_weight, bias[:, None]], dim=1)
        return smoothed_cross_entropy(
            states,
            output_weight,
            batch.target_out[is_token],
            self._label_smoothing,
            self._hardware.dtype,
        )


def as_tensor(loss: Loss) -> Float[Tensor, "2"]:
    """Return both sums as one tensor."""
    return torch.stack([loss.smoothed.detach(), loss.negative_log_likelihood])
