"""Batches of an update that threads compute at once have the results of one by one."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor

from transduce.architectures.config import (
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)
from transduce.checkpoint import build
from transduce.data.batches import Batcher, BatchingConfig
from transduce.device import Hardware
from transduce.experiments.run_training import refinement_of
from transduce.nn.kernels import bf16_unit, nn_api
from transduce.training import trainer as trainer_module
from transduce.training.config import TrainingConfig
from transduce.training.gradients import SingleCoreThreads
from transduce.training.loss import BatchLoss, GuidedAttention
from transduce.training.trainer import StepReport, Trainer, TrainingStoppedError
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(
    nn_api() is None, reason="without the native library batches follow each other"
)

PAIRS = [
    [[3 + (i * j) % 20 for j in range(1, length + 1)] for length in (5, 7)]
    for i in range(64)
]
# Sixteen pairs an update, in two batches.
BATCHING = BatchingConfig(source_tokens=128, target_tokens=128, batch_tokens=64)
THREE_BATCHES = replace(BATCHING, source_tokens=192, target_tokens=192)
TRAINING = TrainingConfig(
    steps=4, warmup_steps=3, learning_rate_scale=0.1, checkpoint_minutes=1_000.0
)
ALL_DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "relu_dropout": 0.1}
LAYERS_IN_ONE_CALL = {"d_model": 32, "d_ff": 64, "d_k": 16, "d_v": 16}
VARIANTS = {
    "the paper's": {},
    "layers in one call": LAYERS_IN_ONE_CALL,
    "recurrent units": {**LAYERS_IN_ONE_CALL, "decoder_self_attention": "ssru"},
    "pre-norm": {"norm": "pre", "activation": "silu"},
    "additive": {"scores": "additive"},
    "neighbourhood": {"neighbourhood": 2},
    "learned positions": {"positions": "learned"},
    "an output bias": {"output_bias": True},
    "two vocabularies": {"target_vocab_size": 23},
}

ARCHITECTURES = {
    "GNMT": RecurrentConfig(
        vocab_size=23, encoder_layers=3, decoder_layers=2, d_model=16, dropout=0.2
    ),
    "RNNsearch": RecurrentConfig(
        vocab_size=23, encoder_layers=1, decoder_layers=1, d_model=16, dropout=0.2,
        cell="gru",
    ),
    "Deep-Att": DeepAttConfig(
        vocab_size=23, encoder_layers=2, decoder_layers=2, embedding_width=8,
        d_model=16, dropout=0.2,
    ),
    "ConvS2S": ConvolutionalConfig(
        vocab_size=23, encoder_blocks="2x16k3", d_embedding=16, dropout=0.2
    ),
    "ByteNet": ByteNetConfig(
        vocab_size=23, num_blocks=2, d_hidden=8, dropout=0.2
    ),
    "Transformer with mixtures": MixtureTransformerConfig(
        vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_k=8, d_v=8,
    ),
    "MoE": MixtureRecurrentConfig(
        vocab_size=23, encoder_layers=3, decoder_layers=2, d_model=16, cells=32
    ),
}  # fmt: skip

Run = tuple[list[StepReport], list[Tensor]]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of batches that were computed at once, one for each time."""
    numbers: list[int] = []
    results = SingleCoreThreads.results

    def counted(self: SingleCoreThreads, functions: list[Callable]):
        numbers.append(len(functions))
        return results(self, functions)

    monkeypatch.setattr(SingleCoreThreads, "results", counted)
    return numbers


@pytest.fixture
def make_trainer(tiny, make_dataset, cpu) -> Callable[..., Trainer]:
    def make(
        dtype=torch.float32,
        batching=BATCHING,
        training=TRAINING,
        guidance=None,
        refinement=None,
        config=tiny,
        **changes,
    ) -> Trainer:
        torch.manual_seed(3)
        if config is tiny:
            config = replace(tiny, **ALL_DROPOUT | changes)
        model = build(config)
        batcher = Batcher(make_dataset(PAIRS), batching, seed=1)
        hardware = replace(cpu, dtype=dtype)
        given = {"guidance": guidance, "refinement": refinement}
        return Trainer(model, batcher, training, hardware, **given)

    return make


