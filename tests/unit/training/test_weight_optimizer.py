from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from transduce.checkpoint import build
from transduce.errors import CheckpointError, ConfigError, VersionError
from transduce.experiments.presets import preset
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.optimizer import (
    ADAM_MOMENTS,
    MUON_MOMENTS,
    WeightOptimizer,
    matrices_of,
    moments_of,
    require_moments,
)

MUON = TrainingConfig(optimizer="muon")
SGD = TrainingConfig(optimizer="sgd")
HEAVY_BALL = TrainingConfig(optimizer="sgd", momentum=0.9)
NESTEROV = TrainingConfig(optimizer="nesterov", momentum=0.99)
SGD_AFTER_ADAM = TrainingConfig(
    schedule="constant", learning_rate=0.01, sgd_from_step=3, sgd_learning_rate=0.5
)


def test_muon_updates_only_the_matrices_of_layers(tiny):
    model = Transformer(replace(tiny, positions="learned", scores="additive"))
    moments = moments_of(model, MUON)
    matrices = {name for name, kept in moments.items() if kept == MUON_MOMENTS}
    assert "encoder_layers.0.feed_forward.inner.weight" in matrices
    assert "decoder_layers.1.cross_attention.project_key_value.weight" in matrices
    assert not any("bias" in name or "norm" in name for name in matrices)
    for name in ("embedding.weight", "positions.weight"):
        assert moments[name] == ADAM_MOMENTS
    assert set(moments_of(model, TrainingConfig()).values()) == {ADAM_MOMENTS}


def test_muon_updates_recurrent_gates_and_experts():
    model = build(replace(preset("moe-multi30k").model, vocab_size=30))
    matrices = matrices_of(model)
    lstm, mixture = "upper_encoder.0.rnn", "encoder_mixture"
    counts = {
        f"{lstm}.weight_ih_l0": 4,
        f"{lstm}.weight_hh_l0": 4,
        f"{lstm}.weight_hr_l0": 1,
        f"{mixture}.experts.inner": 8,
        f"{mixture}.experts.outer": 8,
        "attentive.attention.project_query.weight": 1,
    }
    assert {name: matrices[name] for name in counts} == counts
    assert not any("gates" in name or "embedding" in name for name in matrices)
    gru = build(replace(preset("rnnsearch-multi30k").model, vocab_size=30))
    assert matrices_of(gru)["encoder.lowest.rnn.weight_hh_l0"] == 3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bytenet-multi30k", {}),
        ("deep-att-multi30k", {}),
        ("gnmt-multi30k", {"tied_output": False}),
        ("convs2s-multi30k", {"shared_embedding": False}),
    ],
)
def test_muon_leaves_out_the_matrix_of_the_logits(name, changes):
    model = build(replace(preset(name).model, vocab_size=30, **changes))
    matrices, weights = matrices_of(model), dict(model.named_parameters())
    assert all(weights[each] is not model.output_weight for each in matrices)
    assert "output.weight" in weights
    assert "output.weight" not in matrices


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", ["gnmt-multi30k", "moe-multi30k"])
def test_a_rival_continues_with_the_moments_of_muon(name):
    torch.manual_seed(1)
    config = replace(MUON, weight_decay=0.1)
    model = build(replace(preset(name).model, vocab_size=30))
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])

    def updated(model, optimizer) -> None:
        optimizer.zero_grad()
        model.logits(model.decode(ids, model.encode(ids))).logsumexp(
            -1
        ).sum().backward()
        for weight in model.parameters():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        optimizer.step(0.01)

    optimizer = WeightOptimizer(model.eval(), config)
    updated(model, optimizer)
    copy = deepcopy(model)
    restored = WeightOptimizer(copy, config)
    require_moments(model, config, optimizer.state())
    restored.restore(optimizer.state(), step=1)
    updated(model, optimizer)
    updated(copy, restored)
    for weight_name, weight in model.named_parameters():
        assert torch.equal(weight, copy.get_parameter(weight_name)), weight_name


