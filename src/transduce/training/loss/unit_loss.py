"""The smoothed cross-entropy by a kernel whose products a matrix unit forms in bf16."""

import ctypes
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transduce.model.operators.addresses import address
from transduce.model.operators.kernels.fields import UnitLossFields
from transduce.model.operators.kernels.library import (
    loaded_kernels,
    uses_matrix_unit,
)
from transduce.model.operators.packed_weights import (
    NUM_WAYS,
    PANEL_WIDTH,
    packed_once,
)

UNIT_LOGITS = 2**27
"""In memory at a time, in whole rows: the fewer the parts, the less often the gradient
of the matrix is read and written."""
LEAST_ROWS = 256
"""At a time at least, however large the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradients:
    """The losses, and the gradients of the smoothed one."""

    sums: Float[Tensor, "2"]
    """Smoothed, and the negative log-likelihood, in nats."""
    of_states: Float[Tensor, "rows d_model"]
    of_weight: Float[Tensor, "vocab d_model"]


def has_unit_loss(states: Tensor, output_weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for it, and a unit that makes it the fastest."""
    return (
        dtype == torch.bfloat16
        and states.device.type == "cpu"
        and states.dtype == output_weight.dtype == torch.float32
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and uses_matrix_unit()
    )


def unit_loss(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
) -> LossGradients:
    """The losses of all rows, and the gradients of states and matrix."""
    # The kernel knows of no others.
    assert target_out.shape == states.shape[:1]
    assert states.size(1) == output_weight.size(1)
    width = states.size(1)
    states, weight = _in_panels(states), _in_panels(output_weight)
    require_ids(target_out, len(weight))
    losses = torch.zeros(2, len(states))
    of_states, of_weight = torch.empty_like(states), torch.empty_like(weight)
    fields = UnitLossFields(
        vocab=len(weight),
        width=weight.size(1),
        weight=address(weight),
        smoothing=label_smoothing,
        of_weight=address(of_weight),
    )
    packed = _packed(fields, weight)
    _place_packed(fields, packed)
    rows = max(UNIT_LOGITS // len(weight), LEAST_ROWS)
    parts = zip(
        *(each.split(rows) for each in (states, target_out, of_states)),
        losses.split(rows, dim=1),
        strict=True,
    )
    for part in parts:
        _form_part(fields, *part)
        fields.is_added = True
    return LossGradients(
        sums=losses.sum(dim=1),
        of_states=of_states[:, :width],
        of_weight=of_weight[:, :width],
    )


def require_ids(ids: Int[Tensor, " rows"], vocab_size: int) -> None:
    """`IndexError` if some are those of no token; a kernel would not find out."""
    if len(ids) > 0 and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise IndexError("Ids must be those of tokens, but one is not.")


def _in_panels(rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows padded"]:
    """With zeros behind them up to whole panels, if there is need."""
    padding = -rows.size(1) % PANEL_WIDTH
    return functional.pad(rows, (0, padding)) if padding else rows.contiguous()


def _packed(
    fields: UnitLossFields, weight: Float[Tensor, "vocab width"]
) -> Float[Tensor, " numbers"]:
    """For both ways."""

    def pack(numbers: Tensor) -> None:
        _place_packed(fields, numbers)
        threads = torch.get_num_threads()
        loaded_kernels().transduce_pack_output(ctypes.byref(fields), threads)

    padded = -(-len(weight) // PANEL_WIDTH) * PANEL_WIDTH
    return packed_once(weight, NUM_WAYS * padded * weight.size(1), pack)


def _place_packed(fields: UnitLossFields, numbers: Float[Tensor, " numbers"]) -> None:
    forth, back = numbers.view(NUM_WAYS, -1)
    fields.forth = address(forth, forth.dtype)
    fields.back = address(back, back.dtype)


def _form_part(
    fields: UnitLossFields,
    states: Float[Tensor, "part width"],
    target_out: Int[Tensor, " part"],
    of_states: Float[Tensor, "part width"],
    losses: Float[Tensor, "2 part"],
) -> None:
    """The losses of some rows, and their part of the gradients."""
    library, threads = loaded_kernels(), torch.get_num_threads()
    targets = target_out.long().contiguous()
    fields.rows = len(states)
    fields.states, fields.of_states = address(states), address(of_states)
    fields.targets = address(targets, torch.int64)
    fields.smoothed, fields.negative_log_likelihood = map(address, losses)
    at = ctypes.byref(fields)
    size = library.transduce_unit_loss_room(at, threads)
    room = torch.empty(size, dtype=torch.bfloat16)
    fields.room = address(room, room.dtype)
    library.transduce_form_unit_loss(at, threads)
