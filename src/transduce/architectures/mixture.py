"""Mixtures of experts (Shazeer et al., 2017), in a Transformer and between LSTMs.

A layer holds many experts, small feed-forward networks, and gates that choose a few of
them for each token: the model has many parameters, of which a token uses few.

In training the gates may depend on the batch (`batchwise`, appendix F) or on noise
(`noisy-top-k`, section 2.1). In evaluation and decoding they depend on the token alone.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import (
    ExpertsConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
)
from transduce.architectures.models import CachedState
from transduce.architectures.recurrent_layers import (
    AttentiveStack,
    RecurrentLayer,
    RecurrentMemory,
    RecurrentStack,
    TanhProductAttention,
    initialize_biases,
    initialize_uniform,
    reversed_order,
)
from transduce.model.attention import MultiHeadAttention, causal_mask, padding_mask
from transduce.model.embedding import (
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)
from transduce.model.layers import ResidualConnection
from transduce.model.sizes import PASSES, forward_flops
from transduce.model.transformer import Memory
from transduce.text.vocabulary import PAD

NOISE_EPSILON = 1e-2
"""Smallest standard deviation of the noise."""
TINY = 1e-10
"""Term that keeps quotients of sums finite."""
MORE_PLACES = 16
"""Tokens by which the memory of a decoder's past grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Neighbouring rows of a padded buffer: some groups, with as many rows each."""

    groups: Int[Tensor, " groups"] | None
    """Numbers of the groups; None for all groups in their order."""
    num_groups: int
    rows: slice


class GroupedRows:
    """Layout of rows in a buffer, where each group has a matrix of its own.

    One batched product multiplies many groups, whose rows are padded to the same
    number. Groups are put into blocks by their number of rows, from one power of two to
    the next. So a buffer has less than twice as many rows as needed however unequal the
    groups are, and there are at most as many products as powers of two. Groups without
    rows cost nothing, and no row is dropped. If all groups have the same number of
    rows, nothing is padded and no matrix is copied.

    A loop over the groups would start hundreds of small products; one block padded to
    the largest group would multiply mostly padding when most rows are in one group.
    """

    def __init__(self, groups: Int[Tensor, " rows"], num_groups: int) -> None:
        """Create the layout from the group of each row, in ascending order."""
        device = groups.device
        sizes_on_device = torch.bincount(groups, minlength=num_groups)
        sizes = sizes_on_device.cpu().numpy()
        # Exponent of the power of two that is above the number of rows.
        exponents = np.frexp(sizes)[1]
        starts = np.zeros(num_groups, dtype=np.int64)
        self._blocks: list[_Block] = []
        self._num_rows = 0
        for exponent in np.unique(exponents[sizes > 0]):
            [members] = np.nonzero(exponents == exponent)
            width = int(sizes[members].max())
            starts[members] = self._num_rows + width * np.arange(len(members))
            end = self._num_rows + width * len(members)
            is_all = len(members) == num_groups
            self._blocks.append(
                _Block(
                    groups=None if is_all else torch.from_numpy(members).to(device),
                    num_groups=len(members),
                    rows=slice(self._num_rows, end),
                )
            )
            self._num_rows = end
        first = sizes_on_device.cumsum(0) - sizes_on_device
        shift = torch.from_numpy(starts).to(device) - first
        self._places = torch.arange(len(groups), device=device) + shift[groups]

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
    """Weights of the chosen, whose sum is 1; zero elsewhere."""
    load: Float[Tensor, "parents choices"] | None = None
    """Differentiable estimate of how many rows each gets; only in training, and None if
    all get equally many."""
    threshold_loss: Float[Tensor, ""] | None = None
    """Loss of the thresholds, a mean over the rows."""


