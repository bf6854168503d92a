"""Attention and beam search of one sentence, as data and as a web page."""

import json
from base64 import b64encode
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    between_words,
    piece_texts,
    word_groups,
    word_starts,
)
from transduce.analysis.figures import HEAD_COLOURS, LabelledHeads
from transduce.analysis.heads import LEGEND, head_statistics, statistics_table
from transduce.analysis.search_tree import SearchTree, draw_tree, record_search
from transduce.decoding.search import require_numbers
from transduce.decoding.translator import EXCLUDED, Translator
from transduce.errors import RequestError, TooLongError
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.report.report import Column, Section, Table, as_html, columns, whole_page
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import normalize
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import normalized, parse_tree, without_brackets
from transduce.trees.vocabulary import NEVER_WRITTEN

MAX_TOKENS = 128
"""Longest source or target in tokens: attention maps grow with its square."""
BEGIN, END = " <s>", " </s>"
CONTINUED = "·"

Granularity = Literal["words", "sub-words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens along one axis of an attention map."""

    pieces: tuple[str, ...]
    """Sub-words, `<s>` and `</s>`; the first piece of a word begins with a space."""
    starts: tuple[int, ...]
    """Index of each word's first piece; `<s>` and `</s>` count as words."""

    @property
    def labels(self) -> list[str]:
        """Readable pieces; those that continue a word are marked by a dot.

        A letter encoded as bytes is shown at its first byte.
        """
        return [
            text.strip() or "␣" if i in self.starts else CONTINUED + text
            for i, text in enumerate(piece_texts(self.pieces))
        ]

    @property
    def words(self) -> list[str]:
        """Whole words, with `<s>` and `</s>`."""
        ends = [*self.starts[1:], len(self.pieces)]
        letters = piece_texts(self.pieces)
        return [
            "".join(letters[start:end]).strip()
            for start, end in zip(self.starts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAttention:
    """Attention weights between the tokens of a source and a target."""

    source_text: str
    target_text: str
    source: Tokens
    target_in: Tokens
    """Input of the decoder."""
    target_out: Tokens
    """Output of the decoder at the same positions."""
    maps: AttentionMaps

    def axes(self, kind: AttentionKind) -> tuple[Tokens, Tokens]:
        """Queries and keys of a kind of attention."""
        match kind:
            case "encoder":
                return self.source, self.source
            case "decoder":
                return self.target_in, self.target_in
            case "encoder-decoder":
                return self.target_out, self.source

    def heads_of(self, kind: AttentionKind, granularity: Granularity) -> LabelledHeads:
        """Heads of a kind of attention, with labelled queries and keys."""
        queries, keys = self.axes(kind)
        weights = self.maps.of(kind)
        if granularity == "sub-words":
            return LabelledHeads(
                weights=weights, queries=tuple(queries.labels), keys=tuple(keys.labels)
            )
        groups = [
            word_groups(axis.starts, len(axis.pieces)) for axis in (queries, keys)
        ]
        return LabelledHeads(
            weights=between_words(weights, *groups),
            queries=tuple(queries.words),
            keys=tuple(keys.words),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceAttention:
    """Attention of a sentence pair, and the beam search of the source."""

    pair: PairAttention
    is_forced: bool
    """Whether the target was given, not found by the search."""
    is_parse: bool
    """Whether the target is the linearized tree of a parser."""
    search: SearchTree
    found: tuple[str, ...]
    """Text of each hypothesis of the search."""
    tokens: dict[int, str]
    """Pieces of the token ids in the search."""


def attend(translator: Translator, source_text: str, target_text: str) -> PairAttention:
    """Compute the attention of the first model of an ensemble for a sentence pair.

    A parser's source is raw English, which is tokenized as in the Penn Treebank, and
    its target a bracketed tree. Raises `RequestError` if a text is empty or too long,
    `DataError` if a tree is malformed.
    """
    source = _Source.read(translator, source_text)
    return _attend(translator, source, _target_ids(translator, target_text))


def look_into(
    translator: Translator,
    source_text: str,
    target_text: str | None,
    config: SearchConfig | None = None,
) -> SentenceAttention:
    """Record the attention and the beam search of a sentence.

    The target is the best hypothesis, unless one is given. The search settings are the
    model's by default. Raises the errors of `attend`, and `CheckpointError` if the
    model's output is not finite.
    """
    source = _Source.read(translator, source_text)
    given = None if target_text is None else _target_ids(translator, target_text)
    search = record_search(
        translator.torch_model,
        _row([*source.ids, EOS], translator),
        config or translator.search,
        EXCLUDED if translator.symbols is None else NEVER_WRITTEN,
    )
    require_numbers([each.log_probability for each in search.hypotheses])
    target_ids = given or list(search.hypotheses[0].ids)
    written = translator.symbols or translator.tokenizer
    ids = {branch.token for branches in search.steps for branch in branches}
    ids |= {i for hypothesis in search.hypotheses for i in hypothesis.ids}
    return SentenceAttention(
        pair=_attend(translator, source, target_ids),
        is_forced=given is not None,
        is_parse=translator.symbols is not None,
        search=search,
        found=tuple(written.decode(h.ids) for h in search.hypotheses),
        tokens=dict(zip(ids, written.pieces(ids), strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    text: str
    ids: list[int]

    @classmethod
    def read(cls, translator: Translator, text: str) -> "_Source":
        if translator.symbols is not None:
            text = " ".join(map(without_brackets, penn_words(text)))
        (ids,) = translator.tokenizer.encode_sources([text])
        _require_length(ids, "source")
        return cls(text=normalize(text), ids=ids)


def _target_ids(translator: Translator, text: str) -> list[int]:
    symbols = translator.symbols
    if symbols is None:
        (ids,) = translator.tokenizer.encode_targets([text])
    else:
        line = symbols.target_line(normalized(parse_tree(text)))
        (ids,) = symbols.encode_targets([line])
    _require_length(ids, "target")
    return ids


def _require_length(ids: list[int], side: str) -> None:
    if not ids:
        raise RequestError(f"The {side} must have at least one word, but is empty.")
    if len(ids) > MAX_TOKENS:
        raise TooLongError(
            f"The {side} must have at most {MAX_TOKENS} tokens, as attention maps grow "
            f"with its square, but has {len(ids):,}; give a single sentence."
        )


def _attend(
    translator: Translator, source: _Source, target_ids: list[int]
) -> PairAttention:
    (maps,) = attention_maps(
        translator.torch_model.transformer,
        _row([*source.ids, EOS], translator),
        _row([BOS, *target_ids], translator),
    )
    written = translator.symbols or translator.tokenizer
    target_pieces = written.pieces(target_ids)
    return PairAttention(
        source_text=source.text,
        target_text=written.decode(target_ids),
        source=_tokens(translator.tokenizer.pieces(source.ids), last=END),
        target_in=_tokens(target_pieces, first=BEGIN),
        target_out=_tokens(target_pieces, last=END),
        maps=maps,
    )


def _row(ids: list[int], translator: Translator) -> Int[Tensor, "1 length"]:
    return torch.tensor([ids], device=translator.device)


def _tokens(pieces: list[str], first: str = "", last: str = "") -> Tokens:
    before, after = [first] if first else [], [last] if last else []
    starts = [len(before) + start for start in word_starts(pieces)]
    ends = [len(before) + len(pieces)] if last else []
    return Tokens(
        pieces=(*before, *pieces, *after),
        starts=(*range(len(before)), *starts, *ends),
    )


def as_page(sentence: SentenceAttention) -> str:
    """Self-contained HTML page with scripts, for light and dark screens and print."""
    return whole_page(
        "Attention",
        [
            _texts(sentence),
            _asset("attention.html"),
            as_html(_statistics(sentence)),
            _search_tree(sentence),
            as_html(_hypotheses(sentence)),
            _data(sentence),
        ],
        style=_asset("attention.css"),
        script=_asset("attention.js"),
    )


def _asset(name: str) -> str:
    package = files("transduce.analysis")
    return (package / name).read_text(encoding="utf-8")


def _texts(sentence: SentenceAttention) -> str:
    written = "Symbols of the tree" if sentence.is_parse else "Translation"
    if sentence.is_forced:
        written += ", as given"
    return (
        f'<dl class="texts"><dt>Source</dt><dd>{escape(sentence.pair.source_text)}</dd>'
        f"<dt>{written}</dt><dd>{escape(sentence.pair.target_text)}</dd></dl>"
    )


def _data(sentence: SentenceAttention) -> str:
    """Data for the page's script; weights are little-endian float32 in base64."""
    pair = sentence.pair
    data = {
        "source": _axis(pair.source),
        "read": _axis(pair.target_in),
        "written": _axis(pair.target_out),
        "layer": _clearest_layer(pair.maps.encoder_decoder),
        "colours": HEAD_COLOURS,
        "maps": {kind: _weights(pair.maps.of(kind)) for kind in ATTENTION_KINDS},
    }
    # A text must not be able to close the element.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="attention">{text}</script>'


def _clearest_layer(
    weights: Float[Tensor, "layers heads target source"],
) -> int:
    """Index of the layer with the sharpest mean of heads, which is shown first."""
    return int(weights.mean(dim=1).amax(dim=-1).mean(dim=-1).argmax())


def _axis(tokens: Tokens) -> dict[str, Any]:
    return {
        "pieces": tokens.pieces,
        "starts": tokens.starts,
        "labels": tokens.labels,
        "words": tokens.words,
    }


def _weights(weights: Float[Tensor, "layers heads queries keys"]) -> dict[str, Any]:
    numbers = weights.numpy().astype("<f4", copy=False)
    text = b64encode(np.ascontiguousarray(numbers).tobytes()).decode("ascii")
    return {"shape": list(weights.shape), "weights": text}


def _statistics(sentence: SentenceAttention) -> Section:
    return Section(
        title="Statistics of the heads",
        parts=(
            f"Means over the tokens of this sentence. {LEGEND}",
            statistics_table(head_statistics([sentence.pair.maps])),
        ),
    )


def _search_tree(sentence: SentenceAttention) -> str:
    picture = draw_tree(sentence.search, sentence.tokens)
    return (
        "<section><h2>Beam search</h2><p>Each column is a step and lists the "
        "hypotheses kept in the beam, best first, with their log-probability so far. "
        "The path of the best hypothesis is highlighted.</p>"
        f'<div class="tree" tabindex="0" role="region" aria-label="Search">{picture}'
        "</div></section>"
    )


def _hypotheses(sentence: SentenceAttention) -> Section:
    heads = columns("rank", "score", "log-probability", "tokens")
    rows = tuple(
        (
            str(rank),
            f"{hypothesis.score:.3f}",
            f"{hypothesis.log_probability:.3f}",
            str(len(hypothesis.ids)),
            text,
        )
        for rank, (hypothesis, text) in enumerate(
            zip(sentence.search.hypotheses, sentence.found, strict=True), start=1
        )
    )
    return Section(
        title="Hypotheses",
        parts=(
            "The score is the log-probability divided by the length penalty.",
            Table(columns=(*heads, Column(name="text", is_text=True)), rows=rows),
        ),
    )
