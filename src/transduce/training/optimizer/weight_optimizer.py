"""What moves the weights: Adam (section 5.3), or Muon for the layers' matrices."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.errors import CheckpointError
from transduce.training.config import TrainingConfig
from transduce.training.distributed import ALONE, Processes
from transduce.training.optimizer.muon import Muon

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
MUON_MOMENTS = ("momentum",)


class WeightOptimizer:
    """Moves all weights of a model, each by the optimizer that is meant for it."""

    def __init__(
        self,
        model: nn.Module,
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


def matrices_of(model: nn.Module) -> set[str]:
    """The names of those of the layers' linear maps; no embedding is one."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def moments_of(model: nn.Module, config: TrainingConfig) -> dict[str, tuple[str, ...]]:
    """What is kept of each weight, by its name."""
    matrices = matrices_of(model) if config.optimizer == "muon" else set()
    return {
        name: MUON_MOMENTS if name in matrices else ADAM_MOMENTS
        for name, _ in model.named_parameters()
    }


def require_moments(
    model: nn.Module, config: TrainingConfig, tensors: Mapping[str, Tensor]
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
