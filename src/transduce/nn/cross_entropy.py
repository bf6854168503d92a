"""Label-smoothed cross-entropy (section 5.4; Szegedy et al., 2016)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce.native import ffi
from transduce.nn.kernels import (
    NUM_DIRECTIONS,
    PANEL_WIDTH,
    check,
    has_bf16_products,
    has_triton,
    is_native,
    loaded_nn_api,
    new_floats,
    packed_once,
    tensor_pointer,
)
from transduce.nn.operators import (
    add_matrix_product_,
    in_blocks,
    matrix_product,
    multiplies_in_blocks,
)

MAX_LOGITS = 2**24
"""Largest number of logits in memory at a time: products of many rows are faster."""
MIN_LOGIT_ROWS = 256
"""Smallest number of rows at a time, however large the vocabulary."""
GPU_LOGIT_ROWS = 2_048
"""Number of rows at a time on a GPU, enough to keep it busy."""
MAX_TRITON_LOGITS = 2**29
"""Largest number of logits in memory in Triton's loss: a gigabyte in bf16."""
VOCAB_MULTIPLE = 64
"""On a GPU, products with a matrix are fast if its rows are a multiple of this."""
MAX_NATIVE_LOGITS = 2**27
"""Largest number of logits in memory in the native loss: the fewer the parts, the less
often the gradient of the matrix is read and written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Losses in nats, summed over tokens."""

    smoothed: Float[Tensor, ""]
    """Label-smoothed cross-entropy, which training minimizes."""
    negative_log_likelihood: Float[Tensor, ""]
    """Cross-entropy of the true tokens; exp of its mean is the perplexity."""

    @property
    def sums(self) -> Float[Tensor, "2"]:
        """Smoothed loss and negative log-likelihood as one tensor, for reports."""
        return torch.stack([self.smoothed.detach(), self.negative_log_likelihood])


def smoothed_cross_entropy(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    dtype: torch.dtype,
    consistency: float = 0.0,
) -> Loss:
    """Compute the cross-entropy with targets smoothed uniformly over the vocabulary.

    The true token has probability 1 - epsilon, and epsilon is spread evenly over all
    tokens. Matrices are multiplied in `dtype`; sums have the precision of the weight.

    `consistency` is the weight alpha of R-Drop (Liang et al., 2021). If it is above 0
    and gradients are computed, the two halves of the rows are two passes over the same
    tokens. Both losses are then means of the passes, and the smoothed one includes
    alpha/4 times D(p, q) + D(q, p), the divergences between the two distributions p and
    q of each token.

    Raises `ValueError` unless there is one target for each state.
    """
    _require_one_target_each(states, target_out)
    if torch.is_grad_enabled():
        smoothed, negative_log_likelihood = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call] # torch's own
            states, output_weight, target_out, label_smoothing, dtype, consistency
        )
    else:
        matrix = output_weight.to(dtype)
        sums = output_weight.new_zeros(2)
        for chunk, targets in _in_chunks(states, target_out, len(matrix)):
            logits = matrix_product(_as_factor(chunk, matrix), matrix.T)[: len(chunk)]
            _, log_total = _softmax(logits, output_weight.dtype)
            sums += _losses(logits, log_total, targets, label_smoothing)
        smoothed, negative_log_likelihood = sums.unbind()
    return Loss(smoothed=smoothed, negative_log_likelihood=negative_log_likelihood)


def _require_one_target_each(states: Tensor, target_out: Tensor) -> None:
    if target_out.shape != states.shape[:1]:
        raise ValueError(
            f"There must be one target for each of {len(states)} states, but the shape "
            f"of the targets is {list(target_out.shape)}."
        )


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
        consistency: float,
    ) -> tuple[Tensor, Tensor]:
        arguments = states, output_weight, target_out, label_smoothing
        if consistency > 0:
            found = loss_in_chunks(*arguments, dtype, consistency)
        elif has_native_loss(states, output_weight, dtype):
            found = native_loss(*arguments)
        elif has_triton_loss(states, dtype):
            found = triton_loss(*arguments, dtype)
        else:
            found = loss_in_chunks(*arguments, dtype)
        ctx.save_for_backward(found.grad_states, found.grad_weight)
        smoothed, negative_log_likelihood = found.sums.unbind()
        ctx.mark_non_differentiable(negative_log_likelihood)
        return smoothed, negative_log_likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        factors = gradients[0] * grad_states, gradients[0] * grad_weight
        return *factors, None, None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradients:
    """Losses, and the gradients of the smoothed one."""

    sums: Float[Tensor, "2"]
    """Smoothed loss and negative log-likelihood, in nats."""
    grad_states: Float[Tensor, "rows d_model"]
    grad_weight: Float[Tensor, "vocab d_model"]


