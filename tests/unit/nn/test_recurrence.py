"""Recurrent units computed in few operations equal the readable ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import padding_mask
from transduce.model.config import ModelConfig
from transduce.model.layers import SSRU, DecoderStack, RecurrentDecoderLayer
from transduce.nn import operators
from transduce.nn.fuse import fuse
from transduce.nn.kernels import has_fp32_products
from transduce.nn.operators import FusedSSRU, scan

NATIVE = pytest.mark.skipif(
    not has_fp32_products(), reason="stacks in fp32 are not native here"
)
CONFIG = ModelConfig(
    d_model=64, d_ff=96, num_heads=2, d_k=16, d_v=48, decoder_self_attention="ssru"
)


def unit_of(width: int) -> SSRU:
    unit = SSRU(width)
    for weight in unit.parameters():
        nn.init.normal_(weight, std=0.5)
    return unit


def outputs_and_gradients(unit: SSRU, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    output = unit(x)
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(x.shape)
    learned = [x, *unit.parameters()]
    return [output, *torch.autograd.grad(output, learned, weight)]


@NATIVE
@pytest.mark.parametrize("length", [1, 2, 13, 70])
def test_the_native_unit_has_the_outputs_and_gradients_of_the_loop(length: int) -> None:
    plain, x = unit_of(32), torch.randn(3, length, 32)
    fused = fuse(plain)
    assert isinstance(fused, FusedSSRU)
    output = fused(x)
    assert output.grad_fn is not None
    assert "NativeRecurrence" in output.grad_fn.name()
    expected = outputs_and_gradients(plain, x)
    for ours, theirs in zip(outputs_and_gradients(fused, x), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 21, 64, 100, 257])
def test_the_scan_has_the_outputs_and_gradients_of_the_loop(length: int) -> None:
    plain = unit_of(5).double()
    x = torch.randn(3, length, 5, dtype=torch.float64)
    expected = outputs_and_gradients(plain, x)
    found = outputs_and_gradients(fuse(plain), x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_open_and_closed_gates_leave_the_scan_finite() -> None:
    gates = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1e-30] * 50)
    gates[100:250] = 1  # cells that reach back over 150 positions
    forget, addend = gates.requires_grad_(), torch.ones(300, requires_grad=True)
    expected = [addend[0]]
    for position in range(1, 300):
        expected.append(forget[position] * expected[-1] + addend[position])
    cells = scan(forget[None, :, None], addend[None, :, None])[0, :, 0]
    loop = torch.stack(expected)
    torch.testing.assert_close(cells, loop)
    weight = torch.linspace(-1, 1, 300)
    found = torch.autograd.grad(cells, (forget, addend), weight)
    gradients = torch.autograd.grad(loop, (forget, addend), weight, allow_unused=True)
    for ours, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_sequence_without_positions_is_left_to_the_scan() -> None:
    assert fuse(SSRU(32))(torch.zeros(2, 0, 32)).shape == (2, 0, 32)


def test_cells_are_in_fp32_under_autocast() -> None:
    plain, x = unit_of(32), torch.randn(2, 9, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fuse(plain)(x)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, plain(x), rtol=0.05, atol=0.05)


def run(stack: DecoderStack, x: Tensor, memory: Tensor, mask: Tensor) -> list[Tensor]:
    torch.manual_seed(8)
    output = stack(x, memory, None, mask)
    weight = torch.linspace(-1, 1, output.numel()).view(output.shape)
    learned = [x, memory, *stack.parameters()]
    return [output, *torch.autograd.grad(output, learned, weight)]


def stack_of(
    rates: tuple[float, float, float],
) -> tuple[DecoderStack, Callable[[], list[Tensor]]]:
    """Stack of two layers, and a function that runs it on sentences with padding."""
    stack = DecoderStack(RecurrentDecoderLayer(CONFIG) for _ in range(2))
    for weight in stack.parameters():
        nn.init.normal_(weight, mean=0.05, std=0.2)
    fused = fuse(stack.train())
    for layer in fused:
        for residual in ("recurrence", "cross_attention", "feed_forward"):
            getattr(layer, f"after_{residual}").dropout.p = rates[0]
        layer.cross_attention.dropout.p = rates[1]
        layer.feed_forward.dropout.p = rates[2]
    x = torch.randn(40, 9, 64, requires_grad=True)
    memory = torch.randn(40, 7, 64, requires_grad=True)
    ids = torch.ones(40, 7, dtype=torch.int64)
    ids[::3, 4:] = 0
    return fused, lambda: run(fused, x, memory, padding_mask(ids, 0))


def assert_alike(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        largest = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=5e-5 * (1 + largest))


@NATIVE
@pytest.mark.parametrize("rates", [(0.0, 0.0, 0.0), (0.3, 0.2, 0.1)], ids=str)
def test_one_call_computes_what_the_layers_compute_one_by_one(
    rates: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, run_all = stack_of(rates)
    found = run_all()
    assert found[0].grad_fn is not None
    assert "LayerStack" in found[0].grad_fn.name()
    stack[0].register_forward_hook(lambda *_: None)  # a hook reads what is between
    assert_alike(found, run_all())
    monkeypatch.setattr(operators, "has_native_recurrence", lambda *_: False)
    assert_alike(found, run_all())


@NATIVE
def test_parts_of_a_batch_give_the_gradients_of_the_whole(two_threads: None) -> None:
    _, run_all = stack_of((0.3, 0.2, 0.1))
    in_parts = run_all()
    torch.set_num_threads(1)
    assert_alike(in_parts, run_all())


@NATIVE
def test_a_hook_on_a_unit_sees_its_output_in_training() -> None:
    stack, run_all = stack_of((0.0, 0.0, 0.0))
    expected, seen = run_all(), []
    for layer in stack:
        layer.recurrence.register_forward_hook(lambda *call: seen.append(call[-1]))
    assert_alike(run_all(), expected)
    assert [each.shape for each in seen] == [(40, 9, 64)] * 2


@NATIVE
@pytest.mark.usefixtures("unchecked_types")
def test_candidates_of_other_sizes_than_the_gates_are_refused() -> None:
    unit = fuse(unit_of(32))
    with pytest.raises(ValueError, match="must get"):
        unit.outputs(torch.randn(3, 5, 32), torch.randn(3, 4, 32))
