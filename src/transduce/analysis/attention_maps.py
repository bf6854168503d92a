"""Attention weights of every layer and head, recorded by forward hooks.

The hooks are on each attention's `weights_tap`, through which its weights pass.
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
    """Attention weights of one sentence pair.

    Target positions are those of the decoder's input, which starts with `<s>`.
    """

    encoder: Float[Tensor, "layers heads source source"]
    decoder: Float[Tensor, "decoder_layers heads target target"]
    encoder_decoder: Float[Tensor, "decoder_layers heads target source"]

    def of(self, kind: AttentionKind) -> Float[Tensor, "layers heads queries keys"]:
        """Maps of one kind of attention."""
        match kind:
            case "encoder":
                return self.encoder
            case "decoder":
                return self.decoder
            case "encoder-decoder":
                return self.encoder_decoder


def attentions(model: Transformer) -> dict[AttentionKind, list[MultiHeadAttention]]:
    """Attention modules of a model by kind, layer by layer."""
    encoder = cast(list[EncoderLayer], list(model.encoder_layers))
    decoder = cast(list[DecoderLayer], list(model.decoder_layers))
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "encoder-decoder": [layer.cross_attention for layer in decoder],
    }


@torch.no_grad()
def attention_maps(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[AttentionMaps]:
    """Attention maps of each pair of a batch, without padding."""
    with ExitStack() as stack:
        recorded = {
            kind: [stack.enter_context(_recorded(each)) for each in layers]
            for kind, layers in attentions(model).items()
        }
        model.decode(target_in, model.encode(source))
    whole = {
        kind: torch.stack([weights for (weights,) in layers], dim=1).float().cpu()
        for kind, layers in recorded.items()
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
    """Cross-attention maps of each pair of a batch, without padding."""
    with ExitStack() as stack:
        layers = attentions(model)["encoder-decoder"]
        recorded = [stack.enter_context(_recorded(each)) for each in layers]
        model.decode(target_in, model.encode(source))
    whole = torch.stack([weights for (weights,) in recorded], dim=1).float().cpu()
    lengths = zip(_lengths(source), _lengths(target_in), strict=True)
    return [whole[i, :, :, :n, :m] for i, (m, n) in enumerate(lengths)]


@contextmanager
def without_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Mask one head inside the block: its output is 0 (Michel et al., 2019).

    `head` counts from 0.
    """

    def mask(_: nn.Module, __: object, weights: Tensor) -> Tensor:
        kept = torch.ones(weights.size(1), 1, 1, device=weights.device)
        kept[head] = 0
        return weights * kept

    hook = attention.weights_tap.register_forward_hook(mask)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _recorded(attention: MultiHeadAttention) -> Iterator[list[Tensor]]:
    """Record the weights of all heads at each forward pass of this thread."""
    recorded: list[Tensor] = []
    thread = threading.get_ident()

    def record(_: nn.Module, __: object, weights: Tensor) -> None:
        # Another thread may translate with the same model meanwhile.
        if threading.get_ident() == thread:
            recorded.append(weights)

    hook = attention.weights_tap.register_forward_hook(record)
    try:
        yield recorded
    finally:
        hook.remove()


def _lengths(ids: Int[Tensor, "batch length"]) -> list[int]:
    lengths: list[int] = (ids != PAD).sum(dim=1).tolist()
    return lengths
