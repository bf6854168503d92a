"""Where a decoder stands between steps, in arrays that kernels keep up.

A sentence has a group of hypotheses, all of which have one store for the keys and
values of their past, as in model/cache.py; slots that are in no past any more are
taken again. Which slots a past is in, how far each sentence is and which are still
there, the kernels say. Of sentences that have left, keys and values are still there
until room is made for others.
"""

import ctypes
from dataclasses import dataclass
from math import ceil

import numpy as np
from jaxtyping import Bool, Float32, Int64

from transduce.decoding.compiled.positions import Positions
from transduce.decoding.kernels.fields import StateFields
from transduce.errors import RequestError
from transduce.kernels.loading import address, room_for
from transduce.machine import free_memory
from transduce.model.config import ModelConfig

MOST_LANES = 16
"""Numbers that a kernel of any build reads at once, of the memory's keys without asking
how many there are."""

MUCH_MEMORY = 2**28
"""Bytes of stores above which free memory is checked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """Of what there is to be room for."""

    sentences: int
    group: int
    room: int
    """Slots of a sentence, and positions that it can read."""
    source: int
    """Positions of the memory."""


class Stores:
    """Keys and values of all layers, without numbers at first."""

    def __init__(self, config: ModelConfig, sizes: StateSizes) -> None:
        layers, heads = config.num_decoder_layers, config.num_heads
        first = layers, sizes.sentences
        _require_memory(config, sizes)
        # All heads of a slot side by side, as those of a hypothesis lie far apart.
        own = [
            room_for(*first, sizes.room, heads, width).swapaxes(2, 3)
            for width in (config.d_k, config.d_v)
        ]
        # The memory's keys in whole blocks, as several are multiplied at once.
        keys = ceil(sizes.source / MOST_LANES) * MOST_LANES
        far = [
            room_for(*first, heads, keys, config.d_k),
            room_for(*first, heads, sizes.source, config.d_v),
        ]
        self.arrays = [*own, *far]
        """Keys and values of the past, then of the memory, each [layers, sentences,
        heads, slots, width]; of the memory's keys, kernels write blocks of slots by
        columns."""
        numbers: list[int] = []
        for layer in range(layers):
            for store in self.arrays:
                numbers += _store(store[layer])
        self.fields = (ctypes.c_int64 * len(numbers))(*numbers)
        """`LayerCache` of decoder.h for each: four times `Store`, all of 64 bits."""


def _require_memory(config: ModelConfig, sizes: StateSizes) -> None:
    """Raise `RequestError` if large stores do not fit in free memory."""
    positions = sizes.sentences * (sizes.room + sizes.source)
    of_position = config.num_heads * (config.d_k + config.d_v)
    pasts = sizes.sentences * sizes.group * sizes.room
    needed = 4 * (config.num_decoder_layers * positions * of_position + pasts)
    if needed < MUCH_MEMORY:
        return  # reading the free memory would take longer than a step
    if needed > (free := free_memory(1)):
        raise RequestError(
            f"Decoding needs {needed / 2**30:,.1f} GiB for the keys and values of "
            f"{sizes.group:,} hypotheses of {sizes.sentences:,} sentences, but "
            f"{free / 2**30:,.1f} GiB are free; search with a smaller beam, or for "
            "shorter translations."
        )


def _store(array: Float32[np.ndarray, "sentences heads rows width"]) -> list[int]:
    """Where it begins, and how far sentences, heads and rows lie apart."""
    *between, _ = (each // array.itemsize for each in array.strides)
    return [array.__array_interface__["data"][0], *between]


class DecoderState:
    """That of a batch of hypotheses."""

    def __init__(
        self,
        config: ModelConfig,
        positions: Positions,
        sizes: StateSizes,
        memory_mask: Bool[np.ndarray, "sentences source"],
        *,
        is_watched: bool = False,
    ) -> None:
        """Empty state; others fill in what has been read.

        A watched state sums the attention of hypotheses to the memory.
        """
        self.stores = Stores(config, sizes)
        self._memory_mask = memory_mask
        self._past = room_for(sizes.sentences, sizes.group, sizes.room, dtype=np.int32)
        self._lengths = np.zeros(sizes.sentences, np.int64)
        self._places = np.arange(sizes.sentences)
        shape = (sizes.sentences, sizes.group, sizes.source)
        self._attention = np.zeros(shape, np.float32) if is_watched else None
        self.positions = positions(sizes.room)
        """Of the model: all that there is room for."""
        self.fields = StateFields(
            sentences=sizes.sentences,
            group=sizes.group,
            room=sizes.room,
            source=sizes.source,
            past=address(self._past, np.int32),
            lengths=address(self._lengths, np.int64),
            places=address(self._places, np.int64),
            memory_mask=address(memory_mask, np.bool_),
            attention=None if self._attention is None else address(self._attention),
            layers=self.stores.fields,
        )

    @property
    def is_watched(self) -> bool:
        """Whether the state sums attention to the memory."""
        return self._attention is not None

    def regroup(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these, in groups of another size, or sentences in another order."""
        fields = self.fields
        sentences, parents = rows[:, 0] // fields.group, rows % fields.group
        past = self._past[: fields.sentences]
        self._past = past[sentences[:, None], parents]
        if self._attention is not None:
            attention = self._attention[: fields.sentences]
            self._attention = attention[sentences[:, None], parents]
            fields.attention = address(self._attention)
        self._lengths = self._lengths[sentences]
        self._places = self._places[sentences]
        fields.sentences, fields.group = rows.shape
        fields.past = address(self._past, np.int32)
        fields.lengths = address(self._lengths, np.int64)
        fields.places = address(self._places, np.int64)
