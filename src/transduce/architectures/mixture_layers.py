"""Layer of a mixture of experts (Shazeer et al., 2017): gates, experts and losses.

A layer holds many experts, which are small feed-forward networks, and gates that choose
a few experts for each token. It has many parameters, but a token uses only a few.
Section and equation numbers refer to that paper.

In training the gates may depend on the batch (`batchwise`, appendix F) or on noise
(`noisy-top-k`, section 2.1). In evaluation and decoding they depend on the token alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import ExpertsConfig

NOISE_EPSILON = 1e-2
"""Smallest standard deviation of the noise."""
TINY = 1e-10
"""Term that keeps quotients of sums finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Neighbouring rows of a buffer: groups padded to the same number of rows."""

    groups: Int[Tensor, " groups"] | None
    """Numbers of the groups; None for all groups in their order."""
    num_groups: int
    rows: slice


def _groups_of_similar_size(
    sizes: Int64[np.ndarray, " groups"],
) -> Iterator[Int64[np.ndarray, " members"]]:
    """Yield groups whose numbers of rows are between the same two powers of two.

    Groups of few rows come first; groups without rows are left out.
    """
    # Exponent of the power of two that is above the number of rows.
    exponents = np.frexp(sizes)[1]
    for exponent in np.unique(exponents[sizes > 0]):
        yield np.flatnonzero(exponents == exponent)


class GroupedRows:
    """Layout of rows in a buffer, where each group has a matrix of its own.

    One batched product multiplies many groups, whose rows are padded to the same
    number. Groups are put into blocks by their number of rows, from one power of two to
    the next. However unequal the groups are, a buffer has less than twice as many rows
    as needed, and there are at most as many products as powers of two. Groups without
    rows cost nothing, and no row is dropped. If all groups have the same number of
    rows, nothing is padded and no matrix is copied.

    The CPU reads the numbers of rows, so a GPU is waited for once per layout.

    A loop over the groups would start hundreds of small products; one block padded to
    the largest group would multiply mostly padding when most rows are in one group.
    """

    def __init__(self, groups: Int[Tensor, " rows"], num_groups: int) -> None:
        """Create the layout from the group of each row, in ascending order."""
        device = groups.device
        sizes_on_device = torch.bincount(groups, minlength=num_groups)
        sizes = sizes_on_device.cpu().numpy()
        starts = np.zeros(num_groups, dtype=np.int64)  # of the groups in the buffer
        self._blocks: list[_Block] = []
        self._num_rows = 0
        for members in _groups_of_similar_size(sizes):
            width = int(sizes[members].max())
            starts[members] = self._num_rows + width * np.arange(len(members))
            self._add_block(members, width, num_groups, device)
        first = sizes_on_device.cumsum(0) - sizes_on_device
        shift = torch.from_numpy(starts).to(device) - first
        self._places = torch.arange(len(groups), device=device) + shift[groups]
        """Row of the buffer for each row."""

    def _add_block(
        self,
        members: Int64[np.ndarray, " members"],
        width: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        """Append a block of some groups, with `width` rows each."""
        begin, count = self._num_rows, len(members)
        self._num_rows += width * count
        is_all = count == num_groups
        self._blocks.append(
            _Block(
                groups=None if is_all else torch.from_numpy(members).to(device),
                num_groups=count,
                rows=slice(begin, self._num_rows),
            )
        )

    def pad(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "padded width"]:
        """Copy the rows into a buffer, whose other rows are zero."""
        buffer = rows.new_zeros(self._num_rows, rows.size(1))
        return buffer.index_copy(0, self._places, rows)

    def unpad(
        self, buffer: Float[Tensor, "padded width"]
    ) -> Float[Tensor, "rows width"]:
        """Return the rows of a buffer in their order."""
        return buffer.index_select(0, self._places)

    def product(
        self,
        buffer: Float[Tensor, "padded inputs"],
        matrices: Float[Tensor, "groups inputs outputs"],
    ) -> Float[Tensor, "padded outputs"]:
        """Multiply the rows of each group by the group's matrix."""
        if not self._blocks:
            return buffer.new_zeros(0, matrices.size(2))
        return torch.cat([self._multiply(buffer, matrices, b) for b in self._blocks])

    def _multiply(
        self,
        buffer: Float[Tensor, "padded inputs"],
        matrices: Float[Tensor, "groups inputs outputs"],
        block: _Block,
    ) -> Float[Tensor, "block_rows outputs"]:
        rows = buffer[block.rows].unflatten(0, (block.num_groups, -1))
        if block.groups is not None:
            matrices = matrices.index_select(0, block.groups)
        return torch.bmm(rows, matrices).flatten(0, 1)