class Gate(nn.Module):
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

    def forward(
        self, rows: Float[Tensor, "rows d_model"], parents: Int[Tensor, " rows"]
    ) -> Choice:
        """Choose for rows in ascending order of their parents."""
        raise NotImplementedError

    def product(
        self,
        rows: Float[Tensor, "rows d_model"],
        parents: Int[Tensor, " rows"],
        matrices: Float[Tensor, "parents d_model choices"],
    ) -> Float[Tensor, "rows choices"]:
        """Multiply each row by the matrix of its parent, in fp32.

        Rounded to bf16, nearly equal choices could change places.
        """
        with torch.autocast(rows.device.type, enabled=False):
            rows, matrices = rows.float(), matrices.float()
            if len(matrices) == 1:
                return rows @ matrices[0]
            layout = GroupedRows(parents, len(matrices))
            return layout.unpad(layout.product(layout.pad(rows), matrices))


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
        clean = self.product(rows, parents, self.weight)
        if not self.training:
            return self._choose(clean)[0]
        # Unlike the paper: the deviation has a lower bound, as in the authors' code,
        # tensor2tensor. Otherwise the gradient of the load could become infinite.
        deviation = NOISE_EPSILON + functional.softplus(
            self.product(rows, parents, self.noise)
        )
        noisy = clean + torch.randn_like(clean) * deviation
        choice, in_order = self._choose(noisy)
        probability = self._probability(clean, deviation, choice.is_chosen, in_order)
        load = _sum_by_parent(probability, parents, len(self.weight))
        return Choice(is_chosen=choice.is_chosen, gates=choice.gates, load=load)

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
    # experts; a logarithm changes by a small part of it.

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
        log_gates = self.product(rows, parents, self.weight).log_softmax(dim=1)
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

        Among equal rows each choice prefers others, so that at first, when the gates of
        all rows are equal, every row goes to `top_k` choices.
        """
        num_rows, num_choices = log_gates.shape[1:]
        count = max(round(self.top_k * num_rows / num_choices), 1)
        number = torch.arange(num_rows, device=log_gates.device)[:, None]
        offset = torch.arange(num_choices, device=log_gates.device) * count
        turned = ((number + offset) % num_rows).expand(len(log_gates), -1, -1)
        order = log_gates.gather(1, turned).argsort(dim=1, descending=True, stable=True)
        largest = turned.gather(1, order[:, :count])
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
        self._loss: Tensor | None = None

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
        """Choose the experts of rows; in training, keep the losses."""
        device = rows.device
        assigned = Assignment(
            rows=torch.arange(len(rows), device=device),
            experts=torch.zeros(len(rows), dtype=torch.int64, device=device),
            gates=torch.ones(len(rows), device=device),
        )
        load: Tensor | None = assigned.gates.sum()[None]
        thresholds: list[Tensor] = []
        for gate in self.gates:
            parents = assigned.experts
            choice: Choice = gate(rows[assigned.rows], parents)
            if load is not None and choice.load is not None:
                num_rows = torch.bincount(parents, minlength=len(load))
                share = load / num_rows.clamp(min=1)
                load = (share[:, None] * choice.load).flatten()
            else:
                load = None
            if choice.threshold_loss is not None:
                thresholds.append(choice.threshold_loss)
            assigned = _descend(assigned, choice)
        if self.training and torch.is_grad_enabled():
            self._loss = self._balance(assigned, load) + sum(thresholds)
        return assigned

    def take_loss(self) -> Float[Tensor, ""]:
        """Return the losses of the last pass, and forget them.

        They are those of importance and load (equations 7 and 11, in a hierarchy 13 and
        14), and of thresholds (equation 20, divided by the number of rows).
        """
        loss, self._loss = self._loss, None
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
    """Return the sum of the losses of layers, and forget them."""
    return torch.stack([layer.take_loss() for layer in layers]).sum()


class MixtureEncoderLayer(nn.Module):
    """Self-attention, then a mixture of experts."""

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.mixture = MixtureOfExperts(config.d_model, config.experts)
        self.after_self_attention = _residual(config)
        self.after_mixture = _residual(config)

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch source d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, mask))
        return self.after_mixture(x, lambda x: self.mixture(x, mask[:, 0, 0]))


class MixtureDecoderLayer(nn.Module):
    """Self-attention, attention to the memory, then a mixture of experts."""

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.mixture = MixtureOfExperts(config.d_model, config.experts)
        self.after_self_attention = _residual(config)
        self.after_cross_attention = _residual(config)
        self.after_mixture = _residual(config)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Memory,
        self_mask: Bool[Tensor, "1 1 target target"],
        is_token: Bool[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target d_model"]:
        x = self.after_self_attention(x, lambda x: self.self_attention(x, x, self_mask))
        x = self.after_cross_attention(
            x, lambda x: self.cross_attention(x, memory.states, memory.mask)
        )
        return self.after_mixture(x, lambda x: self.mixture(x, is_token))

    def step(
        self,
        x: Float[Tensor, "sentences group d_model"],
        state: "PrefixState",
        name: str,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Read one more token of each hypothesis; `name` names the layer's tensors."""
        x = self.after_self_attention(x, lambda x: self._attend_to_past(x, state, name))
        cross = self.cross_attention
        heads = state.memory[name].unflatten(2, (cross.num_heads, -1)).transpose(1, 2)
        key, value = heads.split([cross.d_k, cross.d_v], dim=-1)
        x = self.after_cross_attention(
            x, lambda x: cross.attend(x, key, value, state.memory_mask)
        )
        every = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.after_mixture(x, lambda x: self.mixture(x, every))

    def _attend_to_past(
        self,
        x: Float[Tensor, "sentences group d_model"],
        state: "PrefixState",
        name: str,
    ) -> Float[Tensor, "sentences group d_model"]:
        """Attend from each hypothesis to the tokens that it has read, and this one."""
        attention, row = self.self_attention, x.flatten(0, 1)[:, None]
        new = torch.cat(attention.keys_and_values(row), dim=-1)
        past = state.write(name, new[:, :, 0].unflatten(0, x.shape[:2])).flatten(0, 1)
        key, value = past.split([attention.d_k, attention.d_v], dim=-1)
        attended = attention.attend(row, key, value, state.past_mask)
        return attended[:, 0].unflatten(0, x.shape[:2])


