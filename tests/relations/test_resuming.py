"""Resumed training equals uninterrupted training, bit for bit."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from transduce.checkpoint import TrainingState
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_mixture import CorpusConfig, CorpusMixture, StageConfig
from transduce.device import Hardware
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.trainer import StepReport, Trainer, TrainingStoppedError

BATCHING = BatchingConfig(source_tokens=60, target_tokens=60, batch_tokens=60)
CONFIG = TrainingConfig(
    steps=4, warmup_steps=3, learning_rate_scale=0.5, checkpoint_minutes=1_000.0
)


@pytest.fixture(scope="module")
def batcher(make_dataset, random_pairs) -> Batcher:
    return Batcher(make_dataset(random_pairs(24, 9)), BATCHING, seed=1)


IN_ONE_CALL = {"d_model": 32, "d_ff": 32, "d_k": 16, "d_v": 16}
RECURRENT = {**IN_ONE_CALL, "decoder_self_attention": "ssru"}


@pytest.fixture(params=[{}, IN_ONE_CALL], ids=["layers one by one", "in one call"])
def make_trainer(request, tiny, batcher, cpu):
    def make(steps: int, weights=None, config=CONFIG, hardware=cpu) -> Trainer:
        torch.manual_seed(3)
        dropouts = {"dropout": 0.3, "attention_dropout": 0.2, "relu_dropout": 0.2}
        small = replace(tiny, num_layers=1, **dropouts, **request.param)
        model = Transformer(small)
        if weights is not None:
            model.load_state_dict(weights)
        return Trainer(model, batcher, replace(config, steps=steps), hardware)

    return make


def run(
    trainer: Trainer, stop_at: int | None = None, on_step=lambda _: None
) -> list[StepReport]:
    reports: list[StepReport] = []

    def note(report: StepReport) -> None:
        reports.append(report)
        on_step(report)

    trainer.train(
        on_step=note,
        should_stop=lambda: trainer.progress.step == stop_at,
    )
    return reports


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: w.clone() for name, w in trainer.model.state_dict().items()}


def copy_of(state: TrainingState) -> TrainingState:
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    return replace(state, tensors=tensors)


def untimed(reports: list[StepReport]) -> list[StepReport]:
    return [replace(report, seconds=0.0) for report in reports]


def assert_equal(actual: Trainer, expected: Trainer) -> None:
    ours, theirs = weights_of(actual), weights_of(expected)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    state, other = actual.state(), expected.state()
    assert state.progress == other.progress
    assert [
        name
        for name in other.tensors
        if not torch.equal(state.tensors[name], other.tensors[name])
    ] == []


def test_the_tested_steps_cross_the_end_of_an_epoch(batcher):
    assert 2 < len(list(batcher.epoch(0))) < 6


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 6])
def test_stopped_and_resumed_training_equals_uninterrupted_training(
    make_trainer, stop_at
):
    require_equal_when_resumed(make_trainer, stop_at)


@pytest.mark.parametrize("make_trainer", [RECURRENT], indirect=True, ids=["recurrent"])
def test_training_of_recurrent_units_resumes_bit_for_bit(make_trainer):
    require_equal_when_resumed(make_trainer, 3)


@pytest.mark.parametrize("make_trainer", [IN_ONE_CALL], indirect=True, ids=["one call"])
def test_training_in_bf16_resumes_bit_for_bit_with_each_unit(make_trainer, bf16_unit):
    bf16 = Hardware(device=torch.device("cpu"), dtype=torch.bfloat16)
    require_equal_when_resumed(partial(make_trainer, hardware=bf16), 3)


def require_equal_when_resumed(make_trainer, stop_at: int) -> None:
    whole = make_trainer(steps=7)
    expected = run(whole)
    stopped = make_trainer(steps=7)
    with pytest.raises(TrainingStoppedError):
        run(stopped, stop_at)
    weights, state = weights_of(stopped), stopped.state()
    torch.rand(100)
    resumed = make_trainer(steps=7, weights=weights)
    resumed.restore(state)
    assert untimed(run(resumed)) == untimed(expected[stop_at:])
    assert_equal(resumed, whole)


KINDS = {
    "sgd": {"optimizer": "sgd", "schedule": "constant"},
    "nesterov": {"optimizer": "nesterov", "momentum": 0.9, "schedule": "constant"},
    "sgd after adam": {
        "sgd_from_step": 3,
        "sgd_learning_rate": 0.1,
        "schedule": "halving",
        "decay_from": 2,
        "decay_steps": 1,
    },
    "plateau": {"optimizer": "sgd", "schedule": "plateau"},
    "consistency": {"consistency": 3.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop_at", [2, 3])
def test_every_optimizer_and_schedule_resumes_bit_for_bit(make_trainer, kind, stop_at):
    config = replace(
        CONFIG,
        learning_rate=0.1,
        learning_rate_scale=1.0,
        clip_norm=0.5,
        warmup_steps=1,
        **KINDS[kind],
    )
    whole = make_trainer(5, config=config)
    if kind == "plateau":
        whole.decay_at_plateau(3.0)
        whole.decay_at_plateau(3.0)
        assert not whole.is_rate_spent
        assert whole.progress.plateau_factor == 0.1
    state, weights = None, None

    def keep(report: StepReport) -> None:
        nonlocal state, weights
        if report.step == stop_at:
            state, weights = copy_of(whole.state()), weights_of(whole)

    expected = run(whole, on_step=keep)
    assert all(report.gradient_norm > 0 for report in expected)
    resumed = make_trainer(5, weights=weights, config=config)
    resumed.restore(state)
    assert untimed(run(resumed)) == untimed(expected[stop_at:])
    assert_equal(resumed, whole)


def test_resumed_training_equals_uninterrupted_training(make_trainer):
    whole = make_trainer(steps=4)
    run(whole)
    first = make_trainer(steps=2)
    run(first)
    weights, state = weights_of(first), first.state()
    second = make_trainer(steps=4, weights=weights)
    second.restore(state)
    run(second)
    assert_equal(second, whole)


def test_training_may_be_stopped_at_every_step(make_trainer):
    whole = make_trainer(steps=4)
    run(whole)
    trainer = make_trainer(steps=1)
    run(trainer)
    for steps in (2, 3, 4):
        state, weights = trainer.state(), weights_of(trainer)
        trainer = make_trainer(steps, weights)
        trainer.restore(state)
        run(trainer)
    assert_equal(trainer, whole)


def test_reading_the_state_does_not_change_training(make_trainer):
    plain = make_trainer(steps=4)
    run(plain)
    asked = make_trainer(steps=4)
    run(asked, on_step=lambda _: asked.state())
    assert [
        name
        for name, weight in weights_of(plain).items()
        if not torch.equal(weight, weights_of(asked)[name])
    ] == []


def test_a_state_does_not_change_while_training_continues(make_trainer):
    trainer = make_trainer(steps=4)
    states = []
    run(
        trainer,
        on_step=lambda _: states.append((trainer.state(), copy_of(trainer.state()))),
    )
    state, copy = states[0]
    assert [
        name
        for name in copy.tensors
        if not torch.equal(copy.tensors[name], state.tensors[name])
    ] == []


def test_a_state_can_be_restored_twice(make_trainer):
    first = make_trainer(steps=2)
    run(first)
    weights, state = weights_of(first), first.state()
    one, other = make_trainer(4, weights), make_trainer(4, weights)
    one.restore(state)
    run(one)
    other.restore(state)
    run(other)
    assert_equal(other, one)


def test_another_seed_gives_other_dropout(make_trainer):
    whole = make_trainer(steps=4)
    run(whole)
    other = make_trainer(steps=4, config=replace(CONFIG, seed=CONFIG.seed + 1))
    run(other)
    assert not torch.equal(other.model.embedding.weight, whole.model.embedding.weight)


@pytest.mark.parametrize("stop_at", [1, 2, 3, 5])
def test_a_mixture_resumed_in_a_stage_trains_as_if_uninterrupted(
    tiny, make_dataset, random_pairs, cpu, stop_at
):
    corpora = [CorpusConfig(name=n, source=n, target=n, weight=1) for n in "ab"]
    stages = (StageConfig(steps=2, weights={"a": 3, "b": 1}), StageConfig())
    mixture = CorpusMixture(corpora, stages, (18, 6))
    dataset = make_dataset(random_pairs(24, 9))

    def make(weights=None) -> Trainer:
        torch.manual_seed(3)
        model = Transformer(replace(tiny, num_layers=1, dropout=0.3))
        if weights is not None:
            model.load_state_dict(weights)
        batcher = Batcher(dataset, BATCHING, seed=1, mixture=mixture)
        return Trainer(model, batcher, replace(CONFIG, steps=8), cpu)

    whole, first = make(), make()
    expected = run(whole)
    with pytest.raises(TrainingStoppedError):
        run(first, stop_at=stop_at)
    second = make(weights_of(first))
    second.restore(copy_of(first.state()))
    rest = run(second)
    found = [replace(report, seconds=0.0) for report in rest]
    assert found == [replace(report, seconds=0.0) for report in expected[stop_at:]]
    assert second.progress == whole.progress
    for name, weight in weights_of(whole).items():
        assert torch.equal(weight, weights_of(second)[name])
    assert [report.stage for report in expected] == [1, 1, *[2] * 6]
    shares = expected[-1].shares
    assert shares is not None
    assert shares["a"] == pytest.approx(0.5, abs=0.1)
