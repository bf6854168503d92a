"""The loop against plain PyTorch: updates, reports, checkpoints, stops, validation."""

import math
import operator
import re
import time
from dataclasses import fields, replace
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transduce.architectures.config import CONFIGS
from transduce.checkpoint import Progress
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_mixture import CorpusConfig, CorpusMixture, StageConfig
from transduce.data.dataset import Dataset
from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware
from transduce.errors import ConfigError, LackOfMemoryError, TransduceError
from transduce.experiments.run_training import refinement_of
from transduce.model.config import ModelConfig, update_flops
from transduce.model.transformer import Transformer
from transduce.nn.cross_entropy import Loss
from transduce.training import memory
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ALONE, ProcessGroup
from transduce.training.loss import BatchLoss
from transduce.training.trainer import (
    DivergedError,
    StepReport,
    Trainer,
    TrainingStoppedError,
)
from waiting import wait_until

pytestmark = pytest.mark.slow

CONFIG = TrainingConfig(
    steps=5, warmup_steps=3, learning_rate_scale=0.1, checkpoint_minutes=1_000.0
)
BATCHING = BatchingConfig(source_tokens=60, target_tokens=60, batch_tokens=60)


@pytest.fixture(scope="module")
def dataset(make_dataset, random_pairs):
    return make_dataset(random_pairs(24, 9))


@pytest.fixture
def make_trainer(tiny, dataset, cpu):
    def make(
        config=CONFIG,
        batching=BATCHING,
        dropout=0.0,
        dtype=torch.float32,
        processes=ALONE,
        mixture=None,
    ) -> Trainer:
        torch.manual_seed(5)
        model = Transformer(replace(tiny, num_layers=1, dropout=dropout))
        batcher = Batcher(dataset, batching, config.seed, mixture)
        return Trainer(model, batcher, config, replace(cpu, dtype=dtype), processes)

    return make


def run(trainer: Trainer, **callbacks) -> list[StepReport]:
    reports: list[StepReport] = []
    trainer.train(**{"on_step": reports.append, **callbacks})
    return reports


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def plain_loss(model: Transformer, pairs, label_smoothing: float) -> Tensor:
    """Mean over all target tokens of all pairs in one batch, by plain PyTorch."""
    target_out = padded([[*target, 2] for _, target in pairs])
    logits = model(
        padded([[*source, 2] for source, _ in pairs]),
        padded([[1, *target] for _, target in pairs]),
    )
    return functional.cross_entropy(
        logits.transpose(1, 2),
        target_out,
        ignore_index=0,
        label_smoothing=label_smoothing,
    )


def pairs_of(dataset, update) -> list[tuple[list[int], list[int]]]:
    return [
        (dataset.source[i].tolist(), dataset.target[i].tolist())
        for batch in update.batches
        for i in batch.tolist()
    ]


