"""The kernel of a whole stack in bf16 differs from fp32 only by rounding."""

from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from transduce import native
from transduce.model.attention import causal_mask, padding_mask
from transduce.model.config import ModelConfig
from transduce.model.layers import (
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from transduce.nn import native_layers
from transduce.nn.fuse import fuse
from transduce.nn.kernels import has_fp32_products, unchanged_weights

pytestmark = pytest.mark.skipif(
    not has_fp32_products(), reason="stacks in fp32 are not native here"
)

CONFIG = ModelConfig(
    vocab_size=50,
    d_model=64,
    d_ff=96,
    num_heads=2,
    d_k=16,
    d_v=48,
    num_layers=2,
    dropout=0.3,
)
DEEP = replace(CONFIG, d_ff=4_128, num_layers=1)
"""Config with more inner elements than are summed at a time."""


def stacks(config: ModelConfig) -> tuple[EncoderStack, DecoderStack]:
    layers = range(config.num_layers)
    encoder = EncoderStack(EncoderLayer(config) for _ in layers)
    decoder = DecoderStack(DecoderLayer(config) for _ in layers)
    for weight in [*encoder.parameters(), *decoder.parameters()]:
        nn.init.normal_(weight, mean=0.02, std=0.1)  # biases and norms too
    return fuse(encoder.train()), fuse(decoder.train())


def sides(batch: int, source: int, target: int) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(batch, source, 64, requires_grad=True),
        torch.randn(batch, target, 64, requires_grad=True),
    )


