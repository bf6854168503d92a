"""Mixtures of experts: gates, losses and grouped products against their formulas."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transduce.architectures.config import ExpertsConfig
from transduce.architectures.mixture_layers import (
    Experts,
    GroupedRows,
    MixtureOfExperts,
    NoisyTopKGate,
    squared_variation,
)
from transduce.errors import ConfigError

WIDTH = 6


def drawn(module: nn.Module, seed: int = 1, std: float = 0.7) -> nn.Module:
    """Give all weights other values than the first ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            # Thresholds near those of equal gates, so that some gates are above.
            weight.copy_(weight + 0.1 * noise if "threshold" in name else std * noise)
    return module


def mixture(seed: int = 1, **settings: object) -> MixtureOfExperts:
    defaults = {"num_experts": 8, "top_k": 2, "d_ff": 5}
    layer = MixtureOfExperts(WIDTH, ExpertsConfig(**{**defaults, **settings}))  # type: ignore[arg-type]
    drawn(layer, seed)
    return layer


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def relu_network(layer: MixtureOfExperts, expert: int, x: np.ndarray) -> np.ndarray:
    inner = layer.experts.inner[expert].detach().double().numpy()
    outer = layer.experts.outer[expert].detach().double().numpy()
    return np.maximum(x @ inner, 0) @ outer


def gate_matrix(layer: MixtureOfExperts, level: int) -> np.ndarray:
    return layer.gates[level].weight.detach().double().numpy()


def top_k_gates(logits: np.ndarray, k: int) -> dict[int, float]:
    """Softmax over the k largest logits, by their indices."""
    kept = sorted(range(len(logits)), key=lambda i: -logits[i])[:k]
    return dict(zip(kept, softmax(logits[kept]), strict=True))


def tokens(batch: int = 3, length: int = 4, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, WIDTH, generator=generator)


def all_true(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


# Grouped products


@pytest.mark.parametrize(
    "sizes", [[3, 3, 3], [0, 7, 1, 2, 0], [1], [0, 0, 4], [17, 1, 16, 2, 0, 9]]
)
def test_a_grouped_product_equals_a_loop_over_the_groups(sizes: list[int]) -> None:
    torch.manual_seed(1)
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    rows = torch.randn(sum(sizes), 4, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(len(sizes), 4, 5, dtype=torch.float64, requires_grad=True)
    layout = GroupedRows(groups, len(sizes))
    found = layout.unpad(layout.product(layout.pad(rows), matrices))
    expected = torch.stack(
        [row @ matrices[group] for row, group in zip(rows, groups, strict=True)]
    )
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    gradients = [
        torch.autograd.grad((y * weights).sum(), (rows, matrices), retain_graph=True)
        for y in (found, expected)
    ]
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_padding_of_a_grouped_product_is_less_than_the_rows_however_unequal() -> None:
    groups = torch.repeat_interleave(
        torch.arange(40), torch.tensor([1] * 20 + [3] * 19 + [500])
    )
    padded = len(GroupedRows(groups, 40).pad(torch.zeros(len(groups), 1)))
    assert len(groups) <= padded < 2 * len(groups)


def test_groups_of_the_same_size_are_not_padded() -> None:
    groups = torch.arange(6).repeat_interleave(5)
    assert len(GroupedRows(groups, 6).pad(torch.zeros(30, 1))) == 30


def test_no_rows_have_no_product() -> None:
    experts = Experts(4, WIDTH, 5)
    none = torch.zeros(0, dtype=torch.int64)
    assert experts(torch.zeros(0, WIDTH), none).shape == (0, WIDTH)


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("gating", ["noisy-top-k", "batchwise"])
def test_experts_compute_the_same_in_bf16(groups, gating) -> None:
    layer = mixture(num_groups=groups, gating=gating, d_ff=32)
    x = tokens()
    expected = layer(x, all_true(x))
    torch.manual_seed(1)
    expected = layer(x, all_true(x))
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, all_true(x))
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)
    found.sum().backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in weights(layer))


def weights(layer: MixtureOfExperts) -> list[Tensor]:
    return [w for name, w in layer.named_parameters() if "threshold" not in name]


