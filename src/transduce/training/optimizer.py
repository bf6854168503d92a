"""What moves the weights: Adam (section 5.3), or Muon for the layers' matrices."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.architectures.models import TransductionModel
from transduce.errors import CheckpointError
from transduce.native import check, ffi
from transduce.nn.native_operators import (
    ROW_MULTIPLE,
    loaded_nn_api,
    nn_api,
    tensor_pointer,
)
from transduce.training.config import TrainingConfig
from transduce.training.distributed import ALONE, Processes

POLYNOMIALS = (
    (7.9424, -22.2873, 15.8239),
    (3.5875, -2.5845, 0.4893),
    (2.6604, -1.9134, 0.4194),
)
"""Factors of x, x^3 and x^5 in each step.

Each is the odd polynomial nearest to one on the range to which the previous step maps
0.01 to 1, widened by a fiftieth because products are rounded (Amsel et al., 2025).
"""
EPSILON = 1e-7
"""Added to norms, which may be zero."""
MOST_ROWS, MOST_COLUMNS = 256, 512
"""Largest matrix that (nearly) stays in the caches of one core."""


def orthogonalized(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    """Bring the singular values of matrices near one, from 0.7 to 1.3.

    Values below a hundredth of a matrix's Schatten norm of order four stay farther
    away. Newton-Schulz iterations need only matrix products.
    """
    is_tall = matrices.size(1) > matrices.size(2)
    wide = matrices.mT if is_tall else matrices
    near = _natively(wide) if _has_native(wide) else _by_products(wide)
    return near.mT if is_tall else near


def _by_products(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + EPSILON)
    for step, (a, b, c) in enumerate(POLYNOMIALS):
        square = x @ x.mT
        if step == 0:
            # The Schatten norm, which is nearer to the largest singular value.
            norm = square.norm(dim=(1, 2), keepdim=True).sqrt() + EPSILON
            x, square = x / norm, square / norm**2
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def _has_native(matrices: Float[Tensor, "count rows columns"]) -> bool:
    _, rows, columns = matrices.shape
    return (
        matrices.device.type == "cpu"
        and matrices.dtype == torch.float32
        and rows <= MOST_ROWS
        and columns <= MOST_COLUMNS
        and rows % ROW_MULTIPLE == 0
        and columns % ROW_MULTIPLE == 0
        and nn_api() is not None
    )


def _natively(
    matrices: Float[Tensor, "count rows columns"],
) -> Float[Tensor, "count rows columns"]:
    api, threads = loaded_nn_api(), torch.get_num_threads()
    x = matrices.clone(memory_format=torch.contiguous_format)
    count, rows, columns = x.shape
    factors = ffi.new("float[]", [each for step in POLYNOMIALS for each in step])
    task = ffi.new(
        "td_orthogonalization *",
        {
            "count": count,
            "rows": rows,
            "columns": columns,
            "steps": len(POLYNOMIALS),
            "factors": factors,
            "epsilon": EPSILON,
            "matrices": tensor_pointer(x),
        },
    )
    workspace = x.new_empty(threads, api.orthogonalize_workspace(task))
    task.workspace = tensor_pointer(workspace)
    check(api.orthogonalize(task, threads))
    return x


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


ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
MUON_MOMENTS = ("momentum",)


class WeightOptimizer:
    """Moves all weights of a model, each by the optimizer that is meant for it."""

    def __init__(
        self,
        model: TransductionModel,
        config: TrainingConfig,
        dtype: torch.dtype = torch.float32,
        processes: Processes = ALONE,
    ) -> None:
        """Muon's products are made in `dtype`, and shared by all processes."""
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
        """Forget the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def step(self, learning_rate: float) -> None:
        """Move the weights by their gradients."""
        if self._weight_decay > 0:
            # Unlike the paper: matrices shrink, if that is asked for, apart from what
            # their gradients do (Loshchilov and Hutter, 2019).
            kept = max(1 - learning_rate * self._weight_decay, 0.0)
            with torch.no_grad():
                torch._foreach_mul_(cast(list[Tensor], self._matrices), kept)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs: the moments of each weight, by both their names."""
        return {
            f"{moment}.{name}": self._state_of(name)[moment].clone().cpu()
            for name, moments in self._moments.items()
            for moment in moments
        }

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on after so many steps, from what `state` gave then."""
        for name, weight in self._weights.items():
            state = self._state_of(name)
            if self._moments[name] == ADAM_MOMENTS:
                state["step"] = torch.tensor(float(step), device=weight.device)
            for moment in self._moments[name]:
                saved = tensors[f"{moment}.{name}"]
                state[moment] = saved.to(weight.device, copy=True)

    def clear(self) -> None:
        """Begin anew."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def _state_of(self, name: str) -> dict[str, Any]:
        adam, *muon = self._optimizers
        optimizer = adam if self._moments[name] == ADAM_MOMENTS else muon[0]
        state: dict[str, Any] = optimizer.state[self._weights[name]]
        return state


def matrices_of(model: TransductionModel) -> set[str]:
    """The names of those of the layers' linear maps; no embedding is one."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def moments_of(
    model: TransductionModel, config: TrainingConfig
) -> dict[str, tuple[str, ...]]:
    """What is kept of each weight, by its name."""
    matrices = matrices_of(model) if config.optimizer == "muon" else set()
    return {
        name: MUON_MOMENTS if name in matrices else ADAM_MOMENTS
        for name, _ in model.named_parameters()
    }


def require_moments(
    model: TransductionModel, config: TrainingConfig, tensors: Mapping[str, Tensor]
) -> None:
    """`CheckpointError` if they are not those of that model and optimizer."""
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


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Equation 3; steps count from 1."""
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate


def scheduled_rate(step: int, d_model: int, config: TrainingConfig) -> float:
    """What a run has at that step: by default equation 3."""
    rate = learning_rate(step, d_model, config.warmup_steps)
    # Unlike the paper: in the last steps, if that is asked for, the rate also falls to
    # nothing in a straight line (Hägele et al., 2024).
    cooldown = config.cooldown_share * config.steps
    left = min((config.steps + 1 - step) / (cooldown + 1), 1.0) if cooldown else 1.0
    return config.learning_rate_scale * rate * left