def run(
    both: tuple[EncoderStack, DecoderStack],
    read: tuple[Tensor, Tensor],
    is_bf16: bool = True,
) -> Tensor:
    """Run encoder and decoder, always with the same dropout masks."""
    encoder, decoder = both
    source, target = read
    torch.manual_seed(8)
    ids = torch.ones(source.shape[:2], dtype=torch.long)
    ids[1:, max(source.size(1) // 2, 1) :] = 0
    mask = padding_mask(ids, 0)
    self_mask = causal_mask(target.size(1), target.size(1), target.device)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
        return decoder(target, encoder(source, mask), self_mask, mask)


def learned(
    both: tuple[EncoderStack, DecoderStack], read: tuple[Tensor, Tensor]
) -> list[Tensor]:
    return [*read, *both[0].parameters(), *both[1].parameters()]


def found(
    both: tuple[EncoderStack, DecoderStack],
    read: tuple[Tensor, Tensor],
    is_bf16: bool = True,
) -> list[Tensor]:
    """Output and all gradients."""
    output = run(both, read, is_bf16)
    outer = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return [output, *grad(output, learned(both, read), outer)]


def errors(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    """Errors relative to each tensor's norm, bounded below by the largest of all."""
    largest = max(each.norm().item() / each.numel() ** 0.5 for each in theirs)
    return [
        (one - other).norm().item()
        / (other.norm().item() + 0.02 * largest * other.numel() ** 0.5)
        for one, other in zip(ours, theirs, strict=True)
    ]


@pytest.mark.parametrize(
    "rates", [(0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3)]
)
@pytest.mark.parametrize(
    ("sizes", "config"),
    [
        ((1, 1, 1), CONFIG),
        ((2, 5, 3), CONFIG),
        ((7, 13, 20), CONFIG),
        ((3, 47, 2), CONFIG),
        ((30, 9, 11), CONFIG),
        ((9, 8, 9), DEEP),
    ],
    ids=str,
)
def test_the_stack_differs_from_fp32_by_rounding_only(
    bf16_unit, sizes, config, rates, two_threads
):
    dropout, attention, relu = rates
    config = replace(
        config, dropout=dropout, attention_dropout=attention, relu_dropout=relu
    )
    both, read = stacks(config), sides(*sizes)
    output = run(both, read)
    assert output.grad_fn is not None
    assert "LayerStack" in output.grad_fn.name()
    off = errors(found(both, read), found(both, read, is_bf16=False))
    # A factor is off by up to 1/512; where a hidden number is nearly zero, its sign
    # may change.
    assert max(off) < 0.3
    assert median(off) < 0.06
    assert off[0] < 0.02


def test_the_stack_is_as_near_to_fp32_as_layers_one_by_one(bf16_unit):
    ours, theirs = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        both, read = stacks(CONFIG), sides(12, 20, 18)
        exact = found(both, read, is_bf16=False)
        ours += errors(found(both, read), exact)
        for stack in both:  # layers that a hook reads run one by one
            stack[0].register_forward_hook(lambda *_: None)
        theirs += errors(found(both, read), exact)
    assert sum(ours) < 1.1 * sum(theirs)


@pytest.mark.parametrize("relu_dropout", [0.0, 0.3])
def test_the_stack_gives_the_same_results_by_each_unit_and_by_plain_loops(
    bf16_unit, relu_dropout
):
    if bf16_unit is None:
        pytest.skip("nothing to compare with")
    config = replace(DEEP, relu_dropout=relu_dropout)
    both, read = stacks(config), sides(9, 11, 13)
    one = found(both, read)
    native.library().td_allow_amx(False)
    native.library().td_allow_avx512_bf16(False)
    # Sums in another order may now and then be rounded to another number in bf16, or
    # a hidden number next to zero may have another sign.
    assert max(errors(one, found(both, read))) < (2e-3 if relu_dropout == 0 else 2e-2)


INNER = replace(CONFIG, attention_dropout=0.2, relu_dropout=0.2)
"""Config with dropout within sub-layers."""


@pytest.mark.parametrize("config", [CONFIG, INNER], ids=["outer", "inner"])
def test_threads_change_only_the_order_of_sums(bf16_unit, config, two_threads):
    both, read = stacks(config), sides(67, 9, 8)
    several = found(both, read)
    torch.set_num_threads(1)
    alone = found(both, read)
    torch.testing.assert_close(several[0], alone[0], rtol=0, atol=0)
    assert max(errors(several, alone)) < 1e-4


def test_splitting_operators_instead_of_the_batch_changes_only_the_order_of_sums(
    bf16_unit, two_threads, monkeypatch
):
    both, read = stacks(CONFIG), sides(67, 9, 8)
    by_parts = found(both, read)
    monkeypatch.setattr(native_layers, "MAX_PARTS", 1)
    shared = found(both, read)
    torch.testing.assert_close(by_parts[0], shared[0], rtol=0, atol=0)
    assert max(errors(by_parts, shared)) < 1e-4


def test_unchanged_weights_are_packed_once(bf16_unit):
    both, read = stacks(CONFIG), sides(5, 9, 8)
    expected = found(both, read)
    with unchanged_weights():
        first, second = found(both, read), found(both, read)
        with torch.no_grad():
            both[0][0].feed_forward.inner.weight.zero_()
        unaware = found(both, read)
    for one, other, third in zip(expected, first, second, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    torch.testing.assert_close(unaware[0], expected[0], rtol=0, atol=0)
    assert not torch.equal(found(both, read)[0], expected[0])


def test_evaluation_gives_the_output_of_training_without_dropout(bf16_unit):
    both, read = stacks(replace(CONFIG, dropout=0.0)), sides(5, 9, 8)
    with torch.no_grad():
        kept_nothing = run(both, read)
    torch.testing.assert_close(kept_nothing, run(both, read), rtol=0, atol=0)


def test_an_empty_batch_has_zero_gradients(bf16_unit):
    both, read = stacks(CONFIG), sides(0, 3, 4)
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
    try:
        gradients = found(both, read)[1:]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all((each == 0).all() for each in gradients)


def test_a_memory_in_bf16_is_left_to_the_layers(bf16_unit):
    _, decoder = stacks(CONFIG)
    x, mask = torch.randn(2, 3, 64), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    self_mask = causal_mask(3, 3, x.device)
    memory = torch.randn(2, 5, 64, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = decoder(x, memory, self_mask, mask)
    assert output.grad_fn is not None
    assert "LayerStack" not in output.grad_fn.name()


def test_nan_stays_within_its_sentence(bf16_unit):
    both, read = stacks(CONFIG), sides(5, 9, 8)
    with torch.no_grad():
        read[1][2, 0, 0] = float("nan")
    output = run(both, read)
    assert output[2].isnan().all()
    assert output[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize(
    ("config", "dtype", "is_so"),
    [
        (CONFIG, torch.bfloat16, True),
        (CONFIG, torch.float16, False),
        (replace(CONFIG, d_ff=48), torch.bfloat16, False),
        (replace(CONFIG, num_heads=1), torch.bfloat16, False),
    ],
)
def test_the_kernel_is_used_only_if_rows_are_whole_tiles(
    bf16_unit, config, dtype, is_so
):
    encoder, _ = stacks(config)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    with torch.autocast("cpu", dtype=dtype):
        output = encoder(torch.randn(2, 5, 64), mask)
    assert output.grad_fn is not None
    assert ("LayerStack" in output.grad_fn.name()) == is_so


@pytest.mark.usefixtures("without_bf16_unit")
def test_without_products_in_bf16_layers_run_one_by_one():
    encoder, _ = stacks(CONFIG)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = encoder(torch.randn(2, 5, 64), mask)
    assert output.grad_fn is not None
    assert "LayerStack" not in output.grad_fn.name()
