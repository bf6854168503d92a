"""Smoothed cross-entropy of the output matrix's logits, multiplied in bf16 by AMX."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transduce.native import check, ffi
from transduce.nn.native_operators import (
    loaded_nn_api,
    tensor_pointer,
    uses_amx,
)
from transduce.nn.packed_weights import (
    NUM_DIRECTIONS,
    PANEL_WIDTH,
    packed_once,
)

LOGITS = 2**27
"""Logits in memory at a time, in whole rows: the fewer the parts, the less often the
gradient of the matrix is read and written."""
LEAST_ROWS = 256
"""Rows at a time at least, however large the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradients:
    """Losses, and the gradients of the smoothed one."""

    sums: Float[Tensor, "2"]
    """Smoothed loss and negative log-likelihood, in nats."""
    grad_states: Float[Tensor, "rows d_model"]
    grad_weight: Float[Tensor, "vocab d_model"]


def has_output_loss(states: Tensor, output_weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the native loss exists for these inputs and AMX makes it the fastest."""
    return (
        dtype == torch.bfloat16
        and states.device.type == "cpu"
        and states.dtype == output_weight.dtype == torch.float32
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and uses_amx()
    )


def output_loss(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
) -> LossGradients:
    """Compute the losses of all rows and the gradients of states and matrix.

    Raises `IndexError` if a target is outside the vocabulary.
    """
    # The native function cannot check shapes.
    assert target_out.shape == states.shape[:1]
    assert states.size(1) == output_weight.size(1)
    width = states.size(1)
    states, weight = _in_panels(states), _in_panels(output_weight)
    losses = torch.zeros(2, len(states))
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
    packed = _packed(loss, weight)
    _set_packed(loss, packed)
    rows = max(LOGITS // len(weight), LEAST_ROWS)
    parts = zip(
        *(each.split(rows) for each in (states, target_out, grad_states)),
        losses.split(rows, dim=1),
        strict=True,
    )
    for part in parts:
        _run(loss, *part)
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


def _packed(
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


def _run(
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
    workspace = torch.empty(api.output_loss_workspace(loss, threads))
    loss.workspace = tensor_pointer(workspace)
    check(api.output_loss(loss, threads))
