"""Muon, an optimizer of matrices (Jordan et al., 2024)."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.training.distributed import ALONE, Processes
from transduce.training.optimizer.orthogonal import orthogonalized

MOMENTUM = 0.95
"""The decay of the gradients' mean (Jordan et al., 2024)."""
ADAM_SIZE = 0.2
"""The root mean square of what Adam adds at a rate of one (Liu et al., 2025)."""


class Muon(torch.optim.Optimizer):
    """Each step adds, of the gradients' mean, the orthogonal matrix nearest to it.

    So all directions move alike, where those that few examples ask for would be lost
    beside the large ones (Jordan et al., 2024). Matrices of one shape go together.
    """

    # Unlike the paper: the layers' matrices are moved by Muon, if that is asked for,
    # not by Adam. After as many updates on Multi30k, the model is better so
    # (benchmarks/results/multi30k.md).

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        dtype: torch.dtype = torch.float32,
        processes: Processes = ALONE,
    ) -> None:
        super().__init__(matrices, {"lr": 0.0})
        self._dtype = dtype
        self._processes = processes

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # there is no closure
        """Move the matrices by their gradients."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._step(matrices, group["lr"])

    def _step(self, matrices: list[nn.Parameter], learning_rate: float) -> None:
        gradients = [m.grad for m in matrices if m.grad is not None]
        assert len(gradients) == len(matrices)  # all are in use
        momenta = [self._momentum(matrix) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        # Nesterov's: what the mean will be if the next gradient is like this one.
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM))
        # An orthogonal matrix has entries of the size one over the root of this.
        size = ADAM_SIZE * math.sqrt(max(ahead.shape[1:]))
        # Singular values need only be near one: bf16 will do (Jordan et al., 2024).
        moves = self._orthogonalized(ahead.to(self._dtype)).to(ahead.dtype)
        torch._foreach_add_(
            cast(list[Tensor], matrices), moves.unbind(), alpha=-learning_rate * size
        )

    def _orthogonalized(
        self, matrices: Float[Tensor, "count rows columns"]
    ) -> Float[Tensor, "count rows columns"]:
        """Each by one of the processes, which all have the same gradients."""
        if self._processes.count == 1:
            return orthogonalized(matrices)
        own = slice(self._processes.rank, None, self._processes.count)
        shared = torch.zeros_like(matrices)
        shared[own] = orthogonalized(matrices[own])
        return self._processes.total(shared)

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum"]
        return momentum