# Noisy top-k


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_top_k_gating_equals_its_formula(k: int) -> None:
    layer = mixture(top_k=k).eval()
    x = tokens()
    found = layer(x, all_true(x)).detach().double().numpy()
    matrix = gate_matrix(layer, 0)[0]
    for row, y in zip(
        x.double().numpy().reshape(-1, WIDTH), found.reshape(-1, WIDTH), strict=False
    ):
        gates = top_k_gates(row @ matrix, k)
        expected = sum(g * relu_network(layer, i, row) for i, g in gates.items())
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_hierarchical_gates_are_products_of_both_levels() -> None:
    layer = mixture(num_experts=12, num_groups=4).eval()
    x = tokens()
    found = layer(x, all_true(x)).detach().double().numpy()
    first, second = gate_matrix(layer, 0)[0], gate_matrix(layer, 1)
    for row, y in zip(
        x.double().numpy().reshape(-1, WIDTH), found.reshape(-1, WIDTH), strict=False
    ):
        expected = np.zeros(WIDTH)
        for group, outer in top_k_gates(row @ first, 2).items():
            for expert, inner in top_k_gates(row @ second[group], 2).items():
                network = relu_network(layer, 3 * group + expert, row)
                expected += outer * inner * network
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_noise_has_the_deviation_of_softplus() -> None:
    gate = NoisyTopKGate(WIDTH, 1, 2, 1)
    drawn(gate, std=0.4)
    row = tokens()[0, :1]
    clean = (row @ gate.weight[0]).double()[0]
    deviation = torch.nn.functional.softplus(row @ gate.noise[0]).double()[0] + 1e-2
    rows = row.expand(40_000, -1)
    torch.manual_seed(3)
    choice = gate(rows, torch.zeros(len(rows), dtype=torch.int64))
    # The difference of two normal variables is normal.
    scale = (deviation**2).sum().sqrt()
    expected = torch.special.ndtr((clean[0] - clean[1]) / scale)
    assert choice.gates[:, 0].mean().item() == pytest.approx(expected.item(), abs=0.01)


def test_gates_have_no_noise_in_evaluation() -> None:
    layer = mixture().eval()
    x = tokens()
    assert torch.equal(layer(x, all_true(x)), layer(x, all_true(x)))
    layer.train()
    assert not torch.equal(layer(x, all_true(x)), layer(x, all_true(x)))


def test_the_load_of_a_row_is_the_probability_to_be_chosen_again() -> None:
    gate = NoisyTopKGate(WIDTH, 1, 5, 2)
    drawn(gate, std=0.5)
    row, parent = tokens()[0, :1], torch.zeros(1, dtype=torch.int64)
    torch.manual_seed(4)
    load = gate(row, parent).load
    assert load is not None
    torch.manual_seed(4)
    noise = torch.randn(1, 5)[0]
    clean = (row @ gate.weight[0])[0]
    deviation = torch.nn.functional.softplus(row @ gate.noise[0])[0] + 1e-2
    noisy = clean + noise * deviation
    random = torch.Generator().manual_seed(5)
    for expert in range(5):
        again = noisy.repeat(50_000, 1)
        fresh = torch.randn(len(again), generator=random)
        again[:, expert] = clean[expert] + fresh * deviation[expert]
        chosen = (again.topk(2, dim=1).indices == expert).any(dim=1)
        expected = chosen.double().mean().item()
        assert load[0, expert].item() == pytest.approx(expected, abs=0.01)


def test_the_load_of_a_hierarchy_multiplies_both_levels() -> None:
    layer = mixture(num_experts=6, num_groups=3, importance_weight=0.0, load_weight=1.0)
    x = tokens(2, 5)
    rows = x.flatten(0, 1)
    torch.manual_seed(6)
    layer.assign(rows)
    found = layer.take_loss()
    torch.manual_seed(6)
    first = layer.gates[0](rows, torch.zeros(10, dtype=torch.int64))
    parents, numbers = first.is_chosen.T.nonzero(as_tuple=True)
    second = layer.gates[1](rows[numbers], parents)
    expected = np.zeros((3, 2))
    for group in range(3):
        size = int((parents == group).sum())
        for expert in range(2):
            loads = first.load[0, group].item(), second.load[group, expert].item()
            expected[group, expert] = loads[0] * loads[1] / size if size else 0.0
    variation = (expected.std() / expected.mean()) ** 2
    assert found.item() == pytest.approx(variation, rel=1e-4)


def test_the_losses_equal_their_formulas() -> None:
    layer = mixture(importance_weight=0.3, load_weight=0.0)
    x = tokens()
    assigned = layer.assign(x.flatten(0, 1))
    importance = np.zeros(8)
    for expert, gate in zip(
        assigned.experts.tolist(), assigned.gates.tolist(), strict=False
    ):
        importance[expert] += gate
    expected = 0.3 * (importance.std() / importance.mean()) ** 2
    assert layer.take_loss().item() == pytest.approx(expected, rel=1e-5)


