"""What depends on what in a layer: how long are the paths, how much must wait.

Found from the layers themselves: from the zeros of their Jacobians, and from the graph
of operations that PyTorch keeps to go backwards.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from transduce.analysis.cost import LayerSizes, LayerType
from transduce.analysis.layer_types.layers import (
    LOOKING_BACK,
    Recurrence,
    make_layer,
)
from transduce.model.attention import MultiHeadAttention

EXACT = torch.float64
"""Fine enough that what depends on another over a long path does not vanish. Besides,
PyTorch has no LSTM in one piece for it, which would hide its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLength:
    """How many steps of a layer's kind lie between the ends of a sequence, at most."""

    layer: LayerType
    sizes: LayerSizes
    measured: int
    theory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialOperations:
    """The longest chain of operations in one layer, by the length of the sequence."""

    layer: LayerType
    n: tuple[int, ...]
    counts: tuple[int, ...]


class FollowedRecurrence(nn.Module):
    """A recurrence in which a signal is followed through so many steps alone.

    Of a batch, sequence i is followed through the last steps up to position i: the
    state that comes before them is taken as it is.
    """

    def __init__(self, recurrence: Recurrence, num_steps: int) -> None:
        super().__init__()
        self.lstm = recurrence.lstm
        self.num_steps = num_steps

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        outputs, state = [], None
        for position in range(x.size(1)):
            output, (hidden, cell) = self.lstm(x[:, position : position + 1], state)
            outputs.append(output)
            is_cut = torch.arange(len(x)) == position + self.num_steps
            state = _cut(hidden, is_cut), _cut(cell, is_cut)
        return torch.cat(outputs, dim=1)


def dependencies(layers: nn.Module, n: int, d: int) -> Bool[Tensor, "outputs inputs"]:
    """Which inputs each output depends on: where the Jacobian is not zero."""
    # A copy of the sequence for each output, so that one pass goes back from all.
    x = torch.randn(n, d, dtype=EXACT).repeat(n, 1, 1).requires_grad_()
    own = layers(x).diagonal(dim1=0, dim2=1)
    (gradient,) = torch.autograd.grad((own * torch.randn_like(own)).sum(), x)
    return (gradient != 0).any(dim=-1)


def maximum_path_length(layer: LayerType, sizes: LayerSizes) -> int:
    """The fewest steps that connect each output with all inputs it may depend on.

    A step is a layer of a stack; of a recurrence, a position.
    """
    wanted = torch.ones(sizes.n, sizes.n, dtype=torch.bool)
    if layer in LOOKING_BACK:
        wanted = wanted.tril()

    def connects(num_steps: int) -> bool:
        steps = _steps(layer, sizes, num_steps).to(EXACT)
        found = dependencies(steps, sizes.n, sizes.d)
        assert not (found & ~wanted).any()
        return bool(found[wanted].all())

    return 1 + bisect_left(range(1, sizes.n + 1), True, key=connects)


def count_sequential_operations(layer: LayerType, sizes: LayerSizes) -> int:
    """Operations of one layer of which each needs what the one before put out."""
    made = make_layer(layer, sizes).to(EXACT)
    for module in made.modules():
        if isinstance(module, MultiHeadAttention):
            # While one listens, attention is not one fused operation.
            module.weights_tap.register_forward_hook(lambda *_: None)
    x = torch.randn(1, sizes.n, sizes.d, dtype=EXACT, requires_grad=True)
    node = made(x).grad_fn
    assert node is not None
    return _longest_chain(node)


def _steps(layer: LayerType, sizes: LayerSizes, num_steps: int) -> nn.Module:
    """So many steps of a layer's kind."""
    if layer == "recurrent":
        return FollowedRecurrence(Recurrence(sizes.d), num_steps)
    return nn.Sequential(*(make_layer(layer, sizes, i) for i in range(num_steps)))


def _cut(
    state: Float[Tensor, "1 batch d_model"], is_cut: Bool[Tensor, " batch"]
) -> Float[Tensor, "1 batch d_model"]:
    return torch.where(is_cut[:, None], state.detach(), state)


def _longest_chain(last: Node) -> int:
    """Nodes on the longest way from one that needs no other."""
    lengths: dict[Node, int] = {}
    waiting = [last]
    while waiting:
        node = waiting[-1]
        needed = [each for each, _ in node.next_functions if each is not None]
        if unknown := [each for each in needed if each not in lengths]:
            waiting += unknown
            continue
        lengths[node] = 1 + max((lengths[each] for each in needed), default=0)
        waiting.pop()
    return lengths[last]
