"""A model by kernels: it reads sources, and begins their translations."""

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from transduce.decoding.compiled.decoder_state import DecoderState, StateSizes
from transduce.decoding.compiled.packed_layers import Pack, PackedLayers
from transduce.decoding.compiled.positions import Positions
from transduce.decoding.kernels.fields import (
    DecoderFields,
    EmbeddingFields,
    EncoderFields,
    NeedsFields,
    SourceFields,
)
from transduce.decoding.kernels.library import loaded_kernels, require_done
from transduce.kernels.loading import address, room_for
from transduce.kernels.openmp import num_threads
from transduce.model.config import ModelConfig
from transduce.model.sizes.room import first_room, room_ahead
from transduce.special_ids import PAD

FAR = 2**62
"""A neighbourhood that is everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemory:
    """What the encoder made of the sources (section 3.2.3)."""

    states: Float32[np.ndarray, "batch source d_model"]
    mask: Bool[np.ndarray, "batch source"]
    """Where a source is no padding."""


class CompiledModel:
    """Encoder and decoder of a config with weights, made ready once."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Float[np.ndarray, "..."]],
        pack: Pack,
    ) -> None:
        self.config = config
        self.library = loaded_kernels()
        self.positions = Positions(config, weights)
        layers = PackedLayers(config, weights, pack)
        has_own_target = config.target_vocab_size is not None
        target = "target_embedding" if has_own_target else "embedding"
        self._embedding = _in_a_row(weights["embedding.weight"])
        self._target_embedding = (
            _in_a_row(weights[f"{target}.weight"])
            if has_own_target
            else self._embedding
        )
        bias = weights[f"{target}.bias"] if config.output_bias else None
        self._encoder = EncoderFields(
            stack=layers.encoder,
            embedding=_embedding(self._embedding),
            neighbourhood=min(config.neighbourhood or FAR, FAR),
        )
        self.fields = DecoderFields(
            stack=layers.decoder,
            embedding=_embedding(self._target_embedding),
            neighbourhood=min(config.neighbourhood or FAR, FAR),
            output=layers.linear(self._target_embedding, bias),
        )
        """Of the decoder."""
        self._kept = layers.kept

    def encode(self, source: Int64[np.ndarray, "batch source"]) -> CompiledMemory:
        """Read the sources (Figure 1, left); what it says of padding is zero.

        `IndexError` if an id is no token.
        """
        sentences, length = source.shape
        source = np.ascontiguousarray(source)
        mask = source != PAD
        positions = self.positions(length)
        states = room_for(sentences, length, self.config.d_model)
        sources = SourceFields(
            sentences=sentences,
            source=length,
            ids=address(source, np.int64),
            mask=address(mask, np.bool_),
        )
        status = self.library.transduce_encode(
            ctypes.byref(self._encoder),
            ctypes.byref(sources),
            address(positions),
            address(states),
            num_threads(),
        )
        require_done(status)
        return CompiledMemory(states=states, mask=mask)

    def start(
        self, memory: CompiledMemory, *, is_watched: bool = False
    ) -> DecoderState:
        """Where the decoder stands before its first step."""
        sentences, source, _ = memory.states.shape
        sizes = StateSizes(
            sentences=sentences, group=1, room=first_room(sentences), source=source
        )
        state = DecoderState(
            self.config, self.positions, sizes, memory.mask, is_watched=is_watched
        )
        status = self.library.transduce_start(
            ctypes.byref(self.fields),
            address(memory.states),
            ctypes.byref(state.fields),
            num_threads(),
        )
        require_done(status)
        return state

    def gathered(self, states: Sequence[DecoderState]) -> DecoderState:
        """The sentences of all, in groups of one size, in stores with more room."""
        [group] = {each.fields.group for each in states}
        [is_watched] = {each.is_watched for each in states}
        needs, measure = NeedsFields(), self.library.transduce_measure
        for each in states:
            require_done(measure(*map(ctypes.byref, (self.fields, each.fields, needs))))
        counts = [each.fields.sentences for each in states]
        needed = max(needs.slots, needs.length)
        sizes = StateSizes(
            sentences=sum(counts),
            group=group,
            # The newest may all stay, while as many are read.
            room=max(room_ahead(needed, group), needed + 2 * group),
            source=needs.source,
        )
        into = DecoderState(
            self.config,
            self.positions,
            sizes,
            np.empty((sizes.sentences, sizes.source), np.bool_),
            is_watched=is_watched,
        )
        for each, first in zip(states, accumulate(counts, initial=0), strict=False):
            status = self.library.transduce_gather(
                ctypes.byref(self.fields),
                ctypes.byref(each.fields),
                ctypes.byref(into.fields),
                first,
            )
            require_done(status)
        return into


def padded_sources(
    sources: Sequence[Sequence[int]],
) -> Int64[np.ndarray, "batch source"]:
    """Rows of ids as one array, padded at the end."""
    rows = np.full((len(sources), max(map(len, sources))), PAD, dtype=np.int64)
    for row, ids in zip(rows, sources, strict=True):
        row[: len(ids)] = ids
    return rows


def _embedding(tokens: Float32[np.ndarray, "vocab d_model"]) -> EmbeddingFields:
    vocab, d_model = tokens.shape
    return EmbeddingFields(
        tokens=address(tokens), vocab=vocab, scale=math.sqrt(d_model)
    )


def _in_a_row(weight: Float[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    return np.ascontiguousarray(weight, dtype=np.float32)
