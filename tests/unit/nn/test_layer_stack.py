"""The kernel of a whole stack computes what its layers compute one by one."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from instruction_sets import chosen_isa
from transduce.model.attention import causal_mask, padding_mask
from transduce.model.config import ModelConfig
from transduce.model.layers import (
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from transduce.model.transformer import Transformer
from transduce.nn.fuse import fuse
from transduce.nn.kernels import has_fp32_products
from transduce.nn.native_layers import MAX_PARTS

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
    num_layers=3,
    decoder_layers=2,
    dropout=0.3,
)


def drawn(batch: int, source: int, target: int) -> tuple[Tensor, Tensor]:
    """Random inputs of the encoder and the decoder."""
    sides = torch.randn(batch, source, 64), torch.randn(batch, target, 64)
    return sides[0].requires_grad_(), sides[1].requires_grad_()


def stacks(config: ModelConfig = CONFIG) -> tuple[EncoderStack, DecoderStack]:
    encoder = EncoderStack(EncoderLayer(config) for _ in range(config.num_layers))
    decoder = DecoderStack(
        DecoderLayer(config) for _ in range(config.num_decoder_layers)
    )
    for weight in [*encoder.parameters(), *decoder.parameters()]:
        nn.init.normal_(weight, mean=0.05, std=0.2)  # biases and norms too
    return fuse(encoder.train()), fuse(decoder.train())


def padded(batch: int, length: int) -> Tensor:
    """The mask of sentences, each shorter than the one before it."""
    ids = torch.ones(batch, length, dtype=torch.long)
    for number in range(1, batch):
        ids[number, max(length - number, 1) :] = 0
    return padding_mask(ids, 0)


def run(
    encoder: EncoderStack, decoder: DecoderStack, source: Tensor, target: Tensor
) -> Tensor:
    """Run encoder and decoder, always with the same dropout masks."""
    torch.manual_seed(8)
    mask = padded(*source.shape[:2])
    memory = encoder(source, mask)
    self_mask = causal_mask(target.size(1), target.size(1), target.device)
    return decoder(target, memory, self_mask, mask)


def one_by_one(*stacks: nn.Module) -> None:
    """Let layers run one by one: a hook reads the output of the first."""
    for stack in stacks:
        stack[0].register_forward_hook(lambda *_: None)


def gradients(output: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    outer = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
    return torch.autograd.grad(output, of, outer.view(output.shape))


def assert_alike(
    found: Iterable[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-4
) -> None:
    """Compare up to rounding, relative to the tensor and to the largest of all."""
    largest = max(each.abs().max().item() for each in expected)
    for ours, theirs in zip(found, expected, strict=True):
        error = tolerance * theirs.abs().max().item() + tolerance / 10 * largest
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=error)


def is_compiled(output: Tensor) -> bool:
    return output.grad_fn is not None and "LayerStack" in output.grad_fn.name()


RATES = [
    (0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3), (0.1, 0.2, 0.4),
]  # fmt: skip
"""Rates of the three kinds of dropout: of outputs, of attention, after the ReLU."""


def with_rates(config: ModelConfig, rates: tuple[float, float, float]) -> ModelConfig:
    names = ("dropout", "attention_dropout", "relu_dropout")
    return replace(config, **dict(zip(names, rates, strict=True)))


@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("d_ff", [96, 80])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (2, 5, 3), (7, 13, 20), (3, 128, 2), (30, 9, 11)], ids=str
)
def test_layers_one_by_one_have_the_same_outputs_and_gradients(sizes, d_ff, rates):
    both = stacks(with_rates(replace(CONFIG, d_ff=d_ff), rates))
    inputs = drawn(*sizes)
    learned = [*inputs, *both[0].parameters(), *both[1].parameters()]
    output = run(*both, *inputs)
    assert is_compiled(output)
    found = gradients(output, *learned)
    one_by_one(*both)
    plain = run(*both, *inputs)
    assert not is_compiled(plain)
    torch.testing.assert_close(output, plain, rtol=1e-5, atol=1e-5)
    assert_alike(found, gradients(plain, *learned))


@pytest.mark.parametrize("sizes", [(2, 150, 9), (2, 9, 140), (1, 257, 131)], ids=str)
def test_the_kernel_supports_attention_dropout_in_long_sentences(sizes):
    both = stacks(replace(CONFIG, attention_dropout=0.2))
    inputs = drawn(*sizes)
    learned = [*inputs, *both[0].parameters(), *both[1].parameters()]
    output = run(*both, *inputs)
    assert is_compiled(output)
    found = gradients(output, *learned)
    one_by_one(*both)
    plain = run(*both, *inputs)
    torch.testing.assert_close(output, plain, rtol=1e-5, atol=1e-5)
    assert_alike(found, gradients(plain, *learned))


@pytest.mark.parametrize("rates", [(0.0, 0.2, 0.0), (0.0, 0.0, 0.2), (0.1, 0.1, 0.1)])
def test_parts_of_a_batch_draw_the_masks_of_the_whole(rates, two_threads):
    both, inputs = stacks(with_rates(CONFIG, rates)), drawn(67, 13, 17)
    torch.set_num_threads(1)
    whole = run(*both, *inputs)
    for num_threads in (2, 3, 4):
        torch.set_num_threads(num_threads)
        in_parts = run(*both, *inputs)
        assert in_parts.grad_fn.stack.parts == num_threads
        torch.testing.assert_close(in_parts, whole, rtol=1e-5, atol=1e-5)


def test_sub_layers_each_draw_their_own_masks():
    """Attention and ReLU dropout draw their own masks in each sub-layer."""
    config = with_rates(replace(CONFIG, num_layers=2), (0.0, 0.3, 0.0))
    encoder, _ = stacks(config)
    seeds = list(encoder(torch.randn(2, 6, 64), padded(2, 6)).grad_fn.seeds)
    within = [tuple(seeds[at : at + 2]) for at in (0, 8)]
    assert len(set(within)) == len(within)
    assert not any(seeds[2:8] + seeds[10:])  # these rates are zero
    encoder, _ = stacks(with_rates(replace(CONFIG, num_layers=2), (0.1, 0.1, 0.1)))
    seeds = list(encoder(torch.randn(2, 6, 64), padded(2, 6)).grad_fn.seeds)
    assert len(set(seeds)) == len(seeds)


def test_restricted_self_attention_has_the_same_gradients(two_threads):
    torch.manual_seed(1)
    model = fuse(Transformer(replace(CONFIG, neighbourhood=2)).train())
    source, target = torch.randint(4, 50, (60, 9)), torch.randint(4, 50, (60, 12))
    source[1, 5:] = source[40:, 7:] = 0

    def found() -> tuple[Tensor, ...]:
        torch.manual_seed(2)
        states = model.decode(target, model.encode(source))
        assert is_compiled(states) == is_asked
        loss = model.logits(states).log_softmax(-1)[..., 7].sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    is_asked = True
    ours = found()
    one_by_one(model.encoder_layers, model.decoder_layers)
    is_asked = False
    assert_alike(ours, found())


def test_gradients_are_near_those_in_double_precision():
    both, inputs = stacks(replace(CONFIG, dropout=0.0)), drawn(20, 9, 11)
    exact = [deepcopy(each).double() for each in both]
    exact_inputs = [each.detach().double().requires_grad_() for each in inputs]
    output, expected = run(*both, *inputs), run(*exact, *exact_inputs)
    assert is_compiled(output)
    assert not is_compiled(expected)
    learned = [*inputs, *both[0].parameters(), *both[1].parameters()]
    of = [*exact_inputs, *exact[0].parameters(), *exact[1].parameters()]
    found = [each.double() for each in gradients(output, *learned)]
    assert_alike(found, gradients(expected, *of), tolerance=1e-5)


@pytest.mark.parametrize("sentences", [1, 3, 60])
def test_evaluation_drops_nothing_and_saves_no_activations(sentences, two_threads):
    both, inputs = stacks(), drawn(sentences, 20, 17)
    encoder, decoder = (each.eval() for each in both)
    exact = [deepcopy(each).double() for each in both]
    exact_inputs = [each.detach().double().requires_grad_() for each in inputs]
    learned = [*inputs, *encoder.parameters(), *decoder.parameters()]
    output = run(encoder, decoder, *inputs)
    assert is_compiled(output)
    found = gradients(output, *learned)
    with torch.no_grad(), Buffers() as alone:
        assert torch.equal(run(encoder, decoder, *inputs), output)
    with Buffers() as kept:
        run(encoder, decoder, *inputs)
    for size, whole, count in zip(alone.states, kept.states, (3, 2), strict=True):
        assert whole == count * size
    # In fp64: PyTorch rounds some sums in fp32 more than the library does.
    expected = run(*exact, *exact_inputs)
    assert not is_compiled(expected)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    of = [*exact_inputs, *exact[0].parameters(), *exact[1].parameters()]
    assert_alike([each.double() for each in found], gradients(expected, *of))


class Buffers(TorchDispatchMode):
    """Record of the buffers that calls of the kernel allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    @property
    def states(self) -> list[int]:
        """Size of each call's states; its workspace comes after them."""
        return self.sizes[::2]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.new_empty.default:
            self.sizes.append(found.size(1))
        return found


