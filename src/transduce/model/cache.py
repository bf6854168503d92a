"""What decoding keeps between steps: keys and values of every layer.

A row is one hypothesis. Rows stand in groups, `beam_size` rows a sentence; what
belongs to the sentence (the keys and values of its memory) is kept once a group.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Keys and values of one decoder layer."""

    key: Float[Tensor, "rows heads past d_k"] | None = None
    value: Float[Tensor, "rows heads past d_v"] | None = None
    memory_key: Float[Tensor, "sentences heads source d_k"]
    memory_value: Float[Tensor, "sentences heads source d_v"]

    def append(
        self,
        key: Float[Tensor, "rows heads new d_k"],
        value: Float[Tensor, "rows heads new d_v"],
    ) -> tuple[
        Float[Tensor, "rows heads keys d_k"], Float[Tensor, "rows heads keys d_v"]
    ]:
        """Add the newest positions and return all."""
        if self.key is not None and self.value is not None:
            key = torch.cat([self.key, key], dim=2)
            value = torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the past, in this order."""
        if self.key is not None and self.value is not None:
            self.key = self.key.index_select(0, rows)
            self.value = self.value.index_select(0, rows)

    def keep_sentences(self, sentences: Int[Tensor, " sentences"]) -> None:
        """Keep the memory of these sentences, in this order."""
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Where the decoder stands in a batch of hypotheses."""

    layers: list[LayerCache]
    memory_mask: Bool[Tensor, "sentences 1 1 source"]
    beam_size: int
    """Rows of one sentence."""
    length: int = 0
    """Positions read so far."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows, in this order; a group's rows are of one sentence."""
        for layer in self.layers:
            layer.reorder(rows)
        sentences = rows[:: self.beam_size] // self.beam_size
        unchanged = torch.arange(len(self.memory_mask), device=rows.device)
        if not torch.equal(sentences, unchanged):
            for layer in self.layers:
                layer.keep_sentences(sentences)
            self.memory_mask = self.memory_mask.index_select(0, sentences)
