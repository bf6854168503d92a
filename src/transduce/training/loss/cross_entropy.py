"""Label-smoothed cross-entropy (section 5.4; Szegedy et al., 2016)."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.operators.addresses import address
from transduce.model.operators.kernels.fields import CrossEntropyFields
from transduce.model.operators.kernels.library import kernels, loaded_kernels
from transduce.model.operators.linear import in_blocks, is_in_blocks
from transduce.training.loss.unit_loss import (
    has_unit_loss,
    require_ids,
    unit_loss,
)

LOGITS = 2**24
"""In memory at a time, in whole rows: products of many rows are faster."""
LOGIT_ROWS = 256
"""At a time at least, however large the vocabulary."""
GPU_LOGIT_ROWS = 2_048
"""On a GPU: enough to keep it busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sums over tokens, in nats; divide by their number for a mean."""

    smoothed: Float[Tensor, ""]
    """What training lowers."""
    negative_log_likelihood: Float[Tensor, ""]
    """Of the true tokens alone; its mean's exponential is the perplexity."""


def smoothed_cross_entropy(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    dtype: torch.dtype,
) -> Loss:
    """The cross-entropy to a target that is smoothed uniformly over the vocabulary.

    The true token gets 1 - epsilon, and epsilon is shared by all tokens alike. The
    matrix products are made in `dtype`; sums are in the precision of the weight.
    """
    if torch.is_grad_enabled():
        smoothed, negative_log_likelihood = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call] # torch's own
            states, output_weight, target_out, label_smoothing, dtype
        )
    else:
        matrix = output_weight.to(dtype)
        sums = output_weight.new_zeros(2)
        for chunk, targets in _in_chunks(states, target_out, len(matrix)):
            logits = (_as_factor(chunk, matrix) @ matrix.T)[: len(chunk)]
            _, log_total = _softmax(logits, output_weight.dtype)
            sums += _losses(logits, log_total, targets, label_smoothing)
        smoothed, negative_log_likelihood = sums.unbind()
    return Loss(smoothed=smoothed, negative_log_likelihood=negative_log_likelihood)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Forms the logits a few rows at a time, and the gradients together with the loss.

    All at once the logits would be by far the largest thing in memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        output_weight: Tensor,
        target_out: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        if has_unit_loss(states, output_weight, dtype):
            found = unit_loss(states, output_weight, target_out, label_smoothing)
            return _saved(ctx, found.sums, found.of_states, found.of_weight)
        matrix = output_weight.to(dtype)
        sums = output_weight.new_zeros(2)
        of_states: list[Tensor] = []
        of_weight: Tensor | None = None
        for chunk, targets in _in_chunks(states, target_out, len(matrix)):
            rows = _as_factor(chunk, matrix)
            losses, gradient = _differentiated(
                rows @ matrix.T, targets, label_smoothing, output_weight.dtype
            )
            sums += losses
            gradient = _as_factor(gradient, matrix)
            of_states.append((gradient @ matrix)[: len(chunk)])
            of_weight = _added_product(of_weight, gradient.T, rows, output_weight.dtype)
        return _saved(ctx, sums, torch.cat(of_states), of_weight)

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        of_states, of_weight = ctx.saved_tensors
        return gradients[0] * of_states, gradients[0] * of_weight, None, None, None


def _saved(
    ctx: Any,
    sums: Float[Tensor, "2"],
    of_states: Float[Tensor, "rows d_model"],
    of_weight: Float[Tensor, "vocab d_model"] | None,
) -> tuple[Tensor, Tensor]:
    """Both losses, once the gradients of the first are noted."""
    ctx.save_for_backward(of_states, of_weight)
    smoothed, negative_log_likelihood = sums.unbind()
    ctx.mark_non_differentiable(negative_log_likelihood)
    return smoothed, negative_log_likelihood


def _as_factor(
    rows: Float[Tensor, "chunk width"], matrix: Float[Tensor, "vocab d_model"]
) -> Float[Tensor, "_ width"]:
    """As they are multiplied with the matrix; there may be zeros behind them."""
    return in_blocks(rows) if is_in_blocks(matrix) else rows.to(matrix.dtype)