def trained(trainer: Trainer, last: int | None = None, threads: int = 2) -> Run:
    """Train with a number of threads; return reports and weights."""
    reports: list[StepReport] = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trainer.train(
            on_step=reports.append,
            should_stop=lambda: trainer.progress.step == last,
        )
    except TrainingStoppedError:
        assert last is not None
    finally:
        assert torch.get_num_threads() == threads
        torch.set_num_threads(before)
    return reports, [each.detach().clone() for each in trainer.model.parameters()]


def assert_same(found: Run, expected: Run) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        assert replace(one, seconds=0.0) == replace(other, seconds=0.0)
    for one, other in zip(found[1], expected[1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_batches_at_once_give_the_weights_of_one_by_one(
    make_trainer, at_once, changes, dtype
):
    if dtype == torch.bfloat16 and bf16_unit() is None:
        pytest.skip("without fast products in bf16")
    one_by_one = trained(make_trainer(dtype, **changes), threads=1)
    assert not at_once
    assert_same(trained(make_trainer(dtype, **changes)), one_by_one)
    assert at_once == [2] * TRAINING.steps


@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batches_of_each_architecture_at_once_give_the_weights_of_one_by_one(
    make_trainer, at_once, config, dtype
):
    if dtype == torch.bfloat16 and bf16_unit() is None:
        pytest.skip("without fast products in bf16")
    one_by_one = trained(make_trainer(dtype, config=config), threads=1)
    assert not at_once
    assert_same(trained(make_trainer(dtype, config=config)), one_by_one)
    assert at_once == [2] * TRAINING.steps


def test_two_passes_over_batches_at_once_give_the_weights_of_one_by_one(
    make_trainer, at_once
):
    training = replace(TRAINING, consistency=3.0)
    one_by_one = trained(make_trainer(training=training), threads=1)
    assert_same(trained(make_trainer(training=training)), one_by_one)
    assert at_once == [2] * TRAINING.steps


def test_a_batch_left_over_uses_all_threads(make_trainer, at_once, monkeypatch):
    numbers: list[int] = []
    forward = BatchLoss.forward

    def recorded(*given):
        numbers.append(torch.get_num_threads())
        return forward(*given)

    monkeypatch.setattr(BatchLoss, "forward", recorded)
    first, again = (trained(make_trainer(batching=THREE_BATCHES)) for _ in range(2))
    assert_same(again, first)
    assert numbers[:3] == [1, 1, 2]
    reports, _ = trained(make_trainer(batching=THREE_BATCHES), threads=1)
    for found, expected in zip(first[0], reports, strict=True):
        assert found.loss == pytest.approx(expected.loss, rel=1e-3)


def test_a_resumed_training_equals_an_uninterrupted_one(make_trainer, at_once):
    trainer = make_trainer(**LAYERS_IN_ONE_CALL)
    trained(trainer, last=2)
    weights = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    state = trainer.state()
    whole = trained(trainer)
    assert at_once
    resumed = make_trainer(**LAYERS_IN_ONE_CALL)
    resumed.model.load_state_dict(weights)
    resumed.restore(state)
    found = trained(resumed)
    assert [each.step for each in found[0]] == [3, 4]
    # FLOPs and losses are those of the same updates.
    assert_same(found, whole)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_in_one_batch_reaches_the_caller_when_all_have_ended(
    make_trainer, monkeypatch, is_first, pass_
):
    ended: list[bool] = []
    begun = count()
    both_have_begun = threading.Barrier(2)
    forward = BatchLoss.forward

    def fail(*_: object) -> None:
        raise FloatingPointError("a batch")

    def end(*_: object) -> None:
        time.sleep(0.2)
        ended.append(True)

    def failing(self, *given):
        fails = (next(begun) == 0) == is_first
        both_have_begun.wait(timeout=PATIENCE_S)
        if fails and pass_ == "forward":
            fail()
        loss = forward(self, *given)
        loss.smoothed.register_hook(fail if fails else end)
        return loss

    monkeypatch.setattr(BatchLoss, "forward", failing)
    with pytest.raises(FloatingPointError, match="a batch"):
        trained(make_trainer())  # which checks the number of threads
    assert ended == [True]


@pytest.mark.usefixtures("two_threads")
def test_threads_keep_their_own_numbers_of_threads():
    threads = SingleCoreThreads()
    others: list[int] = []

    def number_in_another_thread() -> int:
        other = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
        other.start()
        other.join()
        return torch.get_num_threads()

    for _ in range(2):
        assert threads.results([number_in_another_thread] * 3) == [1, 1, 1]
        assert torch.get_num_threads() == 2
    assert others == [2] * 6


@pytest.mark.usefixtures("two_threads")
def test_threads_end_with_the_trainer(make_trainer):
    before = set(threading.enumerate())
    trainer = make_trainer()
    trained(trainer)
    started = [
        each
        for each in set(threading.enumerate()) - before
        if each.name.startswith("batch")
    ]
    assert len(started) == 2
    del trainer
    gc.collect()
    wait_until(lambda: not any(each.is_alive() for each in started))


def test_batches_at_once_leave_the_common_generator_alone(make_trainer, at_once):
    trainer = make_trainer()
    before = torch.get_rng_state()
    trained(trainer)
    assert at_once
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_for_which_there_is_no_memory_at_once_follow_each_other(
    make_trainer, at_once, monkeypatch
):
    trainer = make_trainer()
    found = trainer.find_micro_batch()
    assert not found.was_cut
    growth = replace(found, growth_bytes=2**30)
    monkeypatch.setattr(trainer_module, "find_micro_batch", lambda *_: growth)
    for free, is_room in ((3 * 2**30, True), (2 * 2**30, False)):
        monkeypatch.setattr(Hardware, "free_bytes", lambda *_, free=free: free)
        trainer = make_trainer()
        trainer.find_micro_batch()
        at_once.clear()
        trained(trainer)
        assert bool(at_once) is is_room


def test_large_batches_of_a_transformer_follow_each_other(
    make_trainer, at_once, monkeypatch
):
    monkeypatch.setattr("transduce.training.gradients.MAX_FLOPS_AT_ONCE", 1_000)
    trained(make_trainer())
    assert not at_once
    trained(make_trainer(config=ARCHITECTURES["ByteNet"]))
    assert at_once


def test_batches_cut_for_want_of_memory_follow_each_other(make_trainer, at_once):
    trainer = make_trainer()
    trainer.find_micro_batch(max_positions=60)
    trained(trainer)
    assert not at_once


def test_guided_batches_follow_each_other(make_trainer, at_once):
    every = torch.ones(23, dtype=torch.bool)
    guidance = GuidedAttention(weight=1.0, begins_word=every, takes_word=every)
    trained(make_trainer(guidance=guidance))
    assert not at_once


def test_updates_by_reward_compute_their_batches_one_by_one(make_trainer, at_once):
    training = replace(TRAINING, reward="gleu", reward_steps=2, reward_samples=2)
    trained(make_trainer(training=training, refinement=refinement_of(training)))
    assert 0 < len(at_once) <= TRAINING.steps - 2


def test_with_more_threads_batches_follow_each_other(make_trainer, at_once):
    trained(make_trainer(), threads=3)
    assert not at_once


@pytest.mark.usefixtures("two_threads", "without_native_library")
def test_without_the_native_library_batches_follow_each_other(make_trainer, at_once):
    trained(make_trainer())
    assert not at_once