@pytest.mark.parametrize("sentences", [0, 1, 30, 67])
def test_the_number_of_threads_does_not_change_the_gradients(sentences, two_threads):
    both, inputs = stacks(), drawn(sentences, 20, 17)
    learned = [*inputs, *both[0].parameters(), *both[1].parameters()]

    def found(num_threads: int, backwards: int) -> list[Tensor]:
        torch.set_num_threads(num_threads)
        output = run(*both, *inputs)
        assert is_compiled(output)
        torch.set_num_threads(backwards)
        return [output, *gradients(output, *learned)]

    alone = found(1, 1)
    for num_threads, backwards in ((2, 2), (4, 4), (5, 5), (3, 1), (1, 3)):
        several = found(num_threads, backwards)
        if sentences > 0:
            assert_alike(several, alone)
        assert all(each.isfinite().all() for each in several)


def test_a_batch_has_one_part_per_thread_if_rows_suffice(two_threads):
    both = stacks()

    def parts(sentences: int, num_threads: int) -> int:
        torch.set_num_threads(num_threads)
        return run(*both, *drawn(sentences, 1, 16)).grad_fn.stack.parts

    assert [parts(31, 2), parts(32, 2), parts(32, 3), parts(80, 4)] == [1, 2, 1, 4]
    assert parts(200, MAX_PARTS + 1) == 1


