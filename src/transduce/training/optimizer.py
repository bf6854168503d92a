"""Optimizers: Adam (section 5.3), or Muon for the matrices of the layers."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.architectures.models import TransductionModel
from transduce.errors import CheckpointError
from transduce.nn.orthogonalization import orthogonalized
from transduce.training.config import TrainingConfig
from transduce.training.distributed import ALONE, Processes

MOMENTUM = 0.95
"""Muon's decay of the mean of gradients (Jordan et al., 2024)."""
ADAM_SIZE = 0.2
"""Root mean square of Adam's updates at a learning rate of 1 (Liu et al., 2025)."""


class Muon(torch.optim.Optimizer):
    """Optimizer whose updates are nearly orthogonal matrices (Jordan et al., 2024).

    An update is the orthogonal matrix nearest to the mean of gradients. All directions
    change by the same amount, also those that few examples contribute to. Matrices of
    the same shape are updated together.
    """

    # Unlike the paper: Muon can update the matrices of the layers instead of Adam.
    # After the same number of updates on Multi30k the model is better
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
        """Update the matrices by their gradients."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._step(matrices, group["lr"])

    def _step(self, matrices: list[nn.Parameter], learning_rate: float) -> None:
        gradients = [m.grad for m in matrices if m.grad is not None]
        assert len(gradients) == len(matrices)  # every matrix has a gradient
        momenta = [self._momentum(matrix) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        # Nesterov momentum: the mean if the next gradient equals this one.
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM))
        # Entries of an orthogonal matrix have this size to the power of -1/2.
        size = ADAM_SIZE * math.sqrt(max(ahead.shape[1:]))
        # Singular values need only be near one: bf16 suffices (Jordan et al., 2024).
        moves = self._orthogonalized(ahead.to(self._dtype)).to(ahead.dtype)
        torch._foreach_add_(
            cast(list[Tensor], matrices), moves.unbind(), alpha=-learning_rate * size
        )

    def _orthogonalized(
        self, matrices: Float[Tensor, "count rows columns"]
    ) -> Float[Tensor, "count rows columns"]:
        """Orthogonalize each matrix in one process; all have the same gradients."""
        if self._processes.count == 1:
            return orthogonalized(matrices)
        own = slice(self._processes.rank, None, self._processes.count)
        shared = torch.zeros_like(matrices)
        shared[own] = orthogonalized(matrices[own])
        return self._processes.all_reduce_sum(shared)

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum"]
        return momentum


ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
MUON_MOMENTS = ("momentum",)


class WeightOptimizer:
    """Optimizer of all weights of a model, by Adam or by Adam and Muon."""

    def __init__(
        self,
        model: TransductionModel,
        config: TrainingConfig,
        dtype: torch.dtype = torch.float32,
        processes: Processes = ALONE,
    ) -> None:
        """Create it; Muon multiplies in `dtype` and shares its work among processes."""
        self._weight_decay = config.weight_decay
        self._moments = moments_of(model, config)
        self._weights = dict(model.named_parameters())
        self._matrices = [self._weights[name] for name in matrices_of(model)]
        by_kind: dict[tuple[str, ...], list[nn.Parameter]] = defaultdict(list)
        for name, weight in self._weights.items():
            by_kind[self._moments[name]].append(weight)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(
                by_kind[ADAM_MOMENTS],
                betas=(config.beta1, config.beta2),
                eps=config.epsilon,
                fused=True,
            )
        ]
        if MUON_MOMENTS in by_kind:
            self._optimizers.append(Muon(by_kind[MUON_MOMENTS], dtype, processes))

    @property
    def has_state(self) -> bool:
        """Whether a step has been made, or a state restored."""
        return all(optimizer.state for optimizer in self._optimizers)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def step(self, learning_rate: float) -> None:
        """Update the weights by their gradients."""
        if self._weight_decay > 0:
            # Unlike the paper: optional weight decay of matrices, decoupled from their
            # gradients (Loshchilov and Hutter, 2019).
            kept = max(1 - learning_rate * self._weight_decay, 0.0)
            with torch.no_grad():
                torch._foreach_mul_(cast(list[Tensor], self._matrices), kept)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return the moments of all weights for `restore`, by names `moment.weight`."""
        return {
            f"{moment}.{name}": self._state_of(name)[moment].clone().cpu()
            for name, moments in self._moments.items()
            for moment in moments
        }

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Continue from the result of `state`, after `step` updates."""
        for name, weight in self._weights.items():
            state = self._state_of(name)
            if self._moments[name] == ADAM_MOMENTS:
                state["step"] = torch.tensor(float(step), device=weight.device)
            for moment in self._moments[name]:
                saved = tensors[f"{moment}.{name}"]
                state[moment] = saved.to(weight.device, copy=True)

    def clear(self) -> None:
        """Forget the moments."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def _state_of(self, name: str) -> dict[str, Any]:
        adam, *muon = self._optimizers
        optimizer = adam if self._moments[name] == ADAM_MOMENTS else muon[0]
        state: dict[str, Any] = optimizer.state[self._weights[name]]
        return state


def matrices_of(model: TransductionModel) -> set[str]:
    """Return the names of the weights of linear maps, without embeddings."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def moments_of(
    model: TransductionModel, config: TrainingConfig
) -> dict[str, tuple[str, ...]]:
    """Return the names of the moments of each weight."""
    matrices = matrices_of(model) if config.optimizer == "muon" else set()
    return {
        name: MUON_MOMENTS if name in matrices else ADAM_MOMENTS
        for name, _ in model.named_parameters()
    }


def require_moments(
    model: TransductionModel, config: TrainingConfig, tensors: Mapping[str, Tensor]
) -> None:
    """Raise `CheckpointError` if tensors are not the moments of this model."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    moments = moments_of(model, config)
    for name, weight in model.named_parameters():
        for moment in moments[name]:
            if shapes.get(f"{moment}.{name}") != weight.shape:
                raise CheckpointError(
                    f"The training state must hold `{moment}.{name}` of the model's "
                    "shape, but does not; it is damaged, or of another model or "
                    "optimizer."
                )
