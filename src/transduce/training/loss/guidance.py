"""Attention that is shown where to look (Garg et al., 2019).

A parser writes one symbol for each word, in their order, so that the word it is about
to take is known while it learns. One head of the attention to the memory is taught to
look there: small treebanks do not teach it to count.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.data.tensors import Batch
from transduce.model.layers import DecoderLayer
from transduce.model.transformer import Transformer
from transduce.special_ids import EOS, PAD


def word_beginnings(pieces: Iterable[str]) -> Bool[Tensor, " source_vocab"]:
    """By id, whether a word begins there; the end token is a word too, the last."""
    return torch.tensor([i == EOS or p.startswith(" ") for i, p in enumerate(pieces)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Which token of the source each symbol of the target has to do with.

    The tensors are on the device of the batches.
    """

    weight: float
    """Of this loss beside the cross-entropy."""
    begins_word: Bool[Tensor, " source_vocab"]
    """By source token, as `word_beginnings` has them."""
    takes_word: Bool[Tensor, " target_vocab"]
    """By target token: whether it stands for the next word."""

    def next_word(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Bool[Tensor, "batch target source"]:
        """The tokens of the first word that is not taken yet, or the end token."""
        words = self.begins_word[source].cumsum(1) - 1
        taken = self.takes_word[target_in].cumsum(1)
        is_next = words[:, None, :] == taken[:, :, None]
        return is_next & (source != PAD)[:, None, :]

    def loss(
        self, weights: Float[Tensor, "batch heads target source"], batch: Batch
    ) -> Float[Tensor, ""]:
        """The first head's surprise at the next word, summed over tokens: in nats."""
        # Unlike the paper: one head of a parser is taught where to look, if that is
        # asked for.
        is_next = self.next_word(batch.source, batch.target_in)
        attention = (weights[:, 0].float() * is_next).sum(dim=-1)
        # Attention that is too little for a number is still not quite none.
        least = torch.finfo(attention.dtype).eps
        is_token = batch.target_out != PAD
        return -self.weight * attention[is_token].clamp(min=least).log().sum()


@contextmanager
def watched_attention(
    model: Transformer,
) -> Iterator[list[Float[Tensor, "batch heads target source"]]]:
    """Where the decoder's last layer but one looks in the memory, at each call."""
    layer = model.decoder_layers[max(len(model.decoder_layers) - 2, 0)]
    assert isinstance(layer, DecoderLayer)
    watched: list[Tensor] = []
    tap = layer.memory_attention.weights_tap.register_forward_hook(
        lambda _, __, weights: watched.append(weights)
    )
    try:
        yield watched
    finally:
        tap.remove()