def test_the_seed_decides_the_dropout_masks():
    both, inputs = stacks(), drawn(3, 8, 6)
    output = run(*both, *inputs)
    assert is_compiled(output)
    assert torch.equal(run(*both, *inputs), output)
    torch.manual_seed(9)
    encoder, source, mask = both[0], inputs[0], padded(3, 8)
    one, other = encoder(source, mask), encoder(source, mask)
    assert not torch.equal(one, other)


def test_several_threads_may_run_backward_at_once():
    encoder, _ = stacks()
    source, _ = drawn(5, 11, 1)
    output = encoder(source, padded(5, 11))
    outers = [torch.randn_like(output) for _ in range(20)]
    learned = [source, *encoder.parameters()]

    def backwards(outer: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, learned, outer, retain_graph=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backwards, outers))
    for each, outer in zip(found, outers, strict=True):
        assert_alike(each, backwards(outer))


def test_each_saved_tensor_is_unpacked_once():
    encoder, _ = stacks()
    source, _ = drawn(3, 7, 1)
    fetched = []

    def fetch(tensor: Tensor) -> Tensor:
        fetched.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fetch):
        output = encoder(source, padded(3, 7))
    output.sum().backward()
    # The input, the saved activations and the weights.
    assert len(fetched) == 2 + len(list(encoder.parameters()))


def test_activation_checkpointing_gives_the_same_gradients():
    encoder, _ = stacks(replace(CONFIG, dropout=0.0))
    source, _ = drawn(3, 7, 1)
    expected = gradients(encoder(source, padded(3, 7)), source)
    again = checkpoint(encoder, source, padded(3, 7), use_reentrant=False)
    assert torch.equal(*gradients(again, source), *expected)


def test_gradients_accumulate():
    encoder, _ = stacks(replace(CONFIG, dropout=0.0))
    source, _ = drawn(3, 7, 1)
    for _ in range(2):
        encoder(source, padded(3, 7)).square().sum().backward()
    output = encoder(source, padded(3, 7)).square().sum()
    learned = list(encoder.parameters())
    once = torch.autograd.grad(output, learned)
    assert_alike([weight.grad for weight in learned], [2 * each for each in once])


def test_frozen_weights_get_no_gradient():
    encoder, _ = stacks()
    for weight in encoder[0].parameters():
        weight.requires_grad_(False)
    output = encoder(torch.randn(3, 7, 64), padded(3, 7))
    assert is_compiled(output)
    output.sum().backward()
    assert all(weight.grad is None for weight in encoder[0].parameters())
    assert all(weight.grad is not None for weight in encoder[1].parameters())


