"""The smoothed cross-entropy by a kernel whose products a matrix unit forms in bf16."""

import ctypes
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.operators.addresses import address
from transduce.model.operators.kernels.fields import UnitLossFields
from transduce.model.operators.kernels.library import (
    loaded_kernels,
    uses_matrix_unit,
)
from transduce.model.operators.packed_weights import packed_once

PANEL = 32
"""Numbers of a row that the unit reads at a time: the kernel wants whole ones."""
UNIT_LOGITS = 2**27
"""In memory at a time, in whole rows: the fewer the parts, the less often the gradient
of the matrix is read and written."""
LEAST_ROWS = 256
"""At a time at least, however large the vocabulary."""
NUM_WAYS = 2
"""That the matrix is packed: forwards and backwards."""


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
        and states.size(1) % PANEL == 0
        and not torch.compiler.is_compiling()  # what has no addresses yet
        and uses_matrix_unit()
    )


def unit_loss(
    states: Float[Tensor, "rows d_model"],
    output_weight: Float[Tensor, "vocab d_model"],
    target_out: Int[Tensor, " rows"],
    label_smoothing: float,
) -> LossGradients:
    """The losses of all rows, and what they would have the states and the matrix be."""
    states, weight = states.contiguous(), output_weight.contiguous()
    targets = target_out.long().contiguous()
    vocab, width = weight.shape
    if len(targets) > 0 and not 0 <= int(targets.min()) <= int(targets.max()) < vocab:
        raise IndexError("Ids must be those of tokens, but one is not.")
    losses = torch.zeros(2, len(states))
    of_states, of_weight = torch.empty_like(states), torch.empty_like(weight)
    padded = -(-vocab // PANEL) * PANEL
    fields = UnitLossFields(
        vocab=vocab,
        width=width,
        weight=address(weight),
        smoothing=label_smoothing,
        of_weight=address(of_weight),
    )
    library, threads = loaded_kernels(), torch.get_num_threads()

    def pack(numbers: Tensor) -> None:
        _place_packed(fields, numbers)
        library.transduce_pack_output(ctypes.byref(fields), threads)

    packed = packed_once(weight, NUM_WAYS * padded * width, pack)
    _place_packed(fields, packed)
    rows = max(UNIT_LOGITS // padded, LEAST_ROWS)
    parts = zip(
        *(each.split(rows) for each in (states, targets, of_states)),
        losses.split(rows, dim=1),
        strict=True,
    )
    for part, its_targets, of_part, its_losses in parts:
        smoothed, likelihood = (each.contiguous() for each in its_losses)
        fields.rows = len(part)
        fields.states, fields.of_states = address(part), address(of_part)
        fields.targets = address(its_targets, torch.int64)
        fields.smoothed = address(smoothed)
        fields.negative_log_likelihood = address(likelihood)
        at = ctypes.byref(fields)
        room = torch.empty(
            library.transduce_unit_loss_room(at, threads), dtype=torch.bfloat16
        )
        fields.room = address(room, room.dtype)
        library.transduce_form_unit_loss(at, threads)
        fields.is_added = True
    return LossGradients(
        sums=losses.sum(dim=1), of_states=of_states, of_weight=of_weight
    )


def _place_packed(fields: UnitLossFields, numbers: Tensor) -> None:
    forth, back = numbers.view(NUM_WAYS, -1)
    fields.forth = address(forth, forth.dtype)
    fields.back = address(back, back.dtype)
