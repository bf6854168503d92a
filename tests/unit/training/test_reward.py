"""Updates by reward follow the gradient of the exact expected reward."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transduce.architectures.config import ExpertsConfig, MixtureTransformerConfig
from transduce.architectures.mixture_layers import Assignment, MixtureOfExperts
from transduce.checkpoint import build
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.tensors import Batch
from transduce.decoding.torch_decoder import ModelSampler
from transduce.device import Hardware
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_training import refinement_of
from transduce.metrics.scores import sentence_gleu
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SamplingConfig
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training import reward
from transduce.training.config import TrainingConfig
from transduce.training.loss import BatchLoss
from transduce.training.memory import SAFE_SHARE
from transduce.training.optimizer import require_moments
from transduce.training.reward import (
    Refinement,
    RewardLoss,
    Samples,
    draw_samples,
    gleu_rewards,
    without_dropout,
)
from transduce.training.trainer import StepReport, Trainer

TRAINER = "transduce.training.trainer"

TOKENS = (EOS, 3, 4)
VOCAB = 5
SOURCES, REFERENCES = [[3, 4, EOS], [4, EOS]], [[3, 4], [4]]
LONGEST = 3
"""Tokens of a sample, with its end token."""


class Encoded(SimpleNamespace):
    """Sum of the embeddings of each source."""


class Toy(nn.Module):
    """A bag-of-words encoder and a bigram decoder, whose outputs can be enumerated."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 4)
        self.output_weight = nn.Parameter(torch.randn(VOCAB, 4))
        never = torch.zeros(VOCAB)
        never[[PAD, BOS]] = -1e4
        self.register_buffer("output_bias", never)
        self.config = ModelConfig(vocab_size=VOCAB, d_model=4)
        self.cross_attention_taps: list[nn.Module] = []

    def encode(self, source: Tensor) -> Encoded:
        is_token = (source != PAD)[..., None]
        states = (self.embedding(source) * is_token).sum(1, keepdim=True)
        return Encoded(states=states, mask=is_token[:, None, None, :, 0])

    def decode(self, target_in: Tensor, memory: Encoded) -> Tensor:
        return torch.tanh(self.embedding(target_in) + memory.states)

    def logits(self, states: Tensor) -> Tensor:
        return states @ self.output_weight.T + self.output_bias

    def start(self, memory: Encoded) -> NoReturn:
        raise NotImplementedError

    step = num_parameters = update_flops = start


def finished_or_cut() -> list[tuple[int, ...]]:
    """Enumerate all samples: those that end, and those that are cut."""
    ended = [
        (*words, EOS)
        for length in range(LONGEST)
        for words in product(TOKENS[1:], repeat=length)
    ]
    return ended + list(product(TOKENS[1:], repeat=LONGEST))


def log_probability(model: Toy, source: list[int], sample: Sequence[int]) -> Tensor:
    memory = model.encode(torch.tensor([source]))
    states = model.decode(torch.tensor([[BOS, *sample[:-1]]]), memory)
    log_probs = model.logits(states).log_softmax(-1)[0]
    return log_probs[range(len(sample)), list(sample)].sum()


def words_of(sample: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token in sample if token != EOS)


def expected_reward(model: Toy) -> Tensor:
    """Sum over sentences of the exact expected GLEU."""
    return torch.stack(
        [
            log_probability(model, source, sample).exp()
            * sentence_gleu(words_of(sample), reference)
            for source, reference in zip(SOURCES, REFERENCES, strict=True)
            for sample in finished_or_cut()
        ]
    ).sum()


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch() -> Batch:
    return Batch(
        source=padded(SOURCES),
        target_in=padded([[BOS, *each] for each in REFERENCES]),
        target_out=padded([[*each, EOS] for each in REFERENCES]),
    )