def test_a_rate_of_zero_draws_no_random_numbers():
    encoder, _ = stacks(replace(CONFIG, dropout=0.0))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert is_compiled(encoder(torch.ones(3, 7, 64), padded(3, 7)))
    assert torch.equal(torch.rand(1), expected)


def test_a_slice_of_a_stack_is_computed_by_the_kernel():
    encoder, _ = stacks()
    source, _ = drawn(3, 7, 1)
    assert is_compiled(encoder[:2](source, padded(3, 7)))


def test_weights_of_other_shapes_are_refused():
    encoder, _ = stacks()
    encoder[1].feed_forward.outer.bias = nn.Parameter(torch.zeros(63))
    with pytest.raises(ValueError, match=r"must have the shape \[64\], but has \[63\]"):
        encoder(torch.randn(3, 7, 64), padded(3, 7))


@pytest.mark.usefixtures("unchecked_types")
def test_sentences_that_share_a_memory_are_not_read_beyond_its_end():
    _, decoder = stacks(replace(CONFIG, dropout=0.0))
    memory, target = torch.randn(1, 6, 64), torch.randn(4, 5, 64)
    mask, self_mask = padded(1, 6), causal_mask(5, 5, target.device)
    output = decoder(target, memory, self_mask, mask)
    assert not is_compiled(output)
    of_each = (each.expand(4, *each.shape[1:]) for each in (memory, mask))
    memories, masks = of_each
    assert_alike([output], [decoder(target, memories, self_mask, masks)])


@pytest.mark.usefixtures("unchecked_types")
def test_masks_of_other_lengths_are_refused():
    encoder, decoder = stacks()
    with pytest.raises(RuntimeError, match="size"):
        encoder(torch.randn(3, 7, 64), padded(3, 5))
    target, self_mask = torch.randn(3, 4, 64), causal_mask(4, 4, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="size"):
        decoder(target, torch.randn(3, 7, 64), self_mask, padded(3, 5))


def test_saved_tensors_may_be_moved_by_hooks():
    both, inputs = stacks(), drawn(3, 7, 5)
    plain = run(*both, *inputs)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        other = run(*both, *inputs)
    expected = gradients(plain, *inputs)
    del plain
    for one, two in zip(gradients(other, *inputs), expected, strict=True):
        assert torch.equal(one, two)


