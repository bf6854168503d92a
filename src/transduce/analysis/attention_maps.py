"""The weights of every layer and head, seen by hooks while the model computes.

Needs of a model what `Transformer` has: `encode`, `decode`, and layers whose
attentions let their weights pass through a tap.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.config import AttentionKind
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaps:
    """What each position of a sentence and its translation attends to.

    A target position is that of the token that is read there: the first is the begin.
    """

    encoder: Float[Tensor, "layers heads source source"]
    decoder: Float[Tensor, "decoder_layers heads target target"]
    encoder_decoder: Float[Tensor, "decoder_layers heads target source"]

    def of(self, kind: AttentionKind) -> Float[Tensor, "layers heads queries keys"]:
        """One of the three."""
        match kind:
            case "encoder":
                return self.encoder
            case "decoder":
                return self.decoder
            case "encoder-decoder":
                return self.encoder_decoder


def attentions(model: Transformer) -> dict[AttentionKind, list[MultiHeadAttention]]:
    """The attentions of a model, layer by layer."""
    encoder = cast(list[EncoderLayer], list(model.encoder_layers))
    decoder = cast(list[DecoderLayer], list(model.decoder_layers))
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "encoder-decoder": [layer.memory_attention for layer in decoder],
    }


@torch.no_grad()
def attention_maps(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[AttentionMaps]:
    """The maps of each pair of a batch, without its padding."""
    with ExitStack() as stack:
        seen = {
            kind: [stack.enter_context(_watched(each)) for each in layers]
            for kind, layers in attentions(model).items()
        }
        model.decode(target_in, model.encode(source))
    whole = {
        kind: torch.stack([weights for (weights,) in layers], dim=1).float().cpu()
        for kind, layers in seen.items()
    }
    lengths = zip(_lengths(source), _lengths(target_in), strict=True)
    return [
        AttentionMaps(
            encoder=whole["encoder"][i, :, :, :m, :m],
            decoder=whole["decoder"][i, :, :, :n, :n],
            encoder_decoder=whole["encoder-decoder"][i, :, :, :n, :m],
        )
        for i, (m, n) in enumerate(lengths)
    ]


@torch.no_grad()
def cross_attention_maps(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[Float[Tensor, "layers heads queries keys"]]:
    """Encoder-decoder attention maps of each pair of a batch, without padding."""
    with ExitStack() as stack:
        layers = attentions(model)["encoder-decoder"]
        seen = [stack.enter_context(_watched(each)) for each in layers]
        model.decode(target_in, model.encode(source))
    whole = torch.stack([weights for (weights,) in seen], dim=1).float().cpu()
    lengths = zip(_lengths(source), _lengths(target_in), strict=True)
    return [whole[i, :, :, :n, :m] for i, (m, n) in enumerate(lengths)]


@contextmanager
def without_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """While this lasts, a head adds nothing to what its layer puts out.

    As if its values were all 0 (Michel et al., 2019).
    """

    def silence(_: nn.Module, __: object, weights: Tensor) -> Tensor:
        kept = torch.ones(weights.size(1), 1, 1, device=weights.device)
        kept[head] = 0
        return weights * kept

    hook = attention.weights_tap.register_forward_hook(silence)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _watched(attention: MultiHeadAttention) -> Iterator[list[Tensor]]:
    """The weights of all heads, each time this thread asks the attention."""
    seen: list[Tensor] = []
    watching = threading.get_ident()

    def keep(_: nn.Module, __: object, weights: Tensor) -> None:
        # Another thread may translate by the same model meanwhile.
        if threading.get_ident() == watching:
            seen.append(weights)

    hook = attention.weights_tap.register_forward_hook(keep)
    try:
        yield seen
    finally:
        hook.remove()


def _lengths(ids: Int[Tensor, "batch length"]) -> list[int]:
    lengths: list[int] = (ids != PAD).sum(dim=1).tolist()
    return lengths
