"""Encoder and decoder layers equal PyTorch's with the same weights."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention, causal_mask
from transduce.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    ResidualConnection,
)

SOURCE_IS_TOKEN = torch.tensor(
    [[True] * 5, [True, True, False, False, False], [True, True, True, True, False]]
)
SOURCE_MASK = SOURCE_IS_TOKEN[:, None, None, :]


@pytest.fixture(params=["post", "pre"])
def config(request, tiny):
    return replace(tiny, norm=request.param)


def randomize(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    weights = [ours.project_query.weight, ours.project_key_value.weight]
    biases = [ours.project_query.bias, ours.project_key_value.bias]
    theirs.in_proj_weight.copy_(torch.cat(weights))
    theirs.in_proj_bias.copy_(torch.cat(biases))
    theirs.out_proj.load_state_dict(ours.project_output.state_dict())


def copy_feed_forward(ours: FeedForward, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())


def as_pytorchs(layer_class: type[nn.Module], config) -> nn.Module:
    return layer_class(
        config.d_model,
        config.num_heads,
        config.d_ff,
        dropout=0.0,
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=config.norm == "pre",
    )


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_an_encoder_layer_equals_pytorchs(config):
    ours = EncoderLayer(config)
    randomize(ours)
    theirs = as_pytorchs(nn.TransformerEncoderLayer, config)
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.after_self_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.after_feed_forward.norm.state_dict())
    x = torch.randn(3, 5, config.d_model)
    expected = theirs(x, src_key_padding_mask=~SOURCE_IS_TOKEN)
    assert_close(ours(x, SOURCE_MASK), expected)


def test_a_decoder_layer_equals_pytorchs(config):
    ours = DecoderLayer(config)
    randomize(ours)
    theirs = as_pytorchs(nn.TransformerDecoderLayer, config)
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.after_self_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.after_cross_attention.norm.state_dict())
    theirs.norm3.load_state_dict(ours.after_feed_forward.norm.state_dict())
    x, memory = torch.randn(3, 4, config.d_model), torch.randn(3, 5, config.d_model)
    mask = causal_mask(4, 4, x.device)
    expected = theirs(
        x, memory, tgt_mask=~mask[0, 0], memory_key_padding_mask=~SOURCE_IS_TOKEN
    )
    assert_close(ours(x, memory, mask, SOURCE_MASK), expected)


def test_gradients_of_an_encoder_layer_equal_pytorchs(config):
    ours = EncoderLayer(config)
    theirs = as_pytorchs(nn.TransformerEncoderLayer, config)
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    x = torch.randn(3, 5, config.d_model)
    outer = torch.randn(3, 5, config.d_model)
    (ours(x, SOURCE_MASK) * outer).sum().backward()
    (theirs(x, src_key_padding_mask=~SOURCE_IS_TOKEN) * outer).sum().backward()
    assert_close(ours.feed_forward.inner.weight.grad, theirs.linear1.weight.grad)
    query, key_value = theirs.self_attn.in_proj_weight.grad.split(
        [config.d_model, 2 * config.d_model]
    )
    assert_close(ours.self_attention.project_query.weight.grad, query)
    assert_close(ours.self_attention.project_key_value.weight.grad, key_value)


def test_the_feed_forward_network_is_equation_2():
    network = FeedForward(d_model=2, d_ff=3, activation="relu")
    state = {
        "inner.weight": torch.tensor([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0]]),
        "inner.bias": torch.tensor([0.5, 0.0, -10.0]),
        "outer.weight": torch.tensor([[1.0, 2.0, 3.0], [-1.0, 1.0, 5.0]]),
        "outer.bias": torch.tensor([0.25, -0.25]),
    }
    network.load_state_dict(state)
    # Hidden units: 1 + 0.5, max(0, -2), max(0, 4 - 10); then 3 - 2 and so on.
    x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])
    assert network(x).tolist() == [[[1.75, -1.75], [5.75, 0.25]]]


def test_the_feed_forward_network_starts_at_glorots_limit():
    network = FeedForward(d_model=32, d_ff=64, activation="relu")
    limit = (6 / 96) ** 0.5
    assert 0.97 * limit < network.inner.weight.abs().max() <= limit
    assert 0.97 * limit < network.outer.weight.abs().max() <= limit
    assert not network.inner.bias.any()
    assert not network.outer.bias.any()


def test_post_norm_normalizes_the_sum():
    residual = ResidualConnection(4, dropout=0.0, norm="post", norm_epsilon=1e-6)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    # The sum has mean 7.5 and variance 11.25.
    expected = torch.tensor([[[-4.5, -1.5, 1.5, 4.5]]]) / (11.25 + 1e-6) ** 0.5
    assert_close(residual(x, lambda x: 2 * x), expected)


def test_pre_norm_does_not_normalize_the_sum():
    residual = ResidualConnection(4, dropout=0.0, norm="pre", norm_epsilon=1e-6)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    normal = torch.tensor([[[-1.5, -0.5, 0.5, 1.5]]]) / (1.25 + 1e-6) ** 0.5
    assert_close(residual(x, lambda x: 2 * x), x + 2 * normal)


def test_dropout_applies_to_the_sublayer_output_only():
    residual = ResidualConnection(8, dropout=0.5, norm="pre", norm_epsilon=1e-6).train()
    x = torch.ones(1, 100, 8)
    added = residual(x, torch.ones_like) - x
    assert added.unique().tolist() == [0.0, 2.0]
