"""Initial weights and dropout depend on the seed, the step and the share.

Tests of significance over several seeds rely on this.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.checkpoint import load_model
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.experiments.pipeline import SEEDING, train
from transduce.experiments.presets import PRESETS
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import check
from transduce.nn.kernels import loaded_nn_api, nn_api, tensor_pointer
from transduce.nn.operators import Dropout, new_masking, own_generator, row_blocks
from transduce.training import gradients
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.gradients import own_micro_batches
from transduce.training.trainer import StepReport, Trainer

pytestmark = pytest.mark.usefixtures("quick_runs")


@pytest.fixture(scope="module")
def initial_weights(
    corpus_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
):
    """Initial weights of a run with a seed, up to one tiny update."""

    def weights(seed: int) -> dict[str, Tensor]:
        tiny = PRESETS["tiny"]
        config = replace(
            tiny,
            training=replace(
                tiny.training, steps=1, learning_rate_scale=1e-12, seed=seed
            ),
        )
        out = tmp_path_factory.mktemp("seeds") / "run"
        source, target = corpus_files
        files = CorpusFiles(source=(source,), target=(target,))
        hardware = Hardware(device=torch.device("cpu"), dtype=torch.float32)
        train(files, config, out, hardware)
        return load_model(out).weights

    return weights


def test_the_seed_of_a_run_decides_its_initial_weights(initial_weights):
    one, again, other = initial_weights(1), initial_weights(1), initial_weights(2)
    matrices = [name for name, weight in one.items() if weight.dim() == 2]
    assert matrices
    for name in one:
        assert torch.equal(one[name], again[name]), name
    for name in matrices:
        assert (one[name] - other[name]).abs().mean() > 0.1 * one[name].std(), name


def train_to_the_end(
    trainer: Trainer, on_step: Callable[[StepReport], None] = lambda _: None
) -> None:
    trainer.train(on_step=on_step)


@pytest.fixture
def seeds_of_dropout(monkeypatch: pytest.MonkeyPatch):
    """Function that returns the seeds that a process sets for dropout in a training."""
    given: list[int] = []

    def recording(seed: int) -> AbstractContextManager[None]:
        given.append(seed)
        return own_generator(seed)

    monkeypatch.setattr(gradients, "own_generator", recording)

    def seeds(
        model: Transformer, batcher: Batcher, seed: int, processes: ProcessGroup
    ) -> list[int]:
        given.clear()
        hardware = Hardware(device=torch.device("cpu"), dtype=torch.float32)
        config = TrainingConfig(steps=3, seed=seed)
        train_to_the_end(Trainer(model, batcher, config, hardware, processes))
        return [*given]

    return seeds


@pytest.fixture
def batcher(make_dataset, random_pairs) -> Batcher:
    batching = BatchingConfig(source_tokens=60, target_tokens=60, batch_tokens=30)
    return Batcher(make_dataset(random_pairs(24, 9)), batching, seed=1)


def test_every_share_of_every_step_and_run_has_its_own_dropout(
    tiny: ModelConfig, batcher: Batcher, seeds_of_dropout
):
    alone = ProcessGroup()
    one, other = (
        seeds_of_dropout(Transformer(tiny), batcher, seed, alone) for seed in (1, 2)
    )
    assert len(one) > 3  # several shares per update
    assert len({*one, *other}) == len(one) + len(other)


def test_dropout_gives_the_same_batch_another_loss_in_each_step_and_run(
    tiny: ModelConfig, make_dataset, cpu: Hardware
):
    # Every update is the same batch, and the weights stay as they are.
    dataset = make_dataset([([5, 6, 7, 8], [9, 10, 11, 12])] * 4)
    batching = BatchingConfig(source_tokens=1, target_tokens=1, batch_tokens=1)
    torch.manual_seed(1)
    model = Transformer(replace(tiny, dropout=0.4))

    def losses(seed: int) -> list[float]:
        reports: list[StepReport] = []
        config = TrainingConfig(steps=4, learning_rate_scale=1e-12, seed=seed)
        trainer = Trainer(model, Batcher(dataset, batching, 1), config, cpu)
        train_to_the_end(trainer, reports.append)
        return [round(report.loss, 5) for report in reports]

    one, again, other = losses(1), losses(1), losses(2)
    assert one == again
    assert len({*one, *other}) == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_of_other_threads_do_not_change_dropout(
    tiny: ModelConfig,
    batcher: Batcher,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
):
    torch.manual_seed(1)
    weights = Transformer(tiny).state_dict()

    @contextmanager
    def disturbed(seed: int) -> Iterator[None]:
        with own_generator(seed):
            torch.rand(5)
            yield

    def losses() -> list[float]:
        model = Transformer(replace(tiny, dropout=0.4))
        model.load_state_dict(weights)
        reports: list[StepReport] = []
        hardware = Hardware(device=torch.device("cpu"), dtype=dtype)
        trainer = Trainer(model, batcher, TrainingConfig(steps=3), hardware)
        train_to_the_end(trainer, reports.append)
        return [report.loss for report in reports]

    undisturbed = losses()
    monkeypatch.setattr(gradients, "own_generator", disturbed)
    assert losses() == undisturbed


def test_a_training_leaves_the_generator_of_initial_weights_alone(
    tiny: ModelConfig, batcher: Batcher, cpu: Hardware
):
    model = Transformer(replace(tiny, dropout=0.4))
    trainer = Trainer(model, batcher, TrainingConfig(steps=3), cpu)
    before = torch.default_generator.get_state()
    trainer.find_micro_batch()
    assert torch.equal(torch.default_generator.get_state(), before)
    train_to_the_end(trainer)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_initial_weights_do_not_depend_on_a_training_in_another_thread(
    tiny: ModelConfig, batcher: Batcher, cpu: Hardware
):
    model = Transformer(replace(tiny, dropout=0.4))
    other = Trainer(model, batcher, TrainingConfig(steps=5), cpu)

    def drawn() -> Tensor:
        with SEEDING:
            torch.manual_seed(1)
            return torch.stack([torch.randn(3) for _ in range(2_000)])

    alone = drawn()
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train_to_the_end, other)
        found = [drawn()]
        while not training.done():
            found.append(drawn())
        training.result()
    assert all(torch.equal(each, alone) for each in found)


@pytest.mark.skipif(nn_api() is None, reason="there is no native library")
@pytest.mark.parametrize("changed", [0, 1])
def test_masks_depend_on_both_of_their_seeds(changed: int):
    x = torch.ones(64, 64)

    def masked(seeds: list[int]) -> Tensor:
        kept, masking = new_masking(x, 0.5, row_blocks(x))
        masking.dropout.seeds = seeds
        y = torch.empty_like(x)
        masking.x, masking.y = tensor_pointer(x), tensor_pointer(y)
        check(loaded_nn_api().dropout_forward(masking, 1))
        assert kept.any()
        return y

    seeds = [12_345, 67_890]
    first, again = masked(seeds), masked(seeds)
    seeds[changed] += 1
    other = masked(seeds)
    assert torch.equal(first, again)
    # Masks drawn anew agree in half of the places.
    assert 0.4 < (first == other).float().mean() < 0.6


def test_two_tensors_of_one_seed_have_different_masks():
    torch.manual_seed(1)
    dropout = Dropout(0.5).train()
    first, second = (dropout(torch.ones(64, 64)) for _ in range(2))
    assert 0.4 < (first == second).float().mean() < 0.6


@pytest.mark.parametrize("num_pairs", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 4, 7])
def test_an_update_with_fewer_pairs_than_processes_counts_every_pair_once(
    num_pairs: int, count: int
):
    shares = [
        own_micro_batches(
            [np.arange(num_pairs)],
            ProcessGroup(rank=rank, world_size=count, local_world_size=count),
        )
        for rank in range(count)
    ]
    assert all(
        len(of_one) > 0 for of_one in shares
    )  # every process takes part in every sum
    counted = [share for of_one in shares for share in of_one if share.is_counted]
    assert sorted(i for share in counted for i in share.indices) == list(
        range(num_pairs)
    )
    assert len({share.number for share in counted}) == len(counted)
    assert all(len(of_one) == 1 for of_one in shares)
