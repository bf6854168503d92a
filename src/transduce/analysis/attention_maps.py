"""Attention weights of every layer and head, and the word alignment found in them.

Forward hooks on each attention's `weights_tap`, through which its weights pass, record
the weights.

A target word is linked to the source word of its greatest cross-attention
(Bahdanau et al., 2015). The best layer differs between models; for each pair it is the
one in which most words of both sides choose each other, as in Chen et al. (2020).
"""

import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.architectures.interface import TransductionModel
from transduce.data.tensors import pad_rows
from transduce.decoding.translations import similar_lengths
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.model.layers import DecoderLayer
from transduce.model.transformer import Transformer
from transduce.text.inline_tags import Span, WordLinks, units
from transduce.text.languages import UNSPACED_LETTER, UNSPACED_LETTERS
from transduce.text.tokenizer import WordTokenizer
from transduce.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaps:
    """Attention weights of one sentence pair.

    Target positions are those of the decoder's input, which starts with `<s>`.
    """

    encoder: Float[Tensor, "layers heads source source"]
    decoder: Float[Tensor, "decoder_layers heads target target"] | None
    """None for a decoder with recurrent units in place of self-attention."""
    encoder_decoder: Float[Tensor, "decoder_layers heads target source"]

    @property
    def kinds(self) -> list[AttentionKind]:
        """Kinds of attention that the model has."""
        return [
            kind
            for kind in ATTENTION_KINDS
            if kind != "decoder" or self.decoder is not None
        ]

    def of(self, kind: AttentionKind) -> Float[Tensor, "layers heads queries keys"]:
        """Maps of one kind of attention; `RequestError` if the model has none."""
        match kind:
            case "encoder":
                return self.encoder
            case "decoder":
                if self.decoder is None:
                    raise RequestError(
                        "The attention must be of a kind that the model has, but its "
                        "decoder has recurrent units in place of self-attention; "
                        'choose "encoder" or "encoder-decoder".'
                    )
                return self.decoder
            case "encoder-decoder":
                return self.encoder_decoder


def attentions(model: Transformer) -> dict[AttentionKind, list[MultiHeadAttention]]:
    """Attention modules of a model by kind, layer by layer.

    A decoder with recurrent units has no kind "decoder".
    """
    found: dict[AttentionKind, list[MultiHeadAttention]] = {
        "encoder": [layer.self_attention for layer in model.encoder_layers],
        "decoder": [
            layer.self_attention
            for layer in model.decoder_layers
            if isinstance(layer, DecoderLayer)
        ],
        "encoder-decoder": [layer.cross_attention for layer in model.decoder_layers],
    }
    return {kind: layers for kind, layers in found.items() if layers}


@torch.no_grad()
def attention_maps(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[AttentionMaps]:
    """Attention maps of each pair of a batch, without padding."""
    with ExitStack() as stack:
        recorded = {
            kind: [stack.enter_context(_recorded(each.weights_tap)) for each in layers]
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
            decoder=whole["decoder"][i, :, :, :n, :n] if "decoder" in whole else None,
            encoder_decoder=whole["encoder-decoder"][i, :, :, :n, :m],
        )
        for i, (m, n) in enumerate(lengths)
    ]


@torch.no_grad()
def cross_attention_maps(
    model: TransductionModel,
    source: Int[Tensor, "batch source"],
    target_in: Int[Tensor, "batch target"],
) -> list[Float[Tensor, "layers heads queries keys"]]:
    """Cross-attention maps of each pair of a batch, without padding."""
    with ExitStack() as stack:
        taps = model.cross_attention_taps
        recorded = [stack.enter_context(_recorded(each)) for each in taps]
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
def _recorded(tap: nn.Module) -> Iterator[list[Tensor]]:
    """Record the weights of all heads at each forward pass of this thread."""
    recorded: list[Tensor] = []
    thread = threading.get_ident()

    def record(_: nn.Module, __: object, weights: Tensor) -> None:
        # Another thread may translate with the same model meanwhile.
        if threading.get_ident() == thread:
            recorded.append(weights)

    hook = tap.register_forward_hook(record)
    try:
        yield recorded
    finally:
        hook.remove()


def _lengths(ids: Int[Tensor, "batch length"]) -> list[int]:
    lengths: list[int] = (ids != PAD).sum(dim=1).tolist()
    return lengths


_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_JOINER = "\u200d"
"""Zero-width joiner between emoji that are drawn as one."""
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
    continues = unicodedata.category(text[0])[0] == "M" or text[0] == _JOINER
    if not before.strip() or continues or before.endswith(_JOINER):
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
    for is_bytes, run in groupby(pieces, lambda piece: bool(_BYTE.fullmatch(piece))):
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
    groups = torch.zeros(num_pieces, len(starts))
    for word, (start, end) in enumerate(
        zip(starts, [*starts[1:], num_pieces], strict=True)
    ):
        groups[start:end, word] = 1
    return groups


