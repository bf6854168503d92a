"""The training loop (sections 5.1 to 5.3). Knows no text and no decoding."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from transduce.architectures.models import TransductionModel
from transduce.data.batches import Batcher, Update, read_ahead
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.errors import TransduceError
from transduce.metrics.perplexity import perplexity
from transduce.nn.fuse import fuse
from transduce.nn.packed_weights import unchanged_weights
from transduce.text.vocabulary import PAD
from transduce.training.compiled_layers import fuse_layers, is_worth_fusing
from transduce.training.config import TrainingConfig
from transduce.training.distributed import ALONE, Processes, Share, apart
from transduce.training.guided_attention import Guidance
from transduce.training.loss import BatchLoss, as_tensor
from transduce.training.micro_batch import Fit, fit
from transduce.training.optimizer import (
    ADAM_MOMENTS,
    WeightOptimizer,
    require_moments,
    scheduled_rate,
)

RECENT = 0.02
"""Weight of one update in the recent loss: about fifty updates count."""
DIVERGENCE = 1.0
"""Nats a token by which the recent loss may rise above its lowest."""
RISE = 0.2
"""By which it does not rise in a training that goes well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands: the next update to make."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    update: int = 0
    """Updates made of this epoch."""
    recent_loss: float = math.inf
    """Mean of the loss over about the last fifty updates."""
    lowest_loss: float = math.inf
    """The lowest that the recent loss has been."""
    flops: int = 0
    """Spent on the updates made, padding and lost updates left out."""
    rate_factor: float = 1.0
    """On the learning rate; lowered when training has diverged."""

    @property
    def is_on_the_rise(self) -> bool:
        """Whether the loss may have begun to diverge."""
        return self.recent_loss > self.lowest_loss + RISE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one update did."""

    step: int
    epoch: int
    loss: float
    """Smoothed cross-entropy, and that of guided attention if there is such; nats a
    target token."""
    perplexity: float
    """Of the training tokens, with dropout on."""
    learning_rate: float
    num_source_tokens: int
    num_target_tokens: int
    padding: float
    """Share of positions that hold no token."""
    flops: int
    """Of all updates up to this one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What a process does of an update at a time."""

    update: Update
    share: Share
    batch: Batch
    is_last: bool
    """Of this process's in the update."""


class TrainingStoppedError(TransduceError):
    """Training was asked to stop, and has saved where it stands."""


class DivergedError(TransduceError):
    """The loss is no number any more, or rises and rises."""