def test_inputs_may_be_non_contiguous():
    both, inputs = stacks(), drawn(4, 6, 5)
    strewn = [x.detach().transpose(0, 2).contiguous().transpose(0, 2) for x in inputs]
    output = run(*both, *inputs)
    assert torch.equal(run(*both, *strewn), output)
    # The gradient of a sum is an expanded tensor, which is not contiguous either.
    found = torch.autograd.grad(output.sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad(output, inputs, torch.ones_like(output))
    assert all(map(torch.equal, found, expected))


def test_nan_stays_within_its_sentence():
    encoder, _ = stacks()
    source, _ = drawn(3, 7, 1)
    with torch.no_grad():
        source[1, 2] = torch.nan
    output = encoder(source, torch.ones(1, 1, 1, 7, dtype=torch.bool))
    assert output.isnan().flatten(1).all(dim=1).tolist() == [False, True, False]
    assert output[[0, 2]].isfinite().all()


def test_inputs_and_weights_are_not_modified():
    both, inputs = stacks(), drawn(3, 7, 5)
    learned = [*inputs, *both[0].parameters(), *both[1].parameters()]
    before = [each.detach().clone() for each in learned]
    output = run(*both, *inputs)
    kept = output.detach().clone()
    gradients(output, *learned)
    assert torch.equal(output, kept)
    assert all(map(torch.equal, learned, before))


def test_gradients_share_no_memory():
    encoder, _ = stacks()
    source, _ = drawn(2, 3, 1)
    encoder(source, padded(2, 3)).sum().backward()
    found = [weight.grad for weight in encoder.parameters()]
    places = sorted((g.data_ptr(), g.data_ptr() + 4 * g.numel()) for g in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def as_it_is(_: EncoderStack) -> None:
    pass


def watched(encoder: EncoderStack) -> None:
    tap = encoder[1].self_attention.weights_tap
    tap.register_forward_hook(lambda *_: None)


def watched_before(encoder: EncoderStack) -> None:
    encoder[1].register_forward_pre_hook(lambda *_: None)


def watched_backwards(encoder: EncoderStack) -> None:
    encoder[0].feed_forward.register_full_backward_hook(lambda *_: None)


def partly_at_rest(encoder: EncoderStack) -> None:
    encoder[2].after_feed_forward.eval()


class PackedMap(nn.Module):
    """A map without a `weight`, like the packed ones of decoding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._inner = [inner]

    def forward(self, x: Tensor) -> Tensor:
        return self._inner[0](x)


def packed(encoder: EncoderStack) -> None:
    for layer in encoder:
        layer.feed_forward.inner = PackedMap(layer.feed_forward.inner)


def partly_with_less_dropout(encoder: EncoderStack) -> None:
    encoder[1].after_self_attention.dropout.p = 0.1


def partly_with_dropout_of_attention(encoder: EncoderStack) -> None:
    encoder[1].self_attention.dropout.p = 0.1


def partly_with_dropout_of_the_relu(encoder: EncoderStack) -> None:
    encoder[2].feed_forward.dropout.p = 0.1


@pytest.mark.parametrize(
    ("change", "config", "is_so"),
    [
        (as_it_is, CONFIG, True),
        (EncoderStack.eval, CONFIG, True),
        (packed, CONFIG, False),
        (watched, CONFIG, False),
        (watched_before, CONFIG, False),
        (watched_backwards, CONFIG, False),
        (partly_at_rest, CONFIG, False),
        (partly_with_less_dropout, CONFIG, False),
        (partly_with_dropout_of_attention, CONFIG, False),
        (partly_with_dropout_of_the_relu, CONFIG, False),
        (as_it_is, replace(CONFIG, attention_dropout=0.1, relu_dropout=0.1), True),
        (as_it_is, replace(CONFIG, norm="pre"), False),
        (as_it_is, replace(CONFIG, activation="silu"), False),
        (as_it_is, replace(CONFIG, scores="additive", d_v=16), False),
        (as_it_is, replace(CONFIG, scores="unscaled"), True),
        (as_it_is, replace(CONFIG, d_ff=48), True),
        (as_it_is, replace(CONFIG, d_ff=40), False),
        (as_it_is, replace(CONFIG, d_k=8), False),
        (EncoderStack.double, CONFIG, False),
    ],
)
def test_the_kernel_is_used_only_if_it_equals_the_layers(
    change: Callable[[EncoderStack], object], config: ModelConfig, is_so: bool
):
    encoder, _ = stacks(config)
    change(encoder)
    dtype = next(encoder.parameters()).dtype
    source = torch.randn(2, 5, 64, dtype=dtype, requires_grad=True)
    assert is_compiled(encoder(source, padded(2, 5))) == is_so


def test_the_seed_decides_the_masks_of_all_kinds_of_dropout():
    encoder, _ = stacks(with_rates(CONFIG, (0.0, 0.2, 0.2)))
    source, mask = torch.randn(3, 8, 64), padded(3, 8)
    torch.manual_seed(8)
    first, second = encoder(source, mask), encoder(source, mask)
    torch.manual_seed(8)
    assert torch.equal(encoder(source, mask), first)
    assert not torch.equal(first, second)
    assert torch.equal(encoder.eval()(source, mask), encoder(source, mask))


def test_several_threads_may_run_backward_with_all_kinds_of_dropout():
    encoder, _ = stacks(with_rates(CONFIG, (0.1, 0.2, 0.2)))
    source, _ = drawn(5, 11, 1)
    output = encoder(source, padded(5, 11))
    outers = [torch.randn_like(output) for _ in range(20)]

    def backwards(outer: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, source, outer, retain_graph=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backwards, outers))
    for each, outer in zip(found, outers, strict=True):
        assert torch.equal(*each, *backwards(outer))


def test_the_kernel_is_used_only_for_short_sentences():
    encoder, _ = stacks()
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    assert is_compiled(encoder(torch.randn(1, 128, 64), mask.expand(-1, -1, -1, 128)))
    assert not is_compiled(
        encoder(torch.randn(1, 129, 64), mask.expand(-1, -1, -1, 129))
    )


def test_the_kernel_is_used_only_for_a_short_memory():
    _, decoder = stacks()
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    for length, is_so in ((128, True), (129, False)):
        memory_mask = mask.expand(2, -1, -1, length)
        inputs = torch.randn(2, 1, 64), torch.randn(2, length, 64)
        assert is_compiled(decoder(*inputs, mask, memory_mask)) == is_so


def test_without_avx_fp32_layers_run_one_by_one():
    encoder, _ = stacks()
    with chosen_isa("generic"):
        assert not has_fp32_products()
        assert not is_compiled(encoder(torch.randn(1, 2, 64), padded(1, 2)))
