"""The training loop (sections 5.1 to 5.3).

`Trainer.train` makes one update after the other (`_step`). A thread reads their pairs
ahead, as micro-batches of this process (`MicroBatchReader`).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import add, attrgetter

import torch

from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import Progress, TrainingState
from transduce.data.batches import Batcher, Update, read_ahead
from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware, keep_forks_usable
from transduce.errors import TransduceError
from transduce.metrics.scores import perplexity
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import PAD
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ALONE, ProcessGroup
from transduce.training.gpu_gradients import compile_layers, is_worth_compiling
from transduce.training.gradients import (
    NUM_AT_ONCE,
    GradientAccumulator,
    LoadedMicroBatch,
    MemoryLimits,
    MicroBatchReader,
    num_at_once,
)
from transduce.training.loss import BatchLoss, GuidedAttention
from transduce.training.memory import SAFE_SHARE, MicroBatchSize, find_micro_batch
from transduce.training.optimizer import (
    WeightOptimizer,
    require_moments,
    scheduled_rate,
)
from transduce.training.reward import (
    Refinement,
    draw_samples,
    sample_flops,
    without_dropout,
)

RECENT = 0.02
"""Weight of an update in the recent loss, a moving average of about fifty updates."""
DIVERGENCE = 1.0
"""Rise of the recent loss above its minimum that ends training, in nats a token."""
REWARD_SHARE = 0.5
"""Share of the safe memory for a micro-batch with its samples. It is small because no
trial measures the memory of samples."""
MAX_REWARD_BATCHES = 2
"""Largest micro-batch of an update by reward, as a multiple of a full batch with all
its samples. It is above 1 because samples can be longer than references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Figures of one update."""

    step: int
    epoch: int
    loss: float
    """Smoothed cross-entropy, plus the losses of guided attention and of consistency if
    there are any, in nats a target token. In updates by reward it is the loss of the
    references."""
    perplexity: float
    """Perplexity of the update's target tokens, with dropout if there is any."""
    learning_rate: float
    gradient_norm: float | None = None
    """Norm of the gradient before it is clipped; None if gradients are not clipped."""
    reward: float | None = None
    """Mean reward of the update's samples; None if the update is by likelihood."""
    num_source_tokens: int
    num_target_tokens: int
    padding: float
    """Share of positions that are padding."""
    flops: int
    """FLOPs of all updates up to this one."""
    seconds: float
    """Seconds until the update's figures were read, from its start or, if that was
    later, from when the previous update's figures were read."""
    shares: Mapping[str, float] | None = None
    """Share of each corpus of a mixture in the pairs of this stage so far; None without
    a mixture."""
    stage: int | None = None
    """Number of the stage, from 1; None without stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Loss of a model on a held-out corpus."""

    loss: float
    """Smoothed cross-entropy in nats a target token."""
    perplexity: float
    """Exponential of the mean negative log-likelihood of a target token."""


class TrainingStoppedError(TransduceError):
    """Training was stopped and is saved."""


class DivergedError(TransduceError):
    """The loss is not finite, or has risen for long."""


