"""Attention and beam search of one sentence, as data and as a web page.

The search is the tree of the hypotheses of each step, which is also drawn.
"""

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from rich.cells import cell_len
from torch import Tensor

from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    between_words,
    piece_texts,
    word_groups,
    word_starts,
)
from transduce.analysis.figures import HEAD_COLOURS, LabelledHeads, shortened_label
from transduce.analysis.heads import (
    LEGEND,
    MAX_TOKENS,
    head_statistics,
    head_sums,
    statistics_table,
)
from transduce.decoding.backend import start_search
from transduce.decoding.search import (
    Hypothesis,
    JoinableDecoder,
    Search,
    Sentence,
    coverage_of,
    require_numbers,
    run_search,
    with_shortlists,
)
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import TorchModel
from transduce.decoding.translations import EXCLUDED, Part, allowed_tokens
from transduce.decoding.translator import Translator, possible_search
from transduce.device import for_inference
from transduce.errors import RequestError, TooLongError
from transduce.model.config import AttentionKind
from transduce.report.report import (
    Column,
    Section,
    Table,
    as_html,
    columns,
    whole_page,
    xml_text,
)
from transduce.search_config import SearchConfig
from transduce.text.languages import without_invisible
from transduce.text.shortlist import Shortlist
from transduce.text.tokenizer import normalize
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.linearization import NEVER_WRITTEN, symbols_needed
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import normalized, parse_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Hypothesis kept in the beam at one step, identified by its last token."""

    parent: int | None
    """Index among the branches of the previous step; None in the first step."""
    token: int
    log_probability: float
    """Log-probability of the token, given those before it, times the repetition penalty
    if the hypothesis has it already."""
    total: float
    """Log-probability of the hypothesis so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTree:
    """Beam of each step and the final hypotheses, all best first."""

    steps: tuple[tuple[Branch, ...], ...]
    hypotheses: tuple[Hypothesis, ...]

    def path(self, hypothesis: Hypothesis) -> list[int]:
        """Index of the hypothesis's branch at each step."""
        numbers: list[int] = []
        for branches, token in zip(self.steps, hypothesis.ids, strict=False):
            last = (numbers[-1] if numbers else None, token)
            tokens = [(branch.parent, branch.token) for branch in branches]
            numbers.append(tokens.index(last))
        return numbers


class _RecordedSearch:
    """Search for one sentence that records the hypotheses of each step."""

    def __init__(self, search: Search, repetition_penalty: float) -> None:
        self._search = search
        self._penalty = repetition_penalty
        self._ids: list[tuple[int, ...]] = [()]
        """Tokens of each hypothesis of the last step."""
        self.steps: list[tuple[Branch, ...]] = []

    @property
    def live(self) -> Sequence[Sentence]:
        return self._search.live

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        parents, tokens = self._search.grow(logits)
        if self.live:
            self.steps.append(self._branches(logits[0], parents[0], tokens[0]))
        return parents, tokens

    def join(self, other: Any) -> None:
        raise AssertionError("a recorded search must have one sentence")

    def _branches(
        self,
        logits: Float[Tensor, "group vocab"],
        parents: Int64[np.ndarray, " grown"],
        tokens: Int64[np.ndarray, " grown"],
    ) -> tuple[Branch, ...]:
        log_probs = logits.float().log_softmax(dim=-1)
        before = self.steps[-1] if self.steps else None
        chosen = list(zip(parents.tolist(), tokens.tolist(), strict=True))
        branches = []
        for parent, token in chosen:
            gain = float(log_probs[parent, token])
            if token in self._ids[parent]:
                gain *= self._penalty
            branches.append(
                Branch(
                    parent=None if before is None else parent,
                    token=token,
                    log_probability=gain,
                    total=gain + (0.0 if before is None else before[parent].total),
                )
            )
        self._ids = [(*self._ids[parent], token) for parent, token in chosen]
        return tuple(branches)


