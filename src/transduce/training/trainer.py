"""The training loop (sections 5.1 to 5.3). Knows no text and no decoding."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from transduce.data.batches import Batch, Batcher, Update
from transduce.device import Hardware
from transduce.errors import CheckpointError, ConfigError, TransduceError
from transduce.evaluation.perplexity import perplexity
from transduce.model.transformer import Transformer
from transduce.special_ids import PAD
from transduce.training.loss import Loss, smoothed_cross_entropy
from transduce.training.schedule import learning_rate

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
LOGIT_ROWS = 256
"""Rows of logits in memory at a time: few enough for a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The paper's training regime (section 5); the defaults are its base model's."""

    steps: int = 100_000
    """Updates in all."""
    warmup_steps: int = 4_000
    """Updates during which the learning rate grows (equation 3)."""
    learning_rate_scale: float = 1.0
    """Factor on equation 3."""
    beta1: float = 0.9
    """Adam's decay of the gradients' mean."""
    beta2: float = 0.98
    """Adam's decay of the gradients' square."""
    epsilon: float = 1e-9
    """Adam's guard against division by zero."""
    label_smoothing: float = 0.1
    """Epsilon_ls (section 5.4)."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints (section 6.1)."""
    checkpoint_steps: int | None = None
    """Updates between checkpoints, instead of minutes."""
    keep_checkpoints: int = 5
    """Checkpoints kept, and averaged at the end (section 6.1)."""
    seed: int = 1
    """Of the weights, the order of the data and dropout."""

    def __post_init__(self) -> None:
        for name in ("steps", "warmup_steps", "keep_checkpoints", "checkpoint_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(
                    f"`training.{name}` must be at least 1, but is {value}."
                )
        for name in ("label_smoothing", "beta1", "beta2"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ConfigError(
                    f"`training.{name}` must be at least 0 and below 1, but is {value}."
                )
        for name in ("learning_rate_scale", "epsilon", "checkpoint_minutes"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"`training.{name}` must be above 0, but is {value}.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(
                f"`training.seed` must be from 0 to 2^63 - 1, but is {self.seed}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands: the next update to make."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    update: int = 0
    """Updates made of this epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one update did."""

    step: int
    epoch: int
    loss: float
    """Smoothed cross-entropy, nats a target token."""
    perplexity: float
    """Of the training tokens, with dropout on."""
    learning_rate: float
    num_source_tokens: int
    num_target_tokens: int
    padding: float
    """Share of positions that hold no token."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How well a model foretells a held-out corpus."""

    loss: float
    """Smoothed cross-entropy, nats a target token."""
    perplexity: float
    """Exponential of the mean negative log-likelihood of a target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """All that is needed to go on as if nothing had happened."""

    progress: Progress
    tensors: dict[str, Tensor]


class TrainingStoppedError(TransduceError):
    """Training was asked to stop, and has saved where it stands."""


class Trainer:
    """Makes updates until the number asked for; bit for bit the same when resumed."""

    def __init__(
        self,
        model: Transformer,
        batcher: Batcher,
        config: TrainingConfig,
        hardware: Hardware,
    ) -> None:
        self.model = model.to(hardware.device)
        self.progress = Progress()
        self.is_checkpoint_due = False
        """Whether the schedule, or the end, asks for a checkpoint after this step."""
        self._batcher = batcher
        self._config = config
        self._hardware = hardware
        self._optimizer = torch.optim.Adam(
            model.parameters(),
            lr=0.0,  # set before each step
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        self._checkpointed_at = time.monotonic()

    def train(
        self,
        on_step: Callable[[StepReport], None],
        save: Callable[[], None],
        on_checkpoint: Callable[[], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Train to the last step; `TrainingStoppedError` once `should_stop` says so.

        `save` is called when a checkpoint is due, at the end, and before stopping;
        `on_checkpoint` after it, unless training is to stop at once.
        """
        for update in self._updates():
            on_step(self._step(update))
            is_stopping = should_stop() and self.progress.step < self._config.steps
            self.is_checkpoint_due = self._is_checkpoint_due()
            if is_stopping or self.is_checkpoint_due:
                save()
            if self.is_checkpoint_due and not is_stopping:
                on_checkpoint()
                self._checkpointed_at = time.monotonic()
            if is_stopping:
                raise TrainingStoppedError(
                    f"Training was stopped after step {self.progress.step:,} of "
                    f"{self._config.steps:,}, and is saved."
                )

    def state(self) -> TrainingState:
        """What `restore` needs; the model's weights are not in it."""
        tensors = {"random.cpu": torch.get_rng_state()}
        if self._hardware.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        for name, parameter in self.model.named_parameters():
            moments = self._optimizer.state[parameter]
            for moment in ADAM_MOMENTS:
                tensors[f"{moment}.{name}"] = moments[moment].clone().cpu()
        return TrainingState(progress=self.progress, tensors=tensors)

    def restore(self, state: TrainingState) -> None:
        """Go on from a saved state; the model must hold the weights saved with it.

        `CheckpointError` if it is the state of another model.
        """
        self._require_tensors(state)
        self.progress = state.progress
        torch.set_rng_state(state.tensors["random.cpu"])
        if self._hardware.device.type == "cuda" and "random.cuda" in state.tensors:
            torch.cuda.set_rng_state(state.tensors["random.cuda"])
        elif self._hardware.device.type == "cuda":
            torch.cuda.manual_seed(self._config.seed)  # it was a CPU until now
        for name, parameter in self.model.named_parameters():
            moments = {
                moment: state.tensors[f"{moment}.{name}"].to(
                    parameter.device, copy=True
                )
                for moment in ADAM_MOMENTS
            }
            step = torch.tensor(float(state.progress.step), device=parameter.device)
            self._optimizer.state[parameter] = {"step": step, **moments}

    def _require_tensors(self, state: TrainingState) -> None:
        shapes = {name: tensor.shape for name, tensor in state.tensors.items()}
        for name, parameter in self.model.named_parameters():
            for moment in ADAM_MOMENTS:
                if shapes.get(f"{moment}.{name}") != parameter.shape:
                    raise CheckpointError(
                        f"The training state must hold `{moment}.{name}` of the "
                        "model's shape, but does not; it is damaged or of another "
                        "model."
                    )
        if "random.cpu" not in shapes:
            raise CheckpointError(
                "The training state must hold `random.cpu`, but does not; it is "
                "damaged."
            )

    def _updates(self) -> Iterator[Update]:
        while self.progress.step < self._config.steps:
            start = self.progress
            for update in self._batcher.epoch(start.epoch, first=start.update):
                self.progress = replace(
                    self.progress,
                    step=self.progress.step + 1,
                    update=self.progress.update + 1,
                )
                yield update
                if self.progress.step == self._config.steps:
                    return
            self.progress = Progress(step=self.progress.step, epoch=start.epoch + 1)

    def _step(self, update: Update) -> StepReport:
        """Accumulate the gradients of an update's batches, then move the weights."""
        started = time.perf_counter()
        self.model.train()
        rate = self._set_learning_rate()
        self._optimizer.zero_grad()
        losses = [self._accumulate(batch, update) for batch in update.batches]
        self._optimizer.step()
        smoothed, likelihood = torch.stack(losses).sum(0).tolist()
        if not math.isfinite(smoothed):
            raise TransduceError(
                f"The loss must be a number, but is {smoothed} at step "
                f"{self.progress.step:,}; begin another run with a lower "
                "`training.learning_rate_scale`."
            )
        num_tokens = update.num_source_tokens + update.num_target_tokens
        return StepReport(
            step=self.progress.step,
            epoch=self.progress.epoch,
            loss=smoothed / update.num_target_tokens,
            perplexity=perplexity(-likelihood, update.num_target_tokens),
            learning_rate=rate,
            num_source_tokens=update.num_source_tokens,
            num_target_tokens=update.num_target_tokens,
            padding=1 - num_tokens / update.num_positions,
            seconds=time.perf_counter() - started,
        )

    def _accumulate(
        self, indices: Integer[np.ndarray, " batch"], update: Update
    ) -> Float[Tensor, "2"]:
        """Add a batch's part of the gradient of the update's mean loss a token."""
        batch = self._batcher.load(indices).to(self._hardware.device)
        states, target_out = self._states(batch)
        # The logits are formed a few rows at a time, and are gone before the next:
        # all at once they would be by far the largest thing in memory.
        leaf = states.detach().requires_grad_()
        losses = []
        for rows, targets in _in_chunks(leaf, target_out):
            loss = self._loss(rows, targets)
            (loss.smoothed / update.num_target_tokens).backward()
            losses.append(_as_tensor(loss))
        states.backward(leaf.grad)
        return torch.stack(losses).sum(0)

    def validate(self, batcher: Batcher) -> Validation:
        """Measure the loss over all pairs, without dropout."""
        self.model.eval()
        losses, num_tokens = torch.zeros(2, dtype=torch.float64), 0
        with torch.no_grad():
            for batch in batcher.in_order():
                states, target_out = self._states(batch.to(self._hardware.device))
                for rows, targets in _in_chunks(states, target_out):
                    losses += _as_tensor(self._loss(rows, targets)).cpu()
                num_tokens += len(target_out)
        smoothed, likelihood = losses.tolist()
        return Validation(
            loss=smoothed / num_tokens, perplexity=perplexity(-likelihood, num_tokens)
        )

    def _states(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "rows d_model"], Int[Tensor, " rows"]]:
        """The decoder's states where there is a target token, and the tokens."""
        with self._hardware.autocast():
            states = self.model.decode(batch.target_in, self.model.encode(batch.source))
        is_token = batch.target_out != PAD
        return states[is_token], batch.target_out[is_token]

    def _loss(
        self, states: Float[Tensor, "rows d_model"], target_out: Int[Tensor, " rows"]
    ) -> Loss:
        with self._hardware.autocast():
            logits = self.model.logits(states)
        return smoothed_cross_entropy(
            logits.float(), target_out, self._config.label_smoothing
        )

    def _set_learning_rate(self) -> float:
        rate = learning_rate(
            self.progress.step,
            self.model.config.d_model,
            self._config.warmup_steps,
            self._config.learning_rate_scale,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _is_checkpoint_due(self) -> bool:
        if self.progress.step == self._config.steps:
            return True
        if self._config.checkpoint_steps is not None:
            return self.progress.step % self._config.checkpoint_steps == 0
        minutes = (time.monotonic() - self._checkpointed_at) / 60
        return minutes >= self._config.checkpoint_minutes


def _in_chunks(
    states: Float[Tensor, "rows d_model"], target_out: Int[Tensor, " rows"]
) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(states.split(LOGIT_ROWS), target_out.split(LOGIT_ROWS), strict=True)


def _as_tensor(loss: Loss) -> Float[Tensor, "2"]:
    return torch.stack([loss.smoothed.detach(), loss.negative_log_likelihood])