def test_updates_equal_those_of_plain_adam_with_equation_3(make_trainer, dataset):
    plain = make_trainer().model
    optimizer = torch.optim.Adam(plain.parameters(), betas=(0.9, 0.98), eps=1e-9)
    updates = Batcher(dataset, BATCHING, seed=1).epoch(0)
    losses = []
    for step, update in zip((1, 2, 3), updates, strict=False):
        rate = 0.1 * 16**-0.5 * min(step**-0.5, step * 3**-1.5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = plain_loss(plain, pairs_of(dataset, update), 0.1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trainer = make_trainer(replace(CONFIG, steps=3))
    reports = run(trainer)
    assert [report.loss for report in reports] == pytest.approx(losses, rel=1e-5)
    # Not the weights: a key's bias has no gradient but the error of rounding.
    ids = torch.randint(3, 23, (4, 6))
    torch.testing.assert_close(
        trainer.model(ids, ids), plain(ids, ids), atol=1e-3, rtol=1e-3
    )


def test_the_gradient_is_of_the_mean_loss_over_all_target_tokens(make_trainer, dataset):
    whole = BatchingConfig(source_tokens=10_000, target_tokens=10_000, batch_tokens=50)
    trainer = make_trainer(replace(CONFIG, steps=1), whole)
    plain = make_trainer().model
    pairs = [
        (dataset.source[i].tolist(), dataset.target[i].tolist())
        for i in range(len(dataset))
    ]
    plain_loss(plain, pairs, 0.1).backward()
    run(trainer)
    for ours, theirs in zip(
        trainer.model.parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_a_step_is_reported(make_trainer, dataset):
    trainer = make_trainer(replace(CONFIG, label_smoothing=0.0))
    model = make_trainer().model
    update = next(Batcher(dataset, BATCHING, seed=1).epoch(0))
    likelihood = plain_loss(model, pairs_of(dataset, update), 0.0).item()
    report = run(trainer)[0]
    pairs = pairs_of(dataset, update)
    num_tokens = sum(len(source) + len(target) + 2 for source, target in pairs)
    assert (report.step, report.epoch) == (1, 0)
    assert report.num_source_tokens == sum(len(source) + 1 for source, _ in pairs)
    assert report.num_target_tokens == sum(len(target) + 1 for _, target in pairs)
    assert report.padding == pytest.approx(1 - num_tokens / update.num_positions)
    assert report.loss == pytest.approx(likelihood, rel=1e-4)
    assert report.perplexity == pytest.approx(math.exp(likelihood), rel=1e-4)
    assert report.learning_rate == pytest.approx(0.1 * 16**-0.5 * 3**-1.5)
    assert 0 < report.seconds < 60


def test_the_perplexity_excludes_label_smoothing(make_trainer):
    plain = run(make_trainer(replace(CONFIG, label_smoothing=0.0)))[0]
    smoothed = run(make_trainer(replace(CONFIG, label_smoothing=0.4)))[0]
    assert smoothed.perplexity == pytest.approx(plain.perplexity, rel=1e-5)
    assert smoothed.loss != pytest.approx(plain.loss, rel=1e-3)


def test_training_lowers_the_loss(make_trainer):
    reports = run(make_trainer(replace(CONFIG, steps=25, warmup_steps=10)))
    assert reports[-1].loss < 0.9 * reports[0].loss


def test_steps_and_epochs_are_counted(make_trainer, dataset):
    num_updates = len(list(Batcher(dataset, BATCHING, seed=1).epoch(0)))
    assert num_updates > 2
    trainer = make_trainer(replace(CONFIG, steps=2 * num_updates + 1))
    reports = run(trainer)
    steps = range(1, 2 * num_updates + 2)
    assert [report.step for report in reports] == list(steps)
    assert [report.epoch for report in reports] == [
        (step - 1) // num_updates for step in steps
    ]
    progress = trainer.progress
    assert (progress.step, progress.epoch, progress.update) == (steps[-1], 2, 1)


def test_the_next_batch_is_loaded_while_one_is_in_use(
    make_trainer, dataset, monkeypatch
):
    loads, load, form = [], Dataset.load, BatchLoss.forward
    counts = [len(each.batches) for each in Batcher(dataset, BATCHING, seed=1).epoch(0)]
    formed = []

    def counted(dataset, indices):
        loads.append(indices)
        return load(dataset, indices)

    def once_there_is_more(batch_loss, batch):
        formed.append(batch)
        wait_until(lambda: len(loads) > len(formed))
        return form(batch_loss, batch)

    trainer = make_trainer(replace(CONFIG, steps=len(counts) - 1))
    monkeypatch.setattr(Dataset, "load", counted)
    monkeypatch.setattr(BatchLoss, "forward", once_there_is_more)
    run(trainer)
    assert len(loads) == sum(counts[:-1]) + 1


def test_an_epoch_trains_on_every_pair_once(make_trainer, dataset):
    num_updates = len(list(Batcher(dataset, BATCHING, seed=1).epoch(0)))
    reports = run(make_trainer(replace(CONFIG, steps=num_updates)))
    assert sum(report.num_source_tokens for report in reports) == sum(
        dataset.source.lengths(np.arange(len(dataset))) + 1
    )


def test_a_trainer_at_its_end_does_nothing(make_trainer):
    trainer = make_trainer()
    run(trainer)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    assert run(trainer) == []
    assert all(map(torch.equal, before, trainer.model.parameters()))


@pytest.mark.parametrize(
    ("checkpoint_steps", "expected"),
    [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5]), (None, [5])],
)
def test_checkpoints_are_saved_at_an_interval_of_steps_and_at_the_end(
    make_trainer, checkpoint_steps, expected
):
    trainer = make_trainer(replace(CONFIG, checkpoint_steps=checkpoint_steps))
    saved, noted = [], []
    run(
        trainer,
        save=lambda: saved.append(trainer.progress.step),
        on_checkpoint=lambda: bool(noted.append(trainer.progress.step)),
    )
    assert saved == noted == expected


def test_checkpoints_are_saved_at_an_interval_of_minutes(make_trainer, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    trainer = make_trainer(replace(CONFIG, steps=8, checkpoint_minutes=10.0))
    saved = []

    def pass_four_minutes(_: StepReport) -> None:
        nonlocal now
        now += 240

    run(
        trainer,
        on_step=pass_four_minutes,
        save=lambda: saved.append(trainer.progress.step),
    )
    assert saved == [3, 6, 8]


def events_of(trainer: Trainer, stop_at: int | None = None) -> list[object]:
    """Names of the events of a training, in order, up to its end or its stop."""
    events: list[object] = []
    try:
        run(
            trainer,
            on_step=lambda report: events.append(report.step),
            save=lambda: events.append("saved"),
            on_checkpoint=lambda: bool(events.append("checkpoint")),
            should_stop=lambda: trainer.progress.step == stop_at,
        )
    except TrainingStoppedError as error:
        events.append(str(error))
    return events


def test_a_step_is_reported_before_its_checkpoint_is_saved(make_trainer):
    trainer = make_trainer(replace(CONFIG, steps=2, checkpoint_steps=1))
    assert events_of(trainer) == [1, "saved", "checkpoint", 2, "saved", "checkpoint"]


def test_training_that_runs_ahead_reports_a_step_when_the_next_has_started(
    make_trainer,
):
    trainer = make_trainer(replace(CONFIG, checkpoint_steps=3))
    trainer.runs_ahead = True
    events: list[object] = []
    run(
        trainer,
        on_step=lambda report: events.append((report.step, trainer.progress.step)),
        save=lambda: events.append("saved"),
    )
    assert events == [(1, 2), (2, 3), (3, 3), "saved", (4, 5), (5, 5), "saved"]


def test_a_stop_while_training_runs_ahead_reports_all_steps(make_trainer):
    trainer = make_trainer()
    trainer.runs_ahead = True
    assert events_of(trainer, stop_at=2)[:3] == [1, 2, "saved"]


def test_a_failure_while_training_runs_ahead_comes_after_all_reports(make_trainer):
    trainer = make_trainer()
    trainer.runs_ahead = True
    events: list[int] = []

    def fail_at_the_third_step() -> bool:
        if trainer.progress.step == 3:
            raise OSError("fault")
        return False

    with pytest.raises(OSError, match="fault"):
        run(
            trainer,
            on_step=lambda report: events.append(report.step),
            should_stop=fail_at_the_third_step,
        )
    assert events == [1, 2, 3]


def test_the_times_of_updates_that_overlap_are_not_counted_twice(make_trainer):
    trainer = make_trainer(replace(CONFIG, steps=30))
    trainer.runs_ahead = True
    seconds: list[float] = []
    started = time.perf_counter()
    run(trainer, on_step=lambda report: seconds.append(report.seconds))
    assert len(seconds) == 30
    assert sum(seconds) < time.perf_counter() - started


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_running_ahead_changes_no_figure(make_trainer, clip_norm):
    config = replace(CONFIG, clip_norm=clip_norm, checkpoint_steps=2)

    def reports(*, runs_ahead: bool) -> tuple[list[StepReport], Progress]:
        trainer = make_trainer(config)
        trainer.runs_ahead = runs_ahead
        found: list[StepReport] = []
        run(trainer, on_step=found.append)
        assert all(report.seconds > 0 for report in found)
        return [replace(each, seconds=0.0) for each in found], trainer.progress

    assert reports(runs_ahead=True) == reports(runs_ahead=False)


def test_a_loss_that_is_read_late_ends_training_with_its_step(make_trainer):
    trainer = make_trainer()
    trainer.runs_ahead = True
    with torch.no_grad():
        trainer.model.embedding.weight[2, 0] = math.nan
    events: list[object] = []
    with pytest.raises(DivergedError, match="be a number, but is nan at step 1"):
        run(trainer, on_step=events.append, save=lambda: events.append("saved"))
    assert events == []


@pytest.mark.parametrize("checkpoint_steps", [None, 2], ids=["not due", "due"])
def test_a_request_to_stop_saves_after_the_current_step(make_trainer, checkpoint_steps):
    trainer = make_trainer(replace(CONFIG, checkpoint_steps=checkpoint_steps))
    assert events_of(trainer, stop_at=2) == [
        1,
        2,
        "saved",
        "Training was stopped after step 2 of 5, and is saved.",
    ]


def test_a_stopped_run_ends_with_an_error(make_trainer):
    with pytest.raises(TrainingStoppedError, match="stopped after step 1 of 5, and is"):
        run(make_trainer(), should_stop=lambda: True)


def test_a_request_to_stop_at_the_last_step_is_the_end(make_trainer):
    events = events_of(make_trainer(replace(CONFIG, steps=2)), stop_at=2)
    assert events == [1, 2, "saved", "checkpoint"]


def test_a_stop_is_an_error_for_the_user():
    assert issubclass(TrainingStoppedError, TransduceError)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_loss_ends_training_without_a_checkpoint(make_trainer, value):
    trainer = make_trainer()
    with torch.no_grad():
        trainer.model.embedding.weight[2, 0] = value
    events = []
    with pytest.raises(DivergedError, match="be a number, but is (nan|inf) at step 1"):
        run(trainer, on_step=events.append, save=lambda: events.append("saved"))
    assert events == []


def test_a_steadily_rising_loss_ends_training(make_trainer):
    trainer = make_trainer(replace(CONFIG, steps=200))
    losses = []

    def spoil(report: StepReport) -> None:
        losses.append(report.loss)
        if report.step == 5:
            hopeless(trainer)

    with pytest.raises(DivergedError, match=r"moving average has risen from 3\."):
        run(trainer, on_step=spoil)
    assert len(losses) == 5


def test_a_stage_with_harder_text_is_no_divergence(make_trainer):
    corpora = [CorpusConfig(name=name, source=name, target=name) for name in "ab"]
    stages = [StageConfig(steps=5, weights={"a": 1}), StageConfig(weights={"b": 1})]
    mixture = CorpusMixture(corpora, stages, [12, 12])
    trainer = make_trainer(replace(CONFIG, steps=12), mixture=mixture)
    losses = []

    def spoil(report: StepReport) -> None:
        losses.append(report.loss)
        if report.step == 5:
            hopeless(trainer)

    run(trainer, on_step=spoil)
    assert min(losses[5:]) > max(losses[:5]) + 1
    assert len(losses) == 12


def test_one_high_loss_is_no_divergence(make_trainer):
    trainer = make_trainer(replace(CONFIG, steps=12))
    weights, losses = {}, []

    def spoil_one(report: StepReport) -> None:
        losses.append(report.loss)
        if report.step == 5:
            weights.update(copy_of(trainer.model))
            worsen(trainer)
        elif report.step == 6:
            trainer.model.load_state_dict(weights)

    run(trainer, on_step=spoil_one)
    assert losses[5] > losses[4] + 1
    assert len(losses) == 12


def copy_of(model: Transformer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def worsen(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.embedding.weight *= 4


def test_a_lowered_rate_is_stored_and_resets_the_lowest_loss(make_trainer):
    trainer = make_trainer()
    run(trainer, on_checkpoint=lambda: True)
    assert math.isfinite(trainer.progress.lowest_loss)
    trainer.lower_learning_rate(0.5)
    assert trainer.progress.rate_factor == 0.5
    assert trainer.progress.lowest_loss == math.inf
    whole = run(make_trainer(replace(CONFIG, steps=6)))[-1]
    again = make_trainer(replace(CONFIG, steps=6))
    again.model.load_state_dict(trainer.model.state_dict())
    again.restore(trainer.state())
    [report] = run(again)
    assert report.learning_rate == pytest.approx(whole.learning_rate / 2)


PLATEAU = replace(
    CONFIG,
    schedule="plateau",
    learning_rate=0.25,
    learning_rate_scale=1.0,
    warmup_steps=1,
    optimizer="nesterov",
    momentum=0.99,
)


def test_the_rate_falls_at_a_plateau_until_it_is_too_low(make_trainer):
    trainer = make_trainer(PLATEAU)
    ends = []
    for loss in [3.0, 2.0, 2.5, 1.0, 1.0, math.inf, 1.5]:
        trainer.decay_at_plateau(loss)
        ends.append(trainer.is_rate_spent)
    assert ends == [False, False, False, False, False, False, True]
    assert trainer.progress.lowest_dev_loss == 1.0
    assert trainer.progress.plateau_factor == pytest.approx(1e-4)
    assert run(trainer)[0].learning_rate == pytest.approx(0.25e-4)


def test_a_plateau_does_not_end_training_before_updates_by_reward(tiny, dataset, cpu):
    config = replace(PLATEAU, steps=9, reward="gleu", reward_steps=3)
    trainer = Trainer(
        Transformer(tiny),
        Batcher(dataset, BATCHING, seed=1),
        config,
        cpu,
        refinement=refinement_of(config),
    )
    for loss in [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]:
        trainer.decay_at_plateau(loss)
        assert not trainer.is_rate_spent
    assert trainer.progress.plateau_factor == pytest.approx(1e-3)
    trainer.progress = replace(trainer.progress, step=7, plateau_factor=1.0)
    trainer.decay_at_plateau(3.0)
    assert trainer.progress.plateau_factor == 1.0


def test_only_the_schedule_plateau_ends_training_by_its_rate(make_trainer):
    assert not make_trainer(CONFIG).is_rate_spent
    constant = replace(PLATEAU, schedule="constant", learning_rate=1e-9)
    assert not make_trainer(constant).is_rate_spent


def test_the_clipped_gradient_is_that_of_the_whole_update(make_trainer):
    small = BatchingConfig(source_tokens=60, target_tokens=60, batch_tokens=20)
    plain = replace(PLATEAU, optimizer="sgd", momentum=0.0, schedule="constant")
    [one] = run(make_trainer(replace(plain, steps=1, clip_norm=1e-3)))
    trainer = make_trainer(replace(plain, steps=1, clip_norm=1e-3), small)
    before = torch.nn.utils.parameters_to_vector(trainer.model.parameters())
    [several] = run(trainer)
    after = torch.nn.utils.parameters_to_vector(trainer.model.parameters())
    assert (after - before).norm().item() == pytest.approx(0.25e-3, rel=1e-2)
    assert several.gradient_norm > 1e-3
    assert one.gradient_norm > 1e-3
    assert run(make_trainer())[0].gradient_norm is None


def test_the_recent_loss_follows_the_losses(make_trainer):
    trainer = make_trainer()
    losses = [report.loss for report in run(trainer)]
    recent = losses[0]
    for loss in losses[1:]:
        recent = 0.98 * recent + 0.02 * loss
    assert trainer.progress.recent_loss == pytest.approx(recent)
    assert trainer.progress.lowest_loss <= trainer.progress.recent_loss


def test_an_observer_may_end_training_at_a_checkpoint(make_trainer):
    trainer = make_trainer(replace(CONFIG, checkpoint_steps=2))
    reports = run(trainer, on_checkpoint=lambda: True)
    assert [report.step for report in reports] == [1, 2]


def hopeless(trainer: Trainer) -> Trainer:
    """Scale the embeddings until probabilities of tokens underflow."""
    with torch.no_grad():
        trainer.model.embedding.weight *= 1e4
    return trainer


def test_an_update_with_underflowing_probabilities_has_an_infinite_perplexity(
    make_trainer,
):
    report = run(hopeless(make_trainer(replace(CONFIG, steps=1))))[0]
    assert math.isfinite(report.loss)
    assert report.perplexity == math.inf


def test_a_model_with_underflowing_probabilities_has_an_infinite_perplexity(
    make_trainer, dataset
):
    batcher = Batcher(dataset, BATCHING, seed=0)
    validation = hopeless(make_trainer()).validate(batcher)
    assert math.isfinite(validation.loss)
    assert validation.perplexity == math.inf


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_validation_is_the_mean_over_all_target_tokens(
    make_trainer, dataset, batch_tokens
):
    trainer = make_trainer()
    pairs = [
        (dataset.source[i].tolist(), dataset.target[i].tolist())
        for i in range(len(dataset))
    ]
    smoothed = plain_loss(trainer.model.eval(), pairs, 0.1).item()
    likelihood = plain_loss(trainer.model, pairs, 0.0).item()
    config = replace(BATCHING, batch_tokens=batch_tokens)
    validation = trainer.validate(Batcher(dataset, config, seed=0))
    assert validation.loss == pytest.approx(smoothed, rel=1e-5)
    assert validation.perplexity == pytest.approx(math.exp(likelihood), rel=1e-5)


@pytest.mark.parametrize("can_pack", [False, True])
def test_validation_copies_batches_to_a_gpu_from_pinned_memory(
    make_trainer, dataset, monkeypatch, *, can_pack: bool
):
    """Otherwise the CPU would wait for the GPU in each batch."""
    kind = PackedBatch if can_pack else Batch
    pinned: list[Batch | PackedBatch] = []
    losses: list[Batch | PackedBatch] = []

    def pin(batch):
        pinned.append(batch)
        return batch

    def forward(batch_loss, batch):
        losses.append(batch)
        zero = torch.zeros(())
        return Loss(smoothed=zero, negative_log_likelihood=zero)

    trainer = make_trainer()
    monkeypatch.setattr(BatchLoss, "can_pack", can_pack)
    monkeypatch.setattr(BatchLoss, "forward", forward)
    monkeypatch.setattr(kind, "pinned", pin)
    gpu = Hardware(device=torch.device("cuda", 0), dtype=torch.float32)
    monkeypatch.setattr(trainer, "_hardware", gpu)
    trainer.validate(Batcher(dataset, BATCHING, seed=0))
    assert losses
    assert all(map(operator.is_, pinned, losses))
    assert len(pinned) == len(losses)


def test_validation_uses_no_dropout(make_trainer, dataset):
    trainer = make_trainer(dropout=0.5)
    batcher = Batcher(dataset, BATCHING, seed=0)
    assert trainer.validate(batcher) == trainer.validate(batcher)


def test_validation_does_not_change_training(make_trainer, dataset):
    batcher = Batcher(dataset, BATCHING, seed=0)
    config = replace(CONFIG, checkpoint_steps=2)
    plain = make_trainer(config, dropout=0.3)
    run(plain)
    validated = make_trainer(config, dropout=0.3)
    run(validated, on_checkpoint=lambda: not validated.validate(batcher))
    pairs = zip(plain.model.parameters(), validated.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_training_uses_dropout(make_trainer):
    whole = run(make_trainer())[0]
    dropped = run(make_trainer(dropout=0.3))[0]
    assert dropped.loss != whole.loss


def test_bf16_trains_like_fp32(make_trainer):
    half = make_trainer(dtype=torch.bfloat16)
    losses = [report.loss for report in run(make_trainer())]
    assert [report.loss for report in run(half)] == pytest.approx(losses, rel=0.05)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


def test_muon_multiplies_in_the_precision_of_the_hardware(make_trainer, monkeypatch):
    seen: list[torch.dtype] = []

    def note(matrices: Tensor) -> Tensor:
        seen.append(matrices.dtype)
        return matrices

    optimizer = "transduce.training.optimizer"
    monkeypatch.setattr(f"{optimizer}.has_native_muon", lambda *_: False)
    monkeypatch.setattr(f"{optimizer}.orthogonalized", note)
    config = replace(CONFIG, steps=1, optimizer="muon")
    for dtype in (torch.float32, torch.bfloat16):
        seen.clear()
        run(make_trainer(config, dtype=dtype))
        assert set(seen) == {dtype}


def test_gradients_are_not_cast_on_a_cpu(make_trainer):
    """PyTorch's autocast would cast gradients of products computed in fp32."""
    trainer, seen = make_trainer(dtype=torch.bfloat16), []
    trainer.model.embedding.weight.register_hook(
        lambda _: seen.append(torch.is_autocast_enabled("cpu"))
    )
    run(trainer)
    assert set(seen) == {False}


def test_the_defaults_are_the_papers():
    config = TrainingConfig()
    assert (config.steps, config.warmup_steps) == (100_000, 4_000)
    assert (config.beta1, config.beta2, config.epsilon) == (0.9, 0.98, 1e-9)
    assert (config.label_smoothing, config.learning_rate_scale) == (0.1, 1.0)
    assert (config.checkpoint_minutes, config.keep_checkpoints) == (10.0, 5)


@pytest.mark.parametrize(
    "name", ["steps", "warmup_steps", "keep_checkpoints", "checkpoint_steps"]
)
def test_a_count_below_one_is_refused(name):
    message = f"`training.{name}` must be at least 1, but is 0\\."
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**{name: 0})


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_a_label_smoothing_outside_0_to_1_is_refused(value):
    message = f"must be at least 0 and below 1, but is {value}\\."
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(label_smoothing=value)


def test_flops_of_all_updates_are_counted(make_trainer, dataset):
    trainer = make_trainer()
    reports = run(trainer)
    updates = list(Batcher(dataset, BATCHING, seed=1).epoch(0))
    first = update_flops(
        trainer.model.config, updates[0].source_lengths, updates[0].target_lengths
    )
    assert reports[0].flops == first
    assert reports[-1].flops == trainer.progress.flops
    assert 3 * first < reports[-1].flops < 7 * first


def test_two_passes_over_each_batch_have_twice_the_flops(make_trainer):
    once, twice = make_trainer(), make_trainer(replace(CONFIG, consistency=3.0))
    assert run(twice)[-1].flops == 2 * run(once)[-1].flops


def test_two_passes_without_dropout_train_as_one(make_trainer):
    once, twice = make_trainer(), make_trainer(replace(CONFIG, consistency=3.0))
    losses = [[report.loss for report in run(each)] for each in (once, twice)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def refuse_more_than(
    positions: int,
    monkeypatch,
    error: str | Exception = "DefaultCPUAllocator: can't allocate memory",
) -> list[int]:
    """Make larger batches run out of memory, and record the sizes that are tried."""
    tried = []
    forward = BatchLoss.forward

    def limited(self: BatchLoss, batch):
        tried.append(batch.source.numel() + batch.target_in.numel())
        if tried[-1] > positions:
            raise RuntimeError(error) if isinstance(error, str) else error
        return forward(self, batch)

    monkeypatch.setattr(BatchLoss, "forward", limited)
    return tried


@pytest.mark.parametrize("positions", [25, 50, 80])
def test_batches_are_cut_until_they_fit(make_trainer, monkeypatch, positions):
    whole = make_trainer()
    expected = run(whole)
    tried = refuse_more_than(positions, monkeypatch)
    trainer = make_trainer()
    fit = trainer.find_micro_batch()
    assert fit.was_cut
    assert fit.max_positions <= positions < max(tried)
    del tried[:]
    reports = run(trainer)
    assert max(tried) <= positions
    assert [r.loss for r in reports] == pytest.approx([r.loss for r in expected])


@pytest.mark.parametrize(
    "error",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "HIP error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_memory_that_a_gpus_libraries_lack_cuts_batches(
    make_trainer, monkeypatch, error: str
):
    refuse_more_than(50, monkeypatch, error)
    assert make_trainer().find_micro_batch().max_positions <= 50


@pytest.mark.parametrize(
    "error", [LackOfMemoryError("Computing a batch needs 2 GiB"), MemoryError()]
)
def test_memory_that_the_native_library_or_numpy_lacks_cuts_batches(
    make_trainer, monkeypatch, error: Exception
):
    refuse_more_than(50, monkeypatch, error)
    assert make_trainer().find_micro_batch().max_positions <= 50


def test_another_error_in_a_trial_is_raised(make_trainer, monkeypatch):
    refuse_more_than(50, monkeypatch, "CUDA error: an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal"):
        make_trainer().find_micro_batch()


class SmallerElsewhere(ProcessGroup):
    """Processes of which another has less memory."""

    def all_reduce_min(self, value: float, device: torch.device) -> float:
        return min(value, 30.0)


def test_the_micro_batch_fits_in_all_processes(make_trainer, monkeypatch):
    tried = refuse_more_than(50, monkeypatch)
    trainer = make_trainer(processes=SmallerElsewhere())
    fit = trainer.find_micro_batch()
    assert (fit.max_positions, fit.was_cut) == (30, True)
    del tried[:]
    run(trainer)
    assert max(tried) <= 30


def test_the_micro_batch_is_cut_if_another_process_has_less_memory(make_trainer):
    fit = make_trainer(processes=SmallerElsewhere()).find_micro_batch()
    assert (fit.max_positions, fit.was_cut) == (30, True)


def test_finding_the_micro_batch_does_not_change_training(make_trainer):
    plain, tried = make_trainer(dropout=0.3), make_trainer(dropout=0.3)
    fit = tried.find_micro_batch()
    assert not fit.was_cut
    assert 0 < fit.seconds < 1
    assert fit.peak_bytes > 1e6
    assert all(parameter.grad is None for parameter in tried.model.parameters())
    assert [r.loss for r in run(tried)] == [r.loss for r in run(plain)]


@pytest.mark.parametrize(
    ("free", "least"), [(80, 19), (120, 19), (180, 80), (10_000, 200)]
)
@pytest.mark.parametrize("num_processes", [1, 3])
def test_the_micro_batch_fits_in_the_memory_of_a_cpu(
    make_trainer, monkeypatch, free, least, num_processes
):
    """A position takes one byte here, on top of forty that every batch takes."""
    tried = refuse_more_than(10**9, monkeypatch)

    def free_memory(sharing: int) -> float:
        return num_processes * free / (memory.SAFE_SHARE * sharing)

    def peak_memory(_: torch.device) -> int:
        # Buffers that are made once, and gradients, exist after the first batch.
        return 1_000 + (40 + max(tried[1:]) if tried[1:] else 0)

    monkeypatch.setattr(memory, "forget_peak_memory", lambda _: None)
    monkeypatch.setattr(memory, "peak_memory", peak_memory)
    monkeypatch.setattr(memory, "free_memory", free_memory)
    processes = ProcessGroup(local_world_size=num_processes)
    batching = replace(BATCHING, batch_tokens=120)
    fit = make_trainer(batching=batching, processes=processes).find_micro_batch()
    assert least <= fit.max_positions <= free - 40
    assert fit.max_positions == max(tried)
    assert fit.was_cut == (free < 1_000)
    # Before the whole batch, trials have at most a fourth of its pairs.
    if not fit.was_cut:
        assert max(tried[:-2]) < fit.max_positions / 2


def test_a_resumed_run_keeps_its_cut_micro_batch(make_trainer):
    fit = make_trainer().find_micro_batch(max_positions=30)
    assert (fit.max_positions, fit.was_cut) == (30, True)


@pytest.mark.parametrize(
    ("present", "sizes"),
    [(0.7, "0.7 GB of memory, .* takes 1.1 GB"), (1.009, "1.0 GB .* 1.1 GB")],
)
def test_a_model_that_does_not_fit_in_memory_is_reported(
    monkeypatch, cpu, present, sizes
):
    monkeypatch.setattr(Hardware, "memory_bytes", lambda _: int(present * 1e9))
    with pytest.raises(ConfigError, match=sizes):
        memory.require_memory(ModelConfig(vocab_size=37_000), cpu)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_model_too_large_for_the_memory_names_its_own_sizes(cpu, architecture):
    config = CONFIGS[architecture]()
    with pytest.raises(ConfigError, match="; make .* smaller") as caught:
        memory.require_memory(config, cpu, bytes_per_parameter=10**9)
    width, *others = re.findall(r"`model\.(\w+)", str(caught.value))
    assert width in ("d_model", "d_embedding", "d_hidden")
    assert others
    names = {field.name for field in fields(config)}
    assert {width, *others} <= names


def test_a_pair_that_does_not_fit_in_memory_is_reported(make_trainer, monkeypatch):
    refuse_more_than(0, monkeypatch)
    with pytest.raises(ConfigError, match="The longest pair must fit in memory, but"):
        make_trainer().find_micro_batch()


def test_other_errors_are_not_taken_for_a_lack_of_memory(make_trainer, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(BatchLoss, "forward", fail)
    with pytest.raises(RuntimeError, match="something else"):
        make_trainer().find_micro_batch()


def test_nan_weights_are_not_saved(make_trainer):
    trainer = make_trainer(replace(CONFIG, checkpoint_steps=1))
    saved = []

    def spoil(report: StepReport) -> None:
        if report.step == 2:
            with torch.no_grad():
                trainer.model.embedding.weight[5, 0] = math.nan

    with pytest.raises(DivergedError, match="must be numbers, but some are not after"):
        run(trainer, on_step=spoil, save=lambda: saved.append(trainer.progress.step))
    assert saved == [1]


def test_a_trainer_can_be_reset_to_its_start(make_trainer):
    plain, again = make_trainer(), make_trainer()
    expected = run(plain)
    weights = copy_of(again.model)
    run(again)
    again.model.load_state_dict(weights)
    again.restore(None)
    assert [r.loss for r in run(again)] == [r.loss for r in expected]


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 8.0), (0.75, 2.0)])
def test_the_forecast_leaves_out_the_time_of_other_programs(
    make_trainer, monkeypatch, share, seconds
):
    class Meter:
        def share(self) -> float:
            return share

    monkeypatch.setattr(memory, "WaitingMeter", Meter)
    seconds_now = count(step=8.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds_now))
    fit = make_trainer().find_micro_batch()
    assert fit.seconds * fit.max_positions == pytest.approx(seconds)
    assert fit.waiting_share == share