class Experts(nn.Module):
    """Feed-forward networks with one hidden layer: relu(x W_1) W_2.

    They have no biases, as the number of parameters in appendix E says.
    """

    def __init__(self, num_experts: int, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.empty(num_experts, d_model, d_ff))
        self.outer = nn.Parameter(torch.empty(num_experts, d_ff, d_model))
        # Glorot and Bengio (2010) for each expert; the paper does not say.
        bound = math.sqrt(6 / (d_model + d_ff))
        nn.init.uniform_(self.inner, -bound, bound)
        nn.init.uniform_(self.outer, -bound, bound)

    def forward(
        self, rows: Float[Tensor, "rows d_model"], experts: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows d_model"]:
        """Apply to each row its expert; the experts are in ascending order."""
        layout = GroupedRows(experts, len(self.inner))
        hidden = layout.product(layout.pad(rows), self.inner).relu()
        return layout.unpad(layout.product(hidden, self.outer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Experts, or groups of experts, that a level of gates chooses for rows."""

    is_chosen: Bool[Tensor, "rows choices"]
    gates: Float[Tensor, "rows choices"]
    """Weights of the chosen ones, which sum to 1; zero elsewhere."""
    load: Float[Tensor, "parents choices"] | None = None
    """Differentiable estimate of how many rows each gets; only in training, and None if
    all get equally many."""
    threshold_loss: Float[Tensor, ""] | None = None
    """Loss of the thresholds, a mean over the rows."""


class Gate(nn.Module, ABC):
    """One level of gates: for each row, weights of the few choices that it goes to.

    A second level has one set of choices for each group of the first, its parent.
    """

    def __init__(
        self, d_model: int, num_parents: int, num_choices: int, top_k: int
    ) -> None:
        super().__init__()
        self.top_k = top_k
        # Zero at first (appendix A): all choices are equally good.
        self.weight = nn.Parameter(torch.zeros(num_parents, d_model, num_choices))

    @abstractmethod
    def forward(
        self, rows: Float[Tensor, "rows d_model"], parents: Int[Tensor, " rows"]
    ) -> Choice:
        """Choose for rows in ascending order of their parents."""

    def products(
        self,
        rows: Float[Tensor, "rows d_model"],
        parents: Int[Tensor, " rows"],
        *weights: Float[Tensor, "parents d_model choices"],
    ) -> list[Float[Tensor, "rows choices"]]:
        """Multiply each row by its parent's matrix of each weight, in fp32.

        In bf16, rounding could change the order of nearly equal choices.
        """
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.float()
            if len(self.weight) == 1:
                return [rows @ each[0].float() for each in weights]
            layout = GroupedRows(parents, len(self.weight))
            padded = layout.pad(rows)
            return [
                layout.unpad(layout.product(padded, each.float())) for each in weights
            ]


class NoisyTopKGate(Gate):
    """Softmax over the k largest logits, which have noise in training (section 2.1).

    G(x) = Softmax(KeepTopK(H(x), k))
    H(x)_i = (x W_g)_i + StandardNormal() Softplus((x W_noise)_i)
    """

    def __init__(
        self, d_model: int, num_parents: int, num_choices: int, top_k: int
    ) -> None:
        super().__init__(d_model, num_parents, num_choices, top_k)
        self.noise = nn.Parameter(torch.zeros_like(self.weight))

    def forward(
        self, rows: Float[Tensor, "rows d_model"], parents: Int[Tensor, " rows"]
    ) -> Choice:
        if not self.training:
            [clean] = self.products(rows, parents, self.weight)
            return self._choose(clean)[0]
        clean, noise = self.products(rows, parents, self.weight, self.noise)
        # Unlike the paper: the deviation has a lower bound, as in the authors' code,
        # tensor2tensor. Otherwise the gradient of the load could become infinite. Off
        # by default: only in mixtures of experts.
        deviation = NOISE_EPSILON + functional.softplus(noise)
        noisy = clean + self.draw_normal(clean) * deviation
        choice, in_order = self._choose(noisy)
        probability = self._probability(clean, deviation, choice.is_chosen, in_order)
        load = _sum_by_parent(probability, parents, len(self.weight))
        return Choice(is_chosen=choice.is_chosen, gates=choice.gates, load=load)

    def draw_normal(
        self, like: Float[Tensor, "rows choices"]
    ) -> Float[Tensor, "rows choices"]:
        """Draw numbers of the standard normal distribution, as many as in `like`."""
        return torch.randn_like(like)

    def _choose(
        self, logits: Float[Tensor, "rows choices"]
    ) -> tuple[Choice, Float[Tensor, "rows choices"]]:
        """Choose the largest logits; also return all logits in descending order."""
        # A stable order: among equal logits the first win, whatever the batch.
        in_order, choices = logits.sort(dim=1, descending=True, stable=True)
        top = choices[:, : self.top_k]
        is_chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top, True)
        gates = logits.masked_fill(~is_chosen, -math.inf).softmax(dim=1)
        return Choice(is_chosen=is_chosen, gates=gates), in_order

    def _probability(
        self,
        clean: Float[Tensor, "rows choices"],
        deviation: Float[Tensor, "rows choices"],
        is_chosen: Bool[Tensor, "rows choices"],
        in_order: Float[Tensor, "rows choices"],
    ) -> Float[Tensor, "rows choices"]:
        """Probability to be chosen if the noise of one choice is drawn again.

        P(x, i) = Phi(((x W_g)_i - kth_excluding(H(x), k, i))
                      / Softplus((x W_noise)_i))      (equation 9)
        """
        if self.top_k == clean.size(1):
            return torch.ones_like(clean)
        # The k-th largest of the others: for a chosen one it is the next after k.
        kth, after = in_order[:, self.top_k - 1, None], in_order[:, self.top_k, None]
        bar = torch.where(is_chosen, after, kth)
        return torch.special.ndtr((clean - bar) / deviation)


class BatchwiseGate(Gate):
    """Strictly balanced gates: in training each choice takes equally many rows.

    It takes those rows for which its softmax is the largest (appendix F); a row goes to
    `top_k` choices on average. In evaluation a row goes to the choices whose softmax is
    above their learned thresholds.
    """

    # Unlike the paper: thresholds are learned as logarithms. Adam changes all weights
    # by about the learning rate, which is more than the whole softmax of one of many
    # experts; a logarithm changes by a small part of it. Off by default: only in
    # mixtures of experts.

    def __init__(
        self, d_model: int, num_parents: int, num_choices: int, top_k: int
    ) -> None:
        super().__init__(d_model, num_parents, num_choices, top_k)
        self.log_thresholds = nn.Parameter(torch.empty(num_parents, num_choices))
        nn.init.constant_(self.log_thresholds, -math.log(num_choices))

    def forward(
        self, rows: Float[Tensor, "rows d_model"], parents: Int[Tensor, " rows"]
    ) -> Choice:
        """Choose; in training each parent must have equally many rows."""
        [logits] = self.products(rows, parents, self.weight)
        log_gates = logits.log_softmax(dim=1)
        is_above = log_gates > self.log_thresholds.float()[parents]
        if not self.training:
            gates = _normalized(log_gates, is_above)
            return Choice(is_chosen=is_above, gates=gates)
        is_chosen = self._largest(log_gates.unflatten(0, (len(self.weight), -1)))
        is_chosen = is_chosen.flatten(0, 1)
        # The gates are constants here: this loss is to move the thresholds alone.
        excess = log_gates.detach().exp() - self.log_thresholds.exp()[parents]
        difference = is_above.float() - is_chosen.float()
        return Choice(
            is_chosen=is_chosen,
            gates=_normalized(log_gates, is_chosen),
            threshold_loss=(difference * excess).sum() / len(rows),
        )

    def _largest(
        self, log_gates: Float[Tensor, "parents rows choices"]
    ) -> Bool[Tensor, "parents rows choices"]:
        """Mask of the m = k |X| / n largest rows of each choice (equation 18).

        Among rows with equal gates, each choice begins at another row. Therefore every
        row goes to `top_k` choices at first, when all gates are equal.
        """
        num_rows, num_choices = log_gates.shape[1:]
        count = max(round(self.top_k * num_rows / num_choices), 1)
        number = torch.arange(num_rows, device=log_gates.device)[:, None]
        offset = torch.arange(num_choices, device=log_gates.device) * count
        rotated = ((number + offset) % num_rows).expand(len(log_gates), -1, -1)
        order = log_gates.gather(1, rotated).argsort(
            dim=1, descending=True, stable=True
        )
        largest = rotated.gather(1, order[:, :count])
        return torch.zeros_like(log_gates, dtype=torch.bool).scatter(1, largest, True)


def _normalized(
    log_gates: Float[Tensor, "rows choices"], is_chosen: Bool[Tensor, "rows choices"]
) -> Float[Tensor, "rows choices"]:
    """Gates divided by the sum of the chosen ones (equation 16); zero if none is."""
    # The softmax over the chosen ones is the same quotient. A row that goes nowhere has
    # finite logits, so that its gradient is zero, not NaN.
    lowest = torch.finfo(log_gates.dtype).min
    gates = log_gates.masked_fill(~is_chosen, lowest).softmax(dim=1)
    return gates * is_chosen


def _sum_by_parent(
    values: Float[Tensor, "rows choices"], parents: Int[Tensor, " rows"], count: int
) -> Float[Tensor, "{count} choices"]:
    if count == 1:
        return values.sum(0, keepdim=True)
    return values.new_zeros(count, values.size(1)).index_add(0, parents, values)


def squared_variation(values: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Squared coefficient of variation: the variance divided by the squared mean."""
    mean = values.mean()
    return (values - mean).square().mean() / (mean.square() + TINY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Rows and the experts that they go to, in ascending order of the experts."""

    rows: Int[Tensor, " assigned"]
    experts: Int[Tensor, " assigned"]
    gates: Float[Tensor, " assigned"]
    """Weight of the expert's output, in fp32."""


class MixtureOfExperts(nn.Module):
    """Layer that sends each token to a few of many feed-forward networks.

        y = sum over i of G(x)_i E_i(x)      (equation 1)

    In a hierarchical mixture a first level of gates chooses groups of experts, and a
    second one experts of each group (appendix B). Padding reaches no expert, counts in
    no loss, and its output is zero.

    After a pass in training `take_loss` returns its losses.
    """

    def __init__(self, d_model: int, config: ExpertsConfig) -> None:
        super().__init__()
        self._importance_weight = config.importance_weight
        self._load_weight = config.load_weight
        kind = BatchwiseGate if config.gating == "batchwise" else NoisyTopKGate
        self.gates = nn.ModuleList(
            kind(d_model, parents, choices, config.top_k)
            for parents, choices in config.levels
        )
        self.experts = Experts(config.num_experts, d_model, config.d_ff)
        self._losses: dict[int, Tensor] = {}
        """Losses of the last pass of each thread, by the thread's identifier."""

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        is_token: Bool[Tensor, "batch length"],
    ) -> Float[Tensor, "batch length d_model"]:
        rows = x[is_token]
        assigned = self.assign(rows)
        outputs = self.experts(rows[assigned.rows], assigned.experts)
        weighted = assigned.gates[:, None] * outputs.float()
        sums = weighted.new_zeros(rows.shape).index_add(0, assigned.rows, weighted)
        return x.new_zeros(x.shape).masked_scatter(
            is_token[..., None], sums.to(x.dtype)
        )

    def assign(self, rows: Float[Tensor, "rows d_model"]) -> Assignment:
        """Choose the experts of rows; in training, keep the losses.

        The load of an expert in a hierarchy is the load of its group, times the mean
        probability of the expert over the rows of the group (equation 14).
        """
        device = rows.device
        assigned = Assignment(
            rows=torch.arange(len(rows), device=device),
            experts=torch.zeros(len(rows), dtype=torch.int64, device=device),
            gates=torch.ones(len(rows), dtype=torch.float32, device=device),
        )
        load: Tensor | None = assigned.gates.sum()[None]
        thresholds: list[Tensor] = []
        for gate in self.gates:
            parents = assigned.experts
            choice: Choice = gate(rows[assigned.rows], parents)
            if load is None or choice.load is None:
                load = None
            else:
                num_rows = torch.bincount(parents, minlength=len(load)).clamp(min=1)
                load = ((load / num_rows)[:, None] * choice.load).flatten()
            if choice.threshold_loss is not None:
                thresholds.append(choice.threshold_loss)
            assigned = _descend(assigned, choice)
        if self.training and torch.is_grad_enabled():
            loss = self._balance(assigned, load) + sum(thresholds)
            self._losses[get_ident()] = loss
        return assigned

    def take_loss(self) -> Float[Tensor, ""]:
        """Return the sum of the losses of this thread's last pass, and clear it.

        It has the losses of importance and load (equations 7 and 11, in a hierarchy 13
        and 14), and of thresholds (equation 20, divided by the number of rows).
        """
        loss = self._losses.pop(get_ident(), None)
        return self.experts.inner.new_zeros(()) if loss is None else loss

    def _balance(
        self, assigned: Assignment, load: Float[Tensor, " experts"] | None
    ) -> Float[Tensor, ""]:
        importance = assigned.gates.new_zeros(len(self.experts.inner))
        importance = importance.index_add(0, assigned.experts, assigned.gates)
        loss = self._importance_weight * squared_variation(importance)
        if load is None:  # balanced gates have equal loads
            return loss
        return loss + self._load_weight * squared_variation(load)


def _descend(assigned: Assignment, choice: Choice) -> Assignment:
    """Replace each assigned row by its choices on the next level."""
    number, chosen = choice.is_chosen.nonzero(as_tuple=True)
    children = assigned.experts[number] * choice.gates.size(1) + chosen
    children, order = children.sort(stable=True)
    number, chosen = number[order], chosen[order]
    return Assignment(
        rows=assigned.rows[number],
        experts=children,
        gates=assigned.gates[number] * choice.gates[number, chosen],
    )


def take_losses(layers: Sequence[MixtureOfExperts]) -> Float[Tensor, ""]:
    """Return the sum of the losses of layers, and clear them."""
    return torch.stack([layer.take_loss() for layer in layers]).sum()
