"""Recurrent units in training: cells of all positions in few operations.

On a CPU the native library computes them position by position in one call. Elsewhere a
parallel prefix sum takes log2(length) steps of whole tensors (Hillis and Steele, 1986),
where a loop would start several kernels for each position.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transduce.model.recurrence import SSRU
from transduce.native import check, ffi
from transduce.nn.native_operators import (
    ROW_MULTIPLE,
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)


def scan(
    forget: Float[Tensor, "batch length d_model"],
    addend: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the cells c_t = f_t * c_(t-1) + a_t of all positions, with c_0 = 0."""
    cells: Tensor = _Scan.apply(forget, addend)  # type: ignore[no-untyped-call] # torch's own
    return cells


class _Scan(torch.autograd.Function):
    """Scan whose backward pass is a scan from the last position to the first."""

    @staticmethod
    def forward(ctx: Any, forget: Tensor, addend: Tensor) -> Tensor:
        cells = _prefix_sum(forget, addend)
        ctx.save_for_backward(forget, cells)
        return cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        forget, cells = ctx.saved_tensors
        # g_t = dL/dc_t + f_(t+1) * g_(t+1)
        next_forget = functional.pad(forget[:, 1:], (0, 0, 0, 1))
        grad = _prefix_sum(next_forget.flip(1), gradients[0].flip(1)).flip(1)
        before = functional.pad(cells[:, :-1], (0, 0, 1, 0))
        return grad * before, grad


def _prefix_sum(
    forget: Float[Tensor, "batch length d_model"],
    addend: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the cells of all positions, without gradients.

    After each step the sum of a position covers twice as many positions up to it.
    """
    factor, total, reach = forget, addend, 1
    while reach < addend.size(1):
        # Padding before the first position has the sum 0, so its factor has no effect.
        earlier = functional.pad(total[:, :-reach], (0, 0, reach, 0))
        total = total + factor * earlier
        factor = factor * functional.pad(factor[:, :-reach], (0, 0, reach, 0))
        reach *= 2
    return total


class FusedSSRU(SSRU):
    """Recurrent unit whose cells are computed in few operations."""

    scan: Callable[[Tensor, Tensor], Tensor] = staticmethod(scan)

    def leave_scan_uncompiled(self) -> None:
        """Let PyTorch's compiler skip the scan, as each number of steps needs a graph.

        A decorator of `scan` would load the compiler with this module, for a second.
        """
        self.scan = torch.compiler.disable(scan)

    def outputs(
        self,
        gate: Float[Tensor, "batch length d_model"],
        candidate: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs, given W_f x + b_f and W x of all positions."""
        dtype = torch.promote_types(gate.dtype, torch.float32)
        gate, candidate = gate.to(dtype), candidate.to(dtype)
        if has_native_recurrence(gate):
            return native_recurrence(gate, candidate)
        forget = gate.sigmoid()
        return self.scan(forget, (1 - forget) * candidate).relu()


def has_native_recurrence(gate: Float[Tensor, "batch length d_model"]) -> bool:
    """Whether the native recurrence exists for these inputs."""
    return (
        gate.device.type == "cpu"
        and gate.dtype == torch.float32
        and not torch.compiler.is_compiling()  # fake tensors have no data_ptr
        and gate.size(1) > 0
        and gate.size(2) % ROW_MULTIPLE == 0
        and nn_api() is not None
    )


def native_recurrence(
    gate: Float[Tensor, "batch length d_model"],
    candidate: Float[Tensor, "batch length d_model"],
) -> Float[Tensor, "batch length d_model"]:
    """Return the outputs, in fp32."""
    output: Tensor = _NativeRecurrence.apply(gate, candidate)  # type: ignore[no-untyped-call] # torch's own
    return output


class _NativeRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, candidate: Tensor) -> Tensor:
        gate, candidate = gate.contiguous(), candidate.contiguous()
        forget, cells, output = (torch.empty_like(gate) for _ in range(3))
        recurrence = _recurrence(candidate, forget, cells)
        recurrence.gate = tensor_pointer(gate)
        recurrence.output = tensor_pointer(output)
        threads = torch.get_num_threads()
        check(loaded_nn_api().recurrence_forward(recurrence, threads))
        ctx.save_for_backward(candidate, forget, cells)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        grad_output = gradients[0].contiguous()
        candidate, forget, cells = ctx.saved_tensors
        grad_gate, grad_candidate = (torch.empty_like(cells) for _ in range(2))
        recurrence = _recurrence(candidate, forget, cells)
        recurrence.grad_output = tensor_pointer(grad_output)
        recurrence.grad_gate = tensor_pointer(grad_gate)
        recurrence.grad_candidate = tensor_pointer(grad_candidate)
        threads = torch.get_num_threads()
        check(loaded_nn_api().recurrence_backward(recurrence, threads))
        return grad_gate, grad_candidate


def _recurrence(candidate: Tensor, forget: Tensor, cells: Tensor) -> Any:
    """Return a `td_recurrence` with its sizes and what both passes need."""
    sentences, length, width = cells.shape
    return ffi.new(
        "td_recurrence *",
        {
            "sentences": sentences,
            "length": length,
            "width": width,
            "candidate": tensor_pointer(candidate),
            "forget": tensor_pointer(forget),
            "cells": tensor_pointer(cells),
        },
    )