def in_proportion(number: int):
    """Sampler that returns every sample as often as its probability says."""

    def draw(model, sources, max_lengths, names) -> list[list[tuple[int, ...]]]:
        found = []
        for source in sources:
            chances = [
                log_probability(model, source, each).exp() for each in finished_or_cut()
            ]
            reached = torch.stack(chances).cumsum(0)
            aims = (torch.arange(number) + 0.5) / number
            places = torch.searchsorted(reached, aims).clamp(max=len(chances) - 1)
            found.append([finished_or_cut()[i] for i in places.tolist()])
        return found

    return draw


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.setattr(reward, "MAX_EXTRA_TOKENS", 0)
    torch.manual_seed(4)
    return Toy()


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([each.flatten() for each in grads])


def objective(
    model: Toy, hardware, refinement: Refinement
) -> tuple[RewardLoss, Samples]:
    loss = BatchLoss(
        model, 0.1, hardware, likelihood_weight=refinement.likelihood_weight
    )
    samples = draw_samples(model, batch(), [(0, 0), (0, 1)], refinement)
    return loss(batch(), samples), samples


def test_the_gradient_is_that_of_the_exact_expected_reward(toy: Toy, cpu) -> None:
    refinement = Refinement(
        sampler=in_proportion(5_000), reward=gleu_rewards, likelihood_weight=0.0
    )
    loss, samples = objective(toy, cpu, refinement)
    exact = expected_reward(toy)
    assert samples.reward == pytest.approx(exact.item(), abs=1e-3)
    expected = gradient(exact, toy)
    assert expected.norm() > 0.05
    torch.testing.assert_close(
        gradient(-loss.objective, toy), expected, atol=1e-3, rtol=0
    )


def test_the_objective_mixes_the_reward_with_the_likelihood(toy: Toy, cpu) -> None:
    plain = Refinement(
        sampler=in_proportion(50), reward=gleu_rewards, likelihood_weight=0.0
    )
    mixed = replace(plain, likelihood_weight=0.5)
    losses = [objective(toy, cpu, each)[0] for each in (plain, mixed)]
    likelihood = BatchLoss(toy, 0.1, cpu)(batch()).smoothed
    assert losses[1].smoothed == likelihood
    assert not losses[1].smoothed.requires_grad
    expected = gradient(losses[0].objective + 0.5 * likelihood, toy)
    torch.testing.assert_close(gradient(losses[1].objective, toy), expected)


def test_equal_rewards_have_no_gradient(toy: Toy, cpu) -> None:
    refinement = Refinement(
        sampler=in_proportion(50),
        reward=lambda samples, _: [0.7] * len(samples),
        likelihood_weight=0.0,
    )
    loss, samples = objective(toy, cpu, refinement)
    assert samples.reward == pytest.approx(1.4)
    assert gradient(loss.objective, toy).abs().max() < 1e-6