@for_inference
def record_search(
    model: TorchModel,
    source: Int[Tensor, "1 source"],
    config: SearchConfig,
    excluded: Sequence[int],
    shortlist: Shortlist | None = None,
    min_limit: int = 0,
) -> SearchTree:
    """Translate one sentence as `Translator` does, recording the beam of each step.

    The `excluded` token ids are never generated. The shortlist is used if the config
    says so. The length limit is that of the config, but at least `min_limit`.
    """
    memory = model.model.encode(source)
    decoder: JoinableDecoder = (
        model.start(memory, sum_attention=True)
        if config.coverage_penalty > 0
        else TorchDecoder(model.stepper, memory)
    )
    if config.shortlist and shortlist is not None:
        part = Part(line=0, number=0, source=source[0, :-1].tolist(), prefix=[])
        decoder = with_shortlists(decoder, allowed_tokens(shortlist, [part], config))
    coverage = coverage_of(decoder, config)
    limit = config.limit(source.size(1), min_limit)
    search = start_search([limit], config, EOS, excluded, coverage=coverage)
    recorded = _RecordedSearch(search, config.repetition_penalty)
    (hypotheses,) = run_search(decoder, recorded, BOS)
    return SearchTree(steps=tuple(recorded.steps), hypotheses=tuple(hypotheses))


LANE, MARGIN, GAP = 46, 24, 48
"""Pixels between ranks, around the drawing, and of a line between two tokens."""
CELL, NARROWEST = 7.5, 62
"""Width of a letter in pixels, where wide ones count twice, and of short tokens."""