def loss_in_chunks(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    dtype: torch.dtype,
    consistency: float = 0.0,
) -> LossGradients:
    """Compute the losses of all rows and the gradients of states and matrix."""
    matrix = output_weight.to(dtype)
    sums = output_weight.new_zeros(2)
    num_passes = 2 if consistency > 0 else 1
    grad_states: list[list[Tensor]] = [[] for _ in range(num_passes)]
    grad_weight: Tensor | None = None
    for chunk, targets in _in_chunks(states, target_out, len(matrix), num_passes):
        rows = _as_factor(chunk, matrix)
        losses, gradient = _differentiate(
            matrix_product(rows, matrix.T),
            targets,
            label_smoothing,
            output_weight.dtype,
            consistency,
        )
        sums += losses
        gradient = _as_factor(gradient, matrix)
        grad_chunk = matrix_product(gradient, matrix)[: len(chunk)]
        # A chunk has rows of each pass; the states have one pass after the other.
        for grads, grad in zip(grad_states, grad_chunk.chunk(num_passes), strict=True):
            grads.append(grad)
        # The sums are as large as the matrix, so starting from zeros would cost time.
        if grad_weight is None:
            grad_weight = matrix_product(gradient.T, rows).to(output_weight.dtype)
        else:
            add_matrix_product_(grad_weight, gradient.T, rows)
    assert grad_weight is not None
    return LossGradients(
        sums=sums,
        grad_states=torch.cat(list(chain.from_iterable(grad_states))),
        grad_weight=grad_weight,
    )


def _as_factor(
    rows: Float[Tensor, "chunk width"], matrix: Float[Tensor, "vocab d_model"]
) -> Float[Tensor, "_ width"]:
    """Return the rows in the matrix's dtype; rows of zeros may follow."""
    return in_blocks(rows) if multiplies_in_blocks(matrix) else rows.to(matrix.dtype)


