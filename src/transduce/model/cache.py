"""What decoding keeps between steps: keys and values of every layer.

A sentence has a group of hypotheses; all groups are equally large. The hypotheses of a
group have one store for the keys and values of their past; whose past a slot of it
belongs to is a mask. So to drop a hypothesis, or to go on from another twice, changes
some bits and copies no key. Keys and values of the memory are kept once a sentence.

Sentences that join others have read less than these. So each has its own length, and
what all of its hypotheses have left behind gives up its slot.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.model.sizes import room_ahead


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Keys and values of one decoder layer."""

    key: Float[Tensor, "sentences heads slots d_k"]
    value: Float[Tensor, "sentences heads slots d_v"]
    memory_key: Float[Tensor, "sentences heads source d_k"]
    memory_value: Float[Tensor, "sentences heads source d_v"]

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
        """Put the newest into the last of so many slots, and return all of these.

        Or into others of them: what is a tensor can be told anew to a recorded step.
        """
        last = slice(num_slots - key.size(2), num_slots)
        into = last if slots is None else slots
        self.key[:, :, into] = key
        self.value[:, :, into] = value
        return self.key[:, :, :num_slots], self.value[:, :, :num_slots]

    def fit_slots(self, num_slots: int) -> None:
        """Cut or pad to so many slots."""
        self.key = fitted(self.key, num_slots, dim=2)
        self.value = fitted(self.value, num_slots, dim=2)

    def keep_sentences(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep what belongs to these sentences, in this order."""
        self.key = self.key.index_select(0, sentences)
        self.value = self.value.index_select(0, sentences)
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)

    def keep_slots(self, slots: Int[Tensor, "sentences kept"]) -> None:
        """Keep these of each sentence, in this order."""
        self.key = _taken(self.key, slots)
        self.value = _taken(self.value, slots)

    def fit_memory(self, width: int) -> None:
        """Cut or pad the memory to so many positions."""
        self.memory_key = fitted(self.memory_key, width, dim=2)
        self.memory_value = fitted(self.memory_value, width, dim=2)

    def join(self, other: "LayerCache") -> None:
        """Put the sentences of another, whose stores are as wide, behind one's own."""
        self.key = torch.cat([self.key, other.key])
        self.value = torch.cat([self.value, other.value])
        self.memory_key = torch.cat([self.memory_key, other.memory_key])
        self.memory_value = torch.cat([self.memory_value, other.memory_value])


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Where the decoder stands in a batch of hypotheses."""

    layers: list[LayerCache]
    memory_mask: Bool[Tensor, "sentences 1 1 source"]
    past: Bool[Tensor, "sentences group slots"]
    """Which slots of its sentence hold a hypothesis's own past."""
    positions: Int[Tensor, "sentences slots"]
    """Of the token whose key and value a slot holds."""
    lengths: Int[Tensor, " sentences"]
    """Positions read so far."""
    num_slots: int = 0
    """Slots in use, at most, of a sentence."""
    max_length: int = 0
    """At least the positions read by any sentence."""

    @property
    def group_size(self) -> int:
        """Hypotheses of one sentence."""
        return self.past.size(1)

    @property
    def has_room(self) -> bool:
        """Whether there is a slot for each hypothesis's newest position."""
        return self.num_slots + self.group_size <= self.past.size(-1)

    def advance(self) -> Bool[Tensor, "sentences 1 group slots"]:
        """Take a slot for each hypothesis's newest position; what each sees now."""
        if not self.has_room:
            self._make_room()
        group_size = self.group_size
        first = self.num_slots
        own = torch.eye(group_size, dtype=torch.bool, device=self.past.device)
        self.past[:, :, first : first + group_size] = own
        self.positions[:, first : first + group_size] = self.lengths[:, None]
        self.num_slots += group_size
        self.lengths = self.lengths + 1
        self.max_length += 1
        return self.past[:, None, :, : self.num_slots]

    def _make_room(self) -> None:
        """Have room for more slots, once those that are nobody's past are gone.

        There are many of these in wide groups, whose hypotheses often have their past
        in common.
        """
        if self.num_slots > 0:
            self._close_up()
        self._fit_slots(room_ahead(self.num_slots, self.group_size))

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        They are numbered through all groups.
        """
        if self._are_all(rows):
            return
        sentences, parents = rows[:, 0] // self.group_size, rows % self.group_size
        self.past = self.past[sentences[:, None], parents]
        unchanged = torch.arange(len(self.memory_mask), device=rows.device)
        if not torch.equal(sentences, unchanged):
            self.lengths = self.lengths.index_select(0, sentences)
            self._keep_stores(sentences)

    def _keep_stores(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep what these sentences have stored, in this order."""
        for layer in self.layers:
            layer.keep_sentences(sentences)
        self.memory_mask = self.memory_mask.index_select(0, sentences)
        self.positions = self.positions.index_select(0, sentences)

    def _are_all(self, rows: Int[Tensor, "kept group"]) -> bool:
        """Whether all go on as they stand."""
        if rows.shape != self.past.shape[:2]:
            return False
        numbers = torch.arange(rows.numel(), device=rows.device)
        return torch.equal(rows.flatten(), numbers)

    def join(self, other: "DecodingState") -> None:
        """Put the sentences of another, in as large groups, behind one's own.

        The other is of no use any more. What is only padding now goes.
        """
        both = (self, other)
        for state in both:
            state._close_up()
        self.num_slots = max(state.num_slots for state in both)
        room = room_ahead(self.num_slots, self.group_size)
        # Padding stands last.
        width = max(int(state.memory_mask.sum(dim=-1).max()) for state in both)
        for state in both:
            state._fit_slots(room)
            state._fit_memory(width)
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.join(theirs)
        self.memory_mask = torch.cat([self.memory_mask, other.memory_mask])
        self.past = torch.cat([self.past, other.past])
        self.positions = torch.cat([self.positions, other.positions])
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.max_length = int(self.lengths.max())

    def _close_up(self) -> None:
        """Forget slots that are nobody's past."""
        is_used = self.past[..., : self.num_slots].any(dim=1)
        self.num_slots = int(is_used.sum(dim=1).max())
        # Those in use first, in the order that they had.
        order = (~is_used).int().argsort(dim=1, stable=True)[:, : self.num_slots]
        self.past = self.past.gather(2, order[:, None].expand(-1, self.group_size, -1))
        self.positions = self.positions.gather(1, order)
        for layer in self.layers:
            layer.keep_slots(order)

    def _fit_slots(self, num_slots: int) -> None:
        for layer in self.layers:
            layer.fit_slots(num_slots)
        self.past = fitted(self.past, num_slots, dim=2)
        self.positions = fitted(self.positions, num_slots, dim=1)

    def _fit_memory(self, width: int) -> None:
        for layer in self.layers:
            layer.fit_memory(width)
        self.memory_mask = fitted(self.memory_mask, width, dim=3)


def new_state(
    layers: list[LayerCache], mask: Bool[Tensor, "sentences 1 1 source"]
) -> DecodingState:
    """That before the first step, with one hypothesis a sentence."""
    sentences = len(mask)
    room = layers[0].key.size(2)
    return DecodingState(
        layers=layers,
        memory_mask=mask,
        past=mask.new_zeros(sentences, 1, room),
        positions=mask.new_zeros(sentences, room, dtype=torch.int64),
        lengths=mask.new_zeros(sentences, dtype=torch.int64),
    )


def fitted(tensor: Tensor, size: int, dim: int) -> Tensor:
    """The tensor cut at its end in one dimension, or with zeros after it."""
    missing = size - tensor.size(dim)
    if missing <= 0:
        return tensor.narrow(dim, 0, size)
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def _taken(
    stored: Float[Tensor, "sentences heads slots width"],
    slots: Int[Tensor, "sentences kept"],
) -> Float[Tensor, "sentences heads kept width"]:
    sentences, heads, num_slots, width = stored.shape
    # Whole rows, which is several times as fast as `gather`, number by number.
    stores = torch.arange(sentences * heads, device=slots.device)
    first = stores.view(sentences, heads, 1) * num_slots
    rows = stored.reshape(-1, width).index_select(0, (first + slots[:, None]).flatten())
    return rows.view(sentences, heads, -1, width)
