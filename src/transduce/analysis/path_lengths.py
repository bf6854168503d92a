"""Maximum path lengths of whole models of any architecture (section 4), measured.

The gradient through each operation that moves a signal between positions is multiplied
by a small epsilon, so that the gradient of a position by another one is a polynomial in
epsilon. Its lowest power is the number of such operations on the shortest path. Two
values of epsilon are enough to find it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from transduce.architectures.convolutional import scaled_gradient
from transduce.architectures.deep_att import FastForwardLayer
from transduce.architectures.interface import TransductionModel
from transduce.device import torch_defaults
from transduce.model.layers import SSRU
from transduce.text.vocabulary import NUM_RESERVED

SEED = 1
"""Seed of the direction in which outputs are differentiated."""
EPSILONS = (1e-6, 1e-7)
"""Small enough that the lowest power dominates, and large enough that a path of forty
operations does not underflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLengths:
    """Largest number of operations on the shortest path between two positions."""

    n: int
    """Length of source and target in tokens."""
    encoder: int | None
    """Between any two source positions; None if some pair has no path."""
    between: int | None
    """From any source position to any target position; None as for `encoder`."""
    decoder: int | None
    """From any target position to any later one; None as for `encoder`."""


def with_scaled_gradient(value: Any, factor: float) -> Any:
    """Multiply the gradient of all tensors of a module's output by a factor.

    The output may be a tensor, a tuple or a dataclass.
    """
    if isinstance(value, Tensor):
        return scaled_gradient(value, factor) if value.requires_grad else value
    if isinstance(value, tuple):
        return tuple(with_scaled_gradient(each, factor) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        scaled = {n: with_scaled_gradient(part, factor) for n, part in parts.items()}
        return replace(value, **scaled)
    return value


class SteppedRecurrence(nn.Module):
    """The same as an `nn.LSTM` or `nn.GRU`, position by position.

    The gradient through each step of the recurrence is multiplied by a factor.
    """

    def __init__(self, recurrence: nn.RNNBase, factor: float) -> None:
        super().__init__()
        self.recurrence = recurrence
        self.factor = factor

    def forward(self, x: Tensor | PackedSequence, state: Any = None) -> Any:
        if isinstance(x, PackedSequence):
            assert state is None, "an encoder begins with zeros"
            rows = int(x.batch_sizes[0])
            assert (x.batch_sizes == rows).all(), "all sentences are equally long"
            inputs = x.data.unflatten(0, (-1, rows)).transpose(0, 1)
            output, last = self._layers(inputs, state)
            flat = output.transpose(0, 1).flatten(0, 1)
            return x._replace(data=flat), last
        if not self.recurrence.batch_first:
            output, last = self._layers(x.transpose(0, 1), state)
            return output.transpose(0, 1), last
        return self._layers(x, state)

    def _layers(
        self, x: Float[Tensor, "batch length _"], state: Any
    ) -> tuple[Float[Tensor, "batch length _"], Any]:
        is_lstm = isinstance(self.recurrence, nn.LSTM)
        suffixes = ("", "_reverse") if self.recurrence.bidirectional else ("",)
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(self.recurrence.num_layers):
            outputs = []
            for suffix in suffixes:
                first = self._first_state(x, state, len(lasts))
                output, last = self._direction(x, first, f"_l{layer}{suffix}")
                outputs.append(output)
                lasts.append(last)
            x = torch.cat(outputs, dim=-1)
        stacked = [torch.stack(parts) for parts in zip(*lasts, strict=True)]
        return x, tuple(stacked) if is_lstm else stacked[0]

    def _first_state(self, x: Tensor, state: Any, number: int) -> tuple[Tensor, ...]:
        if isinstance(state, Tensor):
            return (state[number],)
        if state is not None:
            return tuple(each[number] for each in state)
        hidden = self.recurrence.hidden_size
        width = self.recurrence.proj_size or hidden
        zeros = (x.new_zeros(len(x), width), x.new_zeros(len(x), hidden))
        return zeros if isinstance(self.recurrence, nn.LSTM) else zeros[:1]

    def _direction(
        self, x: Tensor, state: tuple[Tensor, ...], suffix: str
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        places = range(x.size(1))
        outputs: dict[int, Tensor] = {}
        for place in reversed(places) if suffix.endswith("_reverse") else places:
            step = self._step(x[:, place], state, suffix)
            state = with_scaled_gradient(step, self.factor)
            outputs[place] = state[0]
        return torch.stack([outputs[place] for place in places], dim=1), state

    def _step(
        self, x: Tensor, state: tuple[Tensor, ...], suffix: str
    ) -> tuple[Tensor, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [getattr(self.recurrence, f"{n}{suffix}", None) for n in names]
        if not isinstance(self.recurrence, nn.LSTM):
            return (torch.gru_cell(x, state[0], *cast(Any, weights)),)
        from_input, from_hidden, *biases = cast(list[Tensor], weights)
        gates = x @ from_input.T + state[0] @ from_hidden.T
        if biases[0] is not None:
            gates = gates + biases[0] + biases[1]
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
        cell = forget_gate.sigmoid() * state[1]
        cell = cell + input_gate.sigmoid() * candidate.tanh()
        hidden = output_gate.sigmoid() * cell.tanh()
        if self.recurrence.proj_size:
            hidden = hidden @ getattr(self.recurrence, f"weight_hr{suffix}").T
        return hidden, cell


@torch_defaults()
def measure_path_lengths(model: TransductionModel, n: int) -> PathLengths:
    """Measure the path lengths of a model with random weights, for n tokens a side.

    The vocabulary must have n learned pieces at least.
    """
    gradients = [_gradients(model, n, epsilon) for epsilon in EPSILONS]
    ratio = EPSILONS[0] / EPSILONS[1]
    powers = [
        (first / second).log() / math.log(ratio)
        for first, second in zip(*gradients, strict=True)
    ]
    encoder, between, decoder = powers
    every = torch.ones(n, n, dtype=torch.bool)
    return PathLengths(
        n=n,
        encoder=_longest(encoder, every),
        between=_longest(between, every),
        decoder=_longest(decoder, every.tril(-1)),
    )


def _longest(powers: Float[Tensor, "outputs inputs"], pairs: Tensor) -> int | None:
    """Return the largest power of the pairs; None if some pair is not connected."""
    found = powers[pairs]
    return None if found.isnan().any() else round(float(found.max()))


def _gradients(
    model: TransductionModel, n: int, epsilon: float
) -> tuple[Float[Tensor, "{n} {n}"], ...]:
    """Return the size of the gradient of each output by each input position.

    The pairs are those of the encoder, of target by source, and of the decoder. There
    is a copy of the sentence for each output, so that one backward pass is enough.
    """
    own: Any = deepcopy(model)
    own = own.double().eval()
    ids = torch.arange(NUM_RESERVED, NUM_RESERVED + n).repeat(n, 1)
    with _signals_scaled(own, epsilon), _InDouble():
        with _embedded(own, n) as source:
            memory = own.encode(ids)
        encoded = _states_of(memory, n)
        if own.cross_attention_taps:
            memory = with_scaled_gradient(memory, epsilon)
        with _embedded(own, n) as target:
            states = own.decode(ids, memory)
    return (
        _sizes(encoded, source), _sizes(states, source), _sizes(states, target)
    )  # fmt: skip


def _sizes(
    outputs: Float[Tensor, "copies positions width"], embedded: Sequence[Tensor]
) -> Float[Tensor, "outputs inputs"]:
    """Return the size of the gradient of each copy's own output by each embedding."""
    count = len(outputs)
    own = outputs[range(count), range(count)]
    generator = torch.Generator().manual_seed(SEED)
    direction = torch.randn(own.size(-1), dtype=own.dtype, generator=generator)
    found = torch.autograd.grad((own @ direction).sum(), embedded, retain_graph=True)
    # Their squares, in a norm, would underflow.
    sizes = [each.abs().sum(dim=-1)[:, :count] for each in found]
    return torch.stack(sizes).sum(dim=0)


@contextmanager
def _embedded(model: nn.Module, n: int) -> Iterator[list[Tensor]]:
    """Record the embeddings of n copies of n ids, or more, inside the block."""
    found: list[Tensor] = []

    def record(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not inputs or not isinstance(ids := inputs[0], Tensor):
            return
        is_embedding = isinstance(output, Tensor) and output.is_floating_point()
        is_of_copies = ids.dim() == 2 and len(ids) == n <= ids.size(1)
        if is_embedding and is_of_copies and not ids.is_floating_point():
            found.append(output)

    hooks = [module.register_forward_hook(record) for module in model.modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _states_of(memory: Any, n: int) -> Float[Tensor, "copies positions width"]:
    """Return the encoder's states, the first tensor with a row for each position."""
    for field in fields(memory):
        value = getattr(memory, field.name)
        is_states = isinstance(value, Tensor) and value.is_floating_point()
        if is_states and value.dim() == 3 and value.size(1) >= n:
            return value
    raise AssertionError("an encoder must give states")


class _InDouble(TorchFunctionMode):
    """Mode in which nothing is converted to fp32, where small gradients underflow."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is Tensor.float:
            return args[0]
        if given.get("dtype") is torch.float32:
            given["dtype"] = torch.float64
        return func(*args, **given)


def _is_self_attention(module: nn.Module, crossing: Sequence[nn.Module]) -> bool:
    tap = dict(module.named_children()).get("weights_tap")
    return tap is not None and all(tap is not each for each in crossing)


def _scaling(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """Return a function whose results have gradients multiplied by a factor."""
    return lambda *inputs: with_scaled_gradient(function(*inputs), factor)


@contextmanager
def _signals_scaled(model: Any, factor: float) -> Iterator[None]:
    """Multiply the gradient by a factor wherever a signal moves between positions.

    Cross-attention is left out, since it moves signals of the memory only.
    """

    def scale(_: nn.Module, __: object, output: Any) -> Any:
        return with_scaled_gradient(output, factor)

    hooks = []
    crossing = model.cross_attention_taps
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.RNNBase):
            # Only its function is replaced, as callers read the type of the module.
            module.forward = SteppedRecurrence(module, factor).forward
        if isinstance(module, FastForwardLayer | SSRU):
            module.step = _scaling(module.step, factor)  # type: ignore[method-assign]
        # Convolutions are maps of windows, which carry this name.
        is_moving = name.endswith("convolution")
        if is_moving or _is_self_attention(module, crossing):
            hooks.append(module.register_forward_hook(scale))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
