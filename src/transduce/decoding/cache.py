"""Keys and values that the decoder keeps between steps.

Each sentence has a group of hypotheses; all groups are equally large. The hypotheses of
a group share one store for the keys and values of self-attention. A mask says which
slots of the store are the past of which hypothesis, so dropping a hypothesis, or
continuing one twice, changes bits of the mask and copies no key. Keys and values of
cross-attention are kept once a sentence.

Sentences that join later have read fewer tokens, so each sentence has its own length.
Slots that are the past of no hypothesis are freed when the store must grow. The past of
restricted attention (section 4) is the last r + 1 positions, so the store of a long
translation stops growing.

A decoder with recurrent units has no slots. It keeps one cell for each hypothesis and
layer, copied when hypotheses are dropped or continued (`RecurrentCache`).
"""

from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from transduce.model.layers import DecoderLayer, RecurrentDecoderLayer, initial_cell
from transduce.model.transformer import Memory, Transformer, resized

STEPS_AHEAD = 16
"""Steps for which capacity is added when a store must grow."""
FIRST_SLOTS = 2_048
"""Capacity of all stores together at first: most translations of few sentences end
before they need more."""
MAX_FIRST_CAPACITY = 128
"""Largest capacity of a store at first: filling it with zeros should cost little."""
WIDE_GROUP_SLOTS = 64
"""Slots added for wide groups. They leave many unused slots, which are found only when
the store must grow, so it should grow often."""


def first_capacity(sentences: int) -> int:
    """Return the slots of each sentence before the first step."""
    shared = FIRST_SLOTS // max(sentences, 1)
    return max(STEPS_AHEAD, min(shared, MAX_FIRST_CAPACITY))


def grown_capacity(num_slots: int, group_size: int) -> int:
    """Return the new capacity of a store with `num_slots` slots in use."""
    ahead = max(min(STEPS_AHEAD * group_size, WIDE_GROUP_SLOTS), group_size)
    return max(2 * num_slots, num_slots + ahead)