def _attention(config: MixtureTransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        "scaled",
        config.attention_dropout,
    )


def _residual(config: MixtureTransformerConfig) -> ResidualConnection:
    return ResidualConnection(
        config.d_model, config.dropout, config.norm, config.norm_epsilon
    )


@dataclass(slots=True, kw_only=True)
class PrefixState(CachedState):
    """Keys and values of the tokens that each hypothesis has read, side by side.

    Both `memory` and `hypotheses` hold one tensor a layer, by its name; those of
    hypotheses are [sentences, group, heads, places, d_k + d_v]. Sentences that join
    later have read fewer tokens than there are places.
    """

    lengths: Int[Tensor, " sentences"]
    """Number of tokens that the hypotheses of each sentence have read."""
    max_length: int = 0
    """Upper bound of the lengths."""

    @property
    def past_mask(self) -> Bool[Tensor, "hypotheses 1 1 places"]:
        """True at the tokens read and the one that is written."""
        group = self._any.size(1)
        places = torch.arange(self.max_length + 1, device=self.lengths.device)
        mask = places <= self.lengths[:, None]
        return mask.repeat_interleave(group, dim=0)[:, None, None]

    def add_place(self) -> None:
        """Make sure that one more token fits."""
        if self.max_length == self._any.size(3):
            self._resize(self.max_length + MORE_PLACES)

    def write(
        self, name: str, new: Float[Tensor, "sentences group heads width"]
    ) -> Float[Tensor, "sentences group heads places width"]:
        """Write the keys and values of a token after those read; return all."""
        stored = self.hypotheses[name]
        place = self.lengths[:, None, None, None, None].expand_as(new[..., None, :])
        # In place: copying all of a beam's past would take longer than all products.
        stored.scatter_(3, place, new[..., None, :])
        return stored[..., : self.max_length + 1, :]

    def advance(self) -> None:
        """Count the token that all layers have written."""
        self.lengths = self.lengths + 1
        self.max_length += 1

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        Hypotheses are numbered through all groups.
        """
        self.lengths = self.lengths[rows[:, 0] // self._any.size(1)]
        CachedState.reorder(self, rows)

    def join(self, other: CachedState) -> None:
        """Append the sentences of another state with groups of the same size."""
        assert isinstance(other, PrefixState)
        places = max(self._any.size(3), other._any.size(3))
        self._resize(places)
        other._resize(places)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.max_length = max(self.max_length, other.max_length)
        CachedState.join(self, other)

    @property
    def _any(self) -> Float[Tensor, "sentences group heads places width"]:
        return next(iter(self.hypotheses.values()))

    def _resize(self, places: int) -> None:
        missing = places - self._any.size(3)
        self.hypotheses = {
            name: functional.pad(each, (0, 0, 0, missing))
            for name, each in self.hypotheses.items()
        }


class MixtureTransformer(nn.Module):
    """Transformer whose feed-forward networks are mixtures of experts.

    Attention, embeddings, positions and residual connections are those of
    `transduce.model`.
    """

    # Unlike the paper: Vaswani et al. (2017) have one network for all tokens, and
    # Shazeer et al. (2017) mixtures between LSTMs. Lepikhin et al. (2021) put mixtures
    # into Transformers.

    def __init__(self, config: MixtureTransformerConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embedding = SharedEmbedding(config.vocab_size, d_model, bias=False)
        self.target_embedding = (
            None
            if config.target_vocab_size is None
            else SharedEmbedding(config.target_vocab_size, d_model, bias=False)
        )
        self.positions = (
            SinusoidalPositions(d_model)
            if config.positions == "sinusoidal"
            else LearnedPositions(config.max_positions, d_model)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder_layers = nn.ModuleList(
            MixtureEncoderLayer(config) for _ in range(config.num_layers)
        )
        num_decoder_layers = config.transformer.num_decoder_layers
        self.decoder_layers = nn.ModuleList(
            MixtureDecoderLayer(config) for _ in range(num_decoder_layers)
        )
        self.encoder_norm: nn.Module = _final_norm(config)
        self.decoder_norm: nn.Module = _final_norm(config)

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Encode sources, padded with id 0."""
        self.auxiliary_loss()  # forget that of an interrupted pass
        mask = padding_mask(source, PAD)
        x = self._embed(source, self.embedding)
        for layer in self.encoder_layers:
            x = layer(x, mask)
        return Memory(states=self.encoder_norm(x), mask=mask)

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets."""
        length = target_in.size(1)
        mask = causal_mask(length, length, target_in.device)
        x = self._embed(target_in, self.output_embedding)
        for layer in self.decoder_layers:
            x = layer(x, memory, mask, target_in != PAD)
        states: Tensor = self.decoder_norm(x)
        return states

    def _embed(
        self, ids: Int[Tensor, "batch length"], embedding: SharedEmbedding
    ) -> Float[Tensor, "batch length d_model"]:
        x = embedding(ids)
        positions = self.positions(0, ids.size(1), ids.device)
        embedded: Tensor = self.dropout(x + positions.to(x.dtype))
        return embedded

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states."""
        return self.output_embedding.logits(states)

    @property
    def output_embedding(self) -> SharedEmbedding:
        """Embedding of target and output."""
        return self.target_embedding or self.embedding

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        return self.output_embedding.weight

    @property
    def output_bias(self) -> None:
        """None: the logits have no bias."""
        return

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        """Modules that the weights of cross-attention pass through, one a layer."""
        return [layer.cross_attention.weights_tap for layer in self._decoder]

    @property
    def _decoder(self) -> Sequence[MixtureDecoderLayer]:
        return cast(Sequence[MixtureDecoderLayer], self.decoder_layers)

    def start(self, memory: Memory) -> PrefixState:
        """Return the state before the first step, with one hypothesis a sentence."""
        heads = {
            str(number): torch.cat(
                layer.cross_attention.keys_and_values(memory.states), dim=-1
            )
            for number, layer in enumerate(self._decoder)
        }
        return PrefixState(
            memory_mask=memory.mask,
            memory={name: x.transpose(1, 2).flatten(2) for name, x in heads.items()},
            hypotheses={name: x[:, None, :, :0] for name, x in heads.items()},
            lengths=memory.mask.new_zeros(len(memory.mask), dtype=torch.int64),
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: PrefixState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        x = self.output_embedding(last_ids)
        positions = self.positions.at(state.lengths, state.max_length)
        x = x + positions[:, None].to(x.dtype)
        state.add_place()
        for number, layer in enumerate(self._decoder):
            x = layer.step(x, state, str(number))
        state.advance()
        return self.logits(self.decoder_norm(x))

    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """Return the losses of all mixtures in the last `encode` and `decode`.

        They are in nats a target token, and forgotten by this call, which frees the
        memory of their graph.
        """
        layers = [*self.encoder_layers, *self.decoder_layers]
        return take_losses([layer.mixture for layer in layers])

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(each.numel() for each in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        The experts are those that tokens go to.
        """
        config = self.config
        flops = forward_flops(config.transformer, source_lengths, target_lengths)
        num_tokens = len(self.encoder_layers) * int(source_lengths.sum())
        num_tokens += len(self.decoder_layers) * int(target_lengths.sum())
        mixtures = 2 * num_tokens * config.experts.operations(config.d_model)
        return PASSES * (flops.total - flops.feed_forward + mixtures)


def _final_norm(config: MixtureTransformerConfig) -> nn.Module:
    """Norm after a stack of pre-norm layers; none after post-norm ones."""
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
    return nn.Identity()


class MixtureRecurrent(nn.Module):
    """LSTMs with a mixture of experts in the encoder and one in the decoder.

    The model of Shazeer et al. (2017), appendix E. All layers have residual
    connections, and mixtures a sigmoid. The state of the first LSTM of the decoder is
    the query of attention; the context of the token before is an input of this LSTM.
    """

    # Appendix E has 3 LSTMs in the encoder where "GNMT has 9", which counts the two
    # directions of GNMT's lowest layer. So here the first two are such directions.
    # Unlike the paper: their outputs are added, so that all layers have the same width,
    # as the appendix says; GNMT concatenates them.

    def __init__(self, config: MixtureRecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        num_targets = config.target_vocab_size or config.vocab_size
        self.embedding = nn.Embedding(config.vocab_size, width)
        has_own = config.target_vocab_size is not None or not config.shared_embedding
        self.target_embedding = nn.Embedding(num_targets, width) if has_own else None
        self.output = (
            None if config.tied_output else nn.Linear(width, num_targets, bias=False)
        )
        self.forward_layer, self.backward_layer = _lstm(config), _lstm(config)
        self.upper_encoder = _lstms(config, config.encoder_layers - 2)
        self.attentive = AttentiveStack(
            RecurrentStack([_lstm(config, 2 * width)], dropout=0.0),
            TanhProductAttention(width, width, width),
            query="previous",
        )
        self.upper_decoder = _lstms(config, config.decoder_layers - 1)
        self.dropout = nn.Dropout(config.dropout)
        # Experts and gates have first weights of their own.
        initialize_uniform(self, config.initial_range)
        initialize_biases(self)
        self.encoder_mixture = MixtureOfExperts(width, config.experts)
        self.decoder_mixture = MixtureOfExperts(width, config.experts)

    def encode(self, source: Int[Tensor, "batch source"]) -> RecurrentMemory:
        """Encode sources, padded with id 0."""
        self.auxiliary_loss()  # forget that of an interrupted pass
        mask = padding_mask(source, PAD)
        is_token = mask[:, 0, 0]
        x = self.dropout(self.embedding(source))
        order = reversed_order(is_token.sum(dim=1), source.size(1))
        order = order[..., None].expand_as(x)
        forward, _ = self.forward_layer(x)
        backward, _ = self.backward_layer(x.gather(1, order))
        backward = backward.gather(1, order)
        x = x + self.dropout(forward) + self.dropout(backward)
        x = self._mix(x, self.encoder_mixture, is_token)
        for layer in self.upper_encoder:
            x = x + self.dropout(layer(x)[0])
        return RecurrentMemory(
            states=x,
            keys=self.attentive.attention.keys(x),
            mask=mask,
            initial=x.new_zeros(
                len(x), self.config.decoder_layers, self.forward_layer.state_width
            ),
        )

    def _mix(
        self,
        x: Float[Tensor, "batch length d_model"],
        mixture: MixtureOfExperts,
        is_token: Bool[Tensor, "batch length"],
    ) -> Float[Tensor, "batch length d_model"]:
        return x + self.dropout(torch.sigmoid(mixture(x, is_token)))

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: RecurrentMemory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets."""
        x = self._embed(target_in)
        found = self.attentive(x, memory, memory.initial[:, :1])
        x = x + self.dropout(found.outputs)
        x = self._mix(x, self.decoder_mixture, target_in != PAD)
        for layer in self.upper_decoder:
            x = x + self.dropout(layer(x)[0])
        return x

    def _embed(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        embedded: Tensor = self.dropout((self.target_embedding or self.embedding)(ids))
        return embedded

    def start(self, memory: RecurrentMemory) -> CachedState:
        """Return the state before the first step, with one hypothesis a sentence."""
        return CachedState(
            memory_mask=memory.mask,
            memory={"states": memory.states, "keys": memory.keys},
            hypotheses={"layers": memory.initial[:, None]},
        )

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: CachedState
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        layers = state.hypotheses["layers"]
        memory = RecurrentMemory(
            states=state.memory["states"],
            keys=state.memory["keys"],
            mask=state.memory_mask,
            initial=layers[:, 0],
        )
        x = self._embed(last_ids)
        fed = self.attentive.first_fed(layers)  # of no width
        found, lowest, _ = self.attentive.step(x, memory, layers[:, :, :1], fed)
        x = x + self.dropout(found.outputs)
        every = torch.ones_like(last_ids, dtype=torch.bool)
        x = self._mix(x, self.decoder_mixture, every)
        states = [lowest[:, :, 0]]
        for number, layer in enumerate(self.upper_decoder, 1):
            rows, before = x.flatten(0, 1)[:, None], layers[:, :, number].flatten(0, 1)
            outputs, after = layer(rows, before)
            x = x + self.dropout(outputs[:, 0].unflatten(0, last_ids.shape))
            states.append(after.unflatten(0, last_ids.shape))
        state.hypotheses = {"layers": torch.stack(states, dim=2)}
        return self.logits(x)

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states."""
        if self.output is not None:
            logits: Tensor = self.output(states)
            return logits
        return functional.linear(states, self.output_weight)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        return (self.output or self.target_embedding or self.embedding).weight

    @property
    def output_bias(self) -> None:
        """None: the logits have no bias."""
        return

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        """Module that the weights of attention pass through."""
        return [self.attentive.attention.weights_tap]

    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """Return the losses of both mixtures in the last `encode` and `decode`.

        They are in nats a target token, and forgotten by this call, which frees the
        memory of their graph.
        """
        return take_losses([self.encoder_mixture, self.decoder_mixture])

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        return sum(each.numel() for each in self.parameters())

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding.

        The experts are those that tokens go to.
        """
        source, target = (
            each.astype(np.int64) for each in (source_lengths, target_lengths)
        )
        config = self.config
        operations = (
            config.source_operations * int(source.sum())
            + config.target_operations * int(target.sum())
            # Scores and contexts.
            + 2 * config.d_model * int((source * target).sum())
        )
        return PASSES * 2 * operations


def _lstm(
    config: MixtureRecurrentConfig, input_width: int | None = None
) -> RecurrentLayer:
    _silence_projections()
    inputs = config.d_model if input_width is None else input_width
    return RecurrentLayer("lstm", inputs, config.cells, config.d_model)


@cache
def _silence_projections() -> None:
    """Use up the warning that oneDNN has no LSTM with a projection.

    PyTorch gives it once a process, and no user can act on it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.LSTM(1, 2, proj_size=1, device="cpu")
        layer(torch.zeros(1, 1, 1, device="cpu"))


def _lstms(config: MixtureRecurrentConfig, count: int) -> nn.ModuleList:
    return nn.ModuleList(_lstm(config) for _ in range(count))
