"""The attention weights of a sentence and its translation (Figures 3 to 5)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from transduce.decoding.translator import Translator
from transduce.errors import TooLongError
from transduce.model.attention import MultiHeadAttention
from transduce.special_ids import BOS, EOS

Kind = Literal["encoder", "decoder", "cross"]
MAX_TOKENS = 100
"""Of a side: weights grow with the square of it."""
DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Who attends to whom."""

    queries: list[str]
    keys: list[str]
    weights: list[list[list[list[float]]]]
    """By layer, head, query and key."""


@torch.inference_mode()
def attention_weights(
    translator: Translator, source: str, target: str, kind: Kind
) -> AttentionWeights:
    """Of every layer and head of one of the three attentions.

    In the decoder a query is the token that is read, and so one before the token that
    is put out; queries of "cross" are named by what is put out. `TooLongError` if a
    side has too many tokens.
    """
    tokenizer = translator.tokenizer
    [source_ids] = tokenizer.encode_sources([source])
    [target_ids] = tokenizer.encode_targets([target])
    _require_short(source_ids, "source")
    _require_short(target_ids, "target")
    model = translator.models[0].model
    layers = model.encoder_layers if kind == "encoder" else model.decoder_layers
    name = "memory_attention" if kind == "cross" else "self_attention"
    with _recorded([getattr(layer, name) for layer in layers]) as weights:
        model(
            torch.tensor([[*source_ids, EOS]], device=translator.device),
            torch.tensor([[BOS, *target_ids]], device=translator.device),
        )
    source_pieces = [*tokenizer.pieces(source_ids), " </s>"]
    target_pieces = tokenizer.pieces(target_ids)
    read, put_out = [" <s>", *target_pieces], [*target_pieces, " </s>"]
    queries = {"encoder": source_pieces, "decoder": read, "cross": put_out}[kind]
    keys = read if kind == "decoder" else source_pieces
    return AttentionWeights(queries=queries, keys=keys, weights=weights)


def _require_short(ids: list[int], side: str) -> None:
    if len(ids) > MAX_TOKENS:
        raise TooLongError(
            f"`{side}` must have at most {MAX_TOKENS} tokens for its attention to be "
            f"shown, but has {len(ids)}; ask for one sentence at a time."
        )


@contextmanager
def _recorded(
    attentions: list[MultiHeadAttention],
) -> Iterator[list[list[list[list[float]]]]]:
    """The weights by layer of what is computed within, for one sentence."""
    weights: list[list[list[list[float]]]] = [[] for _ in attentions]

    def record(layer: int, _module: nn.Module, _given: object, found: Tensor) -> None:
        weights[layer] = found[0].double().round(decimals=DIGITS).tolist()

    handles = [
        attention.weights_tap.register_forward_hook(partial(record, layer))
        for layer, attention in enumerate(attentions)
    ]
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()
