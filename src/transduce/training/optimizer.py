"""Optimizers and learning rates: Adam and equation 3 (section 5.3), Muon, and SGD.

`WeightOptimizer` updates the weights of a model by the optimizers of its settings.
`scheduled_rate` is the learning rate of an update, by equation 3 (`inverse_sqrt_rate`)
or by another schedule (`schedule_factor`).
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.architectures.interface import TransductionModel
from transduce.architectures.mixture_layers import Experts
from transduce.errors import START_FROM_RUN, CheckpointError, VersionError
from transduce.nn.muon import has_native_muon, matrix_size, native_muon, orthogonalized
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ALONE, ProcessGroup

MOMENTUM = 0.95
"""Muon's decay of the mean of gradients (Jordan et al., 2024)."""
ADAM_SIZE = 0.2
"""Root mean square of Adam's updates at a learning rate of 1 (Liu et al., 2025)."""


class Uncompiled(torch.optim.Optimizer):
    """Optimizer that does without PyTorch's compiler; only layers are compiled here.

    PyTorch's own optimizers exclude these methods and `step` from compilation as they
    are first called, and import the compiler for that, which takes over a second.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(Uncompiled, torch.optim.Adam):
    """Adam (section 5.3), without PyTorch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class SGD(Uncompiled, torch.optim.SGD):
    """SGD, with or without momentum, without PyTorch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Muon(Uncompiled):
    """Optimizer whose updates are nearly orthogonal matrices (Jordan et al., 2024).

    An update is the orthogonal matrix nearest to the mean of gradients. All directions
    change by the same amount, also those that few examples contribute to. Matrices of
    the same shape are updated together. A weight of several matrices, one below the
    other, is in a group whose `count` is their number.
    """

    # Unlike the paper: Muon can update the matrices of the layers instead of Adam.
    # After the same number of updates on Multi30k the model is better
    # (benchmarks/results/multi30k.md). Off by default: `training.optimizer=muon`.

    def __init__(
        self,
        weights: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        dtype: torch.dtype = torch.float32,
        processes: ProcessGroup = ALONE,
    ) -> None:
        super().__init__(weights, {"lr": 0.0, "count": 1})
        self._dtype = dtype
        self._processes = processes

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # there is no closure
        """Update the weights by their gradients."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for weight in group["params"]:
                by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                # Each process updates some of the weights; all have the same gradients.
                own = weights[self._processes.rank :: self._processes.world_size]
                if own:
                    self._step(own, group["count"], group["lr"])
                if self._processes.world_size > 1:
                    self._exchange(weights)

    def _step(
        self, weights: list[nn.Parameter], count: int, learning_rate: float
    ) -> None:
        """Update the weights of one shape, each of `count` matrices."""
        gradients = [_gradient(weight) for weight in weights]
        momenta = [self._momentum(weight) for weight in weights]
        rows, columns = matrix_size(weights[0], count)
        # The root mean square of an orthogonal matrix is 1 / sqrt(max(rows, columns)).
        rate = learning_rate * ADAM_SIZE * math.sqrt(max(rows, columns))
        if has_native_muon(weights, count, self._dtype):
            native_muon(
                weights,
                gradients,
                momenta,
                count=count,
                gradient_weight=1 - MOMENTUM,
                rate=rate,
                dtype=self._dtype,
            )
            return
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        # Nesterov momentum: the mean if the next gradient equals this one.
        nesterov = torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM))
        matrices = nesterov.reshape(len(weights) * count, rows, columns)
        # Singular values need only be near one: bf16 suffices (Jordan et al., 2024).
        updates = orthogonalized(matrices.to(self._dtype)).to(nesterov.dtype)
        torch._foreach_add_(
            cast(list[Tensor], weights),
            updates.reshape(nesterov.shape).unbind(),
            alpha=-rate,
        )

    def _exchange(self, weights: list[nn.Parameter]) -> None:
        """Take over the weights that other processes have updated.

        The means of their gradients are updated here as well, as any process may save
        the training state.
        """
        rank, count = self._processes.rank, self._processes.world_size
        others = [w for number, w in enumerate(weights) if number % count != rank]
        if others:
            torch._foreach_lerp_(
                [self._momentum(weight) for weight in others],
                [_gradient(weight) for weight in others],
                1 - MOMENTUM,
            )
        shared = weights[0].new_zeros(len(weights), *weights[0].shape)
        if own := weights[rank::count]:
            shared[rank::count] = torch.stack(cast(list[Tensor], own))
        updated = self._processes.all_reduce_sum(shared)
        torch._foreach_copy_(cast(list[Tensor], weights), updated.unbind())

    def _momentum(self, weight: nn.Parameter) -> Tensor:
        """Return the mean of the gradients of a weight, at first zeros."""
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum"]
        return momentum