class Trainer:
    """Training loop; a resumed run gives bit-identical weights."""

    def __init__(
        self,
        model: TransductionModel,
        batcher: Batcher,
        config: TrainingConfig,
        hardware: Hardware,
        processes: ProcessGroup = ALONE,
        guidance: GuidedAttention | None = None,
        refinement: Refinement | None = None,
    ) -> None:
        """Prepare a training; updates by reward need a `refinement`."""
        if config.reward != "none" and refinement is None:
            raise ValueError("Updates by reward need a sampler and a reward.")
        keep_forks_usable()
        self._refinement = refinement
        self.model = fuse(model.to(hardware.device))
        self.progress = Progress()
        self.is_checkpoint_due = False
        """Whether a checkpoint is due after this step."""
        self._batcher = batcher
        self._config = config
        self._hardware = hardware
        self._processes = processes
        self._batch_loss = BatchLoss(
            self.model,
            config.label_smoothing,
            hardware,
            guidance,
            refinement.likelihood_weight if refinement else 0.0,
            config.consistency,
        )
        self.accumulator = GradientAccumulator(
            self._batch_loss, hardware, processes, config.seed
        )
        self._optimizer = WeightOptimizer(self.model, config, hardware.dtype, processes)
        self.runs_ahead = hardware.device.type == "cuda" and processes.world_size == 1
        """Whether an update starts before the figures of the previous one are read, so
        that a GPU need not wait for the CPU between updates. Several processes cannot:
        after each update they agree whether to stop."""
        self._reported_at = -math.inf
        self._checkpointed_at = time.monotonic()
        self._reader = MicroBatchReader(batcher, config, hardware, processes)

    def find_micro_batch(
        self, max_positions: int | None = None, reward_positions: int | None = None
    ) -> MicroBatchSize:
        """Find how much of an update fits in memory, and split updates accordingly.

        `max_positions` is an upper bound. `reward_positions` is the number that an
        earlier start of the run used in updates by reward; it is kept if it fits. All
        processes agree on both numbers; time and memory are those of this process.
        Raises `ConfigError` if not even one pair fits.
        """
        compile_error = None
        if is_worth_compiling(self._batch_loss, self._hardware, self._config.steps):
            compile_error = self.compile_layers()
        found, num_fitting = self._try_micro_batches()
        fitting = found.max_positions if found.was_cut else None
        bound = self._smallest(fitting, max_positions)
        if bound is not None:
            found = replace(found, max_positions=bound, was_cut=True)
        if self._config.reward != "none":
            positions = self._positions_by_reward(found, num_fitting, reward_positions)
            found = replace(found, reward_positions=self._smallest(positions))
        self._reader.limits = MemoryLimits(
            max_positions=bound,
            reward_positions=found.reward_positions,
            fits_beside_another=num_fitting >= NUM_AT_ONCE,
        )
        return replace(found, compile_error=compile_error)

    def _try_micro_batches(self) -> tuple[MicroBatchSize, float]:
        """Find by trials what fits in this process's memory, beside the optimizer.

        Also returns how many such batches the safe share of the free memory can hold.
        """
        # Moments take memory in training, so they must during the trial.
        moments = self._optimizer.missing_moments()
        num_processes = self._processes.local_world_size
        found = find_micro_batch(
            self._batch_loss,
            self._batcher.longest_possible(),
            self._hardware,
            num_processes,
            self.accumulator.graphs,
        )
        free_bytes = self._hardware.free_bytes(num_processes)
        del moments
        return found, SAFE_SHARE * free_bytes / max(found.growth_bytes, 1)

    def _smallest(self, *bounds: int | None) -> int | None:
        """Return the smallest of the bounds in all processes; None means no bound.

        If processes split updates differently, two could compute the same pair.
        """
        own = min(
            (float(each) for each in bounds if each is not None), default=math.inf
        )
        bound = self._processes.all_reduce_min(own, self._hardware.device)
        return None if math.isinf(bound) else int(bound)

    def _positions_by_reward(
        self, found: MicroBatchSize, num_fitting: float, earlier: int | None
    ) -> int:
        """Return how many positions to compute at a time in an update by reward.

        The positions of samples count, too. `num_fitting` is the number of batches of
        `found` that fit in the safe memory. The number of an `earlier` start of the run
        is kept if it fits; a new one takes at most `REWARD_SHARE` of that memory.
        """
        config, longest = self._config, self._reader.longest_positions
        # The trial had `num_passes` passes, and an update by reward has one.
        num_batches = max(num_fitting * config.num_passes, 1.0)
        fitting = found.max_positions if found.was_cut else num_batches * longest
        if earlier is not None and earlier <= fitting:
            return earlier
        longest_with_samples = longest * (1 + config.reward_samples)
        max_positions = MAX_REWARD_BATCHES * longest_with_samples
        return max(int(min(REWARD_SHARE * fitting, max_positions)), 1)

    def update_tokens(self) -> tuple[int, int]:
        """Return the approximate numbers of source and target tokens of an update.

        They are means over the updates that are left.
        """
        return self._batcher.update_tokens(
            range(self.progress.step, self._config.steps)
        )

    def compile_layers(self) -> str | None:
        """Compile the layers by PyTorch; return the reason if it cannot."""
        return compile_layers(
            self._batch_loss,
            self._batcher.longest_possible(),
            self._hardware,
            self._processes,
        )

    def train(
        self,
        on_step: Callable[[StepReport], None],
        save: Callable[[], None] = lambda: None,
        on_checkpoint: Callable[[], bool] = lambda: False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the last step.

        Calls `on_step` for each update in order; if training `runs_ahead`, once the
        next update has started. Calls `save` when a checkpoint is due, at the end and
        before stopping; by default nothing is saved. Then calls `on_checkpoint`, unless
        training stops: it returns whether training ends early. Raises
        `TrainingStoppedError` after a step at which `should_stop` returns true, and
        `DivergedError` if the loss diverges.
        """

        def on_report(report: StepReport) -> None:
            self._watch_loss(report)
            on_step(report)

        reports = _PendingReports(on_report)
        with reports.delivered_before_failure():
            for update, loaded in self._updates():
                reports.add(self._step(update, loaded))
                reports.deliver(num_pending=1 if self.runs_ahead else 0)
                is_last = self.progress.step == self._config.steps
                is_stopping = self._in_any_process(should_stop()) and not is_last
                self.is_checkpoint_due = is_last or self._is_checkpoint_due()
                if is_stopping or self.is_checkpoint_due:
                    reports.deliver()
                    self._require_finite_weights()
                    save()
                if is_stopping:
                    self._processes.barrier()  # the others end with the first process
                    raise TrainingStoppedError(
                        f"Training was stopped after step {self.progress.step:,} of "
                        f"{self._config.steps:,}, and is saved."
                    )
                if self.is_checkpoint_due:
                    is_over = self._in_any_process(on_checkpoint())
                    self._checkpointed_at = time.monotonic()
                    if is_over:
                        return

    def all_can_pack(self) -> bool:
        """Return whether all processes can compute sentences without padding.

        Call it in all processes: each waits for the answers of the others.
        """
        cannot = not self._batch_loss.can_pack
        # All must split updates alike.
        return not self._processes.all_reduce_any(cannot, self._hardware.device)

    def validate(self, batcher: Batcher) -> Validation:
        """Compute the loss of all pairs, without dropout."""
        self.model.eval()
        losses: list[torch.Tensor] = []
        num_tokens = 0
        with torch.no_grad():
            for batch in batcher.in_order():
                # Losses are read at the end, and batches are copied from pinned memory:
                # otherwise the CPU would wait for a GPU in each batch.
                losses.append(self._batch_loss(self._for_validation(batch)).sums)
                num_tokens += int((batch.target_out != PAD).sum())
        smoothed, likelihood = torch.stack(losses).double().sum(dim=0).tolist()
        return Validation(
            loss=smoothed / num_tokens, perplexity=perplexity(-likelihood, num_tokens)
        )

    def _for_validation(self, batch: Batch) -> Batch | PackedBatch:
        """Return a batch as the loss computes it; for a GPU in pinned memory."""
        if self._hardware.device.type != "cuda":
            return batch
        return (batch.packed() if self._batch_loss.can_pack else batch).pinned()

    def state(self) -> TrainingState:
        """Return the state for `restore`, without the model's weights."""
        return TrainingState(progress=self.progress, tensors=self._optimizer.state())

    def restore(self, state: TrainingState | None) -> None:
        """Continue from a saved state, or from the beginning if it is None.

        The model must have the weights that were saved with the state. Raises
        `CheckpointError` if the state is of another model.
        """
        if state is None:
            self.progress = Progress()
            self._optimizer.clear()
            return
        step = state.progress.step
        require_moments(self.model, self._config, state.tensors, step)
        self.progress = state.progress
        self._optimizer.restore(state.tensors, step, state.progress.earlier_updates)

    def lower_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate from now on, and restart the recent loss."""
        self.progress = replace(
            self.progress,
            rate_factor=self.progress.rate_factor * factor,
            recent_loss=math.inf,
            lowest_loss=math.inf,
        )

    def decay_at_plateau(self, dev_loss: float) -> None:
        """Lower the learning rate if the dev loss is not the lowest so far.

        Call it after each checkpoint of the schedule plateau, in all processes.
        Training ends if `is_rate_spent` then.
        """
        config = self._config
        if config.is_by_reward(self.progress.step):
            return  # the reward may raise the loss
        if dev_loss < self.progress.lowest_dev_loss:
            self.progress = replace(self.progress, lowest_dev_loss=dev_loss)
            return
        factor = self.progress.plateau_factor * config.decay_factor
        # Training that ended before its updates by reward would never make them.
        if config.reward != "none" and self._is_too_low(factor):
            return
        self.progress = replace(self.progress, plateau_factor=factor)

    @property
    def is_rate_spent(self) -> bool:
        """Whether the schedule plateau ends the training: its rate is too low."""
        return self._is_too_low(self.progress.plateau_factor)

    def _is_too_low(self, plateau_factor: float) -> bool:
        """Whether the schedule plateau ends at this factor on the learning rate."""
        config = self._config
        if config.schedule != "plateau" or config.learning_rate is None:
            return False
        return config.learning_rate * plateau_factor < config.min_learning_rate

    def _updates(self) -> Iterator[tuple[Update, Iterator[LoadedMicroBatch]]]:
        """Yield updates and this process's micro-batches, which are read ahead."""
        while self.progress.step < self._config.steps:
            start = self.progress
            # Not in the thread that reads ahead: validation changes the model's mode.
            self._reader.can_pack = self.all_can_pack()
            with closing(read_ahead(self._reader.epoch(start), NUM_AT_ONCE)) as batches:
                for update, loaded in groupby(batches, key=attrgetter("update")):
                    self.progress = replace(
                        self.progress,
                        step=self.progress.step + 1,
                        update=self.progress.update + 1,
                    )
                    yield update, loaded
                    if self.progress.step == self._config.steps:
                        return
            self.progress = replace(self.progress, epoch=start.epoch + 1, update=0)

    def _step(
        self, update: Update, loaded: Iterator[LoadedMicroBatch]
    ) -> Callable[[], StepReport]:
        """Accumulate the gradients of an update, then update the weights.

        A GPU may still compute at the end. Returns a function that waits for the losses
        and reports the update.
        """
        started = time.perf_counter()
        self._optimizer.zero_grad()
        rate = self._learning_rate()
        flops = self.model.update_flops(update.source_lengths, update.target_lengths)
        if self._config.is_by_reward(self.progress.step):
            sampled = [self._with_samples(each) for each in loaded]
            without_dropout(self.model)
            loaded = iter(sampled)
            flops += self._sample_flops(sampled)
        else:
            flops *= self._config.num_passes
            if not self.model.training:  # setting each module takes a while
                self.model.train()
        at_once = self._num_at_once(update, flops)
        losses = self.accumulator.accumulate(self.progress.step, loaded, at_once)
        max_norm = self._config.clip_norm
        norms = [] if max_norm is None else [self._optimizer.clip(max_norm)]
        self._optimizer.step(rate)
        read = self._hardware.read_later(torch.stack([*losses, *norms]))
        self.progress = replace(
            self.progress,
            flops=self.progress.flops + flops,
            corpus_pairs=self._corpus_pairs(update),
        )
        return self._reporter(update, rate, started, read)

    def _reporter(
        self,
        update: Update,
        rate: float,
        started: float,
        read: Callable[[], list[float]],
    ) -> Callable[[], StepReport]:
        """Return a function that reports the present update, after `read` has waited.

        The next update may have started by then.
        """
        present, is_packed = self.progress, self._reader.is_packed(self.progress.step)
        shares, stage = self._shares_of_corpora(), self._stage()
        is_by_reward = self._config.is_by_reward(present.step)

        def report() -> StepReport:
            smoothed, likelihood, reward, *norm = read()
            before, self._reported_at = self._reported_at, time.perf_counter()
            return StepReport(
                step=present.step,
                epoch=present.epoch,
                loss=smoothed / update.num_target_tokens,
                perplexity=perplexity(-likelihood, update.num_target_tokens),
                learning_rate=rate,
                gradient_norm=norm[0] if norm else None,
                reward=reward / len(update.target_lengths) if is_by_reward else None,
                num_source_tokens=update.num_source_tokens,
                num_target_tokens=update.num_target_tokens,
                padding=0.0 if is_packed else _padding(update),
                flops=present.flops,
                seconds=self._reported_at - max(started, before),
                shares=shares,
                stage=stage,
            )

        return report

    def _num_at_once(self, update: Update, flops: int) -> int:
        """Return how many micro-batches to compute at once in an update of `flops`."""
        # Batches are split only if little memory is free.
        limits = self._reader.limits
        has_memory = limits.fits_beside_another and limits.max_positions is None
        if not has_memory or self._config.is_by_reward(self.progress.step):
            return 1
        each = flops / len(update.batches)
        return num_at_once(self._batch_loss, self._hardware, each)

    def _corpus_pairs(self, update: Update) -> tuple[int, ...]:
        """Add an update to the pairs of each corpus in this stage."""
        mixture, done = self._batcher.mixture, self.progress.step - 1
        before = self.progress.corpus_pairs
        if mixture is None or not before or mixture.begins_stage(done):
            return update.corpus_pairs
        return tuple(map(add, before, update.corpus_pairs))

    def _shares_of_corpora(self) -> dict[str, float] | None:
        """Return the share of each corpus in the pairs of this stage, by name."""
        if (mixture := self._batcher.mixture) is None:
            return None
        pairs = self.progress.corpus_pairs
        return {
            name: number / sum(pairs)
            for name, number in zip(mixture.names, pairs, strict=True)
        }

    def _stage(self) -> int | None:
        """Return the number of the stage of this update; None without stages."""
        mixture = self._batcher.mixture
        if mixture is None or len(mixture.stages) == 1:
            return None
        return mixture.stage_at(self.progress.step - 1).number

    def _with_samples(self, loaded: LoadedMicroBatch) -> LoadedMicroBatch:
        """Draw samples, which depend on the update and the pair alone."""
        assert self._refinement is not None
        step = self.progress.step
        seeds = [(step, pair) for pair in loaded.micro_batch.indices.tolist()]
        batch = loaded.batch
        assert isinstance(batch, Batch)
        samples = draw_samples(self.model, batch, seeds, self._refinement)
        return replace(loaded, samples=samples)

    def _sample_flops(self, loaded: Sequence[LoadedMicroBatch]) -> int:
        """FLOPs of the samples of an update, in all processes."""
        number, flops = self._config.reward_samples, 0
        for each in loaded:
            if each.samples is not None and each.micro_batch.is_counted:
                batch = each.samples.batch
                sources, targets = (
                    (ids != PAD).sum(dim=1).numpy()
                    for ids in (batch.source[::number], batch.target_out)
                )
                flops += sample_flops(self.model, sources, targets.reshape(-1, number))
        on_device = torch.tensor(flops, device=self._hardware.device)
        return int(self._processes.all_reduce_sum(on_device))

    def _watch_loss(self, report: StepReport) -> None:
        """Update the recent loss; raise `DivergedError` if the loss diverges."""
        before, step = self.progress, report.step
        if self._restarts_loss(step):
            before = replace(before, recent_loss=math.inf, lowest_loss=math.inf)
        recent = report.loss
        if not math.isinf(before.recent_loss):  # infinite before the first step
            recent = before.recent_loss + RECENT * (report.loss - before.recent_loss)
        if not math.isfinite(report.loss):
            raise DivergedError(
                f"The loss must be a number, but is {report.loss} at step {step:,}."
            )
        if recent > before.lowest_loss + DIVERGENCE:
            raise DivergedError(
                f"The loss must not rise, but its moving average has risen from "
                f"{before.lowest_loss:.2f} to {recent:.2f} nats a token at step "
                f"{step:,}."
            )
        lowest = min(before.lowest_loss, recent)
        self.progress = replace(before, recent_loss=recent, lowest_loss=lowest)

    def _restarts_loss(self, step: int) -> bool:
        """Return whether an update begins a phase whose loss may be higher.

        Phases are a new stage of a mixture, and the updates by reward.
        """
        is_by_reward, mixture = self._config.is_by_reward, self._batcher.mixture
        begins_stage = mixture is not None and mixture.begins_stage(step - 1)
        return begins_stage or (is_by_reward(step) and not is_by_reward(step - 1))

    def _require_finite_weights(self) -> None:
        """Raise `DivergedError` rather than save weights that are not finite."""
        checks = [weight.isfinite().all() for weight in self.model.parameters()]
        if not torch.stack(checks).all():
            raise DivergedError(
                "The weights must be numbers, but some are not after step "
                f"{self.progress.step:,}."
            )

    def _learning_rate(self) -> float:
        """Return the rate of this update: by the schedule, times its reductions."""
        d_model, progress = self.model.config.d_model, self.progress
        factor = progress.rate_factor * progress.plateau_factor
        return factor * scheduled_rate(progress.step, d_model, self._config)

    def _is_checkpoint_due(self) -> bool:
        """Return whether a checkpoint is due, by updates or by the clock."""
        if self._config.checkpoint_steps is not None:
            return self.progress.step % self._config.checkpoint_steps == 0
        minutes = (time.monotonic() - self._checkpointed_at) / 60
        # The clock of the first process decides for all.
        is_due = minutes >= self._config.checkpoint_minutes
        return self._in_any_process(is_due and self._processes.is_first)

    def _in_any_process(self, is_true: bool) -> bool:
        """Return whether a condition holds in any process; all must call it."""
        return self._processes.all_reduce_any(is_true, self._hardware.device)


class _PendingReports:
    """Reports of updates that a GPU may still compute, in the order of the updates."""

    def __init__(self, on_report: Callable[[StepReport], None]) -> None:
        self._on_report = on_report
        self._pending: deque[Callable[[], StepReport]] = deque()

    def add(self, report: Callable[[], StepReport]) -> None:
        """Append a function that waits for an update and reports it."""
        self._pending.append(report)

    def deliver(self, num_pending: int = 0) -> None:
        """Deliver reports until at most `num_pending` are left."""
        while len(self._pending) > num_pending:
            report = self._pending.popleft()
            self._on_report(report())

    @contextmanager
    def delivered_before_failure(self) -> Iterator[None]:
        """Deliver what is pending if an update fails."""
        try:
            yield
        except DivergedError:
            raise  # by a report
        except Exception:
            self.deliver()
            raise


def _padding(update: Update) -> float:
    """Return the share of positions that are padding in the batches of an update."""
    num_tokens = update.num_source_tokens + update.num_target_tokens
    return 1 - num_tokens / update.num_positions
