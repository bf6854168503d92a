"""Restricted attention equals attention with masks, without a matrix of n x n."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transduce.model.attention import (
    MultiHeadAttention,
    RestrictedSelfAttention,
    causal_mask,
    neighbourhood_mask,
    padding_mask,
)
from transduce.model.config import Band, ModelConfig, forward_flops, update_flops
from transduce.model.transformer import Transformer
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import PAD

CPU = torch.device("cpu")
D_MODEL = 12
CONFIG = ModelConfig(
    vocab_size=30, num_layers=2, d_model=16, d_ff=16, num_heads=2, d_k=16, d_v=32,
    dropout=0.0, neighbourhood=3,
)  # fmt: skip
LONG = 90
"""Positions that take several blocks."""


def made(
    r: int, *, is_causal: bool, scores: str = "scaled", dropout: float = 0.0
) -> tuple[RestrictedSelfAttention, MultiHeadAttention]:
    """Restricted attention, and attention to all keys with the same weights."""
    sizes = (D_MODEL, 2, 4, 5, scores, dropout)
    ours = RestrictedSelfAttention(*sizes, Band.of(r, is_causal=is_causal))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    whole = MultiHeadAttention(*sizes)
    whole.load_state_dict(ours.state_dict())
    return ours, whole


def mask_of(n: int, r: int, *, is_causal: bool) -> Tensor:
    near = neighbourhood_mask(n, n, r, CPU)
    return near & causal_mask(n, n, CPU) if is_causal else near


def padding(batch: int, n: int) -> Tensor:
    """The mask of sentences with n, n - 7, n - 14, ... tokens."""
    ids = torch.ones(batch, n, dtype=torch.long)
    for number in range(1, batch):
        ids[number, max(n - 7 * number, 1) :] = PAD
    return padding_mask(ids, PAD)


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    return list(torch.autograd.grad((output * weights).sum(), inputs))


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("n", [1, 2, 17, 48, 49, 64, 65, 131])
@pytest.mark.parametrize("r", [1, 5, 16, 23, 200])
def test_restricted_attention_equals_the_mask_in_values_and_gradients(r, n, is_causal):
    ours, whole = made(r, is_causal=is_causal)
    x = torch.randn(3, n, D_MODEL, requires_grad=True)
    tokens = padding(3, n)
    # Outputs at padding are not compared: nothing depends on them.
    kept = tokens[:, 0, 0, :, None]
    found = ours(x, x, tokens) * kept
    expected = whole(x, x, mask_of(n, r, is_causal=is_causal) & tokens) * kept
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(found, [x, *ours.parameters()]),
        gradients(expected, [x, *whole.parameters()]),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("scores", ["scaled", "unscaled", "additive"])
def test_all_scores_can_be_restricted(scores):
    ours, whole = made(4, is_causal=True, scores=scores)
    x = torch.randn(2, LONG, D_MODEL)
    expected = whole(x, x, mask_of(LONG, 4, is_causal=True))
    torch.testing.assert_close(ours(x, x, None), expected, atol=1e-5, rtol=1e-5)


def test_hooks_read_the_weights_of_all_keys():
    ours, _ = made(4, is_causal=True)
    x = torch.randn(2, LONG, D_MODEL)
    unread = ours(x, x, None)
    seen: list[Tensor] = []
    ours.weights_tap.register_forward_hook(lambda *args: seen.append(args[2]))
    torch.testing.assert_close(ours(x, x, None), unread, atol=1e-5, rtol=1e-5)
    [weights] = seen
    assert weights.shape == (2, 2, LONG, LONG)
    near = mask_of(LONG, 4, is_causal=True).expand_as(weights)
    assert ((weights > 0) == near).all()


def test_hooks_change_the_weights():
    ours, _ = made(4, is_causal=False)
    x = torch.randn(1, LONG, D_MODEL)
    ours.weights_tap.register_forward_hook(lambda *args: args[2] * 0)
    bias = ours.project_output.bias
    torch.testing.assert_close(ours(x, x, None), bias.expand(1, LONG, -1))


def test_dropout_drops_weights_within_the_neighbourhood_at_its_rate():
    ours, _ = made(4, is_causal=False, dropout=0.25)
    x = torch.randn(8, 400, D_MODEL)
    value = torch.ones(8, 2, 400, 5)
    query, key = ours.split(ours.project_query(x)), ours.keys_and_values(x)[0]
    kept = ours.train().weighted_sum(query, key, value, None)
    assert kept.std() > 0.1
    assert kept.mean().item() == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(ours.eval().weighted_sum(query, key, value, None), value)


def test_a_position_depends_on_its_neighbourhood_only():
    ours, _ = made(3, is_causal=False)
    past, _ = made(3, is_causal=True)
    x = torch.randn(1, LONG, D_MODEL, requires_grad=True)
    for module, last in ((ours, 43), (past, 40)):
        (gradient,) = torch.autograd.grad(module(x, x, None)[0, 40].sum(), x)
        reached = gradient[0].abs().sum(-1).nonzero().flatten()
        assert reached.tolist() == list(range(37, last + 1))


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def random_batch(batch: int, source: int, target: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(4, 30, (batch, source)), torch.randint(4, 30, (batch, target))
    if batch > 1:
        ids[0][1, source // 3 :] = PAD
    return ids


@pytest.mark.parametrize("scores", ["scaled", "additive"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("prepare", [lambda model: model, fuse], ids=["plain", "fused"])
def test_no_tensor_has_a_number_for_each_pair_of_positions(prepare, dropout, scores):
    n = 1_200
    config = replace(
        CONFIG, num_layers=1, attention_dropout=dropout, scores=scores, d_k=2, d_v=2
    )
    if scores == "scaled":
        config = replace(config, d_k=16, d_v=16)  # widths of the native library
    model = prepare(Transformer(config).train())
    (source, _), memory = random_batch(1, n, 2), random_batch(1, 4, 2)[0]
    with LargestTensor() as training:
        model.encode(source).states.sum().backward()
        # The decoder too, with a short source: cross-attention is not restricted.
        model.decode(source, model.encode(memory)).sum().backward()
    with LargestTensor() as encoding, torch.inference_mode():
        model.eval().encode(source)
    assert 0 < encoding.elements < n * n
    assert 0 < training.elements < n * n


def masked(model: Transformer) -> Transformer:
    """The same model, with masks over all pairs of positions."""
    copy = Transformer(model.config)
    copy.load_state_dict(model.state_dict())
    for module in copy.modules():
        if isinstance(module, RestrictedSelfAttention):
            module.weights_tap.register_forward_hook(lambda *_: None)
    return copy.train(model.training)


@pytest.mark.parametrize("prepare", [lambda model: model, fuse], ids=["plain", "fused"])
@pytest.mark.parametrize("r", [1, 3, 20])
@pytest.mark.parametrize("shape", [(3, 90, 70), (2, 9, 130), (4, 30, 5)], ids=str)
def test_a_restricted_model_equals_its_masked_form(shape, r, prepare):
    model = Transformer(replace(CONFIG, neighbourhood=r)).train()
    source, target = random_batch(*shape)

    def found(model: Transformer) -> list[Tensor]:
        logits = model(source, target)
        return [logits, *gradients(logits, list(model.parameters()))]

    torch.testing.assert_close(
        found(prepare(model)), found(masked(model)), atol=1e-3, rtol=1e-4
    )


def test_fewer_queries_than_keys_are_the_last_positions():
    band = Band.of(3, is_causal=True)
    ours = RestrictedSelfAttention(16, 2, 16, 32, "scaled", 0.0, band)
    keys = torch.randn(2, LONG, 16)
    expected = ours(keys, keys, None)[:, -5:]
    for module in (ours, fuse(ours)):
        output = module(keys[:, -5:], keys, None)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_a_band_reaches_to_both_sides_or_back_only():
    assert Band.of(40, is_causal=False) == Band(block=40, before=40, after=40)
    assert Band.of(3, is_causal=True) == Band(block=32, before=3, after=0)
    assert Band.of(40, is_causal=False).window == 120


def test_flops_of_restricted_attention_are_those_of_its_windows():
    model = Transformer(CONFIG)
    with FlopCounterMode(display=False) as counter:
        logits = model(*random_batch(3, 90, 70))
        forward = counter.get_total_flops()
        logits.sum().backward()
    lengths = np.full(3, 90), np.full(3, 70)
    assert forward == forward_flops(CONFIG, *lengths).total
    assert counter.get_total_flops() == update_flops(CONFIG, *lengths)
    # Twice the length, twice the attention but for cross-attention.
    heads = 2 * 2 * (16 + 32)
    own = [
        forward_flops(CONFIG, np.array([n]), np.array([1])).attention
        - 2 * heads * (n + 1)
        for n in (960, 1920)
    ]
    assert own[1] == 2 * own[0]
