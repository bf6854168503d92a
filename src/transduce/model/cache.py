"""What decoding keeps between steps: keys and values of every layer.

A sentence has a group of hypotheses; all groups are equally large. The hypotheses of a
group have one store for the keys and values of their past; whose past a slot of it
belongs to is a mask. So to drop a hypothesis, or to go on from another twice, changes
some bits and copies no key. Keys and values of the memory are kept once a sentence.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FIRST_SLOTS = 32
"""Room for keys and values at the start; doubled as often as needed."""


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
    ) -> tuple[
        Float[Tensor, "sentences heads used d_k"],
        Float[Tensor, "sentences heads used d_v"],
    ]:
        """Put the newest into the last of so many slots, and return all of these."""
        first = num_slots - key.size(2)
        self.key[:, :, first:num_slots] = key
        self.value[:, :, first:num_slots] = value
        return self.key[:, :, :num_slots], self.value[:, :, :num_slots]

    def make_room(self, num_slots: int) -> None:
        """Have at least so many slots."""
        self.key = _padded(self.key, num_slots, dim=2)
        self.value = _padded(self.value, num_slots, dim=2)

    def keep_sentences(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep what belongs to these sentences, in this order."""
        self.key = self.key.index_select(0, sentences)
        self.value = self.value.index_select(0, sentences)
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Where the decoder stands in a batch of hypotheses."""

    layers: list[LayerCache]
    memory_mask: Bool[Tensor, "sentences 1 1 source"]
    past: Bool[Tensor, "sentences group slots"]
    """Which slots of its sentence hold a hypothesis's own past."""
    positions: Int[Tensor, " slots"]
    """Of the token whose key and value a slot holds."""
    num_slots: int = 0
    """Slots in use."""
    length: int = 0
    """Positions read so far."""

    @property
    def group_size(self) -> int:
        """Hypotheses of one sentence."""
        return self.past.size(1)

    def advance(self) -> Bool[Tensor, "sentences 1 group slots"]:
        """Take a slot for each hypothesis's newest position; what each sees now."""
        first, group_size = self.num_slots, self.group_size
        self._make_room(first + group_size)
        own = torch.eye(group_size, dtype=torch.bool, device=self.past.device)
        self.past[:, :, first : first + group_size] = own
        self.positions[first : first + group_size] = self.length
        self.num_slots += group_size
        self.length += 1
        return self.past[:, None, :, : self.num_slots]

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        They are numbered through all groups.
        """
        sentences, parents = rows[:, 0] // self.group_size, rows % self.group_size
        self.past = self.past[sentences[:, None], parents]
        unchanged = torch.arange(len(self.memory_mask), device=rows.device)
        if not torch.equal(sentences, unchanged):
            for layer in self.layers:
                layer.keep_sentences(sentences)
            self.memory_mask = self.memory_mask.index_select(0, sentences)

    def _make_room(self, num_slots: int) -> None:
        room = max(self.past.size(-1), FIRST_SLOTS)
        while room < num_slots:
            room *= 2
        if room > self.past.size(-1):
            for layer in self.layers:
                layer.make_room(room)
            self.past = _padded(self.past, room, dim=2)
            self.positions = _padded(self.positions, room, dim=0)


def _padded(tensor: Tensor, size: int, dim: int) -> Tensor:
    """The tensor with zeros after it in one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size - tensor.size(dim)
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