def moved(model: Transformer, optimizer: WeightOptimizer, steps: int) -> None:
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids, ids).logsumexp(dim=-1).sum().backward()
        optimizer.step(0.01)


@pytest.mark.parametrize(
    "config",
    [TrainingConfig(), MUON, HEAVY_BALL, NESTEROV, SGD_AFTER_ADAM],
    ids=["adam", "muon", "sgd with momentum", "nesterov", "sgd after adam"],
)
def test_a_restored_optimizer_makes_the_same_updates(tiny, config):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, config)
    assert not optimizer.has_state
    moved(model, optimizer, 2)
    assert optimizer.has_state
    copy = Transformer(tiny)
    copy.load_state_dict(model.state_dict())
    restored = WeightOptimizer(copy, config)
    state = optimizer.state()
    require_moments(model, config, state)
    restored.restore(state, step=2)
    moved(model, optimizer, 2)
    moved(copy, restored, 2)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, copy.get_parameter(name)), name


def test_a_run_that_continues_another_corrects_the_bias_for_the_updates_of_both(tiny):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, TrainingConfig())
    moved(model, optimizer, 2)
    copy = Transformer(tiny)
    copy.load_state_dict(model.state_dict())
    restored = WeightOptimizer(copy, TrainingConfig())
    restored.restore(optimizer.state(), step=0, earlier=2)
    moved(model, optimizer, 2)
    moved(copy, restored, 2)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, copy.get_parameter(name)), name


PEERS = {
    "sgd": (SGD, {}),
    "momentum": (HEAVY_BALL, {"momentum": 0.9}),
    "nesterov": (NESTEROV, {"momentum": 0.99, "nesterov": True}),
}


def give_gradients(ours: Transformer, theirs: Transformer) -> None:
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        our.grad = torch.randn_like(our)
        their.grad = our.grad.clone()


def assert_close(ours: Transformer, theirs: Transformer) -> None:
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our, their, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", PEERS)
def test_sgd_makes_the_updates_of_pytorch(tiny, kind):
    config, settings = PEERS[kind]
    ours = Transformer(replace(tiny, num_layers=1))
    theirs = deepcopy(ours)
    peer = torch.optim.SGD(theirs.parameters(), lr=0.1, **settings)
    optimizer = WeightOptimizer(ours, config)
    for _ in range(3):
        give_gradients(ours, theirs)
        optimizer.step(0.1)
        peer.step()
    assert_close(ours, theirs)


def test_sgd_after_adam_makes_plain_updates_without_moments(tiny):
    ours = Transformer(replace(tiny, num_layers=1))
    theirs = deepcopy(ours)
    optimizer = WeightOptimizer(ours, SGD_AFTER_ADAM)
    adam = torch.optim.Adam(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9)
    adam.param_groups[0]["lr"] = 0.01
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for step, rate, peer in [(1, 0.01, adam), (2, 0.01, adam), (3, 0.5, sgd)]:
        give_gradients(ours, theirs)
        optimizer.step(rate)
        peer.step()
        assert_close(ours, theirs)
        assert bool(optimizer.state()) == (step < 3)
    require_moments(ours, SGD_AFTER_ADAM, {}, step=3)
    with pytest.raises(CheckpointError, match="must hold `exp_avg"):
        require_moments(ours, SGD_AFTER_ADAM, {}, step=2)


@pytest.mark.parametrize(
    ("config", "count"),
    [(TrainingConfig(), 2), (MUON, 2), (NESTEROV, 1), (SGD, 0)],
    ids=["adam", "muon", "nesterov", "sgd"],
)
def test_the_memory_of_the_moments_is_known_before_the_first_update(
    tiny, config, count
):
    model = Transformer(replace(tiny, num_layers=1))
    moments = WeightOptimizer(model, config).missing_moments()
    total = sum(moment.numel() for moment in moments)
    assert total == count * model.num_parameters()


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_gradients_are_clipped_as_by_pytorch(tiny, max_norm):
    ours = Transformer(replace(tiny, num_layers=1))
    theirs = deepcopy(ours)
    give_gradients(ours, theirs)
    norm = WeightOptimizer(ours, SGD).clip(max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    assert norm == expected
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our.grad, their.grad, atol=0, rtol=0)
    after = torch.cat([weight.grad.flatten() for weight in ours.parameters()]).norm()
    assert after == pytest.approx(min(max_norm, float(norm)), rel=1e-4)


