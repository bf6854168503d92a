"""Attention weights of every layer and head, between sub-words and between words.

Forward hooks on each attention's `weights_tap`, through which its weights pass, record
the weights.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from threading import get_ident

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.architectures.config import architecture_of
from transduce.architectures.interface import TransductionModel
from transduce.architectures.mixture_of_experts import (
    MixtureDecoderLayer,
    MixtureEncoderLayer,
    MixtureTransformer,
)
from transduce.device import for_inference
from transduce.errors import RequestError
from transduce.model.attention import MultiHeadAttention, recorded_weights
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.model.layers import (
    DecoderLayer,
    EncoderLayer,
    RecurrentDecoderLayer,
)
from transduce.model.transformer import Transformer
from transduce.text.inline_tags import BYTE
from transduce.text.languages import UNSPACED_LETTER, UNSPACED_LETTERS
from transduce.text.vocabulary import PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaps:
    """Attention weights of one sentence pair.

    Target positions are those of the decoder's input, which starts with `<s>`.
    """

    encoder: Float[Tensor, "layers heads source source"] | None
    """None for an encoder without self-attention."""
    decoder: Float[Tensor, "decoder_layers heads target target"] | None
    """None for a decoder without self-attention."""
    encoder_decoder: Float[Tensor, "decoder_layers heads target source"]

    @property
    def kinds(self) -> list[AttentionKind]:
        """Kinds of attention that the model has."""
        return [kind for kind in ATTENTION_KINDS if self._of(kind) is not None]

    def of(self, kind: AttentionKind) -> Float[Tensor, "layers heads queries keys"]:
        """Maps of one kind of attention; `RequestError` if the model has none."""
        if (found := self._of(kind)) is None:
            choices = " or ".join(f'"{each}"' for each in self.kinds)
            raise RequestError(
                "The attention must be of a kind that the model has, but its "
                f"{kind} has no self-attention; choose {choices}."
            )
        return found

    def _of(
        self, kind: AttentionKind
    ) -> Float[Tensor, "layers heads queries keys"] | None:
        match kind:
            case "encoder":
                return self.encoder
            case "decoder":
                return self.decoder
            case "encoder-decoder":
                return self.encoder_decoder


def attentions(
    model: Transformer | MixtureTransformer,
) -> dict[AttentionKind, list[MultiHeadAttention]]:
    """Attention modules of a model by kind, layer by layer.

    A decoder with recurrent units has no kind "decoder".
    """
    encoder_layers = [
        layer
        for layer in model.encoder_layers
        if isinstance(layer, EncoderLayer | MixtureEncoderLayer)
    ]
    decoder_layers = [
        layer
        for layer in model.decoder_layers
        if isinstance(layer, DecoderLayer | RecurrentDecoderLayer | MixtureDecoderLayer)
    ]
    found: dict[AttentionKind, list[MultiHeadAttention]] = {
        "encoder": [layer.self_attention for layer in encoder_layers],
        "decoder": [
            layer.self_attention
            for layer in decoder_layers
            if not isinstance(layer, RecurrentDecoderLayer)
        ],
        "encoder-decoder": [layer.cross_attention for layer in decoder_layers],
    }
    return {kind: layers for kind, layers in found.items() if layers}


def _taps(model: TransductionModel) -> dict[AttentionKind, Sequence[nn.Module]]:
    """Modules that the weights of each kind of attention pass through.

    Raises `RequestError` if there are none.
    """
    if isinstance(model, Transformer | MixtureTransformer):
        return {
            kind: [layer.weights_tap for layer in layers]
            for kind, layers in attentions(model).items()
        }
    if not model.cross_attention_taps:
        raise RequestError(
            "A model whose attention is shown must have attention, but the "
            f'architecture "{architecture_of(model.config)}" has none; choose another '
            "model."
        )
    # The other architectures have no self-attention.
    return {"encoder-decoder": model.cross_attention_taps}


@for_inference
def attention_maps(
    model: TransductionModel,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[AttentionMaps]:
    """Attention maps of each pair of a batch, without padding.

    Raises `RequestError` if the model has no attention.
    """
    with ExitStack() as stack:
        recorded = {
            kind: [stack.enter_context(recorded_weights(tap)) for tap in taps]
            for kind, taps in _taps(model).items()
        }
        model.decode(target_in, model.encode(source))
    whole = {
        kind: torch.stack([weights for (weights,) in layers], dim=1).float().cpu()
        for kind, layers in recorded.items()
    }
    lengths = zip(_lengths(source), _lengths(target_in), strict=True)
    return [
        AttentionMaps(
            encoder=whole["encoder"][i, :, :, :m, :m] if "encoder" in whole else None,
            decoder=whole["decoder"][i, :, :, :n, :n] if "decoder" in whole else None,
            encoder_decoder=whole["encoder-decoder"][i, :, :, :n, :m],
        )
        for i, (m, n) in enumerate(lengths)
    ]


@contextmanager
def without_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Mask one head in this thread inside the block: its output is 0 (Michel et al.,
    2019).

    `head` counts from 0. Other threads may use the same model meanwhile, with the head.
    """
    thread = get_ident()

    def mask(_: nn.Module, __: object, weights: Tensor) -> Tensor:
        if get_ident() != thread:
            return weights
        kept = weights.new_ones(weights.size(1), 1, 1)
        kept[head] = 0
        return weights * kept

    hook = attention.weights_tap.register_forward_hook(mask)
    try:
        yield
    finally:
        hook.remove()


