"""One sentence's attention as one page that needs nothing beside it."""

import json
from base64 import b64encode
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_sentence import SentenceAttention, Tokens, draw_tree
from transduce.analysis.figures import HEAD_COLOURS
from transduce.analysis.head_statistics import LEGEND, head_statistics, statistics_table
from transduce.model.config import ATTENTION_KINDS
from transduce.report.content import Column, Section, Table, columns
from transduce.report.page import as_html, whole_page


def as_page(sentence: SentenceAttention) -> str:
    """HTML for any screen, light or dark, and for paper; scripts, but no network."""
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
    package = files("transduce.analysis.attention_report")
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
    """What the script draws; weights are little-endian floats of 32 bits in base64."""
    pair = sentence.pair
    data = {
        "source": _axis(pair.source),
        "read": _axis(pair.target_in),
        "written": _axis(pair.target_out),
        "layer": _clearest_layer(pair.maps.encoder_decoder),
        "colours": HEAD_COLOURS,
        "maps": {kind: _weights(pair.maps.of(kind)) for kind in ATTENTION_KINDS},
    }
    # Nothing in a text may end the element.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="attention">{text}</script>'


def _clearest_layer(
    weights: Float[Tensor, "layers heads target source"],
) -> int:
    """Where the heads agree most on something: what is shown first."""
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
        title="What each head does",
        parts=(
            f"Means over the tokens of this sentence. {LEGEND}",
            statistics_table(head_statistics([sentence.pair.maps])),
        ),
    )


def _search_tree(sentence: SentenceAttention) -> str:
    picture = draw_tree(sentence.search, sentence.tokens)
    return (
        "<section><h2>The search</h2><p>A column for each step, in it the hypotheses "
        "that search went on with, best first; below each the log-probability so far. "
        "The path of the best one stands out.</p>"
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
        title="What the search found",
        parts=(
            "The score is the log-probability over the length penalty.",
            Table(columns=(*heads, Column(name="text", is_text=True)), rows=rows),
        ),
    )