class Trainer:
    """Makes updates until the number asked for; bit for bit the same when resumed."""

    def __init__(
        self,
        model: TransductionModel,
        batcher: Batcher,
        config: TrainingConfig,
        hardware: Hardware,
        processes: Processes = ALONE,
        guidance: Guidance | None = None,
    ) -> None:
        self.model = fuse(model.to(hardware.device))
        self.progress = Progress()
        self.is_checkpoint_due = False
        """Whether the schedule, or the end, asks for a checkpoint after this step."""
        self._batcher = batcher
        self._config = config
        self._hardware = hardware
        self._processes = processes
        self._batch_loss = BatchLoss(
            self.model, config.label_smoothing, hardware, guidance
        )
        self._joined = processes.join(self._batch_loss)
        self._optimizer = WeightOptimizer(self.model, config, hardware.dtype, processes)
        self._checkpointed_at = time.monotonic()
        self._max_positions: int | None = None

    def fit(self, most: int | None = None) -> Fit:
        """Find out how much of an update fits in memory; from here on it is cut so.

        To so many positions at most, if there is a bound. All processes agree on that;
        time and memory are this one's. `ConfigError` if not even one pair fits.
        """
        unfused = None
        if is_worth_fusing(self._batch_loss, self._hardware, self._config.steps):
            unfused = self.fuse_layers()
        weights = [] if self._optimizer.has_state else self.model.parameters()
        # What Adam will hold must have its room.
        moments = [torch.ones_like(w) for w in weights for _ in ADAM_MOMENTS]
        sharing = self._processes.count_here
        found = fit(self._batch_loss, self._batcher, self._hardware, sharing)
        found = replace(found, unfused=unfused)
        del moments
        # All cut alike: else a pair could fall to two of them, or to none.
        bound = float(found.max_positions) if found.was_cut else math.inf
        bound = min(bound, math.inf if most is None else float(most))
        bound = self._processes.least(bound, self._hardware.device)
        if math.isinf(bound):
            self._max_positions = None
            return found
        self._max_positions = int(bound)
        return replace(found, max_positions=int(bound), was_cut=True)

    def fuse_layers(self) -> str | None:
        """Have PyTorch compile them; if it cannot, the reason."""
        return fuse_layers(
            self._batch_loss, self._batcher, self._hardware, self._processes
        )

    def train(
        self,
        on_step: Callable[[StepReport], None],
        save: Callable[[], None],
        on_checkpoint: Callable[[], bool],
        should_stop: Callable[[], bool],
    ) -> None:
        """Train to the last step; `TrainingStoppedError` once `should_stop` says so.

        `save` is called when a checkpoint is due, at the end, and before stopping;
        `on_checkpoint` after it, unless training is to stop at once. It says whether
        this is the end, before the last step. `DivergedError` if the loss does.
        """
        for update, loaded in self._updates():
            report = self._step(update, loaded)
            self._watch(report)
            on_step(report)
            is_last = self.progress.step == self._config.steps
            is_stopping = self._any(should_stop()) and not is_last
            self.is_checkpoint_due = is_last or self._is_checkpoint_due()
            if is_stopping or self.is_checkpoint_due:
                self._require_finite_weights()
                save()
            if is_stopping:
                self._processes.wait()  # the first one's end is the end of all
                raise TrainingStoppedError(
                    f"Training was stopped after step {self.progress.step:,} of "
                    f"{self._config.steps:,}, and is saved."
                )
            if self.is_checkpoint_due:
                is_over = self._any(on_checkpoint())
                self._checkpointed_at = time.monotonic()
                if is_over:
                    return

    def state(self) -> TrainingState:
        """What `restore` needs; the model's weights are not in it."""
        return TrainingState(progress=self.progress, tensors=self._optimizer.state())

    def restore(self, state: TrainingState | None) -> None:
        """Go on from a saved state, or none: from the beginning.

        The model must hold the weights saved with it. `CheckpointError` if it is the
        state of another model.
        """
        if state is None:
            self.progress = Progress()
            self._optimizer.clear()
            return
        require_moments(self.model, self._config, state.tensors)
        self.progress = state.progress
        self._optimizer.restore(state.tensors, state.progress.step)

    def lower_learning_rate(self, factor: float) -> None:
        """From here on, and when resumed; what the loss was before is forgotten."""
        self.progress = replace(
            self.progress,
            rate_factor=self.progress.rate_factor * factor,
            recent_loss=math.inf,
            lowest_loss=math.inf,
        )

    def _updates(self) -> Iterator[tuple[Update, Iterator[_Loaded]]]:
        """Each with its shares; the next share is loaded while one is in use."""
        while self.progress.step < self._config.steps:
            start = self.progress
            with closing(read_ahead(self._shares(start))) as shares:
                for update, loaded in groupby(shares, key=attrgetter("update")):
                    self.progress = replace(
                        self.progress,
                        step=self.progress.step + 1,
                        update=self.progress.update + 1,
                    )
                    yield update, loaded
                    if self.progress.step == self._config.steps:
                        return
            self.progress = replace(self.progress, epoch=start.epoch + 1, update=0)

    def _shares(self, start: Progress) -> Iterator[_Loaded]:
        """This process's, of all updates that are left of an epoch."""
        for update in self._batcher.epoch(start.epoch, first=start.update):
            shares = self._processes.share(self._cut(update.batches))
            for share in shares:
                yield _Loaded(
                    update=update,
                    share=share,
                    batch=self._load(share),
                    is_last=share is shares[-1],
                )

    def _step(self, update: Update, loaded: Iterator[_Loaded]) -> StepReport:
        """Accumulate the gradients of an update's batches, then move the weights."""
        started = time.perf_counter()
        self.model.train()
        rate = self._learning_rate()
        self._optimizer.zero_grad()
        smoothed, likelihood = self._accumulate(loaded).tolist()
        self._optimizer.step(rate)
        flops = self.model.update_flops(update.source_lengths, update.target_lengths)
        self.progress = replace(self.progress, flops=self.progress.flops + flops)
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
            flops=self.progress.flops,
            seconds=time.perf_counter() - started,
        )

    def _accumulate(self, loaded: Iterator[_Loaded]) -> Float[Tensor, "2"]:
        """Form the gradient of an update's mean loss a token; its sums of losses."""
        losses = torch.zeros(2, device=self._hardware.device)
        # In one context a GPU casts weights once an update, but in compiled layers.
        with self._hardware.autocast(), self._processes.in_step(), unchanged_weights():
            for each in loaded:
                with nullcontext() if each.is_last else apart(self._joined):
                    losses += self._backward(each)
        return self._processes.total(losses)

    def _load(self, share: Share) -> Batch:
        batch = self._batcher.load(share.indices)
        return batch.pinned() if self._hardware.device.type == "cuda" else batch

    def _cut(
        self, batches: Sequence[Integer[np.ndarray, " _"]]
    ) -> list[Integer[np.ndarray, " _"]]:
        """Batches, each in as many parts as memory asks for."""
        if self._max_positions is None:
            return list(batches)
        parts: list[Integer[np.ndarray, " _"]] = []
        for batch in batches:
            width = self._batcher.num_positions(batch) // len(batch)
            num_pairs = max(self._max_positions // width, 1)
            parts += np.split(batch, range(num_pairs, len(batch), num_pairs))
        return parts

    def _backward(self, loaded: _Loaded) -> Float[Tensor, "2"]:
        """Add a share's part of the gradient."""
        share, num_tokens = loaded.share, loaded.update.num_target_tokens
        # Each has dropout of its own, whichever process it falls to.
        self._hardware.seed(self._dropout_seed(share.number))
        loss = self._joined(loaded.batch)
        # Joined processes form the mean of their gradients, but it is to be the sum.
        weight = share.counts * self._processes.count / num_tokens
        with torch.autocast("cpu", enabled=False):  # each as it was forwards
            (loss.smoothed * weight).backward()
        return share.counts * as_tensor(loss)

    def _dropout_seed(self, number: int) -> int:
        """Of a share of this step, whatever has been drawn before."""
        entropy = (self._config.seed, self.progress.step, number)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])

    def _watch(self, report: StepReport) -> None:
        """Keep the recent loss; `DivergedError` if it is no number or rises."""
        before, step = self.progress, self.progress.step
        recent = report.loss
        if not math.isinf(before.recent_loss):  # which it is before the first step
            recent = before.recent_loss + RECENT * (report.loss - before.recent_loss)
        if not math.isfinite(report.loss):
            raise DivergedError(
                f"The loss must be a number, but is {report.loss} at step {step:,}."
            )
        if recent > before.lowest_loss + DIVERGENCE:
            raise DivergedError(
                f"The loss must not rise, but has risen from {before.lowest_loss:.2f} "
                f"to {recent:.2f} (nats a token, over some fifty steps) at step "
                f"{step:,}."
            )
        lowest = min(before.lowest_loss, recent)
        self.progress = replace(before, recent_loss=recent, lowest_loss=lowest)

    def _require_finite_weights(self) -> None:
        """Nothing is saved that a run could not go on from."""
        checks = [weight.isfinite().all() for weight in self.model.parameters()]
        if not torch.stack(checks).all():
            raise DivergedError(
                "The weights must be numbers, but some are not after step "
                f"{self.progress.step:,}."
            )

    def validate(self, batcher: Batcher) -> Validation:
        """Measure the loss over all pairs, without dropout."""
        self.model.eval()
        losses, num_tokens = torch.zeros(2, dtype=torch.float64), 0
        with torch.no_grad():
            for batch in batcher.in_order():
                losses += as_tensor(self._batch_loss(batch)).cpu()
                num_tokens += int((batch.target_out != PAD).sum())
        smoothed, likelihood = losses.tolist()
        return Validation(
            loss=smoothed / num_tokens, perplexity=perplexity(-likelihood, num_tokens)
        )

    def _learning_rate(self) -> float:
        d_model, factor = self.model.config.d_model, self.progress.rate_factor
        return factor * scheduled_rate(self.progress.step, d_model, self._config)

    def _is_checkpoint_due(self) -> bool:
        if self._config.checkpoint_steps is not None:
            return self.progress.step % self._config.checkpoint_steps == 0
        minutes = (time.monotonic() - self._checkpointed_at) / 60
        # The clock of the first process counts for all.
        is_due = minutes >= self._config.checkpoint_minutes
        return self._any(is_due and self._processes.is_first)

    def _any(self, is_so: bool) -> bool:
        return self._processes.any(is_so, self._hardware.device)