def _lengths(ids: Int[Tensor, "batch length"]) -> list[int]:
    lengths: list[int] = (ids != PAD).sum(dim=1).tolist()
    return lengths


_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_JOINERS = "\u200c\u200d"
"""Zero-width non-joiner, as within Persian words, and the zero-width joiner between
emoji that are drawn as one."""
_ENDS_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]$")


def word_starts(pieces: Sequence[str]) -> list[int]:
    """Indices of the first piece of each word, for pieces of `Tokenizer.pieces`.

    The first piece of a word begins with a space. A piece without letters and digits is
    a word of its own, and so is a piece of a script without spaces.
    """
    starts: list[int] = []
    before = ""
    for i, text in enumerate(piece_texts(pieces)):
        if i == 0 or (text and _begins_word(text, before)):
            starts.append(i)
        before = text or before
    return starts


def _begins_word(text: str, before: str) -> bool:
    if text.startswith(" "):
        return True
    continues = unicodedata.category(text[0])[0] == "M" or text[0] in _JOINERS
    if not before.strip() or continues or before[-1] in _JOINERS:
        return False
    return (
        _is_punctuation(text)
        or _is_punctuation(before)
        or UNSPACED_LETTER.match(text) is not None
        or _ENDS_UNSPACED.search(before) is not None
    )


def piece_texts(pieces: Sequence[str]) -> list[str]:
    """Text of each piece; a letter encoded as bytes is the text of its first byte."""
    texts: list[str] = []
    for is_bytes, run in groupby(pieces, lambda piece: bool(BYTE.fullmatch(piece))):
        found = list(run)
        texts += _decoded([int(p[3:5], 16) for p in found]) if is_bytes else found
    return texts


def _decoded(values: Sequence[int]) -> list[str]:
    texts: list[str] = []
    while (start := len(texts)) < len(values):
        length = next(
            (n for n in (4, 3, 2) if _begins_letter(values[start : start + n], n)), 1
        )
        letter = bytes(values[start : start + length]).decode("utf-8", "replace")
        texts += [letter, *[""] * (length - 1)]
    return texts


def _begins_letter(values: Sequence[int], length: int) -> bool:
    """Whether the bytes are one UTF-8 character of this length."""
    try:
        return len(bytes(values).decode("utf-8")) == 1 and len(values) == length
    except UnicodeDecodeError:
        return False


def _is_punctuation(piece: str) -> bool:
    return piece != " " and not _LETTER_OR_DIGIT.search(piece)


def word_groups(
    starts: Sequence[int], num_pieces: int
) -> Float[Tensor, "pieces words"]:
    """Matrix of 1 where a piece belongs to a word, otherwise 0."""
    groups = torch.zeros(num_pieces, len(starts), dtype=torch.float32, device="cpu")
    for word, (start, end) in enumerate(
        zip(starts, [*starts[1:], num_pieces], strict=True)
    ):
        groups[start:end, word] = 1
    return groups


@for_inference
def between_words(
    weights: Float[Tensor, "*heads queries keys"],
    query_groups: Float[Tensor, "queries query_words"],
    key_groups: Float[Tensor, "keys key_words"],
) -> Float[Tensor, "*heads query_words key_words"]:
    """Attention between words: the mean over a query's pieces, the sum over a key's.

    Every query word must have a piece.
    """
    means = query_groups / query_groups.sum(dim=0)
    return means.T @ weights @ key_groups