def _in_chunks(
    states: Float[Tensor, "rows d_model"],
    target_out: Int[Tensor, " rows"],
    vocab_size: int,
    num_passes: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of states and targets, with as many rows of each pass."""
    # A multiple of the smallest number, as bf16 products pad rows to whole blocks.
    multiple = max(MAX_LOGITS // vocab_size // MIN_LOGIT_ROWS, 1)
    rows = GPU_LOGIT_ROWS if states.is_cuda else MIN_LOGIT_ROWS * multiple
    if num_passes == 1:
        return zip(states.split(rows), target_out.split(rows), strict=True)
    size = rows // num_passes
    return zip(
        _parts_of_passes(states, num_passes, size),
        _parts_of_passes(target_out, num_passes, size),
        strict=True,
    )


def _parts_of_passes(
    rows: Shaped[Tensor, "rows ..."], num_passes: int, size: int
) -> Iterator[Tensor]:
    """Yield parts with `size` rows of each pass; the rows are pass by pass."""
    passes = [each.split(size) for each in rows.chunk(num_passes)]
    return map(torch.cat, zip(*passes, strict=True))


def _differentiate(
    logits: Float[Tensor, "blocks vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
    dtype: torch.dtype,
    consistency: float,
) -> tuple[Float[Tensor, "2"], Float[Tensor, "_ vocab"]]:
    """Return the sums of both losses and the gradient of the smoothed one.

    The gradient may overwrite the logits. Rows of logits beyond the last target are
    zeros; their gradient is zero, or left out.
    """
    if (
        is_native(logits)
        and logits.dtype in (torch.float32, torch.bfloat16)
        and dtype == torch.float32
    ):
        losses = _differentiate_natively(logits, targets, label_smoothing, consistency)
        return losses, logits
    logits = logits[: len(targets)]
    if consistency > 0:
        logs = logits.log_softmax(dim=-1, dtype=dtype)
        return _differentiate_passes(logs, targets, label_smoothing, consistency)
    probabilities, log_total = _softmax(logits, dtype)
    sums = _losses(logits, log_total, targets, label_smoothing)
    # From here on the probabilities become the gradient of the logits.
    gradient = probabilities.sub_(label_smoothing / logits.size(1))
    row = torch.arange(len(logits), device=targets.device)
    gradient[row, targets] -= 1 - label_smoothing
    return sums, gradient


def _differentiate_passes(
    log_p: Float[Tensor, "chunk vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
    consistency: float,
) -> tuple[Float[Tensor, "2"], Float[Tensor, "chunk vocab"]]:
    """Return the sums and the gradient for two passes, half of the rows each.

    With p a token's distribution in one pass and q that in the other, the gradient of
    D(p, q) + D(q, p) by the logits of p is p (log(p/q) - D(p, q)) + p - q.
    """
    log_q = log_p.roll(len(log_p) // 2, dims=0)  # of the same tokens
    p, ratio = log_p.exp(), log_p - log_q
    divergence = (p * ratio).sum(dim=-1, keepdim=True)
    weight = consistency / 4
    zeros = torch.zeros_like(divergence)
    sums = _losses(log_p, zeros, targets, label_smoothing) / 2
    sums[0] += weight * divergence.sum()
    gradient = (p - label_smoothing / p.size(1)) / 2
    row = torch.arange(len(p), device=targets.device)
    gradient[row, targets] -= (1 - label_smoothing) / 2
    return sums, gradient + weight * (p * (ratio - divergence) + p - log_q.exp())


def _differentiate_natively(
    logits: Float[Tensor, "blocks vocab"],
    targets: Int[Tensor, " chunk"],
    label_smoothing: float,
    consistency: float,
) -> Float[Tensor, "2"]:
    """Return the sums of both losses; the logits become the gradient of the first."""
    vocab, threads = logits.size(1), torch.get_num_threads()
    targets = targets.long().contiguous()
    losses = new_floats(2, len(targets))
    loss = ffi.new(
        "td_cross_entropy *",
        {
            "rows": len(targets),
            "vocab": vocab,
            "targets": tensor_pointer(targets, torch.int64),
            "smoothing": label_smoothing,
            "consistency": consistency,
            "smoothed": tensor_pointer(losses[0]),
            "negative_log_likelihood": tensor_pointer(losses[1]),
        },
    )
    if logits.dtype == torch.bfloat16:
        workspace = new_floats(threads, 2, vocab)
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

    The logarithm is the largest logit minus the logarithm of its probability, which is
    never small. Each logit therefore needs only one exponential.
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


def has_triton_loss(states: Tensor, dtype: torch.dtype) -> bool:
    """Whether Triton's loss exists for these inputs and is the fastest."""
    return (
        dtype == torch.bfloat16
        and states.is_cuda
        and not torch.compiler.is_compiling()
        and has_triton()
    )


def triton_loss(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    dtype: torch.dtype,
    max_logits: int = MAX_TRITON_LOGITS,
) -> LossGradients:
    """Compute the losses of all rows and the gradients of states and matrix.

    At most `max_logits` logits are in memory at a time, but never fewer than those of
    one row.
    """
    from transduce.nn.gpu_kernels import cross_entropy_, weight_gradient

    vocab, width = output_weight.shape
    padded = -(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    matrix = states.new_zeros(padded, width, dtype=dtype)
    matrix[:vocab] = output_weight
    sums = states.new_zeros(2, dtype=torch.float32)
    grad_states = torch.empty_like(states, dtype=dtype)
    grad_weight: Tensor | None = None
    rows = max(max_logits // padded, 1)
    for chunk, targets, grad in zip(
        *(each.split(rows) for each in (states, target_out, grad_states)), strict=True
    ):
        factor = chunk.to(dtype)
        logits = factor @ matrix.t()
        sums += cross_entropy_(logits, targets, vocab, label_smoothing).sum(dim=0)
        torch.mm(logits, matrix, out=grad)
        product = weight_gradient(logits, factor)
        grad_weight = product if grad_weight is None else grad_weight.add_(product)
    assert grad_weight is not None
    return LossGradients(
        sums=sums, grad_states=grad_states, grad_weight=grad_weight[:vocab]
    )


def has_native_loss(states: Tensor, output_weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the native loss exists for these inputs and is the fastest."""
    return (
        dtype == torch.bfloat16
        and is_native(states)
        and states.dtype == output_weight.dtype == torch.float32
        and has_bf16_products()
    )


def native_loss(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
    max_logits: int = MAX_NATIVE_LOGITS,
) -> LossGradients:
    """Compute the losses of all rows and the gradients of states and matrix.

    At most `max_logits` logits are in memory at a time, but never fewer than those of
    256 rows. Raises `IndexError` if a target is outside the vocabulary, and
    `ValueError` if sizes differ.
    """
    _require_one_target_each(states, target_out)
    width = states.size(1)
    if output_weight.size(1) != width:
        raise ValueError(
            f"The output matrix must have {width} columns, as many as the states, but "
            f"has {output_weight.size(1)}."
        )
    states, weight = _in_panels(states), _in_panels(output_weight)
    losses = new_floats(2, len(states))
    grad_states, grad_weight = torch.empty_like(states), torch.empty_like(weight)
    loss = ffi.new(
        "td_output_loss *",
        {
            "vocab": len(weight),
            "width": weight.size(1),
            "weight": tensor_pointer(weight),
            "smoothing": label_smoothing,
            "grad_weight": tensor_pointer(grad_weight),
        },
    )
    packed = _packed_weight(loss, weight)
    _set_packed(loss, packed)
    rows = max(max_logits // len(weight), MIN_LOGIT_ROWS)
    parts = zip(
        *(each.split(rows) for each in (states, target_out, grad_states)),
        losses.split(rows, dim=1),
        strict=True,
    )
    for part in parts:
        _compute_part(loss, *part)
        loss.accumulates = 1
    return LossGradients(
        sums=losses.sum(dim=1),
        grad_states=grad_states[:, :width],
        grad_weight=grad_weight[:, :width],
    )


def _in_panels(rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows padded"]:
    """Pad rows with zeros to a multiple of the panel width, if they need it."""
    padding = -rows.size(1) % PANEL_WIDTH
    return functional.pad(rows, (0, padding)) if padding else rows.contiguous()


def _packed_weight(
    loss: Any, weight: Float[Tensor, "vocab width"]
) -> Float[Tensor, " elements"]:
    """Return the weight packed for the forward and the backward pass."""

    def pack(elements: Tensor) -> None:
        _set_packed(loss, elements)
        check(loaded_nn_api().output_loss_pack(loss, torch.get_num_threads()))

    padded = -(-len(weight) // PANEL_WIDTH) * PANEL_WIDTH
    return packed_once(weight, NUM_DIRECTIONS * padded * weight.size(1), pack)


def _set_packed(loss: Any, elements: Float[Tensor, " elements"]) -> None:
    forward, backward = elements.view(NUM_DIRECTIONS, -1)
    loss.packed_forward = tensor_pointer(forward, torch.bfloat16)
    loss.packed_backward = tensor_pointer(backward, torch.bfloat16)


def _compute_part(
    loss: Any,
    states: Float[Tensor, "part width"],
    target_out: Int[Tensor, " part"],
    grad_states: Float[Tensor, "part width"],
    losses: Float[Tensor, "2 part"],
) -> None:
    """Compute the losses of some rows and their share of the gradients."""
    api, threads = loaded_nn_api(), torch.get_num_threads()
    targets = target_out.long().contiguous()
    loss.rows = len(states)
    loss.states, loss.grad_states = tensor_pointer(states), tensor_pointer(grad_states)
    loss.targets = tensor_pointer(targets, torch.int64)
    loss.smoothed, loss.negative_log_likelihood = map(tensor_pointer, losses)
    workspace = new_floats(api.output_loss_workspace(loss, threads))
    loss.workspace = tensor_pointer(workspace)
    check(api.output_loss(loss, threads))
