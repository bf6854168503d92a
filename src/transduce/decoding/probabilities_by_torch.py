"""Probabilities of next tokens by PyTorch, for logits that are tensors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from transduce.search_config import SamplingConfig


@torch.inference_mode()
def log_mean_by_torch(
    logits: Sequence[Float[Any, "*rows vocab"]],
) -> Float[Tensor, "*rows vocab"]:
    """Logarithms of the mean of several models' probabilities."""
    each = [torch.as_tensor(x).float().log_softmax(dim=-1) for x in logits]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


@torch.inference_mode()
def draw_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    chances: Float64[np.ndarray, "sentences samples"],
    config: SamplingConfig,
    excluded: Sequence[int],
) -> tuple[
    Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
]:
    """Token of each sample, and its log-probability among all tokens.

    The semantics are those of `probabilities.draw`. A group of one hypothesis is what
    all samples of its sentence go on from.
    """
    logits = logits.float()
    log_probs = logits.log_softmax(dim=-1)
    allowed = logits.clone()  # the model may use its logits again
    allowed[..., list(excluded)] = -torch.inf
    shape = (*chances.shape, logits.size(-1))
    on_device = torch.from_numpy(chances).to(logits.device)
    tokens = _draw(allowed.expand(shape), on_device, config)
    gains = log_probs.expand(shape).gather(-1, tokens[..., None]).squeeze(-1)
    return tokens.cpu().numpy(), gains.cpu().numpy()


def _draw(
    logits: Float[Tensor, "sentences samples vocab"],
    chances: Float64[Tensor, "sentences samples"],
    config: SamplingConfig,
) -> Int64[Tensor, "sentences samples"]:
    vocab_size = logits.size(-1)
    count = vocab_size if config.top_k is None else min(config.top_k, vocab_size)
    values, tokens = (logits / config.temperature).topk(count)
    probabilities = values.double().softmax(dim=-1)
    reached = probabilities.cumsum(dim=-1)
    # The token that reaches the probability of the nucleus belongs to it.
    is_outside = reached - probabilities >= config.top_p
    probabilities = probabilities.masked_fill(is_outside, 0.0)
    reached = probabilities.cumsum(dim=-1)
    aims = chances[..., None] * reached[..., -1:]
    last = (~is_outside).sum(dim=-1, keepdim=True) - 1
    index = torch.searchsorted(reached, aims, right=True).minimum(last)
    return tokens.gather(-1, index).squeeze(-1)