def test_perfectly_balanced_experts_have_no_loss() -> None:
    assert squared_variation(torch.full((2, 3), 0.7)).item() == pytest.approx(0)
    assert squared_variation(torch.tensor([1.0, 3.0])).item() == pytest.approx(0.25)
    # With all experts chosen, and equal gates, both losses are those of balance.
    layer = MixtureOfExperts(WIDTH, ExpertsConfig(num_experts=3, top_k=3, d_ff=4))
    with torch.no_grad():
        layer.gates[0].noise.fill_(0.0)
    rows = torch.zeros(5, WIDTH)
    layer.gates[0].train(False)
    layer.assign(rows)
    assert layer.take_loss().item() == pytest.approx(0, abs=1e-9)


def test_the_losses_move_unbalanced_gates_towards_balance() -> None:
    layer = mixture(importance_weight=1.0, load_weight=1.0)
    rows = tokens(8, 8).flatten(0, 1).abs()
    optimizer = torch.optim.Adam(layer.gates.parameters(), lr=0.04)
    losses = []
    torch.manual_seed(7)
    for _ in range(80):
        layer.assign(rows)
        loss = layer.take_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:3])


def test_gates_begin_at_zero() -> None:
    layer = MixtureOfExperts(WIDTH, ExpertsConfig(num_groups=4))
    for gate in layer.gates:
        assert not gate.weight.any()
        assert not gate.noise.any()


def test_the_first_of_equal_experts_win_in_every_batch() -> None:
    layer = MixtureOfExperts(WIDTH, ExpertsConfig(num_experts=8, top_k=2, d_ff=4))
    layer.eval()
    assigned = layer.assign(tokens().flatten(0, 1))
    assert assigned.experts.tolist() == [0] * 12 + [1] * 12


# Batchwise gating


@pytest.mark.parametrize("groups", [None, 2])
def test_every_expert_gets_the_same_number_of_tokens(groups: int | None) -> None:
    layer = mixture(gating="batchwise", num_groups=groups)
    assigned = layer.assign(tokens(4, 16).flatten(0, 1))
    counts = torch.bincount(assigned.experts, minlength=8).tolist()
    assert counts == [16 if groups is None else 32] * 8


def test_batchwise_gates_equal_their_formula() -> None:
    layer = mixture(gating="batchwise")
    rows = tokens(4, 4).flatten(0, 1)
    assigned = layer.assign(rows)
    gates = np.stack(
        [softmax(r) for r in rows.double().numpy() @ gate_matrix(layer, 0)[0]]
    )
    mask = np.zeros_like(gates)
    for expert in range(8):
        mask[np.argsort(-gates[:, expert])[:4], expert] = 1  # 2 * 16 / 8
    expected = gates * mask / np.maximum((gates * mask).sum(1, keepdims=True), 1e-30)
    found = np.zeros_like(gates)
    found[assigned.rows, assigned.experts] = assigned.gates.detach()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert ((found > 0) == (mask > 0)).all()


def test_equal_gates_send_each_token_to_as_many_experts() -> None:
    config = ExpertsConfig(num_experts=8, top_k=2, d_ff=4, gating="batchwise")
    assigned = MixtureOfExperts(WIDTH, config).assign(tokens(4, 4).flatten(0, 1))
    assert torch.bincount(assigned.rows).tolist() == [2] * 16


def test_the_loss_of_thresholds_equals_its_formula() -> None:
    layer = mixture(gating="batchwise", importance_weight=0.0)
    rows = tokens(4, 4).flatten(0, 1)
    layer.assign(rows)
    gates = np.stack(
        [softmax(r) for r in rows.double().numpy() @ gate_matrix(layer, 0)[0]]
    )
    thresholds = layer.gates[0].log_thresholds[0].detach().double().exp().numpy()
    expected = 0.0
    for expert in range(8):
        largest = set(np.argsort(-gates[:, expert])[:4].tolist())
        for row in range(16):
            difference = gates[row, expert] - thresholds[expert]
            expected += (int(difference > 0) - int(row in largest)) * difference
    assert layer.take_loss().item() == pytest.approx(expected / 16, rel=1e-4)


@pytest.mark.parametrize("groups", [None, 2])
def test_trained_thresholds_choose_nearly_as_the_batch(groups: int | None) -> None:
    layer = mixture(gating="batchwise", num_groups=groups, importance_weight=0.0)
    thresholds = [gate.log_thresholds for gate in layer.gates]
    optimizer = torch.optim.Adam(thresholds, lr=0.03)
    losses = []
    for step in range(150):
        layer.assign(tokens(8, 32, seed=step).flatten(0, 1))
        loss = layer.take_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.2 * losses[0]
    rows = tokens(8, 64, seed=1_000).flatten(0, 1)
    chosen = [chosen_pairs(layer.train(mode), rows) for mode in (True, False)]
    assert len(chosen[0] & chosen[1]) > 0.9 * max(map(len, chosen))


