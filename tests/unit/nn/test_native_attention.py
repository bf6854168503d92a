"""Attention by its kernel against PyTorch in double precision, and its gradients."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from transduce.model.attention import MultiHeadAttention, attention_weights
from transduce.nn.fuse import fuse
from transduce.nn.kernels import nn_api
from transduce.nn.native_layers import (
    MAX_KEYS,
    Heads,
    has_native_attention,
    native_attention,
)

pytestmark = pytest.mark.skipif(nn_api() is None, reason="there is no native library")

LENGTHS = [(1, 1), (1, 16), (3, 7), (4, 8), (17, 33), (64, 64), (90, 15), (5, 128)]
WIDTHS = [(1, 16, 16), (4, 32, 32), (2, 64, 48), (3, 16, 80)]
MASKS = ["none", "of keys", "of queries", "of both", "nothing for a query"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def heads_of(count: int, d_k: int, d_v: int) -> Heads:
    return Heads(count=count, d_k=d_k, d_v=d_v, scale=1 / math.sqrt(d_k))


def drawn(batch: int, queries: int, keys: int, heads: Heads) -> tuple[Tensor, Tensor]:
    query = torch.randn(batch, queries, heads.count * heads.d_k)
    key_value = torch.randn(batch, keys, heads.count * (heads.d_k + heads.d_v))
    return query.requires_grad_(), key_value.requires_grad_()


def mask_of(kind: str, batch: int, queries: int, keys: int) -> Tensor | None:
    match kind:
        case "none":
            return None
        case "of keys":
            return torch.rand(batch, 1, 1, keys) < 0.7
        case "of queries":
            return torch.ones(queries, keys).tril(keys - queries)[None, None].bool()
        case "of both":
            return torch.rand(batch, 1, queries, keys) < 0.7
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    mask[-1, :, queries // 2] = False
    return mask


def by_pytorch(
    query: Tensor, key_value: Tensor, mask: Tensor | None, heads: Heads
) -> Tensor:
    keys, values = key_value.split(
        [heads.count * heads.d_k, heads.count * heads.d_v], -1
    )
    apart = [
        part.unflatten(-1, (heads.count, -1)).transpose(1, 2)
        for part in (query, keys, values)
    ]
    scores = apart[0] @ apart[1].mT * heads.scale
    return (attention_weights(scores, mask) @ apart[2]).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("count", "d_k", "d_v"), WIDTHS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_the_kernel_and_its_gradients_equal_pytorchs(
    queries, keys, count, d_k, d_v, kind
):
    heads, mask = heads_of(count, d_k, d_v), mask_of(kind, 3, queries, keys)
    query, key_value = drawn(3, queries, keys, heads)
    output = native_attention(query, key_value, mask, heads)
    expected = by_pytorch(query.double(), key_value.double(), mask, heads)
    torch.testing.assert_close(output.double(), expected, **TOLERANCE)
    outer = torch.randn_like(output)
    ours = torch.autograd.grad(output, (query, key_value), outer)
    theirs = torch.autograd.grad(expected, (query, key_value), outer.double())
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_a_sentence_does_not_depend_on_the_rest_of_its_batch():
    heads = heads_of(4, 32, 32)
    query, key_value = drawn(5, 9, 11, heads)
    mask = mask_of("of both", 5, 9, 11)
    together = native_attention(query, key_value, mask, heads)
    alone = [
        native_attention(query[i, None], key_value[i, None], mask[i, None], heads)
        for i in range(5)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_the_number_of_threads_does_not_change_the_result(two_threads):
    heads = heads_of(4, 32, 32)
    query, key_value = drawn(30, 9, 11, heads)

    def by(num_threads: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(num_threads)
        output = native_attention(query, key_value, None, heads)
        return output, *torch.autograd.grad(output.sum(), (query, key_value))

    for one, other in zip(by(1), by(2), strict=True):
        assert torch.equal(one, other)


def test_inputs_may_be_non_contiguous():
    heads = heads_of(2, 16, 16)
    query, key_value = drawn(2, 3, 5, heads)
    mask = mask_of("of both", 2, 5, 3).mT
    output = native_attention(query, key_value, mask, heads)
    strewn = [x.detach().mT.contiguous().mT for x in (query, key_value)]
    assert torch.equal(native_attention(*strewn, mask, heads), output)
    # The gradient of a sum is an expanded tensor, which is not contiguous either.
    assert torch.autograd.grad(output.sum(), query)[0].isfinite().all()


def test_inputs_in_bf16_equal_their_rounded_values_in_fp32():
    heads = heads_of(2, 16, 16)
    query, key_value = (x.detach().bfloat16() for x in drawn(2, 3, 5, heads))
    output = native_attention(query, key_value, None, heads)
    assert output.dtype == torch.float32
    expected = native_attention(query.float(), key_value.float(), None, heads)
    assert torch.equal(output, expected)


def test_saved_tensors_may_be_moved_by_hooks():
    heads = heads_of(2, 16, 16)
    query, key_value = drawn(2, 3, 5, heads)
    plain = native_attention(query, key_value, None, heads)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        other = native_attention(query, key_value, None, heads)
    expected = torch.autograd.grad(plain.sum(), (query, key_value))
    del plain
    found = torch.autograd.grad(other.sum(), (query, key_value))
    assert all(map(torch.equal, found, expected))


def test_several_threads_may_run_backward_at_once():
    heads = heads_of(4, 32, 32)
    query, key_value = drawn(20, 12, 12, heads)
    output = native_attention(query, key_value, None, heads)
    outers = [torch.randn_like(output) for _ in range(40)]

    def backwards(outer: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, (query, key_value), outer, retain_graph=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backwards, outers))
    for each, outer in zip(found, outers, strict=True):
        assert all(map(torch.equal, each, backwards(outer)))


def test_the_default_dtype_does_not_change_the_result():
    heads = heads_of(2, 16, 16)
    query, key_value = drawn(2, 3, 5, heads)
    expected = native_attention(query, key_value, None, heads)
    torch.set_default_dtype(torch.float64)
    try:
        found = native_attention(query, key_value, None, heads)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("which", [0, 1])
def test_nan_stays_within_its_sentence(which):
    heads = heads_of(2, 16, 16)
    inputs = [x.detach() for x in drawn(2, 3, 5, heads)]
    inputs[which][0, 1, 4] = torch.nan
    output = native_attention(*inputs, None, heads)
    assert output[0].isnan().any()
    assert output[1].isfinite().all()


def test_the_kernel_is_used_only_for_supported_inputs():
    heads, inputs = heads_of(2, 16, 32), torch.zeros(2, 5, 8)
    assert has_native_attention(inputs, inputs, heads)
    assert not has_native_attention(inputs.double(), inputs, heads)
    assert not has_native_attention(inputs.to("meta"), inputs, heads)
    assert not has_native_attention(inputs, torch.zeros(2, MAX_KEYS + 1, 8), heads)
    assert not has_native_attention(inputs, torch.zeros(2, 0, 8), heads)
    assert not has_native_attention(inputs, inputs, heads_of(2, 8, 32))
    assert not has_native_attention(inputs, inputs, heads_of(2, 16, 24))


@pytest.mark.usefixtures("without_native_library")
def test_the_kernel_is_not_used_without_the_native_library():
    inputs = torch.zeros(2, 5, 8)
    assert not has_native_attention(inputs, inputs, heads_of(2, 16, 32))


@pytest.mark.parametrize("scores", ["scaled", "unscaled", "additive"])
def test_a_layer_computes_the_same_with_and_without_the_kernel(scores):
    layer = fuse(MultiHeadAttention(64, 4, 16, 16, scores))
    query, memory = torch.randn(3, 6, 64), torch.randn(3, 8, 64)
    mask = mask_of("of keys", 3, 6, 8)
    output = layer(query, memory, mask)
    assert has_kernel_behind(output) == (scores != "additive")
    with torch.no_grad():
        torch.testing.assert_close(layer(query, memory, mask), output, **TOLERANCE)


def test_a_hook_on_the_weights_disables_the_kernel():
    layer, seen = fuse(MultiHeadAttention(64, 4, 16, 16, "scaled")), []
    layer.weights_tap.register_forward_hook(lambda *said: seen.append(said[-1]))
    x = torch.randn(3, 6, 64)
    assert not has_kernel_behind(layer(x, x, None))
    assert seen[0].shape == (3, 4, 6, 6)


@pytest.mark.usefixtures("unchecked_types")
def test_a_mask_of_other_sizes_or_another_type_is_refused():
    layer = fuse(MultiHeadAttention(64, 4, 16, 16, "scaled"))
    query, memory = torch.randn(3, 6, 64), torch.randn(3, 8, 64)
    for shape in ((3, 1, 1, 5), (3, 1, 5, 8), (2, 1, 1, 8), (3, 4, 6, 8)):
        with pytest.raises(RuntimeError, match="size"):
            layer(query, memory, torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match="must be of bools"):
        layer(query, memory, torch.ones(3, 1, 1, 8))


@pytest.mark.usefixtures("unchecked_types")
def test_inputs_of_other_widths_are_refused():
    heads = heads_of(2, 16, 16)
    query, key_value = drawn(3, 6, 8, heads)
    for wrong in ((query[..., :16], key_value), (query, key_value[..., :48])):
        with pytest.raises(ValueError, match="must get"):
            native_attention(*wrong, None, heads)


@pytest.mark.usefixtures("unchecked_types")
def test_queries_of_several_sentences_may_share_keys():
    plain = MultiHeadAttention(64, 4, 16, 16, "scaled")
    layer = fuse(plain)
    query, memory = torch.randn(3, 6, 64), torch.randn(1, 8, 64)
    output = layer(query, memory, None)
    assert not has_kernel_behind(output)
    torch.testing.assert_close(output, plain(query, memory, None), **TOLERANCE)


def has_kernel_behind(output: Tensor) -> bool:
    """Whether a kernel computed the input of the last projection."""
    found, nodes = False, [output.grad_fn]
    while nodes:
        node = nodes.pop()
        found |= "NativeAttention" in node.name()
        nodes += [following for following, _ in node.next_functions if following]
    return found