def _added_product(
    sums: Float[Tensor, "vocab d_model"] | None,
    gradient: Float[Tensor, "vocab chunk"],
    rows: Float[Tensor, "chunk d_model"],
    dtype: torch.dtype,
) -> Float[Tensor, "vocab d_model"]:
    """To the sums, if there are any yet: they are as large as the matrix, and so are
    not begun with zeros."""
    product = gradient @ rows
    return product.to(dtype) if sums is None else sums.add_(product)


def _in_chunks(
    states: Float[Tensor, "rows d_model"],
    target_out: Int[Tensor, " rows"],
    vocab_size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    # Whole multiples, as products in bf16 come in blocks.
    multiple = max(LOGITS // vocab_size // LOGIT_ROWS, 1)
    rows = GPU_LOGIT_ROWS if states.is_cuda else LOGIT_ROWS * multiple
    return zip(states.split(rows), target_out.split(rows), strict=True)


def _differentiated(
    logits: Float[Tensor, "blocks vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "2"], Float[Tensor, "_ vocab"]]:
    """The sums of both losses, and the gradient of the first, which may take the place
    of the logits; those behind the last target are zeros that stay so or go."""
    if _has_kernel(logits, dtype):
        return _differentiated_by_kernel(logits, targets, label_smoothing), logits
    logits = logits[: len(targets)]
    probabilities, log_total = _softmax(logits, dtype)
    sums = _losses(logits, log_total, targets, label_smoothing)
    # From here on the probabilities become the gradient of the logits.
    gradient = probabilities.sub_(label_smoothing / logits.size(1))
    row = torch.arange(len(logits), device=targets.device)
    gradient[row, targets] -= 1 - label_smoothing
    return sums, gradient


def _has_kernel(logits: Float[Tensor, "blocks vocab"], dtype: torch.dtype) -> bool:
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.float32, torch.bfloat16)
        and dtype == torch.float32
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and kernels() is not None
    )


def _differentiated_by_kernel(
    logits: Float[Tensor, "blocks vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
) -> Float[Tensor, "2"]:
    """The losses' sums; a row at a time, in fp32, stays in the cache and becomes its
    gradient."""
    vocab, threads = logits.size(1), torch.get_num_threads()
    targets = targets.long().contiguous()
    rows = len(targets)
    require_ids(targets, vocab)
    losses = torch.empty(2, rows)
    fields = CrossEntropyFields(
        rows=rows,
        vocab=vocab,
        targets=address(targets, torch.int64),
        smoothing=label_smoothing,
        smoothed=address(losses[0]),
        negative_log_likelihood=address(losses[1]),
    )
    if logits.dtype == torch.bfloat16:
        room = torch.empty(threads, vocab)
        fields.bf16_logits, fields.room = address(logits, logits.dtype), address(room)
    else:
        fields.logits = address(logits)
    loaded_kernels().transduce_form_cross_entropy(ctypes.byref(fields), threads)
    return losses.sum(dim=1)


def _softmax(
    logits: Float[Tensor, "chunk vocab"], dtype: torch.dtype
) -> tuple[Float[Tensor, "chunk vocab"], Float[Tensor, "chunk 1"]]:
    """Probabilities, and the logarithm of what they were divided by.

    That is found from the likeliest token, whose probability is never small: so one
    exponential of each logit is enough.
    """
    probabilities = logits.softmax(dim=-1, dtype=dtype)
    largest = logits.amax(dim=-1, keepdim=True).to(dtype)
    return probabilities, largest - probabilities.amax(dim=-1, keepdim=True).log()


def _losses(
    logits: Float[Tensor, "chunk vocab"],
    log_total: Float[Tensor, "chunk 1"],
    target_out: Int[Tensor, " chunk"],
    label_smoothing: float,
) -> Float[Tensor, "2"]:
    """The sums of the smoothed loss and of the negative log-likelihood."""
    true = logits.gather(-1, target_out[:, None]) - log_total
    mean = logits.mean(dim=-1, keepdim=True, dtype=log_total.dtype) - log_total
    return -torch.stack([true.lerp(mean, label_smoothing).sum(), true.sum()])