def letter_groups(
    pieces: Sequence[str], words: Sequence[str]
) -> Float[Tensor, "pieces words"]:
    """Matrix of the share of each piece's letters that belong to each word.

    A piece may belong to two words. Each byte of a letter encoded as bytes is a piece.
    The pieces must spell the words: see `have_same_letters`.
    """
    owners = [word for word, text in enumerate(words) for _ in text]
    groups = torch.zeros(len(pieces), len(words))
    at = 0
    for i, piece in enumerate(pieces):
        count = _num_letters(piece)
        # A space belongs to the next word, later bytes of a letter to the first byte's.
        other = at if not piece.strip() and at < len(owners) else at - 1
        letters = owners[at : at + count] or owners[other : other + 1]
        for owner in letters:
            groups[i, owner] += 1 / len(letters)
        at += count
    assert at == len(owners)
    return groups


def have_same_letters(words: Sequence[str], pieces: Sequence[str]) -> bool:
    """Whether the pieces have as many letters as the words.

    Some tokenizers drop unknown characters.
    """
    return sum(map(len, words)) == sum(map(_num_letters, pieces))


def _num_letters(piece: str) -> int:
    """Number of letters that begin in a piece."""
    if byte := _BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return len(piece.replace(" ", ""))


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


MOST_POSITIONS = 2_048
"""Largest batch in positions, padding included."""
MAX_TOKENS = 256
"""Longest sentence: attention maps grow with its square, and longer sentences are
translated in parts."""


def attended_links(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Word links of sentence pairs by the first model of an ensemble.

    None for a pair with a side that is too long, or that the tokenizer cannot
    represent, and for all pairs if the model has no cross-attention.
    """
    tokenizer = translator.tokenizer
    texts = [source for source, _ in pairs]
    untagged = tokenizer.encode_sources(texts)
    sources = translator.source_ids(texts)
    targets = tokenizer.encode_targets([target for _, target in pairs])
    lengths = [
        max(len(source), len(target)) + 1
        for source, target in zip(sources, targets, strict=True)
    ]
    short = [i for i, length in enumerate(lengths) if length <= MAX_TOKENS]
    found: list[WordLinks | None] = [None] * len(pairs)
    model = translator.torch_model.model
    if not model.cross_attention_taps:
        return found
    for batch in similar_lengths([lengths[i] for i in short], MOST_POSITIONS):
        chosen = [short[i] for i in batch]
        maps = cross_attention_maps(
            model,
            pad_rows([[*sources[i], EOS] for i in chosen]).to(translator.device),
            pad_rows([[BOS, *targets[i]] for i in chosen]).to(translator.device),
        )
        for i, weights in zip(chosen, maps, strict=True):
            pieces = (
                # An unknown word has the letters that it has in the text.
                (tokenizer.split(pairs[i][0]), tokenizer.split(pairs[i][1]))
                if isinstance(tokenizer, WordTokenizer)
                else (tokenizer.pieces(untagged[i]), tokenizer.pieces(targets[i]))
            )
            num_tags = len(sources[i]) - len(untagged[i])
            found[i] = _links(pairs[i], pieces, weights[..., num_tags:])
    return found


def _links(
    pair: tuple[str, str],
    pieces: tuple[list[str], list[str]],
    weights: Float[Tensor, "layers heads target source"],
) -> WordLinks | None:
    source, target = units(pair[0]), units(pair[1])
    words = _words(pair[0], source), _words(pair[1], target)
    if not (source and target and all(map(have_same_letters, words, pieces))):
        return None
    groups = [letter_groups(of, texts) for of, texts in zip(pieces, words, strict=True)]
    if any(bool((each.sum(dim=0) == 0).any()) for each in groups):
        return None
    means = weights.mean(dim=1)[..., :-1]  # without the end token of the source
    written, read = means[:, :-1], means[:, 1:]
    by_word = between_words(torch.cat([written, read]), groups[1], groups[0])
    best = by_word[_agreement(by_word).argmax()]
    return WordLinks(
        source=source, target=target, source_of=tuple(best.argmax(dim=-1).tolist())
    )


def _words(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _agreement(
    weights: Float[Tensor, "maps target source"],
) -> Float[Tensor, " maps"]:
    """Number of target words chosen by the source word that they choose."""
    chosen = weights.argmax(dim=-1)
    choosing = weights.argmax(dim=-2)
    back = choosing.gather(-1, chosen)
    return (back == torch.arange(weights.size(-2))).float().sum(dim=-1)
