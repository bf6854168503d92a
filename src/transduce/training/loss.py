"""Label-smoothed cross-entropy (section 5.4; Szegedy et al., 2016)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sums over tokens, in nats; divide by their number for a mean."""

    smoothed: Float[Tensor, ""]
    """What training lowers."""
    negative_log_likelihood: Float[Tensor, ""]
    """Of the true tokens alone; its mean's exponential is the perplexity."""


def smoothed_cross_entropy(
    logits: Float[Tensor, "rows vocab"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
) -> Loss:
    """The cross-entropy to a target that is smoothed uniformly over the vocabulary.

    The true token gets 1 - epsilon, and epsilon is shared by all tokens alike.
    """
    smoothed, negative_log_likelihood = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call] # torch's own
        logits, target_out, label_smoothing
    )
    return Loss(smoothed=smoothed, negative_log_likelihood=negative_log_likelihood)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Forms one tensor of the size of the logits, its gradient, and no other."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target_out: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        log_normalizer = logits.logsumexp(dim=-1, keepdim=True)
        true_logits = logits.gather(-1, target_out[:, None])
        mean_logits = logits.mean(dim=-1, keepdim=True)
        ctx.save_for_backward(logits, target_out, log_normalizer)
        ctx.label_smoothing = label_smoothing
        negative_log_likelihood = (log_normalizer - true_logits).sum()
        ctx.mark_non_differentiable(negative_log_likelihood)
        expected = true_logits.lerp(mean_logits, label_smoothing)
        return (log_normalizer - expected).sum(), negative_log_likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, target_out, log_normalizer = ctx.saved_tensors
        gradient = (logits - log_normalizer).exp_()
        gradient.sub_(ctx.label_smoothing / logits.size(-1))
        true_mass = gradient.new_full((), ctx.label_smoothing - 1)
        gradient.scatter_add_(
            -1, target_out[:, None], true_mass.expand(len(target_out), 1)
        )
        return gradient.mul_(gradients[0]), None, None
