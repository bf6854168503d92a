"""Label-smoothed cross-entropy (section 5.4; Szegedy et al., 2016)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.native import check, ffi
from transduce.nn.linear import in_blocks, is_in_blocks
from transduce.nn.native_operators import (
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)
from transduce.training.output_loss import has_output_loss, output_loss

LOGITS = 2**24
"""Logits in memory at a time, in whole rows: products of many rows are faster."""
LOGIT_ROWS = 256
"""Rows at a time at least, however large the vocabulary."""
GPU_LOGIT_ROWS = 2_048
"""Rows at a time on a GPU: enough to keep it busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Losses in nats, summed over tokens."""

    smoothed: Float[Tensor, ""]
    """Label-smoothed cross-entropy, which training minimises."""
    negative_log_likelihood: Float[Tensor, ""]
    """Cross-entropy of the true tokens; exp of its mean is the perplexity."""


def smoothed_cross_entropy(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    dtype: torch.dtype,
) -> Loss:
    """Compute the cross-entropy with targets smoothed uniformly over the vocabulary.

    The true token has probability 1 - epsilon, and epsilon is spread evenly over all
    tokens. Matrices are multiplied in `dtype`; sums have the precision of the weight.
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
    """Cross-entropy that forms a few rows of logits at a time, and gradients with them.

    All logits at once would be by far the largest tensor in memory.
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
        if has_output_loss(states, output_weight, dtype):
            found = output_loss(states, output_weight, target_out, label_smoothing)
            return _saved(ctx, found.sums, found.grad_states, found.grad_weight)
        matrix = output_weight.to(dtype)
        sums = output_weight.new_zeros(2)
        grad_states: list[Tensor] = []
        grad_weight: Tensor | None = None
        for chunk, targets in _in_chunks(states, target_out, len(matrix)):
            rows = _as_factor(chunk, matrix)
            losses, gradient = _differentiated(
                rows @ matrix.T, targets, label_smoothing, output_weight.dtype
            )
            sums += losses
            gradient = _as_factor(gradient, matrix)
            grad_states.append((gradient @ matrix)[: len(chunk)])
            grad_weight = _added_product(
                grad_weight, gradient.T, rows, output_weight.dtype
            )
        return _saved(ctx, sums, torch.cat(grad_states), grad_weight)

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        grad_states, grad_weight = ctx.saved_tensors
        return gradients[0] * grad_states, gradients[0] * grad_weight, None, None, None


def _saved(
    ctx: Any,
    sums: Float[Tensor, "2"],
    grad_states: Float[Tensor, "rows d_model"],
    grad_weight: Float[Tensor, "vocab d_model"] | None,
) -> tuple[Tensor, Tensor]:
    """Save the gradients of the smoothed loss, and return both losses."""
    ctx.save_for_backward(grad_states, grad_weight)
    smoothed, negative_log_likelihood = sums.unbind()
    ctx.mark_non_differentiable(negative_log_likelihood)
    return smoothed, negative_log_likelihood


def _as_factor(
    rows: Float[Tensor, "chunk width"], matrix: Float[Tensor, "vocab d_model"]
) -> Float[Tensor, "_ width"]:
    """Return the rows in the matrix's dtype; rows of zeros may follow."""
    return in_blocks(rows) if is_in_blocks(matrix) else rows.to(matrix.dtype)


def _added_product(
    sums: Float[Tensor, "vocab d_model"] | None,
    gradient: Float[Tensor, "vocab chunk"],
    rows: Float[Tensor, "chunk d_model"],
    dtype: torch.dtype,
) -> Float[Tensor, "vocab d_model"]:
    """Add a product to the sums, or return it if there are none yet.

    Sums are as large as the matrix, so starting from zeros would cost time.
    """
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
    """Return the sums of both losses and the gradient of the smoothed one.

    The gradient may overwrite the logits. Logits beyond the last target are zeros, and
    are either kept or dropped.
    """
    if _has_native(logits, dtype):
        return _differentiated_natively(logits, targets, label_smoothing), logits
    logits = logits[: len(targets)]
    probabilities, log_total = _softmax(logits, dtype)
    sums = _losses(logits, log_total, targets, label_smoothing)
    # From here on the probabilities become the gradient of the logits.
    gradient = probabilities.sub_(label_smoothing / logits.size(1))
    row = torch.arange(len(logits), device=targets.device)
    gradient[row, targets] -= 1 - label_smoothing
    return sums, gradient


def _has_native(logits: Float[Tensor, "blocks vocab"], dtype: torch.dtype) -> bool:
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.float32, torch.bfloat16)
        and dtype == torch.float32
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and nn_api() is not None
    )


def _differentiated_natively(
    logits: Float[Tensor, "blocks vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
) -> Float[Tensor, "2"]:
    """Return the sums of both losses; the logits become the gradient of the first."""
    vocab, threads = logits.size(1), torch.get_num_threads()
    targets = targets.long().contiguous()
    losses = torch.empty(2, len(targets))
    loss = ffi.new(
        "td_cross_entropy *",
        {
            "rows": len(targets),
            "vocab": vocab,
            "targets": tensor_pointer(targets, torch.int64),
            "smoothing": label_smoothing,
            "smoothed": tensor_pointer(losses[0]),
            "negative_log_likelihood": tensor_pointer(losses[1]),
        },
    )
    if logits.dtype == torch.bfloat16:
        workspace = torch.empty(threads, vocab)
        loss.bf16_logits = tensor_pointer(logits, torch.bfloat16)
        loss.workspace = tensor_pointer(workspace)
    else:
        loss.logits = tensor_pointer(logits)
    check(loaded_nn_api().cross_entropy(loss, threads))
    return losses.sum(dim=1)


def _softmax(
    logits: Float[Tensor, "chunk vocab"], dtype: torch.dtype
) -> tuple[Float[Tensor, "chunk vocab"], Float[Tensor, "chunk 1"]]:
    """Return the probabilities, and the logarithm of the sum of exponentials.

    The logarithm follows from the likeliest token, whose probability is never small, so
    that each logit needs only one exponential.
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
    """Return the sums of the smoothed loss and of the negative log-likelihood."""
    true = logits.gather(-1, target_out[:, None]) - log_total
    mean = logits.mean(dim=-1, keepdim=True, dtype=log_total.dtype) - log_total
    return -torch.stack([true.lerp(mean, label_smoothing).sum(), true.sum()])