def draw_tree(tree: SearchTree, tokens: dict[int, str]) -> str:
    """Draw the search as SVG: a column for each step, its hypotheses best first.

    Below each token is the log-probability up to it. Below the columns are the ends of
    the final hypotheses with their scores.
    """
    best = set(enumerate(tree.path(tree.hypotheses[0])))
    num_lanes = max(map(len, tree.steps), default=1)
    drawn = {branch.token for branches in tree.steps for branch in branches} - {EOS}
    labels = {token: _label(tokens[token]) for token in drawn}
    longest = max(map(cell_len, labels.values()), default=0)
    reach = max(NARROWEST, math.ceil(CELL * longest) + MARGIN // 4)
    shapes = [
        *_branches(tree, labels, best, reach),
        *_ends(tree, num_lanes, reach),
        _node((0, 0), None, "<s>", "", is_best=False, reach=reach),
    ]
    ended = Counter(len(hypothesis.ids) for hypothesis in tree.hypotheses)
    width = MARGIN * 2 + (reach + GAP) * (max([len(tree.steps), *ended]) + 2)
    height = MARGIN * 2 + LANE * (num_lanes + max(ended.values()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="Tree of the search; '
        f'the table below lists its hypotheses">{"".join(shapes)}</svg>'
    )


def _label(piece: str) -> str:
    """Token as it is drawn: without its space, and a long one cut in the middle."""
    return shortened_label(xml_text(piece.strip() or "␣"))


def _branches(
    tree: SearchTree, labels: dict[int, str], best: set[tuple[int, int]], reach: int
) -> Iterator[str]:
    for step, branches in enumerate(tree.steps):
        for lane, branch in enumerate(branches):
            if branch.token == EOS:  # finished; only fills up the beam
                continue
            yield _node(
                (step + 1, lane),
                (step, branch.parent or 0),
                labels[branch.token],
                f"{branch.total:z.2f}",
                is_best=(step, lane) in best,
                reach=reach,
            )


def _ends(tree: SearchTree, num_lanes: int, reach: int) -> Iterator[str]:
    ended: Counter[int] = Counter()
    for hypothesis in tree.hypotheses:
        last, path = len(hypothesis.ids), tree.path(hypothesis)
        yield _node(
            (last + 1, num_lanes + ended[last]),
            (len(path), path[-1] if path else 0),
            "</s>" if hypothesis.is_finished else "cut short",
            f"score {hypothesis.score:z.3f}",
            is_best=hypothesis is tree.hypotheses[0],
            reach=reach,
        )
        ended[last] += 1


def _node(
    place: tuple[int, int],
    parent: tuple[int, int] | None,
    label: str,
    figure: str,
    *,
    is_best: bool,
    reach: int,
) -> str:
    """Draw a token at its step and rank, and the line from its parent.

    A column is `reach` pixels wide.
    """
    x, y = _pixels(place, reach)
    line = ""
    if parent is not None:
        from_x, from_y = _pixels(parent, reach)
        line = f'<line x1="{from_x + reach}" y1="{from_y}" x2="{x - 6}" y2="{y}"/>'
    return (
        f"<g{' class=best' if is_best else ''}>{line}"
        f'<text x="{x}" y="{y}">{escape(label)}</text>'
        f'<text class="quiet" x="{x}" y="{y + 14}">{figure}</text></g>'
    )


def _pixels(place: tuple[int, int], reach: int) -> tuple[int, int]:
    step, lane = place
    return MARGIN + (reach + GAP) * step, MARGIN + LANE * lane + LANE // 4


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
    its target a bracketed tree. Raises `RequestError` if the model has no attention, or
    if a text is empty or too long, `DataError` if a tree is malformed.
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
    model's by default. Raises the errors of `attend`, `ConfigError` if bad words leave
    no translation, and `CheckpointError` if the model's output is not finite.
    """
    config = translator.search.given({}) if config is None else config
    if translator.symbols is None:
        config = possible_search(translator, config)
    source = _Source.read(translator, source_text)
    given = None if target_text is None else _target_ids(translator, target_text)
    search = record_search(
        translator.torch_model,
        _row([*source.ids, EOS], translator),
        config,
        EXCLUDED if translator.symbols is None else NEVER_WRITTEN,
        translator.shortlist,
        source.min_limit,
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
    min_limit: int
    """Smallest length limit: that of some tree, end token included; 0 for text."""

    @classmethod
    def read(cls, translator: Translator, text: str) -> "_Source":
        min_limit = 0
        if translator.symbols is not None:
            words = penn_words(text)
            text = " ".join(map(translator.symbols.read_word, words))
            min_limit = symbols_needed(len(words), 0) + 1
        (ids,) = translator.source_ids([text])
        _require_length(ids, "source")
        text = normalize(without_invisible(text))
        return cls(text=text, ids=ids, min_limit=min_limit)


def _target_ids(translator: Translator, text: str) -> list[int]:
    symbols = translator.symbols
    if symbols is None:
        (ids,) = translator.tokenizer.encode_targets([text])
    else:
        tree = normalized(parse_tree(text))
        line = symbols.target_line(tree) if tree.leaves else ""
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
        translator.torch_model.model,
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


def as_record(sentence: SentenceAttention, granularity: Granularity) -> dict[str, Any]:
    """Return the texts, the hypotheses and the weights of all heads, for JSON.

    A weight is at `weights[layer][head][query][key]`.
    """
    pair = sentence.pair
    heads = {kind: pair.heads_of(kind, granularity) for kind in pair.maps.kinds}
    return {
        "source": pair.source_text,
        "target": pair.target_text,
        "is_given": sentence.is_forced,
        "granularity": granularity,
        "attention": {
            kind: {
                "queries": each.queries,
                "keys": each.keys,
                "weights": each.weights.tolist(),
            }
            for kind, each in heads.items()
        },
        "hypotheses": [
            {
                "text": text,
                "score": hypothesis.score,
                "log_probability": hypothesis.log_probability,
            }
            for hypothesis, text in zip(
                sentence.search.hypotheses, sentence.found, strict=True
            )
        ],
    }


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
        '<dl class="texts"><dt>Source</dt>'
        f'<dd dir="auto">{escape(sentence.pair.source_text)}</dd>'
        f"<dt>{written}</dt>"
        f'<dd dir="auto">{escape(sentence.pair.target_text)}</dd></dl>'
    )


def _data(sentence: SentenceAttention) -> str:
    """Data for the page's script; weights are little-endian float32 in base64."""
    pair = sentence.pair
    cross = pair.maps.encoder_decoder
    data = {
        "source": _axis(pair.source),
        "read": _axis(pair.target_in),
        "written": _axis(pair.target_out),
        # The layer with the sharpest mean of heads is shown first.
        "layer": int(cross.mean(dim=1).amax(dim=-1).mean(dim=-1).argmax()),
        "colours": HEAD_COLOURS,
        "maps": {kind: _weights(pair.maps.of(kind)) for kind in pair.maps.kinds},
    }
    # A text must not be able to close the element.
    text = json.dumps(data).replace("<", "\\u003c")
    return f'<script type="application/json" id="attention">{text}</script>'


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
            statistics_table(head_statistics(head_sums([sentence.pair.maps]))),
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
            f"{hypothesis.score:z.3f}",
            f"{hypothesis.log_probability:z.3f}",
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
            "The score is the log-probability divided by the length penalty, plus the "
            "coverage penalty if there is one.",
            Table(columns=(*heads, Column(name="text", is_text=True)), rows=rows),
        ),
    )