@dataclass(kw_only=True)
class SourceCache:
    """Keys and values of cross-attention in one decoder layer.

    `LayerCache` and `RecurrentCache` add what a layer keeps of its own target. Each has
    only one of slots and cells; the methods for the other one have no effect.
    """

    has_slots: ClassVar[bool]
    """Whether hypotheses share slots, or have a cell each."""
    cross_key: Float[Tensor, "sentences heads source d_k"]
    cross_value: Float[Tensor, "sentences heads source d_v"]

    def views(self, sentences: int, source: int, slots: int) -> list[Tensor]:
        """Return views of all tensors: their first sentences, positions and slots."""
        sources = (self.cross_key, self.cross_value)
        return [each[:sentences, :, :source] for each in sources]

    def keep_sentences(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep the sources of these sentences, in this order."""
        self.cross_key = self.cross_key.index_select(0, sentences)
        self.cross_value = self.cross_value.index_select(0, sentences)

    def resize_source(self, width: int) -> None:
        """Cut or pad the source to a number of positions."""
        self.cross_key = resized(self.cross_key, width, dim=2)
        self.cross_value = resized(self.cross_value, width, dim=2)

    def join(self, other: "SourceCache") -> None:
        """Append the sentences of a cache of the same kind and sizes."""
        for field in fields(self):
            both = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, torch.cat(both))

    def resize(self, num_slots: int) -> None:
        """Cut or pad the slots to a number."""

    def keep_slots(self, slots: Int[Tensor, "sentences kept"]) -> None:
        """Keep these slots of each sentence, in this order."""

    def continue_from(self, parents: Int[Tensor, "sentences group"]) -> None:
        """Continue the cells of these hypotheses of each group, in place."""

    def keep_hypotheses(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep the cells of these hypotheses, in this order.

        `keep_sentences` then leaves the cells as they are.
        """


@dataclass(kw_only=True)
class LayerCache(SourceCache):
    """Keys and values of one decoder layer."""

    has_slots: ClassVar[bool] = True
    key: Float[Tensor, "sentences heads slots d_k"]
    value: Float[Tensor, "sentences heads slots d_v"]

    def zeros(self, sentences: int, source: int, slots: int) -> "LayerCache":
        """Return zeros for other numbers of sentences, positions and slots."""
        return LayerCache(
            cross_key=_zeros(self.cross_key, sentences, source),
            cross_value=_zeros(self.cross_value, sentences, source),
            key=_zeros(self.key, sentences, slots),
            value=_zeros(self.value, sentences, slots),
        )

    def views(self, sentences: int, source: int, slots: int) -> list[Tensor]:
        """Return views of all tensors: their first sentences, positions and slots."""
        stores = [each[:sentences, :, :slots] for each in (self.key, self.value)]
        return [*super().views(sentences, source, slots), *stores]

    def write(
        self,
        key: Float[Tensor, "sentences heads new d_k"],
        value: Float[Tensor, "sentences heads new d_v"],
        num_slots: int,
        slots: Int[Tensor, " new"] | None = None,
    ) -> tuple[
        Float[Tensor, "sentences heads used d_k"],
        Float[Tensor, "sentences heads used d_v"],
    ]:
        """Write into the last of the first `num_slots` slots; return the first slots.

        `slots` names other slots. It is a tensor, so that a recorded step can write
        into different slots each time.
        """
        last = slice(num_slots - key.size(2), num_slots)
        into = last if slots is None else slots
        self.key[:, :, into] = key
        self.value[:, :, into] = value
        return self.key[:, :, :num_slots], self.value[:, :, :num_slots]

    def resize(self, num_slots: int) -> None:
        """Cut or pad the store to a number of slots."""
        self.key = resized(self.key, num_slots, dim=2)
        self.value = resized(self.value, num_slots, dim=2)

    def keep_sentences(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep these sentences, in this order."""
        super().keep_sentences(sentences)
        self.key = self.key.index_select(0, sentences)
        self.value = self.value.index_select(0, sentences)

    def keep_slots(self, slots: Int[Tensor, "sentences kept"]) -> None:
        """Keep these slots of each sentence, in this order."""
        self.key = _select_slots(self.key, slots)
        self.value = _select_slots(self.value, slots)


@dataclass(kw_only=True)
class RecurrentCache(SourceCache):
    """Cells of the recurrent unit of one decoder layer, and keys and values."""

    has_slots: ClassVar[bool] = False
    cell: Float[Tensor, "sentences group d_model"]

    def zeros(self, sentences: int, source: int, slots: int) -> "RecurrentCache":
        """Return zeros for other numbers of sentences and positions."""
        return RecurrentCache(
            cross_key=_zeros(self.cross_key, sentences, source),
            cross_value=_zeros(self.cross_value, sentences, source),
            cell=self.cell.new_zeros(sentences, *self.cell.shape[1:]),
        )

    def views(self, sentences: int, source: int, slots: int) -> list[Tensor]:
        """Return views of all tensors: their first sentences, positions and slots."""
        return [*super().views(sentences, source, slots), self.cell[:sentences]]

    def continue_from(self, parents: Int[Tensor, "sentences group"]) -> None:
        """Continue the cells of these hypotheses of each group, in place."""
        _continue(self.cell, parents)

    def keep_hypotheses(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep the cells of these hypotheses, in this order."""
        self.cell = self.cell.flatten(0, 1)[rows]


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Decoder state of a batch of hypotheses.

    Without self-attention, in a decoder with recurrent units, it has no slots.
    """

    layers: list[LayerCache | RecurrentCache]
    """Caches of the layers, all of one kind."""
    memory_mask: Bool[Tensor, "sentences 1 1 source"]
    past: Bool[Tensor, "sentences group slots"]
    """Whether a slot belongs to the past of a hypothesis: its tokens so far, or those
    within its neighbourhood."""
    positions: Int[Tensor, "sentences slots"]
    """Position of the token whose key and value a slot holds."""
    lengths: Int[Tensor, " sentences"]
    """Tokens read so far."""
    neighbourhood: int | None = None
    """Largest distance of self-attention. None: unlimited."""
    num_slots: int = 0
    """Slots in use, of the sentence that uses the most."""
    max_length: int = 0
    """Upper bound of `lengths`."""

    @property
    def _has_slots(self) -> bool:
        """Whether the layers have self-attention, and no recurrent units."""
        return self.layers[0].has_slots

    @property
    def group_size(self) -> int:
        """Hypotheses of one sentence."""
        return self.past.size(1)

    @property
    def _slots_per_step(self) -> int:
        """Slots of the newest position of each hypothesis."""
        return self.group_size if self._has_slots else 0

    @property
    def capacity(self) -> int:
        """Slots of each sentence."""
        return self.past.size(-1)

    @property
    def has_capacity(self) -> bool:
        """Whether a slot is free for the newest position of each hypothesis."""
        return self.num_slots + self._slots_per_step <= self.capacity

    def zeros(self, sentences: int, source: int, slots: int) -> "DecodingState":
        """Return a state of zeros for other numbers of sentences and positions."""
        return DecodingState(
            layers=[each.zeros(sentences, source, slots) for each in self.layers],
            memory_mask=self.memory_mask.new_zeros(sentences, 1, 1, source),
            past=self.past.new_zeros(sentences, self.group_size, slots),
            positions=self.positions.new_zeros(sentences, slots),
            lengths=self.lengths.new_zeros(sentences),
            neighbourhood=self.neighbourhood,
        )

    def alias(self) -> "DecodingState":
        """Return a state that shares the tensors, and may replace them by its own."""
        return replace(self, layers=[replace(each) for each in self.layers])

    def views(self, sentences: int, source: int, slots: int) -> list[Tensor]:
        """Return views of all tensors: their first sentences, positions and slots."""
        layer_views = [each.views(sentences, source, slots) for each in self.layers]
        return [
            *chain.from_iterable(layer_views),
            self.memory_mask[:sentences, ..., :source],
            self.past[:sentences, :, :slots],
            self.positions[:sentences, :slots],
            self.lengths[:sentences],
        ]

    def advance(self) -> Bool[Tensor, "sentences 1 group slots"]:
        """Take a slot for the newest position of each hypothesis.

        Returns the mask of the slots that each hypothesis attends to.
        """
        if not self.has_capacity:
            self.grow()
        end = self.num_slots + self._slots_per_step
        past = self.fill(torch.arange(self.num_slots, end, device=self.past.device))
        self.count_step()
        return past[..., :end]

    def fill(
        self, slots: Int[Tensor, " new"]
    ) -> Bool[Tensor, "sentences 1 group capacity"]:
        """Give these slots to the newest position of each hypothesis, in place.

        Only tensors change, so that a step can be recorded; `count_step` does the rest.
        Returns the mask of all slots that each hypothesis attends to.
        """
        if self._has_slots:
            self._forget_distant()
            own = torch.eye(self.group_size, dtype=torch.bool, device=self.past.device)
            self.past[:, :, slots] = own
            self.positions[:, slots] = self.lengths[:, None]
        self.lengths += 1
        return self.past[:, None]

    def _forget_distant(self) -> None:
        """Drop the slots outside the neighbourhood from the past, in place."""
        if self.neighbourhood is not None:
            distance = self.lengths[:, None] - self.positions
            self.past &= (distance <= self.neighbourhood)[:, None]

    def count_step(self) -> None:
        """Count the slots and the position that `fill` has used."""
        self.num_slots += self._slots_per_step
        self.max_length += 1

    def continue_from(self, parents: Int[Tensor, "sentences group"]) -> None:
        """Continue these hypotheses of each group, in place."""
        _continue(self.past, parents)
        for layer in self.layers:
            layer.continue_from(parents)

    def grow(self) -> None:
        """Free unused slots, then add capacity.

        Wide groups leave many unused slots: their hypotheses often share their past.
        """
        before = self.capacity
        self._forget_distant()
        if self.num_slots > 0:
            self._compact()
        capacity = grown_capacity(self.num_slots, self.group_size)
        if self.neighbourhood is not None:
            # The number of slots in use has a bound. A smaller store would fill up
            # sooner, and freeing slots moves keys and values.
            capacity = max(capacity, before)
        self._resize(capacity)

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses in this order, as `DecoderState.reorder`."""
        if _is_identity(rows, len(self.lengths), self.group_size):
            return
        sentences, parents = rows[:, 0] // self.group_size, rows % self.group_size
        for layer in self.layers:
            layer.keep_hypotheses(rows)
        self.past = self.past[sentences[:, None], parents]
        unchanged = torch.arange(len(self.memory_mask), device=rows.device)
        if not torch.equal(sentences, unchanged):
            self.lengths = self.lengths.index_select(0, sentences)
            self.memory_mask = self.memory_mask.index_select(0, sentences)
            self.positions = self.positions.index_select(0, sentences)
            for layer in self.layers:
                layer.keep_sentences(sentences)

    def join(self, other: "DecodingState") -> None:
        """Append the sentences of another state with groups of the same size.

        The other state must not be used afterwards.
        """
        both = (self, other)
        if self._has_slots:
            for state in both:
                state._compact()
            self.num_slots = max(state.num_slots for state in both)
            for state in both:
                state._resize(grown_capacity(self.num_slots, self.group_size))
        width = max(_source_width(state.memory_mask) for state in both)
        for state in both:
            state._resize_source(width)
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.join(theirs)
        self.memory_mask = torch.cat([self.memory_mask, other.memory_mask])
        self.past = torch.cat([self.past, other.past])
        self.positions = torch.cat([self.positions, other.positions])
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.max_length = int(self.lengths.max())

    def _compact(self) -> None:
        """Drop slots that are the past of no hypothesis."""
        is_used = self.past[..., : self.num_slots].any(dim=1)
        self.num_slots = int(is_used.sum(dim=1).max())
        # Used slots first, in their present order.
        order = (~is_used).int().argsort(dim=1, stable=True)[:, : self.num_slots]
        self.past = self.past.gather(2, order[:, None].expand(-1, self.group_size, -1))
        self.positions = self.positions.gather(1, order)
        for layer in self.layers:
            layer.keep_slots(order)

    def _resize(self, num_slots: int) -> None:
        for layer in self.layers:
            layer.resize(num_slots)
        self.past = resized(self.past, num_slots, dim=2)
        self.positions = resized(self.positions, num_slots, dim=1)

    def _resize_source(self, width: int) -> None:
        for layer in self.layers:
            layer.resize_source(width)
        self.memory_mask = resized(self.memory_mask, width, dim=3)


def _continue(
    stored: Shaped[Tensor, "sentences group _"], parents: Int[Tensor, "sentences group"]
) -> None:
    """Replace the entries of each hypothesis with its parent's, in place."""
    index = parents[:, :, None].expand_as(stored)
    stored.copy_(stored.gather(1, index))


def _is_identity(
    rows: Int[Tensor, "kept group"], num_sentences: int, group_size: int
) -> bool:
    """Whether the rows are all hypotheses in their order."""
    if rows.shape != (num_sentences, group_size):
        return False
    numbers = torch.arange(rows.numel(), device=rows.device)
    return torch.equal(rows.flatten(), numbers)


def _source_width(mask: Bool[Tensor, "sentences 1 1 source"]) -> int:
    """Return the positions of the longest source; padding comes last."""
    return int(mask.sum(dim=-1).max())


def new_state(model: Transformer, memory: Memory) -> DecodingState:
    """Return the state before the first step, with one hypothesis a sentence."""
    sentences = len(memory.mask)
    capacity = first_capacity(sentences)
    layers = [
        _new_layer(layer, memory.states, capacity) for layer in model.decoder_layers
    ]
    if not layers[0].has_slots:
        capacity = 0
    return DecodingState(
        layers=layers,
        memory_mask=memory.mask,
        past=memory.mask.new_zeros(sentences, 1, capacity),
        positions=memory.mask.new_zeros(sentences, capacity, dtype=torch.int64),
        lengths=memory.mask.new_zeros(sentences, dtype=torch.int64),
        neighbourhood=model.config.neighbourhood,
    )


def _new_layer(
    layer: DecoderLayer | RecurrentDecoderLayer,
    memory: Float[Tensor, "sentences source d_model"],
    slots: int,
) -> LayerCache | RecurrentCache:
    """Return the empty cache of a layer, with the keys and values of sources."""
    cross_key, cross_value = layer.cross_attention.keys_and_values(memory)
    # Contiguous heads, as the products of each step read them.
    cross_key, cross_value = cross_key.contiguous(), cross_value.contiguous()
    if isinstance(layer, RecurrentDecoderLayer):
        cell = initial_cell(memory[:, :1])
        return RecurrentCache(cell=cell, cross_key=cross_key, cross_value=cross_value)
    own, (sentences, heads) = layer.self_attention, cross_key.shape[:2]
    return LayerCache(
        key=cross_key.new_zeros(sentences, heads, slots, own.d_k),
        value=cross_value.new_zeros(sentences, heads, slots, own.d_v),
        cross_key=cross_key,
        cross_value=cross_value,
    )


def _zeros(
    like: Float[Tensor, "_ heads _ width"], sentences: int, length: int
) -> Float[Tensor, "{sentences} heads {length} width"]:
    return like.new_zeros(sentences, like.size(1), length, like.size(3))


def _select_slots(
    stored: Float[Tensor, "sentences heads slots width"],
    slots: Int[Tensor, "sentences kept"],
) -> Float[Tensor, "sentences heads kept width"]:
    sentences, heads, num_slots, width = stored.shape
    # Whole rows: several times as fast as `gather`, which selects single elements.
    stores = torch.arange(sentences * heads, device=slots.device)
    first = stores.view(sentences, heads, 1) * num_slots
    rows = stored.reshape(-1, width).index_select(0, (first + slots[:, None]).flatten())
    return rows.view(sentences, heads, -1, width)
