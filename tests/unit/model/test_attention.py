"""Attention equals plain loops over heads, queries and keys; masks; initial weights."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transduce.model.attention import (
    MultiHeadAttention,
    attention_weights,
    causal_mask,
    neighbourhood_mask,
    padding_mask,
)

CPU = torch.device("cpu")
SCORES = ["scaled", "unscaled", "additive"]
SIZES = [(2, 4, 4), (3, 5, 2), (1, 2, 7), (4, 1, 3)]
D_MODEL = 12


def plain_attention(
    module: MultiHeadAttention, query: Tensor, memory: Tensor, mask: Tensor
) -> Tensor:
    """Equation 1 and section 3.2.2 by loops over numbers in double precision."""
    weights = {name: w.detach().double() for name, w in module.state_dict().items()}
    h, d_k, d_v = module.num_heads, module.d_k, module.d_v
    projected = memory.double() @ weights["project_key_value.weight"].T
    projected += weights["project_key_value.bias"]
    rows = []
    for b in range(len(query)):
        for q in range(query.size(1)):
            one = query[b, q].double() @ weights["project_query.weight"].T
            one += weights["project_query.bias"]
            heads = []
            for head in range(h):
                own = one[head * d_k : (head + 1) * d_k]
                scores, values = [], []
                for k in range(memory.size(1)):
                    key = projected[b, k, head * d_k : (head + 1) * d_k]
                    first = h * d_k + head * d_v
                    value = projected[b, k, first : first + d_v]
                    if not mask[min(b, len(mask) - 1), 0, q, k]:
                        continue
                    if module.scores == "additive":
                        vector = weights["additive_weight"][head]
                        score = sum(
                            vector[i] * math.tanh(own[i] + key[i]) for i in range(d_k)
                        )
                    else:
                        score = sum(own[i] * key[i] for i in range(d_k))
                        score /= math.sqrt(d_k) if module.scores == "scaled" else 1
                    scores.append(float(score))
                    values.append(value)
                total = sum(math.exp(score) for score in scores)
                shares = [math.exp(score) / total for score in scores]
                heads.append(sum(s * v for s, v in zip(shares, values, strict=True)))
            rows.append(torch.cat(heads))
    joined = torch.stack(rows).view(len(query), query.size(1), h * d_v)
    return joined @ weights["project_output.weight"].T + weights["project_output.bias"]


def random_attention(num_heads: int, d_k: int, d_v: int, scores: str):
    module = MultiHeadAttention(D_MODEL, num_heads, d_k, d_v, scores)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_equals_plain_loops(scores, sizes):
    module = random_attention(*sizes, scores)
    query, memory = torch.randn(2, 3, D_MODEL), torch.randn(2, 5, D_MODEL)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[..., 0] = True
    expected = plain_attention(module, query, memory, mask)
    torch.testing.assert_close(
        module(query, memory, mask), expected.float(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("scores", SCORES)
def test_attention_with_a_hook_equals_plain_loops(scores):
    module = random_attention(2, 4, 3, scores)
    module.weights_tap.register_forward_hook(lambda *_: None)
    query, memory = torch.randn(2, 3, D_MODEL), torch.randn(2, 5, D_MODEL)
    mask = neighbourhood_mask(3, 5, 1, CPU)
    expected = plain_attention(module, query, memory, mask)
    torch.testing.assert_close(
        module(query, memory, mask), expected.float(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("scores", SCORES)
def test_without_a_mask_queries_attend_to_all_keys(scores):
    module = random_attention(2, 4, 3, scores)
    query, memory = torch.randn(2, 3, D_MODEL), torch.randn(2, 5, D_MODEL)
    everywhere = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    torch.testing.assert_close(
        module(query, memory, None), module(query, memory, everywhere)
    )


@pytest.mark.parametrize("scores", SCORES)
def test_cached_keys_and_values_give_the_same_attention(scores):
    module = random_attention(2, 4, 3, scores)
    query, memory = torch.randn(2, 3, D_MODEL), torch.randn(2, 5, D_MODEL)
    key, value = module.keys_and_values(memory)
    assert (key.shape, value.shape) == ((2, 2, 5, 4), (2, 2, 5, 3))
    torch.testing.assert_close(
        module.attend(query, key, value, None), module(query, memory, None)
    )


def test_scaled_attention_equals_pytorchs():
    module = random_attention(2, 6, 6, "scaled")
    oracle = torch.nn.MultiheadAttention(D_MODEL, 2, batch_first=True)
    with torch.no_grad():
        oracle.in_proj_weight.copy_(
            torch.cat([module.project_query.weight, module.project_key_value.weight])
        )
        oracle.in_proj_bias.copy_(
            torch.cat([module.project_query.bias, module.project_key_value.bias])
        )
        oracle.out_proj.load_state_dict(module.project_output.state_dict())
    query, memory = torch.randn(2, 3, D_MODEL), torch.randn(2, 5, D_MODEL)
    is_token = torch.tensor([[True] * 5, [True, True, False, False, False]])
    seen = []
    module.weights_tap.register_forward_hook(
        lambda _, __, weights: seen.append(weights)
    )
    expected, weights = oracle(
        query, memory, memory, key_padding_mask=~is_token, average_attn_weights=False
    )
    actual = module(query, memory, is_token[:, None, None, :])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen[0], weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scores", SCORES)
def test_a_hook_gets_weights_that_sum_to_one(scores):
    module = random_attention(3, 4, 2, scores)
    seen = []
    module.weights_tap.register_forward_hook(
        lambda _, __, weights: seen.append(weights)
    )
    query, memory = torch.randn(2, 4, D_MODEL), torch.randn(2, 4, D_MODEL)
    module(query, memory, causal_mask(4, 4, CPU))
    [weights] = seen
    assert weights.shape == (2, 3, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    assert not weights.triu(1).any()
    assert (weights[..., 0] > 0).all()


def test_a_hook_may_change_the_weights():
    module = random_attention(1, 4, 2, "scaled")
    query, memory = torch.randn(1, 2, D_MODEL), torch.randn(1, 3, D_MODEL)
    first_alone = torch.tensor([1.0, 0.0, 0.0]).expand(1, 1, 2, 3)
    handle = module.weights_tap.register_forward_hook(lambda *_: first_alone)
    hooked = module(query, memory, None)
    handle.remove()
    torch.testing.assert_close(hooked, module(query, memory[:, :1], None))
    assert not torch.allclose(hooked, module(query, memory, None))


def test_scaling_is_by_the_root_of_d_k():
    module = random_attention(2, 9, 4, "scaled")
    unscaled = MultiHeadAttention(D_MODEL, 2, 9, 4, "unscaled")
    unscaled.load_state_dict(module.state_dict())
    with torch.no_grad():
        unscaled.project_query.weight /= 3
        unscaled.project_query.bias /= 3
    query, memory = torch.randn(1, 2, D_MODEL), torch.randn(1, 3, D_MODEL)
    torch.testing.assert_close(
        module(query, memory, None), unscaled(query, memory, None), atol=1e-5, rtol=1e-5
    )


def test_weights_are_the_softmax_of_unmasked_scores():
    scores = torch.tensor([1.0, 5.0, 2.0, 3.0]).expand(1, 1, 1, 4)
    mask = torch.tensor([True, False, True, True]).expand(1, 1, 1, 4)
    total = math.e + math.e**2 + math.e**3
    expected = torch.tensor([math.e, 0, math.e**2, math.e**3]) / total
    torch.testing.assert_close(attention_weights(scores, mask)[0, 0, 0], expected)


def test_weights_without_a_mask_are_the_softmax_of_all_scores():
    scores = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(
        attention_weights(scores, None), functional.softmax(scores, dim=-1)
    )


def test_a_query_without_keys_has_uniform_weights():
    mask = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    weights = attention_weights(torch.randn(1, 2, 3, 4), mask)
    torch.testing.assert_close(weights, torch.full((1, 2, 3, 4), 0.25))


@pytest.mark.parametrize("scores", SCORES)
def test_a_query_without_keys_has_finite_gradients(scores):
    module = random_attention(2, 4, 4, scores)
    query = torch.randn(1, 2, D_MODEL, requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])[None, None]
    module(query, query, mask)[:, :1].sum().backward()
    assert query.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_padding_is_masked():
    ids = torch.tensor([[5, 6, 9], [7, 9, 9]])
    mask = padding_mask(ids, pad=9)
    assert mask.tolist() == [[[[True, True, False]]], [[[True, False, False]]]]


def test_the_causal_mask_allows_a_position_and_earlier_ones():
    assert causal_mask(3, 3, CPU)[0, 0].int().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_masks_align_queries_with_the_last_keys():
    assert causal_mask(2, 4, CPU)[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert neighbourhood_mask(2, 4, 1, CPU)[0, 0].int().tolist() == [
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]


def test_a_neighbourhood_reaches_r_to_either_side():
    assert neighbourhood_mask(5, 5, 2, CPU)[0, 0].int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("project_query.weight", math.sqrt(6 / (64 + 4 * 8) / 2)),
        ("project_output.weight", math.sqrt(6 / (64 + 4 * 24))),
    ],
)
def test_projections_start_at_the_papers_limits(name, limit):
    module = MultiHeadAttention(64, num_heads=4, d_k=8, d_v=24, scores="scaled")
    largest = module.state_dict()[name].abs().max()
    assert 0.97 * limit < largest <= limit


def test_keys_and_values_start_each_at_its_own_limit():
    module = MultiHeadAttention(64, num_heads=4, d_k=8, d_v=24, scores="scaled")
    key, value = module.project_key_value.weight.split([32, 96])
    key_limit, value_limit = math.sqrt(3 / (64 + 32)), math.sqrt(3 / (64 + 96))
    assert 0.97 * key_limit < key.abs().max() <= key_limit
    assert 0.97 * value_limit < value.abs().max() <= value_limit


def test_biases_start_at_zero_and_the_additive_weight_does_not():
    module = MultiHeadAttention(D_MODEL, 2, 4, 4, "additive")
    state = module.state_dict()
    assert not any(state[name].any() for name in state if name.endswith("bias"))
    assert state["additive_weight"].shape == (2, 4)
    assert state["additive_weight"].abs().min() > 0