def chosen_pairs(layer: MixtureOfExperts, rows: Tensor) -> set[tuple[int, int]]:
    assigned = layer.assign(rows)
    return set(zip(assigned.rows.tolist(), assigned.experts.tolist(), strict=True))


def test_the_loss_of_thresholds_moves_nothing_else() -> None:
    layer = mixture(gating="batchwise", importance_weight=0.0)
    layer.assign(tokens().flatten(0, 1))
    layer.take_loss().backward()
    assert layer.gates[0].log_thresholds.grad.any()
    assert not layer.gates[0].weight.grad.any()


def test_a_token_that_no_expert_takes_has_no_output_and_no_gradient() -> None:
    layer = mixture(gating="batchwise").eval()
    with torch.no_grad():
        layer.gates[0].log_thresholds.fill_(1.0)
    x = tokens().requires_grad_()
    y = layer(x, all_true(x))
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()


def test_a_row_that_goes_nowhere_leaves_the_gradients_finite() -> None:
    layer = mixture(gating="batchwise", top_k=1)
    x = tokens().requires_grad_()
    assigned = layer.assign(x.detach().flatten(0, 1))
    assert len(set(assigned.rows.tolist())) < 12
    layer(x, all_true(x)).sum().backward()
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in weights(layer))


# All mixtures


KINDS = [
    {"gating": gating, "num_groups": groups}
    for gating in ("noisy-top-k", "batchwise")
    for groups in (None, 2)
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_token_does_not_depend_on_its_batch_in_evaluation(kind) -> None:
    layer = mixture(**kind).eval()
    x = tokens(5, 7)
    together = layer(x, all_true(x))
    for sentence, expected in zip(x, together, strict=True):
        for token, y in zip(sentence, expected, strict=True):
            alone = layer(token[None, None], all_true(token[None, None]))
            torch.testing.assert_close(alone[0, 0], y)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_padding_reaches_no_expert_and_counts_in_no_loss(kind, training) -> None:
    layer = mixture(**kind).train(training)
    x = tokens(2, 6)
    is_token = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    results = []
    for filling in (0.0, 100.0):
        padded = x.masked_fill(~is_token[..., None], filling).requires_grad_()
        torch.manual_seed(8)
        y = layer(padded, is_token)
        loss = layer.take_loss()
        (y.sum() + loss).backward()
        assert not y[~is_token].any()
        assert not padded.grad[~is_token].any()
        results.append((y, loss))
    for mine, other in zip(*results, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_weight_has_a_gradient_in_training(kind) -> None:
    layer = mixture(**kind)
    x = tokens(8, 8)
    (layer(x, all_true(x)).square().sum() + layer.take_loss()).backward()
    assert all(weight.grad.any() for weight in layer.parameters())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_token_is_enough_for_training(kind) -> None:
    layer = mixture(**kind)
    x = tokens(1, 1)
    (layer(x, all_true(x)).sum() + layer.take_loss()).backward()
    assert all(weight.grad is not None for weight in layer.parameters())


def test_losses_are_kept_only_until_they_are_taken() -> None:
    layer = mixture()
    layer.assign(tokens().flatten(0, 1))
    assert layer.take_loss() > 0
    assert layer.take_loss() == 0
    with torch.no_grad():
        layer.assign(tokens().flatten(0, 1))
    layer.eval().assign(tokens().flatten(0, 1))
    assert layer.take_loss() == 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_number_of_parameters_is_that_of_the_formula(kind) -> None:
    config = ExpertsConfig(num_experts=8, top_k=2, d_ff=5, **kind)
    layer = MixtureOfExperts(WIDTH, config)
    counted = sum(weight.numel() for weight in layer.parameters())
    assert config.num_parameters(WIDTH) == counted


def test_experts_have_two_million_parameters_each() -> None:
    # Appendix E: [512 * 2048] + [2048 * 512].
    assert sum(w[0].numel() for w in Experts(1, 512, 2_048).parameters()) == 2_097_152


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_experts": 0}, "`model.experts.num_experts` must be at least 1"),
        ({"num_experts": 3, "top_k": 4}, "top_k` must be at most 3, the number of exp"),
        ({"num_experts": 12, "num_groups": 4}, "at most 3, the number of groups or"),
        ({"num_experts": 10, "num_groups": 4}, "must be a multiple of the 4 groups"),
        ({"num_groups": 1}, "num_groups` must be at least 2"),
        ({"gating": "softmax"}, 'gating` must be "noisy-top-k" or "batchwise"'),
        ({"load_weight": -1.0}, "load_weight` must be at least 0"),
        ({"importance_weight": math.nan}, "importance_weight` must be at least 0"),
    ],
)
def test_wrong_settings_of_experts_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ExpertsConfig(**settings)