def test_the_state_of_another_optimizer_is_refused(tiny):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, TrainingConfig())
    moved(model, optimizer, 1)
    with pytest.raises(CheckpointError, match=r"must hold `momentum\.encoder_layers"):
        require_moments(model, MUON, optimizer.state())


def test_muons_moment_of_the_logits_is_of_another_version():
    settings = replace(preset("convs2s-multi30k").model, shared_embedding=False)
    model = build(replace(settings, vocab_size=30))
    state = {
        f"{moment}.{name}": torch.zeros_like(weight)
        for name, weight in model.named_parameters()
        for moment in moments_of(model, MUON)[name]
    }
    require_moments(model, MUON, state)
    for moment in ADAM_MOMENTS:
        state["momentum.output.weight"] = state.pop(f"{moment}.output.weight")
    with pytest.raises(VersionError, match=r"but holds `momentum\.output\.weight`"):
        require_moments(model, MUON, state)


def test_a_cleared_optimizer_starts_without_moments(tiny):
    model = Transformer(tiny)
    optimizer = WeightOptimizer(model, MUON)
    moved(model, optimizer, 1)
    optimizer.clear()
    assert not optimizer.has_state


def test_matrices_of_layers_decay_as_with_adamw(tiny):
    config = TrainingConfig(weight_decay=0.3)
    ours = Transformer(replace(tiny, num_layers=1))
    theirs = deepcopy(ours)
    weights, matrices = dict(theirs.named_parameters()), matrices_of(theirs)
    assert 0 < len(matrices) < len(weights)
    peer = torch.optim.AdamW(
        [
            {"params": [w for name, w in weights.items() if name in matrices]},
            {
                "params": [w for name, w in weights.items() if name not in matrices],
                "weight_decay": 0.0,
            },
        ],
        lr=0.1,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )
    optimizer = WeightOptimizer(ours, config)
    for _ in range(3):
        for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
            our.grad = torch.randn_like(our)
            their.grad = our.grad.clone()
        optimizer.step(0.1)
        peer.step()
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our, their, atol=1e-6, rtol=1e-5)


def test_weight_decay_of_muon_never_overshoots_zero(tiny):
    config = TrainingConfig(optimizer="muon", weight_decay=4.0)
    model = Transformer(replace(tiny, num_layers=1))
    weights, matrices = dict(model.named_parameters()), matrices_of(model)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    optimizer = WeightOptimizer(model, config)
    optimizer.step(0.1)
    for name, weight in weights.items():
        expected = before[name] * (0.6 if name in matrices else 1)
        torch.testing.assert_close(weight.detach(), expected, atol=1e-6, rtol=1e-5)
    optimizer.step(1.0)
    assert all(weights[name].abs().max() < 1e-6 for name in matrices)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("weight_decay", -1.0, "at least 0"),
        ("cooldown_share", -0.1, "at least 0"),
        ("cooldown_share", 1.1, "at most 1"),
        ("momentum", 1.0, "at least 0 and below 1"),
        ("clip_norm", 0.0, "above 0 and at most 1,000,000"),
        ("learning_rate", -1.0, "above 0 and at most 10,000"),
        ("decay_factor", 1.0, "above 0 and below 1"),
        ("decay_steps", 0, "at least 1"),
        ("hold_steps", -1, "at least 0"),
    ],
)
def test_settings_outside_their_bounds_are_refused(name, value, bound):
    message = f"`training.{name}` must be {bound}"
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**{name: value})