def _gradient(weight: nn.Parameter) -> Tensor:
    gradient = weight.grad
    assert gradient is not None  # every weight has one
    return gradient


ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
MUON_MOMENTS = ("momentum",)
SGD_MOMENTS = ("momentum_buffer",)

Moments = tuple[str, ...]
"""Names of the moments of a weight."""


class WeightOptimizer:
    """Optimizer of all weights of a model, which may change to SGD during training."""

    def __init__(
        self,
        model: TransductionModel,
        config: TrainingConfig,
        dtype: torch.dtype = torch.float32,
        processes: ProcessGroup = ALONE,
    ) -> None:
        """Create the optimizer; Muon shares its products in `dtype` among processes."""
        self._model = model
        self._config = config
        self._weights = dict(model.named_parameters())
        matrices = matrices_of(model)
        self._matrices = [w for name, w in self._weights.items() if name in matrices]
        self._by_muon = matrices if config.optimizer == "muon" else {}
        self._optimizers = self._first_optimizers(dtype, processes)
        # Unlike the paper: plain SGD can follow Adam, as in Wu et al. (2016). Off by
        # default: `training.sgd_from_step`.
        self._sgd = SGD(self._weights.values(), lr=0.0, fused=True)
        self._num_steps = 0

    def _first_optimizers(
        self, dtype: torch.dtype, processes: ProcessGroup
    ) -> list[torch.optim.Optimizer]:
        """Return the optimizers of the updates before `sgd_from_step`."""
        config = self._config
        if config.optimizer in ("sgd", "nesterov"):
            # Unlike the paper: SGD, for the systems of Table 2. Off by default:
            # `training.optimizer=sgd`, `training.optimizer=nesterov`.
            return [
                SGD(
                    self._weights.values(),
                    lr=0.0,
                    momentum=config.momentum,
                    nesterov=config.optimizer == "nesterov",
                    fused=True,
                )
            ]
        adam = Adam(
            [w for name, w in self._weights.items() if name not in self._by_muon],
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        if not self._by_muon:
            return [adam]
        groups: dict[int, list[nn.Parameter]] = defaultdict(list)
        for name, weight in self._weights.items():
            if name in self._by_muon:
                groups[self._by_muon[name]].append(weight)
        by_count = [{"params": each, "count": n} for n, each in groups.items()]
        return [adam, Muon(by_count, dtype, processes)]

    @property
    def has_state(self) -> bool:
        """Whether a step has been made, or a state restored."""
        return all(optimizer.state for optimizer in self._optimizers)

    def missing_moments(self) -> list[Tensor]:
        """Return tensors as large as the moments that the next update allocates."""
        if self.has_state:
            return []
        # The matrices that Muon computes with are as large as a second moment.
        return [
            torch.ones_like(self._weights[name])
            for name, moments in self._moments().items()
            for _ in (ADAM_MOMENTS if moments == MUON_MOMENTS else moments)
        ]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._sgd.zero_grad()  # it has all weights

    def clip(self, max_norm: float) -> Float[Tensor, ""]:
        """Scale all gradients together down to a norm; return the norm before."""
        # Unlike the paper: clipping of gradients (Pascanu et al., 2013). Off by
        # default: `training.clip_norm`.
        weights = self._weights.values()
        return nn.utils.clip_grad_norm_(weights, max_norm)

    def step(self, learning_rate: float) -> None:
        """Update the weights by their gradients."""
        decay = self._config.weight_decay
        if decay > 0:
            # Unlike the paper: weight decay of matrices, decoupled from their gradients
            # (Loshchilov and Hutter, 2019). Off by default: `training.weight_decay`.
            kept = max(1 - learning_rate * decay, 0.0)
            with torch.no_grad():
                torch._foreach_mul_(cast(list[Tensor], self._matrices), kept)
        self._num_steps += 1
        optimizers: list[torch.optim.Optimizer] = self._optimizers
        if uses_sgd(self._num_steps, self._config):
            self._forget_moments()
            optimizers = [self._sgd]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return the moments of all weights for `restore`, by names `moment.weight`."""
        return {
            f"{moment}.{name}": self._state_of(name)[moment].clone().cpu()
            for name, moments in self._moments().items()
            for moment in moments
        }

    def restore(
        self, tensors: Mapping[str, Tensor], step: int, earlier: int = 0
    ) -> None:
        """Continue from the result of `state`, after `step` updates of the run.

        `earlier` is the number of updates that the optimizer made in another run, which
        this run continues.
        """
        self._forget_moments()
        self._num_steps = step
        for name, moments in self._moments().items():
            weight = self._weights[name]
            if moments == ADAM_MOMENTS:
                made = float(step + earlier)  # for Adam's correction of the bias
                on_device = torch.tensor(
                    made, dtype=torch.float32, device=weight.device
                )
                self._state_of(name)["step"] = on_device
            for moment in moments:
                saved = tensors[f"{moment}.{name}"]
                self._state_of(name)[moment] = saved.to(weight.device, copy=True)

    def clear(self) -> None:
        """Forget all updates."""
        self._forget_moments()
        self._num_steps = 0

    def _forget_moments(self) -> None:
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def _moments(self) -> dict[str, Moments]:
        return moments_of(self._model, self._config, self._num_steps)

    def _state_of(self, name: str) -> dict[str, Any]:
        optimizer = self._optimizers[1 if name in self._by_muon else 0]
        state: dict[str, Any] = optimizer.state[self._weights[name]]
        return state


def matrices_of(model: TransductionModel) -> dict[str, int]:
    """Return the names of the weights of linear maps, with the number of matrices.

    A recurrent layer has a matrix for each gate, and a mixture one for each expert.
    Embeddings and the matrix of the logits are left out, as are gates of mixtures.
    """
    found: dict[str, int] = {}
    for prefix, module in model.named_modules():
        counts: dict[str, int] = {}
        if isinstance(module, nn.Linear):
            counts = {"weight": 1}
        elif isinstance(module, nn.RNNBase):
            counts = _gates_of(module)
        elif isinstance(module, Experts):
            counts = dict.fromkeys(("inner", "outer"), len(module.inner))
        found |= {f"{prefix}.{name}": count for name, count in counts.items()}
    weights, output = dict(model.named_parameters()), model.output_weight
    # With weight normalization the matrix of the logits is made of this weight.
    found.pop("output.weight", None)
    return {n: each for n, each in found.items() if weights.get(n) is not output}


def _gates_of(layer: nn.RNNBase) -> dict[str, int]:
    """Return the number of gates in each matrix of a recurrent layer."""
    gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)
    return {
        name: 1 if name.startswith("weight_hr") else gates  # a projection has none
        for name, _ in layer.named_parameters()
        if name.startswith("weight")
    }


def moments_of(
    model: TransductionModel, config: TrainingConfig, step: int = 0
) -> dict[str, Moments]:
    """Return the names of the moments of each weight after `step` updates."""
    names = [name for name, _ in model.named_parameters()]
    if uses_sgd(step, config):
        return dict.fromkeys(names, ())
    matrices = matrices_of(model)
    match config.optimizer:
        case "muon":
            return {
                name: MUON_MOMENTS if name in matrices else ADAM_MOMENTS
                for name in names
            }
        case "adam":
            return dict.fromkeys(names, ADAM_MOMENTS)
        case _:
            return dict.fromkeys(names, SGD_MOMENTS if config.momentum else ())


def require_moments(
    model: TransductionModel,
    config: TrainingConfig,
    tensors: Mapping[str, Tensor],
    step: int = 0,
) -> None:
    """Raise `CheckpointError` if tensors are not a model's moments after an update.

    It is a `VersionError` if another version trained a weight by Adam in place of Muon,
    or by Muon in place of Adam.
    """
    moments = moments_of(model, config, step)

    def is_saved(moment: str, name: str, weight: Tensor) -> bool:
        saved = tensors.get(f"{moment}.{name}")
        return saved is not None and saved.shape == weight.shape

    for name, weight in model.named_parameters():
        missing = [m for m in moments[name] if not is_saved(m, name, weight)]
        if not missing:
            continue
        others = {*MUON_MOMENTS, *ADAM_MOMENTS} - {*moments[name]}
        found = sorted(each for each in others if is_saved(each, name, weight))
        if config.optimizer == "muon" and found:
            raise VersionError(
                f"The training state must hold `{missing[0]}.{name}`, but holds "
                f"`{found[0]}.{name}`; it was saved by another version of transduce: "
                f"resume with that version, or {START_FROM_RUN}."
            )
        raise CheckpointError(
            f"The training state must hold `{missing[0]}.{name}` of the model's shape, "
            "but does not; it is damaged, or of another model or optimizer."
        )


def inverse_sqrt_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Return the learning rate of equation 3 for an update; steps count from 1.

    lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)
    """
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate


def cooldown_factor(step: int, steps: int, cooldown_share: float) -> float:
    """Return a factor that falls linearly from 1 to nearly 0 over the last updates."""
    # Unlike the paper: a cooldown in the last steps (Hägele et al., 2024). Off by
    # default: `training.cooldown_share`.
    cooldown = cooldown_share * steps
    return min((steps + 1 - step) / (cooldown + 1), 1.0) if cooldown else 1.0


def schedule_factor(step: int, config: TrainingConfig) -> float:
    """Return the factor of a schedule on its peak rate; steps count from 1.

    All schedules but equation 3 have a peak. That of plateau depends on the dev loss
    too, so the trainer multiplies it by a second factor.
    """
    # Unlike the paper: schedules of the systems that Table 2 compares with. Off by
    # default: `training.schedule`.
    warmup = min(step / config.warmup_steps, 1.0)
    match config.schedule:
        case "constant" | "plateau":
            return warmup
        case "warm-hold-decay":
            held: float = (config.warmup_steps + config.hold_steps) / step
            return min(warmup, held**0.5)
        case "halving":
            factor: float = warmup * 0.5 ** _num_halvings(step, config)
            return factor
        case "inverse-sqrt":
            raise ValueError("Equation 3 has no peak rate.")
        case _:
            assert_never(config.schedule)


def _num_halvings(step: int, config: TrainingConfig) -> int:
    assert config.decay_from is not None
    assert config.decay_steps is not None
    step = min(step, config.likelihood_steps)  # updates by reward have the last rate
    return max((step - config.decay_from) // config.decay_steps + 1, 0)


def uses_sgd(step: int, config: TrainingConfig) -> bool:
    """Return whether an update is by plain SGD after updates by another optimizer."""
    return config.sgd_from_step is not None and step >= config.sgd_from_step


def scheduled_rate(step: int, d_model: int, config: TrainingConfig) -> float:
    """Return the learning rate of a run's update; steps count from 1.

    The configuration must have the settings that its schedule needs, as
    `refuse_contradictions` ensures.
    """
    cooldown = cooldown_factor(step, config.steps, config.cooldown_share)
    if config.schedule == "inverse-sqrt":
        rate = inverse_sqrt_rate(step, d_model, config.warmup_steps)
        # Unlike the paper: a factor on equation 3, which has no term for the size of an
        # update. The paper's code has a half for parsing. Off by default:
        # `training.learning_rate_scale`.
        return config.learning_rate_scale * rate * cooldown
    is_sgd = uses_sgd(step, config)
    peak = config.sgd_learning_rate if is_sgd else config.learning_rate
    assert peak is not None
    return peak * schedule_factor(step, config) * cooldown