def test_logits_in_parts_give_the_same_gradient(
    toy: Toy, cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    refinement = Refinement(
        sampler=in_proportion(50), reward=gleu_rewards, likelihood_weight=0.1
    )
    whole = gradient(objective(toy, cpu, refinement)[0].objective, toy)
    monkeypatch.setattr("transduce.training.loss.SAMPLE_LOGITS", 3 * VOCAB)
    parts = gradient(objective(toy, cpu, refinement)[0].objective, toy)
    torch.testing.assert_close(parts, whole)


def test_samples_have_the_probabilities_of_the_model(tiny) -> None:
    torch.manual_seed(2)
    model = Transformer(replace(tiny, num_layers=1, vocab_size=5)).eval()
    draw = ModelSampler(SamplingConfig(number=4_000, seed=3))
    [samples] = draw(model, [[3, 4, EOS]], [2], [(7, 1)])
    assert len(samples) == 4_000
    with torch.no_grad():
        memory = model.encode(torch.tensor([[3, 4, EOS]]))
        logits = model.logits(model.decode(torch.tensor([[BOS, 3]]), memory))[0]
        logits[:, [PAD, BOS]] = -math.inf
        first, second = logits.softmax(-1)
    assert {len(each) for each in samples} == {1, 2}
    for sample in [(EOS,), (3, 3), (3, 4), (3, EOS)]:
        chance = first[EOS] if len(sample) == 1 else first[3] * second[sample[1]]
        share = samples.count(sample) / len(samples)
        assert share == pytest.approx(chance.item(), abs=0.03), sample


def test_the_samples_of_a_sentence_depend_on_its_name_alone(tiny) -> None:
    model = Transformer(replace(tiny, num_layers=1)).eval()
    draw = ModelSampler(SamplingConfig(number=5, seed=3))
    sources = [[3, 4, 9, EOS], [8, EOS]]
    both = draw(model, sources, [9, 5], [(7, 1), (7, 2)])
    [alone] = draw(model, sources[1:], [5], [(7, 2)])
    assert alone == both[1]
    assert draw(model, sources, [9, 5], [(8, 1), (8, 2)]) != both
    assert all(len(each) <= 5 for each in alone)


def test_dropout_is_off_but_cudnn_keeps_its_training_mode(tiny) -> None:
    model = Transformer(tiny)
    model.recurrent = nn.LSTM(2, 2)
    without_dropout(model)
    modes = {type(each).__name__: each.training for each in model.modules()}
    assert modes.pop("LSTM")
    assert not any(modes.values())


BATCHING = BatchingConfig(source_tokens=60, target_tokens=60, batch_tokens=60)
REWARD = TrainingConfig(
    steps=5,
    warmup_steps=2,
    learning_rate_scale=0.1,
    checkpoint_minutes=1_000.0,
    reward="gleu",
    reward_steps=3,
    reward_samples=4,
)


@pytest.fixture(scope="module")
def dataset(make_dataset, random_pairs):
    return make_dataset(random_pairs(24, 9))


@pytest.fixture
def make_trainer(tiny, dataset, cpu):
    def make(config: TrainingConfig = REWARD, weights=None) -> Trainer:
        torch.manual_seed(5)
        model = Transformer(replace(tiny, num_layers=1, dropout=0.3))
        if weights is not None:
            model.load_state_dict(weights)
        batcher = Batcher(dataset, BATCHING, seed=config.seed)
        refinement = refinement_of(config)
        return Trainer(model, batcher, config, cpu, refinement=refinement)

    return make


def run(trainer: Trainer, on_step=lambda _: None) -> list[StepReport]:
    reports: list[StepReport] = []

    def note(report: StepReport) -> None:
        reports.append(replace(report, seconds=0.0))
        on_step(report)

    trainer.train(on_step=note)
    return reports


def test_only_the_last_updates_are_by_reward(make_trainer) -> None:
    rewards = [report.reward for report in run(make_trainer())]
    assert rewards[:2] == [None, None]
    assert all(0 < reward < 1 for reward in rewards[2:])
    likelihood = replace(REWARD, reward="none", reward_steps=None)
    assert {report.reward for report in run(make_trainer(likelihood))} == {None}


def test_the_flops_of_updates_by_reward_include_their_samples(
    make_trainer, dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Samples] = []

    def draw(*arguments) -> Samples:
        drawn.append(draw_samples(*arguments))
        return drawn[-1]

    trainer = make_trainer()
    trainer.find_micro_batch(max_positions=60)  # several shares in each update
    monkeypatch.setattr(f"{TRAINER}.draw_samples", draw)
    reports = run(trainer)
    model = trainer.model

    def of_pairs(*lengths: list[int]) -> int:
        return model.update_flops(*(np.array(each) for each in lengths))

    batcher = Batcher(dataset, BATCHING, seed=REWARD.seed)
    updates = [each for epoch in range(5) for each in batcher.epoch(epoch)]
    expected = sum(
        of_pairs(each.source_lengths, each.target_lengths) for each in updates[:5]
    )
    for samples in drawn:
        sources = (samples.batch.source != PAD).sum(1).tolist()
        targets = (samples.batch.target_out != PAD).sum(1).tolist()
        alone = of_pairs(sources[::4], [0] * len(sources[::4]))
        every = of_pairs(sources, targets)
        decoders = every - of_pairs(sources, [0] * len(sources))
        expected += every + (alone + decoders) // 3
    assert len(drawn) > 3
    assert reports[-1].flops == pytest.approx(expected, rel=1e-9)


def test_a_resumed_run_has_the_same_updates_by_reward(make_trainer) -> None:
    whole, saved = make_trainer(), []

    def keep(report: StepReport) -> None:
        if report.step <= 3:
            weights = {n: w.clone() for n, w in whole.model.state_dict().items()}
            saved.append((report.step, weights, whole.state()))

    expected = run(whole, keep)
    assert len(saved) == 3
    for step, weights, state in saved:
        resumed = make_trainer(weights=weights)
        resumed.restore(state)
        assert run(resumed) == expected[step:]
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_updates_by_reward_do_not_depend_on_the_micro_batch(make_trainer) -> None:
    config = replace(REWARD, steps=1, reward_steps=1)
    whole, cut = make_trainer(config), make_trainer(config)
    cut.find_micro_batch(max_positions=60)
    one, other = run(whole), run(cut)
    assert other[0].reward == pytest.approx(one[0].reward, abs=1e-6)
    assert other[0].loss == pytest.approx(one[0].loss, rel=1e-5)
    for ours, theirs in zip(
        whole.model.parameters(), cut.model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("num_fitting", "num_batches"), [(0, 0.5), (1, 0.5), (6, 3), (1e9, 10)]
)
def test_a_micro_batch_with_its_samples_fits_in_half_of_the_free_memory(
    make_trainer, monkeypatch, num_fitting, num_batches
) -> None:
    """Four samples a pair, so a batch with its samples is as large as five."""
    found = make_trainer().find_micro_batch()
    longest = found.max_positions
    growth = replace(found, growth_bytes=100)
    monkeypatch.setattr(f"{TRAINER}.find_micro_batch", lambda *_: growth)
    free = num_fitting * 100 / SAFE_SHARE
    monkeypatch.setattr(Hardware, "free_bytes", lambda *_: free)
    found = make_trainer().find_micro_batch()
    assert found.reward_positions == num_batches * longest
    earlier = int(max(num_fitting, 1) * longest)
    for positions, is_kept in ((earlier, True), (earlier + 1, False)):
        found = make_trainer().find_micro_batch(reward_positions=positions)
        assert (found.reward_positions == positions) is is_kept


def test_a_cut_micro_batch_with_its_samples_takes_half_of_its_positions(
    make_trainer,
) -> None:
    found = make_trainer().find_micro_batch(max_positions=60)
    assert (found.max_positions, found.reward_positions) == (60, 30)


def test_memory_suffices_for_the_longest_samples(make_trainer, monkeypatch) -> None:
    longest: list[int] = []

    def full(model, sources, max_lengths, names):
        del model, names
        longest.append(max(map(len, sources)) + max(max_lengths))
        return [[tuple([5] * m)] * 4 for m in max_lengths]

    def counted(model, batch, names, refinement):
        return draw_samples(model, batch, names, replace(refinement, sampler=full))

    monkeypatch.setattr(f"{TRAINER}.draw_samples", counted)
    trainer, positions = make_trainer(replace(REWARD, steps=1, reward_steps=1)), []
    bound = trainer.find_micro_batch(reward_positions=400).reward_positions
    forward = BatchLoss.forward

    def measured(self, batch, samples=None):
        if samples is not None:
            both = (batch, samples.batch)
            positions.append(
                sum(each.source.numel() + each.target_in.numel() for each in both)
            )
        return forward(self, batch, samples)

    monkeypatch.setattr(BatchLoss, "forward", measured)
    run(trainer)
    assert bound == 400
    assert bound / 2 < max(positions) <= bound


def test_samples_are_drawn_for_as_many_pairs_as_fit_in_memory(
    make_trainer, monkeypatch
) -> None:
    drawn: list[int] = []

    def counted(model, batch, names, refinement):
        drawn.append(len(names))
        return draw_samples(model, batch, names, refinement)

    monkeypatch.setattr(f"{TRAINER}.draw_samples", counted)
    config = replace(REWARD, steps=1, reward_steps=1)
    few, many = make_trainer(config), make_trainer(config)
    few.find_micro_batch(reward_positions=few.find_micro_batch().max_positions)
    run(few)
    num_few, num_pairs = len(drawn), sum(drawn)
    drawn.clear()
    many.find_micro_batch()
    run(many)
    assert sum(drawn) == num_pairs
    assert len(drawn) < num_few


def test_the_loss_is_compared_with_the_start_of_its_phase(make_trainer) -> None:
    trainer = make_trainer()

    def worsen(report: StepReport) -> None:
        if report.step == 2:
            trainer.progress = replace(trainer.progress, lowest_loss=-9.0)

    reports = run(trainer, worsen)
    assert trainer.progress.lowest_loss > 0
    assert len(reports) == 5


def test_updates_by_reward_need_a_sampler(tiny, dataset, cpu) -> None:
    batcher = Batcher(dataset, BATCHING, seed=1)
    with pytest.raises(ValueError, match="need a sampler"):
        Trainer(Transformer(tiny), batcher, REWARD, cpu)


SMALL = [name for name in PRESETS if name.endswith("multi30k")]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", SMALL)
def test_every_architecture_is_trained_by_reward(name: str, dataset, cpu) -> None:
    torch.manual_seed(1)
    model = build(replace(PRESETS[name].model, vocab_size=30))
    before = {n: w.detach().clone() for n, w in model.named_parameters()}
    config = replace(REWARD, steps=1, reward_steps=1, reward_samples=2)
    batching = BatchingConfig(source_tokens=30, target_tokens=30, batch_tokens=30)
    batcher, refinement = Batcher(dataset, batching, seed=1), refinement_of(config)
    trainer = Trainer(model, batcher, config, cpu, refinement=refinement)
    [report] = run(trainer)
    assert report.reward is not None
    assert 0 < report.reward < 1
    moved = [n for n, w in model.named_parameters() if not torch.equal(w, before[n])]
    assert len(moved) > len(before) / 2
    # Processes wait for the gradients of all weights, and checkpoints have all moments.
    assert all(w.grad is not None for w in trainer.model.parameters())
    require_moments(trainer.model, config, trainer.state().tensors)


GATINGS = [("noisy-top-k", None), ("batchwise", None), ("batchwise", 2)]


@pytest.fixture(params=GATINGS, ids=["noisy", "batchwise", "hierarchical"])
def mixture(request) -> MixtureTransformerConfig:
    gating, groups = request.param
    experts = ExpertsConfig(
        num_experts=4, top_k=1, d_ff=8, gating=gating, num_groups=groups
    )
    return MixtureTransformerConfig(
        vocab_size=30, num_layers=1, d_model=16, num_heads=2, d_k=8, d_v=8,
        dropout=0.5, experts=experts,
    )  # fmt: skip


@pytest.mark.usefixtures("unchecked_types")
def test_mixtures_keep_their_balance_in_updates_by_reward(
    mixture, dataset, cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The references train gates and thresholds, even without likelihood."""
    torch.manual_seed(1)
    config = replace(REWARD, steps=1, reward_steps=1, likelihood_weight=0.0)
    refinement = replace(refinement_of(config), reward=lambda ids, _: [0.5] * len(ids))
    batcher = Batcher(dataset, BATCHING, seed=1)
    trainer = Trainer(build(mixture), batcher, config, cpu, refinement=refinement)
    modes: list[bool] = []
    assign = MixtureOfExperts.assign

    def noted(layer: MixtureOfExperts, rows: Tensor) -> Assignment:
        if torch.is_grad_enabled():
            modes.append(layer.training)
        assert not trainer.model.dropout.training
        return assign(layer, rows)

    monkeypatch.setattr(MixtureOfExperts, "assign", noted)
    run(trainer)
    # Encoder and decoder of references, then of samples, in each share.
    assert modes == [True, True, False, False] * (len(modes) // 4)
    trained = "log_thresholds" if "batch" in mixture.experts.gating else "noise"
    weights = trainer.model.named_parameters()
    found = [w.grad for name, w in weights if name.endswith(trained)]
    assert len(found) >= 2
    assert all(each is not None and each.abs().max() > 0 for each in found)
    layers = [m for m in trainer.model.modules() if isinstance(m, MixtureOfExperts)]
    assert not any(layer.take_loss().requires_grad for layer in layers)
